"""Regular grids of blocks over an array, such as Zarr's chunks and shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

Slices = tuple[slice, ...]
"""A part of an array: for every axis, a slice with both bounds inside the array."""


def grid_of(part: Slices, block: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Coordinates, in C order, of the blocks of a regular grid that `part` touches."""
    spans = [
        range(axis.start // size, -(-axis.stop // size)) if axis.stop > axis.start else range(0)
        for axis, size in zip(part, block, strict=True)
    ]
    return itertools.product(*spans)


def chunk_file(at: tuple[int, ...]) -> str:
    """The path, in its array's folder, of the file at coordinates `at` of the file grid."""
    return "/".join(("c", *map(str, at)))
