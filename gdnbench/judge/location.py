# SPDX-License-Identifier: Apache-2.0
"""The location of an element: its index, and what the index means (sequence, chunk, token, head)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from gdnbench_kernels.contract import Partition, Region

NO_SEQUENCE = -1
"""`Region.sequence` of rows that belong to no sequence, such as those of an index tensor."""


@dataclass(frozen=True, slots=True)
class Location:
    """One element of a tensor. `dims` are the axes other than rows and heads, by symbol."""

    index: tuple[int, ...]
    sequence: int | None
    chunk: int | None
    token: int | None
    head: int | None
    dims: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        named = (
            ("sequence", self.sequence),
            ("chunk", self.chunk),
            ("token", self.token),
            ("head", self.head),
        )
        words = [f"{name} {value}" for name, value in (*named, *self.dims) if value is not None]
        return f"[{', '.join(map(str, self.index))}]" + (f" ({', '.join(words)})" if words else "")


def whole_tensor(rows: int) -> Partition:
    """All `rows` rows of a tensor as one region without sequence or head."""
    return Partition((Region(0, rows, NO_SEQUENCE),), None)


def locate(
    index: Sequence[int], partition: Partition, axes: Sequence[str], starts: Sequence[int] | None = None
) -> Location:
    """The location of `index`. `starts`: the regions' first rows, if they ascend, for a fast search."""
    row = index[0] if index else 0
    if starts is not None:
        region = partition.regions[bisect_right(starts, row) - 1]
    else:
        region = next(r for r in partition.regions if r.start <= row < r.stop)
    head_axis = partition.head_axis
    return Location(
        index=tuple(index),
        sequence=None if region.sequence == NO_SEQUENCE else region.sequence,
        chunk=region.chunk,
        token=_token(index, partition, region),
        head=None if head_axis is None else index[head_axis],
        dims=tuple(
            (axes[i], v)
            for i, v in enumerate(index)
            if i not in (0, head_axis, partition.token_axis) and i < len(axes)
        ),
    )


def _token(index: Sequence[int], partition: Partition, region: Region) -> int | None:
    if partition.token_axis is not None:
        return index[partition.token_axis]
    return None if region.token is None else region.token + index[0] - region.start
