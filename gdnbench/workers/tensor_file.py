# SPDX-License-Identifier: Apache-2.0
"""Tensors that a worker hands to its parent: raw bytes in a file, described by a few words of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gdnbench.bits import dtype_name, from_bits, logical, to_bits


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Writes `tensors` to `file`, one after another. Returns name, dtype and shape of each, plain JSON that
    `read_tensors` needs."""
    described = []
    with file.open("wb") as out:
        for name, tensor in tensors.items():
            to_bits(tensor).tofile(out)
            described.append({"name": name, "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)})
    return described


def read_tensors(file: Path, described: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The tensors that `write_tensors` wrote, by name. EOFError if the file is too short."""
    tensors = {}
    with file.open("rb") as source:
        for entry in described:
            storage = logical(entry["dtype"]).storage
            count = int(np.prod(entry["shape"], dtype=np.int64))
            bits = np.fromfile(source, dtype=storage, count=count)
            if len(bits) != count:
                raise EOFError(f"{file} ends inside {entry['name']}")
            tensors[entry["name"]] = from_bits(bits, entry["dtype"]).reshape(entry["shape"])
    return tensors
