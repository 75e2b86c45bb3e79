# SPDX-License-Identifier: Apache-2.0
"""Checks a whole chain: in arrays all reads that are plainly right or unknown, by `judge` the few others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gdnbench.lineage.call_breaks import call_breaks
from gdnbench.lineage.continuity import Continuity
from gdnbench.lineage.finding import Finding, Unknown
from gdnbench.lineage.rules import MOST_SOURCES, PreviousCall, is_lost, judge, previous_call
from gdnbench.lineage.table import Access, Chain, Numbers, Rows, access_of
from gdnbench.store.access_log import AccessFlag, AccessKind

MOST_BREAKS = 1000
"""Breaks of one chain that are classified; of further suspicious reads only their number is known."""

Words = NDArray[np.uint64]


@dataclass(slots=True)
class ChainResult:
    """What the check of one chain found. `verdicts`: of each row of the chain, for `--explain`: "right", the
    name of a break, or a reason; empty for writes and where they were not asked for."""

    layer: str
    name: str
    findings: list[Finding] = field(default_factory=list)
    reads: int = 0
    right: int = 0
    padding: int = 0
    unknown: Counter[Unknown] = field(default_factory=Counter)
    verdicts: dict[int, str] = field(default_factory=dict)


def counted_reads(chain: Chain, explain: bool) -> tuple[ChainResult, Numbers | None]:
    """The chain's result with its reads counted, and int64 [n], the places of the reads to judge: those that
    are not of padding. None if several layers have the chain's name, which leaves all of them unknown."""
    result = ChainResult(chain.layer, chain.name)
    rows = chain.rows
    is_read = rows["kind"] == AccessKind.READ
    padding = (rows["flags"] & AccessFlag.PADDING) != 0
    result.padding = int((is_read & padding).sum())
    reads = np.flatnonzero(is_read & ~padding)
    result.reads = len(reads)
    if has_several_layers(chain):
        result.unknown[Unknown.SAME_NAME] += len(reads)
        if explain:
            result.verdicts = dict.fromkeys(reads.tolist(), str(Unknown.SAME_NAME))
        return result, None
    return result, reads


def check_states(chain: Chain, explain: bool = False) -> ChainResult:
    """Check a chain of states."""
    result, reads = counted_reads(chain, explain)
    if reads is None:
        return result
    rows = chain.rows
    history = ArrayHistory(chain)
    verdict = history.quick_verdicts(reads)
    result.right = int((verdict == _RIGHT).sum())
    for code, reason in enumerate(_REASONS):
        if count := int((verdict == code).sum()):
            result.unknown[reason] += count
    if explain:
        result.verdicts = _explained(reads, verdict)
    for place in reads[verdict == _SUSPICIOUS].tolist():
        if len(result.findings) >= MOST_BREAKS:
            judged: Finding | Unknown | None = Unknown.NOT_CLASSIFIED
        else:
            judged = judge(access_of(rows[place]), history)
        if judged is None:
            result.right += 1
            text = "right"
        elif isinstance(judged, Unknown):
            result.unknown[judged] += 1
            text = judged.value
        else:
            result.findings.append(judged)
            text = judged.kind.value
        if explain:
            result.verdicts[place] = text
    result.findings = in_order(call_breaks(chain) + result.findings)
    return result


def has_several_layers(chain: Chain) -> bool:
    """Whether layers of several models have this chain's name: later steps are not later calls then."""
    rows = chain.rows
    same = rows["step"][1:] == rows["step"][:-1]
    wrong = np.where(same, rows["call"][1:] != rows["call"][:-1], rows["call"][1:] <= rows["call"][:-1])
    return bool(wrong.any())


def in_order(findings: list[Finding]) -> list[Finding]:
    """By the call that did the damage, and then by the one that shows it."""
    return sorted(findings, key=lambda one: (one.damage.step, one.found.step))


_REASONS: Sequence[Unknown] = tuple(Unknown)
_RIGHT, _SUSPICIOUS = 100, 101


def _explained(reads: Numbers, verdict: NDArray[np.int8]) -> dict[int, str]:
    texts = {code: str(reason) for code, reason in enumerate(_REASONS)} | {_RIGHT: "right", _SUSPICIOUS: ""}
    return {place: texts[code] for place, code in zip(reads.tolist(), verdict.tolist(), strict=True)}


