# SPDX-License-Identifier: Apache-2.0
"""The rank of the process that recorded a segment, among the processes that serve one model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gdnbench.errors import BadInputError

_GROUP = re.compile(r"([A-Za-z_]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class Rank:
    """A process's rank, as its segment records it.

    `rank` is torch's global rank. `groups` holds (name, rank) for each kind of parallelism ("tp", "pp", "dp")
    with more than one process.
    """

    rank: int | None
    groups: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_process(cls, process: Mapping[str, Any]) -> Rank:
        """The rank in a segment's `process` attributes, which are untrusted: invalid values are ignored."""
        parallel = process.get("parallel")
        pairs = parallel.items() if isinstance(parallel, Mapping) else ()
        groups = (
            (name, pair[0])
            for name, pair in pairs
            if isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_count, pair)) and pair[1] > 1
        )
        rank = process.get("rank")
        return cls(rank if _is_count(rank) else None, tuple(sorted(groups)))

    @property
    def is_known(self) -> bool:
        return self.rank is not None or bool(self.groups)

    def __str__(self) -> str:
        """The text in a listing: "3", "3 dp0 tp1", or ""."""
        groups = (f"{name}{rank}" for name, rank in self.groups)
        return " ".join((*(() if self.rank is None else (str(self.rank),)), *groups))

    def matches(self, wanted: Rank) -> bool:
        """Whether this rank has every value that `wanted` names."""
        return (wanted.rank is None or wanted.rank == self.rank) and set(wanted.groups) <= set(self.groups)

    @classmethod
    def parse(cls, text: str) -> Rank:
        """Parse what `__str__` writes, or a part of it, separated by blanks or commas. BadInputError
        otherwise."""
        rank, groups = None, []
        for word in text.replace(",", " ").split():
            match = _GROUP.fullmatch(word)
            if match is not None:
                groups.append((match[1], int(match[2])))
            elif word.isascii() and word.isdigit() and rank is None:
                rank = int(word)
            else:
                raise BadInputError(f"rank {text[:100]!r}: write 3, tp1 or dp0,tp1, as ls shows it")
        if rank is None and not groups:
            raise BadInputError("rank is empty: write 3, tp1 or dp0,tp1, as ls shows it")
        return cls(rank, tuple(sorted(groups)))

    @property
    def order(self) -> tuple[bool, int, tuple[tuple[str, int], ...]]:
        """Sort key: by rank; processes without one come last."""
        return self.rank is None, self.rank or 0, self.groups


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
