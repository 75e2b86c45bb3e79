# SPDX-License-Identifier: Apache-2.0
"""The accesses of one process, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdnbench.errors import BadInputError
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind

Rows = NDArray[np.void]
"""Of dtype ROW."""

Numbers = NDArray[np.int64]

Progress = Callable[[int, int], None]
"""Called with how many records have been read, and how many there are."""


class Access(NamedTuple):
    """A row of a table in plain numbers; the fields are those of ROW."""

    call: int
    step: int
    kind: int
    flags: int
    sequence: int
    request: int
    position: int
    slot: int
    accepted: int
    tokens: int
    prefix: int
    digest: tuple[int, int]

    @property
    def is_padding(self) -> bool:
        return bool(self.flags & AccessFlag.PADDING)

    @property
    def digest_known(self) -> bool:
        return not self.flags & AccessFlag.DIGEST_UNKNOWN

    @property
    def is_draft(self) -> bool:
        return bool(self.flags & AccessFlag.DRAFT)

    @property
    def is_recent(self) -> bool:
        return bool(self.flags & AccessFlag.RECENT)


ZERO = (0, 0)
"""The digest of a row of zeros."""


def access_of(row: Any) -> Access:
    """An element of an array of dtype ROW as an Access."""
    call, step, _, _, kind, flags, sequence, request, position, slot, accepted, tokens, prefix, _ = row.item()
    first, second = row["digest"]
    return Access(
        call, step, kind, flags, sequence, request, position, slot, accepted, tokens, prefix,
        (int(first), int(second)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chain:
    """The accesses of one process to one pool of one layer.

    `rows`: dtype ROW [n], by step, and in a call reads before writes. `steps`: int64, the steps of all
    recorded calls of the layer, ascending, that are counted with the chain's calls, whatever pool they use.
    `whole`, `elsewhere`: as of `AccessTable`.
    """

    layer: str
    name: str
    rows: Rows
    steps: NDArray[np.int64]
    whole: bool
    elsewhere: bool = False

    @property
    def is_window(self) -> bool:
        """Whether its reads are of tokens' rows."""
        return bool((self.rows["flags"] & AccessFlag.WINDOW).any())

    @property
    def is_compressed(self) -> bool:
        """Whether its reads are of rows of several tokens."""
        return bool((self.rows["flags"] & AccessFlag.COMPRESSED).any())


@dataclass(frozen=True, slots=True)
class AccessTable:
    """The accesses of one process, in order of its calls. BadInputError for rows that name no layer, chain or
    request of it.

    `whole`: nothing was called before the first row. `elsewhere`: the engine also wrote states in other ways
    than by calls. `records`: of a table made of records, the number of each call's record in its store.
    """

    process: str
    rows: Rows
    layers: Sequence[str]
    chains: Sequence[str]
    requests: Sequence[str]
    whole: bool = False
    elsewhere: bool = False
    sample: int = 1
    records: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows.dtype != ROW or self.rows.ndim != 1:
            raise BadInputError(
                f"accesses of process {self.process} are {self.rows.dtype}, not rows of a log"
            )
        limits = (
            ("layer", 0, len(self.layers)),
            ("chain", 0, len(self.chains)),
            ("request", UNKNOWN, len(self.requests)),
            ("kind", 0, len(AccessKind)),
            ("position", UNKNOWN, 1 << 32),
            ("slot", UNKNOWN, 1 << 48),
            ("step", 0, 1 << 48),
            ("tokens", UNKNOWN, 1 << 31),
        )
        for name, least, stop in limits:
            column = self.rows[name]
            if len(column) and not (column.min() >= least and column.max() < stop):
                wrong = int(np.argmax((column < least) | (column >= stop)))
                raise BadInputError(
                    f"access {wrong} of process {self.process} has {name} {column[wrong]}, which must be in"
                    f" [{least}, {stop})"
                )

    def by_chain(self) -> Iterator[Chain]:
        """The chains, by layer and then by name, one at a time in memory."""
        layer = self.rows["layer"]
        order = np.argsort(layer, kind="stable")
        bounds = np.searchsorted(layer, np.arange(len(self.layers) + 1), sorter=order)
        for number, name in enumerate(self.layers):
            rows = self.rows[order[bounds[number] : bounds[number + 1]]]
            if not len(rows):
                continue
            apart = (rows["flags"] & AccessFlag.APART) != 0
            steps = {kind: np.unique(rows["step"][apart == kind]) for kind in (False, True)}
            for chain in np.unique(rows["chain"][rows["kind"] != AccessKind.NONE]):
                own = rows[(rows["chain"] == chain) & (rows["kind"] != AccessKind.NONE)]
                own = own[np.lexsort((own["kind"], own["step"]))]
                apart_here = (own["flags"] & AccessFlag.APART) != 0
                counted = bool(apart_here[0])
                if not (apart_here == counted).all():
                    raise BadInputError(
                        f"process {self.process}: chain {self.chains[chain]} of layer {name} has accesses"
                        " that are counted apart and others that are not; the log is damaged"
                    )
                yield Chain(name, self.chains[chain], own, steps[counted], self.whole, self.elsewhere)
