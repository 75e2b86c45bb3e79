# SPDX-License-Identifier: Apache-2.0
"""The check of chains while a program runs: call by call, with dictionaries.

    lineage = OnlineLineage()
    for finding in lineage.add_call(layer, step, {"state": accesses}): ...

It decides by the rules of `gdnbench lineage`, but for two things: the prefix of a state is known only once
its request has read the state, and of each chain it remembers the latest accesses alone. What it has
forgotten is unknown, never wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gdnbench.lineage.call_breaks import breaks_of_call
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.rules import MOST_SOURCES, PreviousCall, is_lost, judge, previous_call
from gdnbench.lineage.table import ZERO, Access
from gdnbench.store.access_log import AccessKind

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

REMEMBERED = 50_000
"""Writes, contents, slots and requests of a chain that are remembered."""

_OF_SLOT = 64  # writes of one slot
_STEPS = 4096  # calls of a chain, and of a request


class _Recent(Generic[K, V]):
    """A dictionary that forgets the keys that were set longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[K, V] = OrderedDict()
        self.forgot = False

    def get(self, key: K) -> V | None:
        return self._found.get(key)

    def put(self, key: K, value: V) -> None:
        self._found[key] = value
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)
            self.forgot = True


@dataclass(slots=True)
class _Layer:
    """The calls of a layer, those of its convolution apart: the latest step, the one since which no call is
    missing, whether several layers have its name, and whether states also come from elsewhere."""

    last: int = -1
    since: int = -1
    several: bool = False
    elsewhere: bool = False


@dataclass(slots=True)
class _Write:
    access: Access  # which is replaced by one with its prefix once that is known
    rejected: bool = False


@dataclass(slots=True)
class _Request:
    """What is remembered of a request. `slots`: those of its latest call; `wrote`: the step of its latest
    write; `followed`, `several`: see `rules.History.is_followed` and `is_several`."""

    previous: PreviousCall
    slots: frozenset[int]
    steps: list[int] = field(default_factory=list)
    wrote: int = -1
    followed: bool = False
    several: bool = False