class _Keyed:
    """The latest of some events of a key before a step."""

    def __init__(self, keys: NDArray[np.integer], steps: Numbers) -> None:
        """`keys` and `steps` [n], the steps from 0 and ascending."""
        self.keys, number = np.unique(keys, return_inverse=True)
        self._span = int(steps.max()) + 2 if len(steps) else 1
        found = number * self._span + steps
        self.order = np.argsort(found, kind="stable")
        self._sorted = found[self.order]

    def before(self, keys: NDArray[np.integer], steps: Numbers) -> Numbers:
        """Of each key the number of its last event before its step, or -1."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        number = np.searchsorted(self.keys, keys)
        there = number < len(self.keys)
        number[~there] = 0
        there &= self.keys[number] == keys
        steps = np.minimum(steps, self._span - 1)
        place = np.searchsorted(self._sorted, number * self._span + steps) - 1
        there &= place >= 0
        there &= self._sorted[place] >= number * self._span
        return np.where(there, self.order[place], -1)

    def all_before(self, key: int, step: int) -> Numbers:
        """The numbers of all events of a key before a step, ascending."""
        number = int(np.searchsorted(self.keys, key))
        if number == len(self.keys) or self.keys[number] != key:
            return np.zeros(0, dtype=np.int64)
        bounds = number * self._span, number * self._span + min(step, self._span - 1)
        first, last = np.searchsorted(self._sorted, bounds)
        return self.order[first:last]


def _position_keys(request: Numbers, position: Numbers) -> Numbers:
    return request.astype(np.int64) << 32 | position


def _digest_keys(digest: Words) -> Words:
    """One word for both; `judge` compares whole digests."""
    found: Words = digest[:, 0] ^ (digest[:, 1] << np.uint64(1)) ^ (digest[:, 1] >> np.uint64(63))
    return found


class ArrayHistory:
    """`rules.History` of all rows of a chain."""

    def __init__(self, chain: Chain) -> None:
        self.layer, self.chain, self._whole = chain.layer, chain.name, chain.whole
        self._elsewhere = chain.elsewhere
        rows = self._rows = chain.rows
        self._continuity = Continuity(chain)
        self._at = self._continuity.at
        self._writes = np.flatnonzero(rows["kind"] == AccessKind.WRITE)
        self._write_rows = rows[self._writes]
        self._write_at = self._at[self._writes]
        owned = (self._write_rows["request"] >= 0) & (self._write_rows["position"] >= 0)
        self._owned = np.flatnonzero(owned & ((self._write_rows["flags"] & AccessFlag.PADDING) == 0))
        mine = self._write_rows[self._owned]
        keys = _position_keys(mine["request"], mine["position"])
        self._own = _Keyed(keys, self._write_at[self._owned])
        self._digest_of_writes = _digest_keys(self._write_rows["digest"])
        self._contents = _Keyed(self._digest_of_writes, self._write_at)
        self._slots = _Keyed(self._write_rows["slot"], self._write_at)
        self._of_request: _Keyed | None = None
        self._writes_of_request: _Keyed | None = None
        self._hit_rows: Numbers = np.zeros(0, dtype=np.int64)

    def quick_verdicts(self, reads: Numbers) -> NDArray[np.int8]:
        """Of each read _RIGHT, the number of a reason, or _SUSPICIOUS where `judge` must tell."""
        rows = self._rows[reads]
        at = self._at[reads]
        digest = rows["digest"]
        request, position = rows["request"], rows["position"]
        keys = _position_keys(request, position)
        place = self._own.before(keys, at)
        write = np.where(place >= 0, self._owned[place] if len(self._owned) else 0, -1)
        has_own = write >= 0
        own = self._write_rows[write] if len(self._write_rows) else np.zeros(len(reads), rows.dtype)
        same = has_own & (own["digest"] == digest).all(axis=1)
        known = (rows["flags"] & AccessFlag.DIGEST_UNKNOWN) == 0
        claimed = (request >= 0) & (position >= 0) & known
        zero = (digest == 0).all(axis=1)
        start = position == 0
        right = claimed & np.where(start, zero, same)
        self._label_prefixes(write[right & ~start], rows["prefix"][right & ~start])
        hit = claimed & ~right & ~start & (rows["prefix"] != 0) & ~zero
        hit[hit] = self._hits(rows[hit], at[hit])
        found = np.full(len(reads), _SUSPICIOUS, dtype=np.int8)
        # A content that no record wrote breaks the law only if the request's own write is near enough.
        sourced = ~zero & (self._contents.before(_digest_keys(digest), at) >= 0)
        before = self._write_at[write] if len(self._write_at) else at
        near = has_own & self._continuity.all_recorded(before, at)
        lost = claimed & ~start & ~sourced & ~near
        reason = np.where(has_own, _code(Unknown.CALLS_MISSING), _code(Unknown.FIRST_SEEN))
        if self._whole:
            lost &= has_own | (at >= self._continuity.until)
        found[lost] = reason[lost]
        found[right | hit] = _RIGHT
        for known_part, why in (
            (known, Unknown.NO_DIGEST),
            (position >= 0, Unknown.NO_POSITION),
            (request >= 0, Unknown.NO_REQUEST),
        ):
            found[~known_part] = _code(why)
        self._hit_rows = np.sort(reads[hit])
        return found

    def _label_prefixes(self, writes: Numbers, prefixes: Words) -> None:
        """Writes of the states that reads with a known prefix found."""
        labels = self._write_rows["prefix"]
        blank = (labels[writes] == 0) & (prefixes != 0)
        labels[writes[blank]] = prefixes[blank]

    def _hits(self, rows: Rows, at: Numbers) -> NDArray[np.bool_]:
        """Which reads find the state of a recorded write of their prefix and position."""
        labelled = np.flatnonzero(
            (self._write_rows["prefix"] != 0) & ((self._write_rows["flags"] & AccessFlag.PADDING) == 0)
        )
        known = self._write_rows[labelled]
        events = _Keyed(_hit_keys(known), self._write_at[labelled])
        return np.asarray(events.before(_hit_keys(rows), at) >= 0)

    # rules.History

    def _number(self, step: int) -> int:
        return self._continuity.number(step)

    def latest(self, request: int, position: int, step: int) -> Access | None:
        found = self._own.all_before(request << 32 | position, self._number(step))
        return None if not len(found) else self._write(self._owned[found[-1]])

    def _write(self, number: int) -> Access:
        return access_of(self._write_rows[number])

    def previous(self, request: int, step: int) -> PreviousCall | None:
        events = self._accesses_of(request, self._number(step))
        if not len(events):
            return None
        rows = self._rows[events]
        return self._call_of(rows, int(rows["step"][-1]))

    def _accesses_of(self, request: int, at: int) -> Numbers:
        if self._of_request is None:
            padding = (self._rows["flags"] & AccessFlag.PADDING) != 0
            # Padding is nobody's, whatever it is called.
            requests = np.where(padding, -2, self._rows["request"])
            self._of_request = _Keyed(requests, self._at)
        return self._of_request.all_before(request, at)

    def writes_of(self, digest: tuple[int, int], step: int) -> Sequence[Access]:
        key = _digest_keys(np.array([digest], dtype=np.uint64))[0]
        found = self._contents.all_before(key, self._number(step))[-MOST_SOURCES - 1 :]
        return [one for one in map(self._write, found.tolist()) if one.digest == digest]

    def wrote_after(self, request: int, after: int, before: int) -> bool:
        if self._writes_of_request is None:
            requests = self._write_rows["request"][self._owned]
            self._writes_of_request = _Keyed(requests, self._write_at[self._owned])
        found = self._writes_of_request.all_before(request, self._number(before))
        return bool(len(found)) and int(self._write_rows["step"][self._owned[found[-1]]]) > after

    def first_foreign_write(self, slot: int, request: int, first: int, before: int) -> Access | None:
        found = self._slots.all_before(slot, self._number(before))
        rows = self._write_rows[found]
        others = (rows["step"] >= first) & (
            (rows["request"] != request) | ((rows["flags"] & AccessFlag.PADDING) != 0)
        )
        places = found[others]
        return self._write(int(places[0])) if len(places) else None

    def used_slot(self, request: int, slot: int, step: int) -> bool:
        rows = self._rows[self._accesses_of(request, self._number(step) + 1)]
        return bool(((rows["step"] == step) & (rows["slot"] == slot)).any())

    def ran_near(self, request: int, step: int) -> bool:
        events = self._accesses_of(request, self._number(step) + 1)
        return bool(len(events)) and self.calls_apart(int(self._rows["step"][events[-1]]), step) <= 1

    def calls_apart(self, first: int, second: int) -> int:
        return int(self._continuity.apart(first, second))

    def contiguous(self, first: int, second: int) -> bool:
        return self._continuity.contiguous(first, second)

    def from_first(self, step: int) -> bool:
        return not self._elsewhere and self._number(step) < self._continuity.until

    def all_digested(self, step: int) -> bool:
        return step <= self._first_undigested

    @cached_property
    def _first_undigested(self) -> int:
        """The step of the first write whose digest is unknown, padding's apart; past all if there is none."""
        rows = self._write_rows
        either = rows["flags"] & (AccessFlag.DIGEST_UNKNOWN | AccessFlag.PADDING)
        places = np.flatnonzero(either == AccessFlag.DIGEST_UNKNOWN)
        return int(rows["step"][places[0]]) if len(places) else int(np.iinfo(np.int64).max)

    def slot_written(self, slot: int, step: int) -> bool:
        return bool(len(self._slots.all_before(slot, self._number(step))))

    def last_write(self, slot: int, step: int) -> Access | None:
        found = self._slots.all_before(slot, self._number(step))
        return self._write(int(found[-1])) if len(found) else None

    def lost_prefix(self, slot: int, prefix: int, step: int) -> bool:
        if slot < 0 or prefix == 0:
            return False
        rows = self._write_rows[self._slots.all_before(slot, self._number(step))]
        return is_lost(prefix, rows["prefix"].tolist(), rows["request"].tolist())

    def is_followed(self, request: int, step: int) -> bool:
        if self._number(step) <= self._first_prompt:
            return False
        events = self._accesses_of(request, self._number(step))
        rows = self._rows[events]
        reads = rows["kind"] == AccessKind.READ
        if bool((reads & (rows["position"] == 0)).any()) or bool(np.isin(events, self._hit_rows).any()):
            return True
        # A call that reads nothing begins at zeros, if it has consumed no more than its tokens.
        calls = _sequence_keys(rows["step"], rows["sequence"])
        alone = ~reads & (rows["position"] == rows["tokens"]) & ~np.isin(calls, calls[reads])
        return bool(alone.any())

    @cached_property
    def _first_prompt(self) -> int:
        """The number of the first call that computes a prompt: a sequence's only write is after several
        tokens."""
        rows = self._rows
        claimed = (rows["request"] >= 0) & (rows["position"] >= 0)
        claimed &= (rows["flags"] & AccessFlag.PADDING) == 0
        reads = np.flatnonzero(claimed & (rows["kind"] == AccessKind.READ))
        writes = claimed & (rows["kind"] == AccessKind.WRITE) & (rows["tokens"] > 1)
        writes &= (rows["flags"] & AccessFlag.DRAFT) == 0
        places = np.flatnonzero(writes)
        keys = _sequence_keys(self._at, rows["sequence"])
        order = reads[np.argsort(keys[reads], kind="stable")]
        first = np.searchsorted(keys[order], keys[places])
        there = first < len(order)
        read = order[np.where(there, first, 0)] if len(order) else np.zeros_like(places)
        there &= keys[read] == keys[places]
        begins = np.where(there, rows["position"][read], 0)
        found = self._at[places[rows["position"][places] - begins == rows["tokens"][places]]]
        return int(found.min()) if len(found) else len(self._at)

    def was_rejected(self, write: Access, step: int) -> bool:
        if not write.is_draft or write.request < 0 or write.position < 0:
            return False
        events = self._accesses_of(write.request, self._number(step))
        rows = self._rows[events]
        later = rows["step"][rows["step"] > write.step]
        if not len(later):
            return False
        call, following = self._call_of(rows, write.step), self._call_of(rows, int(later.min()))
        return (
            call.rejects_from(following)
            and following.first < write.position
            and self.contiguous(call.step, following.step)
        )

    def _call_of(self, rows: Rows, step: int) -> PreviousCall:
        """The call `step` of a request whose accesses `rows` are."""
        rows = rows[rows["step"] == step]
        rows = rows[rows["sequence"] == rows["sequence"][-1]]
        return previous_call([access_of(row) for row in rows])

    def is_several(self, request: int, step: int) -> bool:
        rows = self._rows[self._accesses_of(request, self._number(step) + 1)]
        first = np.flatnonzero(np.append(True, rows["step"][1:] != rows["step"][:-1]))
        sequence = rows["sequence"]
        return bool(
            len(rows) and (np.minimum.reduceat(sequence, first) != np.maximum.reduceat(sequence, first)).any()
        )


def _sequence_keys(calls: Numbers, sequences: NDArray[np.integer]) -> Numbers:
    """One number for each sequence of each call, in the order of calls."""
    span = int(sequences.max(initial=0)) + 1
    number = np.unique(calls, return_inverse=True)[1].reshape(-1)
    return number * span + sequences


def _code(reason: Unknown) -> int:
    return _REASONS.index(reason)


def _hit_keys(rows: Rows) -> Words:
    """One word for content, position and prefix."""
    found = _digest_keys(rows["digest"]) * np.uint64(0x9E3779B97F4A7C15)
    found ^= rows["prefix"]
    found *= np.uint64(0xBF58476D1CE4E5B9)
    mixed: Words = found ^ rows["position"].astype(np.uint64)
    return mixed
