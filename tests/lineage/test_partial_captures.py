# SPDX-License-Identifier: Apache-2.0
"""Captures that begin late or have a gap: what no record has may explain a read, which is unknown then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, AccessFlag, AccessKind
from tests.lineage.test_odd_engines import X, Y, findings_of

Row = tuple[int, AccessKind, int, int, int, int, int, int]
"""Step, kind, request, slot, position, tokens, prefix and content. Of several writes of a request in a step,
those that are not of its first token are after drafts."""
R, W = AccessKind.READ, AccessKind.WRITE


def table_of(rows: Sequence[Row], first: int = 0) -> AccessTable:
    """The rows as a table. Their steps follow one another from `first`, and each request's rows of a step are
    a sequence."""
    found = np.zeros(len(rows), dtype=ROW)
    begins = {(step, request): position for step, kind, request, _, position, *_ in rows if kind is R}
    for place, (step, kind, request, slot, position, tokens, prefix, content) in enumerate(rows):
        several = sum(one[:3] == (step, W, request) for one in rows) > 1
        draft = kind is W and several and position > begins[step, request] + 1
        flags = AccessFlag.DRAFT if draft else 0
        found[place] = (
            step + first, step + first, 0, 0, kind, flags, request, request, position, slot, -1, tokens,
            prefix, (content, content),
        )  # fmt: skip
    return AccessTable("made", found, ("layer",), ("state",), ("x", "y", "z"), whole=first == 0)


def call(
    step: int, request: int, slot: int, position: int, tokens: int, reads: int, leaves: int, prefix: int = 0
) -> list[Row]:
    """A sequence's read and its write after its last token."""
    return [
        (step, R, request, slot, position, tokens, prefix, reads),
        (step, W, request, slot, position + tokens, tokens, 0, leaves),
    ]


def kinds(table: AccessTable) -> list[list[tuple[str, int]]]:
    """Kind and step of each break that the check in arrays and the check call by call find."""
    return [[(one.kind.value, one.found.step) for one in found] for found in findings_of(table)]


def admitted_anew(tokens: int) -> list[Row]:
    """X computes 4 tokens of a prompt, is not in the next call, and reads a content that no record has."""
    return list(
        chain(
            call(0, Y, 2, 0, 4, 0, 20),
            call(1, X, 1, 0, 4, 0, 10),
            call(2, Y, 2, 4, 1, 20, 21),
            call(3, X, 1, 4, tokens, 99, 11),
        )
    )


def test_a_hit_at_the_end_of_a_chunk_on_a_state_from_before_the_recording() -> None:
    """The engine preempts X after its chunk, and admits it again to the same slot, where it finds the cached
    state of another request."""
    assert kinds(table_of(admitted_anew(4), first=5)) == [[], []]


@pytest.mark.parametrize(("tokens", "first"), [(4, 0), (1, 5)])
def test_no_hit_if_every_call_is_recorded_or_the_request_decodes(tokens: int, first: int) -> None:
    assert kinds(table_of(admitted_anew(tokens), first)) == [[("unexplained", 3 + first)]] * 2


def computed_twice(tokens: int, between: bool) -> list[Row]:
    """X is preempted at 5, computes its first 4 tokens again, and reads what it wrote there at first."""
    rows = [*call(0, X, 1, 0, 4, 0, 10), *call(1, X, 1, 4, 1, 10, 11), *call(2, X, 1, 0, 4, 0, 12)]
    if between:
        rows += call(3, Y, 2, 0, 4, 0, 20)
    return [*rows, *call(4 if between else 3, X, 1, 4, tokens, 10, 13)]


def test_a_hit_at_the_end_of_a_chunk_on_the_first_state_of_the_request() -> None:
    """The cache keeps the first state that the request computed for a prefix."""
    assert kinds(table_of(computed_twice(3, between=True))) == [[], []]


@pytest.mark.parametrize(("tokens", "between"), [(1, True), (3, False)])
def test_an_older_state_where_no_hit_can_be(tokens: int, between: bool) -> None:
    step = 4 if between else 3
    assert kinds(table_of(computed_twice(tokens, between))) == [[("older-version", step)]] * 2


TRUE, OTHER = 7, 8
"""Hashes of the tokens that X accepted, and of others."""
Z = 2


def rejected_draft(prefix: int, reads_there: bool) -> list[Row]:
    """X decodes from 4 with a draft, which left 31 at 6, and goes on from 5. Z begins at 6 with that state.
    With `reads_there`, X reads its own state at 6 before."""
    rows = [
        *call(0, X, 1, 0, 4, 0, 10),
        (1, R, X, 1, 4, 2, 0, 10),
        (1, W, X, 1, 5, 2, 0, 30),
        (1, W, X, 3, 6, 2, 0, 31),
        *call(2, X, 1, 5, 1, 30, 40),
    ]
    if reads_there:
        rows += call(3, X, 1, 6, 1, 40, 41, prefix=TRUE)
    return [*rows, *call(4 if reads_there else 3, Z, 5, 6, 2, 31, 50, prefix=prefix)]


@pytest.mark.parametrize(("prefix", "reads_there"), [(OTHER, True), (OTHER, False), (TRUE, False)])
def test_others_may_have_the_tokens_of_a_rejected_draft(prefix: int, reads_there: bool) -> None:
    """A request from before the recording cached its state, which has the same bits."""
    assert kinds(table_of(rejected_draft(prefix, reads_there), first=5)) == [[], []]


@pytest.mark.parametrize("first", [0, 5])
def test_a_reader_with_the_accepted_tokens_has_not_those_of_the_draft(first: int) -> None:
    assert kinds(table_of(rejected_draft(TRUE, True), first)) == [[("rejected-draft", 4 + first)]] * 2


def without_digest(table: AccessTable, step: int, request: int) -> AccessTable:
    """The table, in which the contents that a request wrote in a step are unknown."""
    chosen = (table.rows["step"] == step) & (table.rows["kind"] == W) & (table.rows["request"] == request)
    table.rows["flags"][chosen] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
    table.rows["digest"][chosen] = 0
    return table


def test_others_may_have_the_tokens_of_a_rejected_draft_in_a_state_without_digest() -> None:
    """Y may have left the state that Z finds, and its digest is unknown."""
    rows = [*rejected_draft(OTHER, False), *call(4, Y, 7, 0, 6, 0, 31), *call(5, Y, 7, 6, 1, 31, 60)]
    early = [
        *call(0, Y, 7, 0, 6, 0, 31),
        *((step + 1, *rest) for step, *rest in rejected_draft(OTHER, False)),
    ]
    assert kinds(table_of(rows)) == [[("rejected-draft", 3)]] * 2
    assert kinds(without_digest(table_of(early), 0, Y)) == [[], []]


@pytest.mark.parametrize("between", [True, False])
def test_a_state_without_digest_may_have_the_bits_of_an_older_one(between: bool) -> None:
    """X computes 4 tokens twice, and the kernel rounds alike: what X finds is what it wrote last."""
    assert kinds(without_digest(table_of(computed_twice(1, between)), 2, X)) == [[], []]


def test_nobody_has_the_tokens_of_a_rejected_draft_if_every_call_is_recorded() -> None:
    assert kinds(table_of(rejected_draft(OTHER, False))) == [[("rejected-draft", 3)]] * 2
