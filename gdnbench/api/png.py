# SPDX-License-Identifier: Apache-2.0
"""Heatmaps of errors as PNG images, in the colours of the HTML report."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from gdnbench.heatmap.cells import Cells, max_pooled

# Of gdnbench/page/assets/script/colour.js; tests/api/test_png.py compares them.
STOPS = ("#0a1f5c", "#1d3a78", "#3d5480", "#5f6d83", "#808681", "#a39f77", "#c8b963", "#ecd547", "#fff176")
NO_ERROR = (236, 236, 236)
WRONG = (184, 74, 0)
"""Not finite on one side only."""

DECADES = 3
"""Below the limit, on the scale."""

MOST_ROWS, MOST_COLUMNS = 64, 256
_WIDTH, _WIDEST, _TALLEST = 640, 40, 20  # pixels: of an image; of a cell, at most


def rgb(stop: str) -> tuple[int, int, int]:
    """ "#0a1f5c" -> (10, 31, 92)."""
    return int(stop[1:3], 16), int(stop[3:5], 16), int(stop[5:7], 16)


def colours(values: NDArray[np.float64], limit: float) -> NDArray[np.uint8]:
    """RGB [..., 3] of cells on a logarithmic scale: the darker half from a thousandth of `limit` to it, the
    lighter half from there to the largest value, at least a decade. Infinite: an element is not finite on one
    side only."""
    finite = np.isfinite(values) & (values > 0)
    high = max(10 * limit, float(values[finite].max(initial=0.0)))
    shown = values[finite]
    below = np.clip(1 + np.log10(shown / limit) / DECADES, 0, 1)
    above = np.log(np.maximum(shown / limit, 1)) / math.log(high / limit)
    parts = np.zeros(values.shape)
    parts[finite] = (below + above) / 2
    stops = np.array([rgb(stop) for stop in STOPS], np.float64)
    at = parts * (len(stops) - 1)
    lower = np.minimum(at.astype(int), len(stops) - 2)
    mixed = stops[lower] + (stops[lower + 1] - stops[lower]) * (at - lower)[..., None]
    mixed[values == 0] = NO_ERROR
    mixed[np.isinf(values)] = WRONG
    rounded: NDArray[np.uint8] = np.rint(mixed).astype(np.uint8)
    return rounded


def heatmap_png(cells: Cells) -> tuple[bytes, int, int]:
    """The image of the cells, heads by chunks, and how many heads and chunks one pixel block stands for."""
    values, down, across = max_pooled(cells.values, MOST_ROWS, MOST_COLUMNS)
    pixels = colours(values, cells.limit)
    wide = max(2, min(_WIDEST, _WIDTH // max(1, values.shape[1])))
    tall = max(4, min(_TALLEST, 2 * wide))
    return png(pixels.repeat(tall, axis=0).repeat(wide, axis=1)), down, across


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An RGB image [height, width, 3] as a PNG file: signature, then chunks IHDR, IDAT, IEND (PNG, third
    edition, sections 5 and 11)."""
    height, width, _ = pixels.shape
    # Each line begins with its filter, 0 for none.
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    )
