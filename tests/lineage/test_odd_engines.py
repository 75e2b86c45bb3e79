# SPDX-License-Identifier: Apache-2.0
"""Calls of engines that are odd and right: nothing in them may be called wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.online import OnlineLineage
from gdnbench.lineage.table import AccessTable, access_of
from gdnbench.store.access_log import ROW, AccessFlag, AccessKind

Sequenced = tuple[int, int, int, int, int, int]
"""A sequence of a call: request or -1, slot, position, tokens, content that it reads, content that it leaves;
0 is the content of zeros."""

X, Y = 0, 1
HELLO: Sequence[Sequence[Sequenced]] = ([(X, 1, 0, 4, 0, 10)], [(Y, 2, 0, 4, 0, 20)])

RIGHT: dict[str, tuple[str, Sequence[Sequence[Sequenced]]]] = {
    "two samples of one request have its name": (
        "state",
        ([(X, 1, 0, 4, 0, 10)], [(X, 1, 4, 1, 10, 11), (X, 2, 4, 1, 10, 12)],
         [(X, 1, 5, 1, 11, 13), (X, 2, 5, 1, 12, 14)]),
    ),
    "a beam takes the state of another, whose slots stay": (
        "state",
        ([(X, 1, 0, 4, 0, 10), (Y, 2, 0, 4, 0, 20)], [(X, 1, 4, 1, 10, 11), (Y, 2, 4, 1, 20, 21)],
         [(X, 1, 5, 1, 11, 12), (Y, 2, 5, 1, 11, 22)]),
    ),
    "nobody names the sequences that fill a batch and share the last slot": (
        "state",
        ([(X, 1, 0, 1, 0, 10), (-1, 63, -1, 1, 7, 8), (-1, 63, -1, 1, 7, 9)],),
    ),
    "nobody names any sequence, and those at the end share the last slot": (
        "state",
        ([(-1, 1, -1, 1, 3, 4), (-1, 63, -1, 1, 7, 8), (-1, 63, -1, 1, 7, 9)],),
    ),
    "a prompt of one token is decoded, and computed again by a call that nobody records": (
        "state",
        ([(X, 1, 0, 1, 0, 10)], [(X, 1, 1, 1, 10, 11)], [(X, 1, 2, 1, 99, 12)]),
    ),
    "a request waits, and resumes where it was from a state of another machine": (
        "state",
        (*HELLO, [(Y, 2, 4, 1, 20, 21)], [(Y, 2, 5, 1, 21, 22)], [(Y, 2, 6, 1, 22, 23)],
         [(X, 1, 4, 4, 99, 11)]),
    ),
    "states are NaN throughout, and a request comes from another machine": (
        "state",
        ([(Y, 2, 0, 4, 0, 50)], [(Y, 2, 4, 1, 50, 50)], [(Y, 2, 5, 1, 50, 50)], [(X, 1, 8, 1, 50, 50)]),
    ),
    "two prompts have the same last tokens at different positions": (
        "conv_state",
        ([(Y, 2, 0, 4, 0, 20)], [(X, 1, 8, 1, 20, 11)]),
    ),
}  # fmt: skip

WRONG: Sequence[Sequence[Sequenced]] = (
    *HELLO, [(X, 1, 4, 1, 10, 11), (Y, 2, 4, 1, 20, 21)], [(X, 1, 5, 1, 11, 12), (Y, 2, 5, 1, 99, 22)],
)  # fmt: skip


def table_of(calls: Sequence[Sequence[Sequenced]], chain: str) -> AccessTable:
    rows = []
    flags = int(AccessFlag.APART | AccessFlag.RECENT) if chain == "conv_state" else 0
    for step, call in enumerate(calls):
        for kind in (AccessKind.READ, AccessKind.WRITE):
            for sequence, (request, slot, position, tokens, found, left) in enumerate(call):
                at = position + tokens if kind is AccessKind.WRITE and position >= 0 else position
                content = found if kind is AccessKind.READ else left
                rows.append(
                    (
                        step,
                        step,
                        0,
                        0,
                        kind,
                        flags,
                        sequence,
                        request,
                        at,
                        slot,
                        -1,
                        tokens,
                        0,
                        (content, content),
                    )
                )
    return AccessTable("made", np.array(rows, dtype=ROW), ("layer",), (chain,), ("x", "y"), whole=True)


def findings_of(table: AccessTable) -> tuple[list[Finding], list[Finding]]:
    """Of the check in arrays, and of the check call by call."""
    online = OnlineLineage()
    found = []
    for step, of_call in groupby(map(access_of, table.rows), lambda one: one.step):
        apart = table.chains[0] == "conv_state"
        found += online.add_call("layer", step, {table.chains[0]: list(of_call)}, apart, table.elsewhere)
    return [one for chain in table.by_chain() for one in check_chain(chain).findings], found


@pytest.mark.parametrize("case", RIGHT)
def test_an_odd_engine_is_not_accused(case: str) -> None:
    chain, calls = RIGHT[case]
    assert findings_of(table_of(calls, chain)) == ([], [])


def test_an_unknown_content_is_still_found() -> None:
    for found in findings_of(table_of(WRONG, "state")):
        assert [(one.kind.value, one.found.step) for one in found] == [("unexplained", 3)]


MOVED: Sequence[Sequence[Sequenced]] = (
    *HELLO, [(X, 1, 4, 1, 10, 11), (Y, 2, 4, 1, 20, 21)], [(X, 1, 5, 1, 11, 12), (Y, 3, 5, 1, 99, 22)],
)  # fmt: skip


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_content_of_another_slot_may_come_from_elsewhere(elsewhere: bool) -> None:
    """If all states come from calls, nobody left this one in slot 3. An engine that says that it also writes
    states in other ways, such as checkpoints within a prompt, may have put it there."""
    table = replace(table_of(MOVED, "state"), elsewhere=elsewhere, whole=not elsewhere)
    for found in findings_of(table):
        assert [(one.kind.value, one.found.step) for one in found] == (
            [] if elsewhere else [("never-written", 3)]
        )


def test_two_layers_of_one_name_are_not_judged() -> None:
    """As a draft model's and its target's: both count steps from 0."""
    table = table_of(WRONG, "state")
    rows = np.concatenate([table.rows, table.rows])
    rows["call"][len(table.rows) :] += 100
    rows["digest"][len(table.rows) :] *= np.uint64(3)
    both = AccessTable("made", rows, ("layer",), ("state",), ("x", "y"))
    assert [one for chain in both.by_chain() for one in check_chain(chain).findings] == []
    online = OnlineLineage()
    rows = rows[np.lexsort((rows["call"], rows["step"]))]
    for _, of_call in groupby(map(access_of, rows), lambda one: one.call):
        accesses = list(of_call)
        assert online.add_call("layer", accesses[0].step, {"state": accesses}) == []


def test_a_call_of_the_convolution_fills_no_gap_of_the_states() -> None:
    """A prefill that raised changed the state, and is not recorded; its convolution is."""
    state = table_of(WRONG, "state").rows
    call_2 = state[state["step"] == 2].copy()
    call_2["chain"], call_2["flags"] = 1, AccessFlag.APART
    rows = np.concatenate([state[state["step"] != 2], call_2])
    both = AccessTable("made", rows, ("layer",), ("state", "conv_state"), ("x", "y"))
    chains = {chain.name: chain.steps.tolist() for chain in both.by_chain()}
    assert chains == {"state": [0, 1, 3], "conv_state": [2]}


MISCOUNTED: Sequence[Sequence[Sequenced]] = (*HELLO, [(X, 1, 4, 1, 10, 11)], [(X, 3, 5, 1, 0, 12)])


@pytest.mark.parametrize(("slots", "kinds"), [((1, 3), ["accepted-count"]), ((1, -1), []), ((-1, 3), [])])
def test_a_count_names_another_slot_only_if_both_slots_are_known(
    slots: tuple[int, int], kinds: list[str]
) -> None:
    """X accepted one token, and its count says two. Zeros are also what an engine may have put into a state
    whose slot nobody claims."""
    rows = table_of(MISCOUNTED, "state").rows.copy()
    rows["step"] += 5
    rows["slot"][rows["call"] == 2], rows["slot"][rows["call"] == 3] = slots
    rows["accepted"][(rows["call"] == 3) & (rows["kind"] == AccessKind.READ)] = 2
    table = AccessTable("made", rows, ("layer",), ("state",), ("x", "y"))
    for found in findings_of(table):
        assert [one.kind.value for one in found] == kinds
