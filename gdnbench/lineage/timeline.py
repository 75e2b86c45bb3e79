# SPDX-License-Identifier: Apache-2.0
"""Who holds which slot from when to when, and where chains break."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import AccessTable, Chain
from gdnbench.store.access_log import AccessFlag

PADDING_USER = -2  # in place of a request's number
MOST_SLOTS = 32
MOST_HOLDINGS = 1000
"""Of one timeline: those of slots with breaks first."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Steps `first` to `last` in which only one request used a slot. `request`: its number in the table, -1
    if it is unknown, PADDING_USER if padding used the slot."""

    slot: int
    request: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One chain. `slots`: the shown ones in order, of `all_slots`; `steps`: the first and the last."""

    table: AccessTable
    layer: str
    chain: str
    steps: tuple[int, int]
    slots: tuple[int, ...]
    all_slots: int
    holdings: tuple[Holding, ...]
    findings: tuple[Finding, ...]


def timelines(table: AccessTable, most: int = 4) -> Iterator[Timeline]:
    """The timelines of the first chains with breaks; without any, of the first chain."""
    healthy, left = None, most
    for chain in table.by_chain():
        if not left:
            return
        if not (chain.rows["slot"] >= 0).any():
            continue
        found = check_chain(chain).findings
        if found:
            left -= 1
            yield _timeline(table, chain, found)
        elif healthy is None:
            healthy = chain
    if left == most and healthy is not None:
        yield _timeline(table, healthy, [])


def _timeline(table: AccessTable, chain: Chain, findings: list[Finding]) -> Timeline:
    rows = chain.rows[chain.rows["slot"] >= 0]
    broken = [access.slot for one in findings for access in (one.found, one.damage) if access.slot >= 0]
    every = np.unique(rows["slot"]).tolist()
    first = dict.fromkeys([*broken, *every])
    shown = list(first)[:MOST_SLOTS]
    rows = rows[np.isin(rows["slot"], shown)]
    rows = rows[np.lexsort((rows["kind"], rows["step"], rows["slot"]))]
    user = np.where((rows["flags"] & AccessFlag.PADDING) != 0, PADDING_USER, rows["request"])
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (rows["slot"][1:] != rows["slot"][:-1]) | (user[1:] != user[:-1])
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(rows)) - 1
    holdings = [
        Holding(int(rows["slot"][start]), int(user[start]), int(rows["step"][start]), int(rows["step"][end]))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    order = {slot: place for place, slot in enumerate(shown)}
    holdings.sort(key=lambda one: (order[one.slot], one.first))
    kept = holdings[:MOST_HOLDINGS]
    slots = sorted({one.slot for one in kept})
    steps = (int(chain.steps[0]), int(chain.steps[-1]))
    return Timeline(
        table, chain.layer, chain.name, steps, tuple(slots), len(every), tuple(kept), tuple(findings)
    )
