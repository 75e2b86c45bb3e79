# SPDX-License-Identifier: Apache-2.0
"""Checks a chain of windows: a token's row must stay as it is while its request runs.

Nobody records who writes these rows. So a read is compared with earlier reads, in two ways:

- The request read the row before, at the same slot, and it has changed: while the request was in every call,
  moved on by no more than its tokens, and did not compute that token again.
- The request reads the row for the first time, and it is what the slot held for another position.

Both rely on the order of a window's entries. A chain whose windows do not fit together from call to call, so
that a token seems to move to another slot, is not checked; neither is one whose rows do not depend on the
position, so that the same row is in several slots for several positions. Nor is a call of a request in which
most rows stayed and seem to be of other tokens, as when a ring is read in the order of its slots and has come
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdnbench.lineage.continuity import Continuity
from gdnbench.lineage.detect import MOST_BREAKS, ChainResult, counted_reads
from gdnbench.lineage.finding import Break, Finding, Unknown
from gdnbench.lineage.table import Chain, Numbers, Rows, access_of
from gdnbench.store.access_log import AccessFlag

COMMON_SHARE = 20
"""If one in so many contents came to several slots for several positions, rows do not depend on the position,
as in the first layer of a model without positional encoding: there each token has its row."""


@dataclass(frozen=True, slots=True)
class Queries:
    """The calls of one request: steps ascending, and the first and last position of its queries in each."""

    steps: Numbers
    first: Numbers
    last: Numbers


def check_window(chain: Chain, explain: bool = False) -> ChainResult:
    """Check a chain whose reads are of tokens' rows; `explain` as in `check_states`."""
    result, reads = counted_reads(chain, explain)
    if reads is None:
        return result
    rows = chain.rows
    places, reasons = usable_reads(rows, reads, result)
    check = _WindowCheck(chain, rows[places])
    verdicts = check.verdicts()
    result.findings = check.findings
    count_verdicts(result, verdicts, _MEANING)
    if explain:
        result.verdicts = reasons | texts_of(verdicts, places, _MEANING)
    return result


def count_verdicts(result: ChainResult, verdicts: NDArray[np.int8], meaning: Mapping[int, str]) -> None:
    """Add the reads that are right or unknown to `result`. `meaning`: of each verdict "right", why nothing is
    known, or the break."""
    for code, what in meaning.items():
        count = int((verdicts == code).sum())
        if isinstance(what, Unknown) and count:
            result.unknown[what] += count
        elif not isinstance(what, Unknown | Break):
            result.right = count


def texts_of(verdicts: NDArray[np.int8], places: Numbers, meaning: Mapping[int, str]) -> dict[int, str]:
    """The verdict of each read in words, by its place in the chain."""
    return {place: str(meaning[code]) for place, code in zip(places.tolist(), verdicts.tolist(), strict=True)}


def usable_reads(rows: Rows, reads: Numbers, result: ChainResult) -> tuple[Numbers, dict[int, str]]:
    """The reads whose request, position and content are known; why the others are not, by place."""
    of_reads = rows[reads]
    left = np.ones(len(reads), dtype=np.bool_)
    reasons: dict[int, str] = {}
    for missing, reason in (
        (of_reads["request"] < 0, Unknown.NO_REQUEST),
        (of_reads["position"] < 0, Unknown.NO_POSITION),
        ((of_reads["flags"] & AccessFlag.DIGEST_UNKNOWN) != 0, Unknown.NO_DIGEST),
    ):
        missing = missing & left
        if missing.any():
            result.unknown[reason] += int(missing.sum())
            reasons |= dict.fromkeys(reads[missing].tolist(), str(reason))
        left &= ~missing
    return reads[left], reasons


_RIGHT, _BROKEN, _FIRST, _MISSING, _COMMON = range(5)
_MEANING = {
    _RIGHT: "right",
    _BROKEN: Break.STALE_PAGE,
    _FIRST: Unknown.FIRST_SEEN,
    _MISSING: Unknown.CALLS_MISSING,
    _COMMON: Unknown.COMMON_CONTENT,
}


