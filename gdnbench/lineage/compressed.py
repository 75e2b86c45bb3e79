# SPDX-License-Identifier: Apache-2.0
"""Checks a chain of compressed rows: a row must stay as it is while its request runs.

A row is made of several tokens, and nobody records who writes it. A query reads all rows there are, in order,
or a selection of them that does not say which positions they are of. So:

- A request that read a slot before must find the row unchanged: while it was in every call, moved on by no
  more than its tokens, and did not compute again any token that the row may be of. Those come before the
  first query that read it.
- A row that a request reads for the first time must not be what the slot held for another position. This
  relies on the order of all rows, which is taken from a chain where n rows are what a query at a position p
  has by one ratio: n = (p + 1) // ratio.
- No query reads a slot twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gdnbench.lineage.continuity import Continuity
from gdnbench.lineage.detect import MOST_BREAKS, ChainResult, counted_reads
from gdnbench.lineage.finding import Break, Finding, Unknown
from gdnbench.lineage.table import Chain, Numbers, Rows, access_of
from gdnbench.lineage.window import (
    COMMON_SHARE,
    Queries,
    count_verdicts,
    equal,
    queries_of,
    texts_of,
    usable_reads,
)
from gdnbench.store.access_log import AccessFlag

RATIOS = tuple(1 << power for power in range(8))
"""Tokens of a row: 4 and 128 in DeepSeek-V4, 1 and 2 in 4.1."""
_RIGHT, _STALE, _TWICE, _FIRST, _MISSING, _ELSEWHERE = range(6)
_UNKNOWN = {
    _FIRST: Unknown.FIRST_SEEN,
    _MISSING: Unknown.CALLS_MISSING,
    _ELSEWHERE: Unknown.FROM_ELSEWHERE,
}
_BREAKS = {_STALE: Break.STALE_PAGE, _TWICE: Break.SHARED_SLOT}


def check_compressed(chain: Chain, explain: bool = False) -> ChainResult:
    """Check a chain whose reads are of compressed rows; `explain` as in `check_states`."""
    result, reads = counted_reads(chain, explain)
    if reads is None:
        return result
    entry = np.full(len(chain.rows), -1, dtype=np.int64)
    entry[reads] = _entries(chain.rows[reads])
    places, reasons = usable_reads(chain.rows, reads, result)
    check = _CompressedCheck(chain, chain.rows[places], entry[places])
    judged, verdicts = check.verdicts()
    result.reads -= len(places) - len(judged)  # queries of a request share rows
    places = places[judged]
    result.findings = check.findings
    meaning = {_RIGHT: "right"} | _UNKNOWN | _BREAKS
    count_verdicts(result, verdicts, meaning)
    if explain:
        result.verdicts = reasons | texts_of(verdicts, places, meaning)
    return result


def _entries(rows: Rows) -> Numbers:
    """The number of each read among those of its query, which follow one another."""
    count = len(rows)
    begins = np.ones(count, dtype=np.bool_)
    begins[1:] = ~equal(rows, np.arange(count - 1), np.arange(1, count), "step", "sequence", "position")
    first = np.maximum.accumulate(np.where(begins, np.arange(count), 0))
    return np.arange(count) - first


class _CompressedCheck:
    """The check of the usable reads of a chain, which are in order of steps. `entry`: of each read its number
    among those of its query."""

    def __init__(self, chain: Chain, rows: Rows, entry: Numbers) -> None:
        self._chain = chain
        self._all = rows
        self._continuity = Continuity(chain)
        self._queries: dict[int, Queries] = dict(queries_of(rows))
        first = _first_in_call(rows)
        self._judged, self._rows = first, rows[first]
        self._index = _positions(rows, entry)[first]
        self._kept: set[tuple[int, int]] = set()  # requests and steps in which a row is as it was before
        self.findings: list[Finding] = []

    def verdicts(self) -> tuple[Numbers, NDArray[np.int8]]:
        """The reads that are judged, the first of each slot by a request in a call, and their verdicts."""
        rows = self._rows
        found = np.full(len(rows), _FIRST, dtype=np.int8)
        if not len(rows):
            return self._judged, found
        order = np.lexsort((rows["step"], rows["slot"], rows["request"]))
        before, after = order[:-1], order[1:]
        again = equal(rows, before, after, "request", "slot")
        content = (rows["digest"][before] == rows["digest"][after]).all(axis=1)
        kept = after[again & content]
        found[kept] = _RIGHT
        self._kept = set(zip(rows["request"][kept].tolist(), rows["step"][kept].tolist(), strict=True))
        since = self._first_of_content(order, again & content)
        changed = again & ~content
        for old, new in zip(before[changed].tolist(), after[changed].tolist(), strict=True):
            found[new] = self._changed(since[old], old, new)
        fresh = np.ones(len(rows), dtype=np.bool_)
        fresh[after[again]] = False
        for old, new in self._left_over(fresh):
            found[new] = self._stale(old, new)
        for place in self._twice():
            found[place] = self._break(_TWICE, place, None, None)
        self.findings.sort(key=lambda one: (one.found.step, one.found.sequence))
        return self._judged, found

    @staticmethod
    def _first_of_content(order: Numbers, same: NDArray[np.bool_]) -> Numbers:
        """Of each read the first one since which its request has found this content at the slot."""
        begins = np.concatenate([[True], ~same])
        first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        found = np.empty(len(order), dtype=np.int64)
        found[order] = order[first]
        return found

    def _changed(self, since: int, old: int, new: int) -> int:
        """The verdict of a row that its request read before with other content, first by the read `since`."""
        rows = self._rows
        request, first, last = (
            int(rows["request"][new]),
            int(rows["step"][old]),
            int(rows["step"][new]),
        )
        if self._chain.elsewhere:
            return _ELSEWHERE
        if not self._continuity.contiguous(first, last):
            return _MISSING
        steady, drafts = self._steady(request, int(rows["position"][since]), first, last)
        if not steady:
            return _FIRST
        source = self._source(new)
        # All rows change if all are computed again, as after an update of the weights.
        if source is None and (drafts or (request, last) not in self._kept):
            return _FIRST
        return self._break(_STALE, new, old, source)

    def _steady(self, request: int, latest: int, first: int, last: int) -> tuple[bool, bool]:
        """Whether the request was in every call between two steps, moved on by no more than its tokens, and
        computed no token up to `latest` again; and whether any of its calls had drafts."""
        queries = self._queries[request]
        at = np.searchsorted(queries.steps, (first, last))
        part = slice(int(at[0]), int(at[1]) + 1)
        steps, starts, ends = queries.steps[part], queries.first[part], queries.last[part]
        near = self._continuity.apart(steps[:-1], steps[1:]) == 1
        moved = (starts[1:] > starts[:-1]) & (starts[1:] <= ends[:-1] + 1) & (starts[1:] > latest)
        return bool(near.all() and moved.all()), bool((ends > starts).any())

    def _source(self, new: int) -> int | None:
        """The latest read of this content by then, by another request or at another slot."""
        rows = self._rows
        until = int(np.searchsorted(rows["step"], rows["step"][new], side="right"))
        same = (rows["digest"][:until] == rows["digest"][new]).all(axis=1)
        same &= (rows["request"][:until] != rows["request"][new]) | (
            rows["slot"][:until] != rows["slot"][new]
        )
        places = np.flatnonzero(same)
        return int(places[-1]) if len(places) else None

    def _left_over(self, fresh: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """First reads of a known position whose content the slot had for another one, with such a read."""
        rows, index = self._rows, self._index
        known = np.flatnonzero((index >= 0) & (rows["digest"] != 0).any(axis=1))
        if not len(known) or not self._order_fits(known) or not self._depends(known):
            return
        held = np.column_stack([rows["slot"][known].astype(np.uint64), rows["digest"][known]])
        _, first, number = np.unique(held, axis=0, return_index=True, return_inverse=True)
        old = known[first[number.reshape(-1)]]  # the first read of this content at the slot
        other = fresh[known] & (index[old] != index[known]) & (rows["step"][old] < rows["step"][known])
        yield from zip(old[other].tolist(), known[other].tolist(), strict=True)

    def _order_fits(self, known: Numbers) -> bool:
        """Whether the rows that a request reads at one position in two successive calls are at one slot."""
        rows, index = self._rows, self._index
        order = known[np.lexsort((rows["step"][known], index[known], rows["request"][known]))]
        one, other = order[:-1], order[1:]
        pairs = equal(rows, one, other, "request") & (index[one] == index[other])
        pairs &= rows["step"][one] != rows["step"][other]
        near = pairs & (self._continuity.apart(rows["step"][one], rows["step"][other]) == 1)
        moved = near & (rows["slot"][one] != rows["slot"][other])
        return bool(near.any()) and int(moved.sum()) * 4 <= int(near.sum())

    def _depends(self, known: Numbers) -> bool:
        """Whether rows depend on the position: but for one in twenty, a content is of one alone."""
        pairs = np.column_stack([self._rows["digest"][known], self._index[known].astype(np.uint64)])
        contents = np.unique(np.unique(pairs, axis=0)[:, :2], axis=0, return_counts=True)[1]
        return int((contents > 1).sum()) * COMMON_SHARE < len(contents)

    def _stale(self, old: int, new: int) -> int:
        """The verdict of a row that its request reads for the first time with what the slot held before."""
        rows = self._rows
        if self._chain.elsewhere:
            return _ELSEWHERE
        if not self._continuity.contiguous(int(rows["step"][old]), int(rows["step"][new])):
            return _MISSING
        return self._break(_STALE, new, None, old)

    def _twice(self) -> Iterator[int]:
        """Reads of slots that one query reads twice."""
        rows = self._all
        order = np.lexsort((rows["slot"], rows["position"], rows["sequence"], rows["step"]))
        one, other = order[:-1], order[1:]
        same = equal(rows, one, other, "step", "sequence", "position", "slot")
        keys = {(rows["request"][at], rows["step"][at], rows["slot"][at]) for at in other[same].tolist()}
        if not keys:
            return
        for place, row in enumerate(self._rows):
            if (row["request"], row["step"], row["slot"]) in keys:
                yield place

    def _break(self, code: int, new: int, own: int | None, source: int | None) -> int:
        if len(self.findings) >= MOST_BREAKS:
            return _FIRST
        found, before, origin = (
            None if place is None else access_of(self._rows[place]) for place in (new, own, source)
        )
        assert found is not None
        chain = self._chain
        self.findings.append(Finding(_BREAKS[code], chain.layer, chain.name, found, found, before, origin))
        return code


def _first_in_call(rows: Rows) -> Numbers:
    """The places, ascending, of the first query's read of each slot by a request in a call."""
    order = np.lexsort((rows["position"], rows["slot"], rows["request"], rows["step"]))
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = ~equal(rows, order[:-1], order[1:], "step", "request", "slot")
    return np.sort(order[begins])


def _positions(rows: Rows, entry: Numbers) -> Numbers:
    """Of each read the number of its row among all of its request, -1 if unknown: in the order of the entries
    of a query that reads as many rows as it has by the chain's ratio."""
    everything = (rows["flags"] & AccessFlag.ALL) != 0
    if not everything.any():
        return np.full(len(rows), -1, dtype=np.int64)
    keys = np.stack([rows["step"], rows["sequence"], rows["position"]], axis=1)
    _, number, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    has = count[number.reshape(-1)]
    fits = [everything & ((rows["position"] + 1) // ratio == has) for ratio in RATIOS]
    best = max(fits, key=lambda one: int(one.sum()))
    return np.where(best, entry, -1)
