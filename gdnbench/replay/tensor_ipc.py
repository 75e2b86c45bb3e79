"""Tensors between a worker and its parent: raw bytes in a file, described by a few words of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gdnbench.bits import dtype_name, from_bits, logical, to_bits


def put(file: Path, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Write `tensors` to `file`, one after the other; what `get` needs to read them back."""
    described = []
    with file.open("wb") as out:
        for name, tensor in tensors.items():
            to_bits(tensor).tofile(out)
            described.append({"name": name, "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)})
    return described


def stages_beside(results: Path) -> Path:
    """The file of a kernel's stages, for the file of its outputs."""
    return results.with_suffix(".stages")


def get(file: Path, described: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The tensors that `put` wrote."""
    found = {}
    with file.open("rb") as source:
        for entry in described:
            storage = logical(entry["dtype"]).storage
            count = int(np.prod(entry["shape"], dtype=np.int64))
            bits = np.fromfile(source, dtype=storage, count=count)
            if len(bits) != count:
                raise EOFError(f"{file} ends inside {entry['name']}")
            found[entry["name"]] = from_bits(bits, entry["dtype"]).reshape(entry["shape"])
    return found