class OnlineLineage:
    """Checks the calls of one process as they come. Not thread safe.

    `remembered`: how many writes, contents, slots and requests of each chain are remembered.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._elsewhere = False
        self._layers: dict[tuple[str, bool], _Layer] = {}
        self._chains: dict[tuple[str, str], _ChainHistory] = {}

    def add_call(
        self,
        layer: str,
        step: int,
        accesses: Mapping[str, Sequence[Access]],
        apart: bool = False,
        elsewhere: bool = False,
    ) -> list[Finding]:
        """Add the next call of a layer, of which steps ascend: its accesses by chain, but those of windows.
        Returns the breaks that the call shows. A missing step is a missing call; calls with `apart`
        (`Operation.counted_apart`) have steps of their own. `elsewhere`: the engine claimed at this call
        that it also writes states in other ways, which is taken to be so from then on."""
        calls = self._layers.setdefault((layer, apart), _Layer())
        self._elsewhere |= elsewhere
        calls.elsewhere = self._elsewhere
        calls.several |= step <= calls.last  # layers of two models have this name, or threads overtake
        if calls.several:
            return []
        if step != calls.last + 1 or calls.since < 0:
            calls.since = step
        calls.last = step
        found: list[Finding] = []
        for name, of_chain in accesses.items():
            if of_chain:
                chain = self._chains.get((layer, name))
                if chain is None:
                    chain = _ChainHistory(layer, name, calls, self._remembered)
                    self._chains[layer, name] = chain
                found += chain.add(step, of_chain)
        return found

    def forget(self, layer: str, chain: str) -> None:
        """Forget the accesses of a chain, as if they were of calls without accesses: reads of what they wrote
        are unknown."""
        self._chains.pop((layer, chain), None)

    def out_of_order(self) -> list[str]:
        """Names of layers whose calls are not checked any more, since one came after a later one."""
        return sorted({layer for (layer, _), calls in self._layers.items() if calls.several})


class _ChainHistory:
    """`rules.History` of one chain up to the call that is being added. Steps that are asked for are before
    that call."""

    def __init__(self, layer: str, chain: str, calls: _Layer, most: int) -> None:
        self.layer, self.chain = layer, chain
        self._calls = calls
        self._own: _Recent[tuple[int, int], _Write] = _Recent(most)
        self._contents: _Recent[tuple[int, int], deque[_Write]] = _Recent(most)
        self._slots: _Recent[int, deque[_Write]] = _Recent(most)
        self._requests: _Recent[int, _Request] = _Recent(most)
        self._steps: list[int] = []
        self._several: set[int] = set()  # requests of several sequences of the call that is being added
        self._prompts = False  # whether a call that computes a prompt was seen
        self._unclaimed = -1  # step of the latest call with an unknown request
        self._undigested = False  # whether a write's digest was unknown, padding's apart

    def add(self, step: int, accesses: Sequence[Access]) -> list[Finding]:
        """The breaks that a call shows, which is then part of the history."""
        _append(self._steps, step)
        live = [one for one in accesses if not one.is_padding]
        reads = [one for one in live if one.kind == AccessKind.READ]
        writes = [one for one in accesses if one.kind == AccessKind.WRITE]
        if any(one.request < 0 for one in live):
            self._unclaimed = step
        sequences: dict[int, int] = {}
        self._several = {
            one.request for one in live if sequences.setdefault(one.request, one.sequence) != one.sequence
        }
        for read in reads:
            self._label(read)
        found = breaks_of_call([one for one in writes if one.slot >= 0], self.layer, self.chain)
        hits = set()
        for read in reads:
            judged = judge(read, self)
            if isinstance(judged, Finding):
                found.append(judged)
            elif judged is None and self._is_hit(read):
                hits.add(read.request)
        by_request: dict[int, list[Access]] = {}
        for one in live:
            by_request.setdefault(one.request, []).append(one)
        for request, own in by_request.items():
            self._reject_drafts(request, _latest_call(own))
        for write in writes:
            self._remember_write(write)
        self._prompts = self._prompts or any(_is_prompt(write, reads) for write in writes)
        for request, own in by_request.items():
            self._remember_request(request, own, request in hits)
        return found

    def _label(self, read: Access) -> None:
        """The write that `read` rightly finds is of its prefix."""
        write = self._own.get((read.request, read.position))
        if write is None or not read.prefix or write.access.prefix:
            return
        if read.digest_known and read.position > 0 and write.access.digest == read.digest:
            write.access = write.access._replace(prefix=read.prefix)

    def _is_hit(self, read: Access) -> bool:
        """Whether a right read found the state of its prefix, and not its own. Zeros are no state that
        anybody computed."""
        if not read.prefix or read.position <= 0 or read.digest == ZERO:
            return False
        own = self._own.get((read.request, read.position))
        if own is not None and own.access.digest == read.digest:
            return False
        sources = self.writes_of(read.digest, read.step)
        return any(one.prefix == read.prefix and one.position == read.position for one in sources)

    def _remember_write(self, write: Access) -> None:
        kept = _Write(write)
        self._undigested = self._undigested or not (write.digest_known or write.is_padding)
        if write.request >= 0 and write.position >= 0 and not write.is_padding:
            self._own.put((write.request, write.position), kept)
        same = self._contents.get(write.digest) or deque(maxlen=MOST_SOURCES + 1)
        same.append(kept)
        self._contents.put(write.digest, same)
        of_slot = self._slots.get(write.slot) or deque(maxlen=_OF_SLOT)
        of_slot.append(kept)
        self._slots.put(write.slot, of_slot)

    def _reject_drafts(self, request: int, call: PreviousCall) -> None:
        """Mark the drafts of the request's previous call that this one says were rejected."""
        known = self._requests.get(request)
        if known is None or request < 0 or not known.previous.rejects_from(call):
            return
        previous = known.previous
        if not self.contiguous(previous.step, call.step):
            return
        for position in range(call.first + 1, previous.first + previous.tokens + 1):
            write = self._own.get((request, position))
            if write is not None and write.access.step == previous.step and write.access.is_draft:
                write.rejected = True

    def _remember_request(self, request: int, accesses: Sequence[Access], hit: bool) -> None:
        step, previous = accesses[0].step, _latest_call(accesses)
        known = self._requests.get(request)
        slots = frozenset(one.slot for one in accesses)
        if known is None:
            known = _Request(previous, slots)
        known.previous, known.slots = previous, slots
        _append(known.steps, step)
        if any(one.kind == AccessKind.WRITE for one in accesses):
            known.wrote = step
        known.followed |= hit or previous.first == 0
        known.several |= request in self._several
        self._requests.put(request, known)

    # rules.History

    def latest(self, request: int, position: int, step: int) -> Access | None:
        found = self._own.get((request, position))
        return None if found is None else found.access

    def previous(self, request: int, step: int) -> PreviousCall | None:
        known = self._requests.get(request)
        return None if known is None else known.previous

    def writes_of(self, digest: tuple[int, int], step: int) -> Sequence[Access]:
        return [one.access for one in self._contents.get(digest) or ()]

    def wrote_after(self, request: int, after: int, before: int) -> bool:
        known = self._requests.get(request)
        return known is not None and known.wrote > after

    def first_foreign_write(self, slot: int, request: int, first: int, before: int) -> Access | None:
        for one in (write.access for write in self._slots.get(slot) or ()):
            if one.step >= first and (one.request != request or one.is_padding):
                return one
        return None

    def last_write(self, slot: int, step: int) -> Access | None:
        written = self._slots.get(slot)
        return written[-1].access if written else None

    def used_slot(self, request: int, slot: int, step: int) -> bool:
        known = self._requests.get(request)
        return known is not None and known.previous.step == step and slot in known.slots

    def ran_near(self, request: int, step: int) -> bool:
        known = self._requests.get(request)
        if known is None:
            return False
        latest = bisect_left(known.steps, step + 1)
        return latest > 0 and self.calls_apart(known.steps[latest - 1], step) <= 1

    def calls_apart(self, first: int, second: int) -> int:
        return bisect_left(self._steps, second) - bisect_left(self._steps, first)

    def contiguous(self, first: int, second: int) -> bool:
        return self._calls.since <= first and self._unclaimed <= first

    def from_first(self, step: int) -> bool:
        forgot = self._own.forgot or self._contents.forgot or self._slots.forgot
        return self._calls.since == 0 and not forgot and not self._calls.elsewhere

    def all_digested(self, step: int) -> bool:
        return not self._undigested

    def slot_written(self, slot: int, step: int) -> bool:
        return self._slots.get(slot) is not None

    def lost_prefix(self, slot: int, prefix: int, step: int) -> bool:
        if slot < 0 or prefix == 0:
            return False
        written = [one.access for one in self._slots.get(slot) or ()]
        return is_lost(prefix, [one.prefix for one in written], [one.request for one in written])

    def is_followed(self, request: int, step: int) -> bool:
        known = self._requests.get(request)
        return self._prompts and known is not None and known.followed

    def was_rejected(self, write: Access, step: int) -> bool:
        return any(one.rejected and one.access is write for one in self._contents.get(write.digest) or ())

    def is_several(self, request: int, step: int) -> bool:
        known = self._requests.get(request)
        return request in self._several or (known is not None and known.several)


def _latest_call(accesses: Sequence[Access]) -> PreviousCall:
    """The call of a request, all of whose accesses in it these are."""
    last = max(one.sequence for one in accesses)
    return previous_call([one for one in accesses if one.sequence == last])


def _is_prompt(write: Access, reads: Sequence[Access]) -> bool:
    """Whether a write of a call is its sequence's only one, after several tokens of a prompt."""
    if write.tokens < 2 or write.is_draft or write.is_padding or write.request < 0 or write.position < 0:
        return False
    claimed = (one for one in reads if one.request >= 0 and one.position >= 0)
    own = (one.position for one in claimed if one.sequence == write.sequence)
    return write.position - next(own, 0) == write.tokens


def _append(steps: list[int], step: int) -> None:
    steps.append(step)
    if len(steps) > 2 * _STEPS:
        del steps[:_STEPS]
