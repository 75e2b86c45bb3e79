# SPDX-License-Identifier: Apache-2.0
"""Regular grids of blocks over an array, such as Zarr's chunks and shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Slices = tuple[slice, ...]
"""A part of an array: for every axis, a slice with both bounds inside the array."""


def grid_of(part: Slices, block: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Coordinates, in C order, of the blocks of a regular grid that `part` touches."""
    spans = [
        range(axis.start // size, -(-axis.stop // size)) if axis.stop > axis.start else range(0)
        for axis, size in zip(part, block, strict=True)
    ]
    return _product(spans) if all(spans) else iter(())


def _product(spans: Sequence[range]) -> Iterator[tuple[int, ...]]:
    """The same as `itertools.product`, which first makes a tuple of each range: the ranges may be as long as
    the shape that a stranger's file claims."""
    if not spans:
        yield ()
        return
    for first in _product(spans[:-1]):
        for last in spans[-1]:
            yield (*first, last)


def chunk_file(at: tuple[int, ...]) -> str:
    """The path, in its array's folder, of the file at coordinates `at` of the file grid."""
    return "/".join(("c", *map(str, at)))
