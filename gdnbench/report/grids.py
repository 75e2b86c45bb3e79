# SPDX-License-Identifier: Apache-2.0
"""Reads the grids of a saved run: the inverse of `export.grid_json`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np

from gdnbench.errors import BadInputError
from gdnbench.judge.grid import Grid
from gdnbench_kernels.contract import Region


def grid_from_json(value: Mapping[str, Any], where: str) -> Grid:
    """The grid that `grid_json` wrote as `value`; BadInputError with `where` for anything else."""
    try:
        regions = tuple(
            Region(int(start), int(start) + int(rows), int(sequence), None if chunk is None else int(chunk))
            for sequence, chunk, start, rows in value["regions"]
        )
        heads, axes = int(value["heads"]), tuple(map(str, value["axes"]))
        shape = (len(regions), heads)
        torchs = value["torch_rms"]
        return Grid(
            regions=regions,
            axes=axes,
            rms=_unpacked(value["rms"], "<f4", shape),
            rms_reference=_unpacked(value["rms_reference"], "<f4", shape),
            torch_rms=None if torchs is None else _unpacked(torchs, "<f4", shape),
            max_abs=_unpacked(value["max_abs"], "<f4", shape),
            nonfinite=_unpacked(value["nonfinite"], "<i4", shape),
            worst=_unpacked(value["worst"], "<i4", (*shape, -1)),
            x=_unpacked(value["x"], "<f4", shape),
            y=_unpacked(value["y"], "<f4", shape),
            left_out=int(value["left_out"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise BadInputError(
            f"{where} has an unreadable error grid ({type(error).__name__}: {error}); replay its store again"
        ) from None


def _unpacked(text: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    found = np.frombuffer(base64.b64decode(text, validate=True), dtype)
    return found.reshape((*shape[:-1], found.size // max(1, shape[0] * shape[1])) if -1 in shape else shape)
