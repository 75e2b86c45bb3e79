"""Heatmaps of errors as PNG images, in the colours of the HTML report."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from gdnbench.heatmap.cells import Cells, max_pooled

# Of gdnbench/page/assets/script/colour.js; tests/test_api_html.py compares them.
STOPS = ("#0a1f5c", "#1d3a78", "#3d5480", "#5f6d83", "#808681", "#a39f77", "#c8b963", "#ecd547", "#fff176")
NO_ERROR = (236, 236, 236)
WRONG = (184, 74, 0)
"""Not finite on one side only."""

MOST_ROWS, MOST_COLUMNS = 64, 256
_WIDTH, _TALLEST, _LARGEST = 640, 18, 24  # pixels: of an image, at most; of a cell


def rgb(stop: str) -> tuple[int, int, int]:
    """ "#0a1f5c" -> (10, 31, 92)."""
    return int(stop[1:3], 16), int(stop[3:5], 16), int(stop[5:7], 16)


def scale(values: NDArray[np.float64]) -> tuple[float, float]:
    """The smallest and the largest value that the scale tells apart, at least a decade and at most six; (0,
    0) if no value is finite and above 0."""
    shown = values[np.isfinite(values) & (values > 0)]
    if not shown.size:
        return 0.0, 0.0
    low, high = float(shown.min()), float(shown.max())
    return min(max(low, high * 1e-6), high / 10), high


def colours(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """RGB [..., 3] of cells on a logarithmic scale; infinite: an element is not finite on one side only."""
    low, high = scale(values)
    stops = np.array([rgb(stop) for stop in STOPS], np.float64)
    parts = np.zeros(values.shape)
    shown = np.isfinite(values) & (values > 0)
    if high:
        parts[shown] = np.clip(np.log(values[shown] / low) / math.log(high / low), 0, 1)
    at = parts * (len(stops) - 1)
    below = np.minimum(at.astype(int), len(stops) - 2)
    mixed = stops[below] + (stops[below + 1] - stops[below]) * (at - below)[..., None]
    mixed[values == 0] = NO_ERROR
    mixed[np.isinf(values)] = WRONG
    rounded: NDArray[np.uint8] = np.rint(mixed).astype(np.uint8)
    return rounded


def heatmap_png(cells: Cells) -> tuple[bytes, int, int]:
    """The image of the cells, heads by chunks, and how many heads and chunks one pixel block stands for."""
    values, down, across = max_pooled(cells.values, MOST_ROWS, MOST_COLUMNS)
    pixels = colours(values)
    wide = max(2, min(_LARGEST, _WIDTH // max(1, values.shape[1])))
    tall = max(2, min(_TALLEST, wide * 2))
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