class _WindowCheck:
    """The check of the usable reads of a chain, which are in order of steps."""

    def __init__(self, chain: Chain, rows: Rows) -> None:
        self._chain, self._rows = chain, rows
        self._continuity = Continuity(chain)
        self._queries = dict(queries_of(rows))
        self._kept: set[tuple[int, int]] = set()  # requests and steps in which a row is as it was before
        self.findings: list[Finding] = []

    def verdicts(self) -> NDArray[np.int8]:
        rows = self._rows
        found = np.full(len(rows), _FIRST, dtype=np.int8)
        if not len(rows):
            return found
        same = np.lexsort((rows["step"], rows["slot"], rows["position"], rows["request"]))
        before, after = same[:-1], same[1:]
        seen = equal(rows, before, after, "request", "position", "slot")
        content = (rows["digest"][before] == rows["digest"][after]).all(axis=1)
        kept = after[seen & content]
        found[kept] = _RIGHT
        self._kept = set(zip(rows["request"][kept].tolist(), rows["step"][kept].tolist(), strict=True))
        fits = self._order_fits()
        common = self._common() if fits else {}
        depends = self._depends(common)
        reordered = self._reordered()
        for old, new in zip(before[seen & ~content].tolist(), after[seen & ~content].tolist(), strict=True):
            found[new] = self._changed(old, new) if fits and not reordered[new] else _COMMON
        again = np.zeros(len(rows), dtype=np.bool_)
        again[after[seen]] = True
        for old, new in self._left_over(again):
            since = common.get(tuple(rows["digest"][new].tolist()))
            step = int(rows["step"][new])
            if fits and not reordered[new] and depends(step) and (since is None or step < since):
                found[new] = self._stale(old, new)
        self.findings.sort(key=lambda one: (one.found.step, one.found.sequence))
        return found

    def _order_fits(self) -> bool:
        """Whether the rows that a request reads in two successive calls are at the same slots: in some pair
        of calls, and nowhere otherwise."""
        rows = self._rows
        order = np.lexsort((rows["step"], rows["position"], rows["request"]))
        one, other = order[:-1], order[1:]
        pairs = equal(rows, one, other, "request", "position") & (rows["step"][one] != rows["step"][other])
        near = pairs & (self._continuity.apart(rows["step"][one], rows["step"][other]) == 1)
        moved = rows["slot"][one] != rows["slot"][other]
        return bool(near.any()) and int((near & moved).sum()) * 4 <= int(near.sum())

    def _reordered(self) -> NDArray[np.bool_]:
        """The reads of requests in calls in which more of the slots that the request read before, and whose
        rows are as they were, have another position at the same place of the window than have not: bool [n].
        A page that is written anew comes to another place of the window."""
        rows = self._rows
        calls = np.stack([rows["request"], rows["step"]], axis=1)
        names, number = np.unique(calls, axis=0, return_inverse=True)
        number = number.reshape(-1)
        first = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(first, number, rows["position"])
        place = rows["position"] - first[number]
        order = np.lexsort((rows["step"], rows["slot"], rows["request"]))
        one, other = order[:-1], order[1:]
        kept = equal(rows, one, other, "request", "slot") & (rows["step"][one] != rows["step"][other])
        kept &= (rows["digest"][one] == rows["digest"][other]).all(axis=1)
        moved = (rows["position"][one] != rows["position"][other]) & (place[one] == place[other])
        balance = np.zeros(len(names), dtype=np.int64)
        np.add.at(balance, number[other[kept]], np.where(moved[kept], 1, -1))
        found: NDArray[np.bool_] = balance[number] > 0
        return found

    def _common(self) -> dict[tuple[int, int], int]:
        """Contents that came to several slots for several positions, and the step in which that was first
        so."""
        rows = self._rows
        digest = rows["digest"]
        order = np.lexsort((rows["step"], rows["slot"], digest[:, 1], digest[:, 0]))
        one, other = order[:-1], order[1:]
        again = (digest[one] == digest[other]).all(axis=1) & (rows["slot"][one] == rows["slot"][other])
        came = order[np.concatenate([[True], ~again])]  # the first read of each content at each slot
        came = came[np.lexsort((rows["step"][came], digest[came, 1], digest[came, 0]))]
        one, other = came[:-1], came[1:]
        several = (digest[one] == digest[other]).all(axis=1)
        several &= rows["position"][one] != rows["position"][other]
        since: dict[tuple[int, int], int] = {}
        for place in other[several].tolist():
            first, second = digest[place].tolist()
            since.setdefault((first, second), int(rows["step"][place]))
        return since

    def _depends(self, common: dict[tuple[int, int], int]) -> Callable[[int], bool]:
        """Whether rows depend on the position, by what was read before a step. Later reads do not tell: a
        stale row may be moved to another slot like any other."""
        _, first = np.unique(self._rows["digest"], axis=0, return_index=True)
        seen = np.sort(self._rows["step"][first])
        since = np.sort(np.array(list(common.values()), dtype=np.int64))

        def depends(step: int) -> bool:
            several, contents = (int(np.searchsorted(one, step)) for one in (since, seen))
            return several * COMMON_SHARE < contents

        return depends

    def _changed(self, old: int, new: int) -> int:
        """The verdict of a row that its request read before with other content."""
        rows = self._rows
        first, last = int(rows["step"][old]), int(rows["step"][new])
        if not self._continuity.contiguous(first, last):
            return _MISSING
        steady, drafts = self._steady(int(rows["request"][new]), int(rows["position"][new]), first, last)
        if not steady:
            return _FIRST
        source = self._source(new)
        # A whole window changes if all of it is computed again, as after an update of the weights.
        all_changed = (int(rows["request"][new]), last) not in self._kept
        if source is None and (drafts or all_changed):
            return _FIRST
        return self._break(new, old, source)

    def _steady(self, request: int, position: int, first: int, last: int) -> tuple[bool, bool]:
        """Whether the request was in every call between two steps, moved on by no more than its tokens, and
        did not compute `position` again; and whether any of its calls had drafts."""
        queries = self._queries[request]
        at = np.searchsorted(queries.steps, (first, last))
        part = slice(int(at[0]), int(at[1]) + 1)
        steps, starts, ends = queries.steps[part], queries.first[part], queries.last[part]
        near = self._continuity.apart(steps[:-1], steps[1:]) == 1
        moved = (starts[1:] > starts[:-1]) & (starts[1:] <= ends[:-1] + 1)
        steady = bool(near.all() and moved.all() and (starts[1:] > position).all())
        return steady, bool((ends > starts).any())

    def _left_over(self, again: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """First reads whose content the slot had for another position, with the latest such read."""
        rows = self._rows
        _, number = np.unique(rows["slot"], return_inverse=True)
        _, at = np.unique(rows["step"], return_inverse=True)  # a step may have 48 bits
        key = number * (int(at.max()) + 1) + at
        order = np.argsort(key, kind="stable")
        before = np.searchsorted(key[order], key) - 1  # the last read of the slot in an earlier call
        other = np.flatnonzero(~again & (before >= 0) & (rows["digest"] != 0).any(axis=1))
        one = order[before[other]]
        left = equal(rows, one, other, "slot") & (rows["digest"][one] == rows["digest"][other]).all(axis=1)
        left &= rows["position"][one] != rows["position"][other]
        yield from zip(one[left].tolist(), other[left].tolist(), strict=True)

    def _stale(self, old: int, new: int) -> int:
        """The verdict of a row that its request reads for the first time with what the slot held before."""
        rows = self._rows
        if not self._continuity.contiguous(int(rows["step"][old]), int(rows["step"][new])):
            return _MISSING
        return self._break(new, None, old)

    def _source(self, new: int) -> int | None:
        """The latest earlier read of this content for another position."""
        rows = self._rows
        step = int(np.searchsorted(rows["step"], rows["step"][new]))
        same = (rows["digest"][:step] == rows["digest"][new]).all(axis=1)
        same &= rows["position"][:step] != rows["position"][new]
        places = np.flatnonzero(same)
        return int(places[-1]) if len(places) else None

    def _break(self, new: int, own: int | None, source: int | None) -> int:
        if len(self.findings) >= MOST_BREAKS:
            return _FIRST
        found, before, origin = (
            None if place is None else access_of(self._rows[place]) for place in (new, own, source)
        )
        assert found is not None
        chain = self._chain
        self.findings.append(Finding(Break.STALE_PAGE, chain.layer, chain.name, found, found, before, origin))
        return _BROKEN


def equal(rows: Rows, one: Numbers, other: Numbers, *names: str) -> NDArray[np.bool_]:
    """Whether the rows at `one` and `other` [n] are equal in the columns `names`: bool [n]."""
    found = np.ones(len(one), dtype=np.bool_)
    for name in names:
        found &= rows[name][one] == rows[name][other]
    return found


def queries_of(rows: Rows) -> Iterator[tuple[int, Queries]]:
    """The calls of each request. A sequence's last query is the token of its last row."""
    order = np.lexsort((rows["position"], rows["sequence"], rows["step"], rows["request"]))
    by_query = rows[order]
    last = np.ones(len(rows), dtype=np.bool_)
    last[:-1] = ~equal(
        by_query, np.arange(len(rows) - 1), np.arange(1, len(rows)), "request", "step", "sequence"
    )
    queries = by_query[last]
    for request in np.unique(queries["request"]).tolist():
        own = queries[slice(*np.searchsorted(queries["request"], (request, request + 1)))]
        steps, start = np.unique(own["step"], return_index=True)
        queries_before = np.maximum(own["tokens"].astype(np.int64), 1) - 1  # in the row's sequence
        first = np.minimum.reduceat(own["position"] - queries_before, start)
        yield request, Queries(steps, first, np.maximum.reduceat(own["position"], start))
