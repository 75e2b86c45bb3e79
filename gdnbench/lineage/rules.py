# SPDX-License-Identifier: Apache-2.0
"""The law of a chain, and which break of it a wrong read is.

A read by a request at a position must find what the request last wrote at that position; at position 0,
zeros. `judge` decides one read from the accesses before it, which `History` looks up: in arrays of a whole
log, or in dictionaries while a program runs.

A read is called wrong only if one of these holds, and otherwise unknown:
- its content is identified: a recorded write of another position, of another request or prefix, has it, and
  no write that the reader may rightly find does; so has the state after a rejected draft, at any position, if
  the reader is the draft's request, has the tokens that this accepted, or every call is recorded;
- its content is from no recorded write, although the request wrote that position in one of the last two calls
  of the pool, none is missing since, and the request has been followed from its first token or from a
  recognised prefix hit;
- its position is 0 and it does not find zeros.

A window of a convolution depends on the latest tokens alone, so that other requests and positions may have
it too. Such a content identifies a write only if it is the last one to the slot in which the reader left its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gdnbench.lineage.finding import Break, Finding, Unknown
from gdnbench.lineage.table import ZERO, Access
from gdnbench.store.access_log import AccessKind

MOST_SOURCES: Final = 16
"""Writes of one content that are looked at; content that more have identifies no write."""

_ADJACENT: Final = 2
"""A request that runs in each step of an engine is in each or each other call of a pool: an engine's step may
have a call for prompts and one for decoding."""


class PreviousCall(NamedTuple):
    """A request's latest call before a read. `first`: position of its first token, or -1; `drafts`: whether
    its tokens after the first may be rejected."""

    step: int
    first: int
    tokens: int
    drafts: bool

    def may_leave(self, position: int) -> bool:
        """Whether the next call of the request may begin at `position`."""
        last = self.first + self.tokens
        return self.first >= 0 and (self.first < position <= last if self.drafts else position == last)

    def goes_on(self, position: int) -> bool:
        """Whether a call of the request at the position goes on from this one or computes its tokens again,
        as engines do that roll back after a rejected draft; otherwise it has started anew."""
        return self.may_leave(position) or self.first == position >= 0

    def right_count(self, position: int) -> int:
        """`num_accepted` of a next call at the position: the number of the token whose slot has the state."""
        return position - self.first if self.drafts else 1

    def rejects_from(self, following: PreviousCall) -> bool:
        """Whether the request's next call goes on from a token of this one, and later tokens were drafts that
        are not the request's. A prompt that is computed again takes up all of the request's tokens."""
        decodes = following.drafts or following.tokens == 1
        return self.drafts and decodes and self.first < following.first < self.first + self.tokens


def previous_call(accesses: Sequence[Access]) -> PreviousCall:
    """The call whose accesses by one sequence are these."""
    reads = [one.position for one in accesses if one.kind == AccessKind.READ]
    writes = [one.position for one in accesses if one.kind == AccessKind.WRITE]
    tokens, last = accesses[0].tokens, max(one.position for one in accesses)
    first = reads[0] if reads else max(last - tokens, -1)
    drafts = any(one.is_draft for one in accesses)
    if writes and 0 <= first < last:
        tokens = last - first  # a row of a batch may be longer than its request's tokens
    elif not writes and tokens > 1:
        drafts = True  # where their states went, nobody knows
    return PreviousCall(accesses[0].step, first, tokens, drafts)


class History(Protocol):
    """The accesses of a chain before a step."""

    layer: str
    chain: str

    def latest(self, request: int, position: int, step: int) -> Access | None:
        """The request's latest write at the position, in a call before `step`."""

    def previous(self, request: int, step: int) -> PreviousCall | None:
        """The request's latest call before `step`."""

    def writes_of(self, digest: tuple[int, int], step: int) -> Sequence[Access]:
        """The latest writes of that content before `step`, oldest first, at most MOST_SOURCES + 1."""

    def wrote_after(self, request: int, after: int, before: int) -> bool:
        """Whether the request wrote in a step between the two."""

    def first_foreign_write(self, slot: int, request: int, first: int, before: int) -> Access | None:
        """The first write to the slot by anybody else, in steps from `first` to the one before `before`."""

    def last_write(self, slot: int, step: int) -> Access | None:
        """The latest write to the slot before `step`."""

    def used_slot(self, request: int, slot: int, step: int) -> bool:
        """Whether the request read or wrote the slot in the call `step`."""

    def ran_near(self, request: int, step: int) -> bool:
        """Whether the request had an access in the call `step` or the one before it of the chain."""

    def calls_apart(self, first: int, second: int) -> int:
        """How many calls of the chain the second step is after the first."""

    def contiguous(self, first: int, second: int) -> bool:
        """Whether every call of the layer between the two steps is recorded, with its requests."""

    def from_first(self, step: int) -> bool:
        """Whether every call of the layer up to `step` is recorded, and states come from calls alone."""

    def all_digested(self, step: int) -> bool:
        """Whether the digest of every recorded write before `step` is known, but for padding's."""

    def slot_written(self, slot: int, step: int) -> bool:
        """Whether a recorded call before `step` wrote the slot."""

    def lost_prefix(self, slot: int, prefix: int, step: int) -> bool:
        """Whether the state of that prefix was written to the slot before `step`, and the next write there
        was another sequence's. A request that writes on in its slot caches the state elsewhere."""

    def is_followed(self, request: int, step: int) -> bool:
        """Whether the request's first token was seen before `step`, or a prefix hit that a record wrote; and
        before that step a call that computes a prompt, anybody's: otherwise such calls may not be
        recorded, and a preempted request's is not."""

    def was_rejected(self, write: Access, step: int) -> bool:
        """Whether `write` is of a draft that its request does not have: the request's next call before `step`
        decodes from an earlier position of the same call."""

    def is_several(self, request: int, step: int) -> bool:
        """Whether, in some call up to `step`, several sequences were this request's."""


def is_lost(prefix: int, prefixes: Sequence[int], requests: Sequence[int]) -> bool:
    """`History.lost_prefix` of the writes to a slot, given what each is of: a state of which prefix, by which
    request."""
    held = [number for number, one in enumerate(prefixes) if one == prefix]
    if not held or held[-1] + 1 == len(prefixes):
        return False
    return requests[held[-1]] != requests[held[-1] + 1]


def judge(read: Access, history: History) -> Finding | Unknown | None:
    """A break, why nothing is known, or None if the read is right. `read` is not of a padding sequence."""
    if read.request < 0:
        return Unknown.NO_REQUEST
    if read.position < 0:
        return Unknown.NO_POSITION
    if not read.digest_known:
        return Unknown.NO_DIGEST
    if read.position == 0:
        return None if read.digest == ZERO else _not_zero(read, history)
    own = history.latest(read.request, read.position, read.step)
    if own is not None and own.digest == read.digest:
        return None
    previous = history.previous(read.request, read.step)
    adjacent = _is_adjacent(read, previous, history)
    in_place = adjacent and _is_in_place(read, own, previous, history)
    sources = history.writes_of(read.digest, read.step)
    if any(_is_right(read, source, in_place, history) for source in sources):
        return None
    if read.digest == ZERO:
        sources = []  # zeros identify no write
    if history.is_several(read.request, read.step):
        return Unknown.SEVERAL_SEQUENCES
    if (reason := _doubt(read, own, sources, in_place, history)) is not None:
        return reason
    anchor = own or (sources[-1] if sources else None)
    if anchor is None:
        return Unknown.FIRST_SEEN  # a prefix's state may come from another process, or from a buffer
    if not history.contiguous(anchor.step, read.step):
        return Unknown.CALLS_MISSING
    if own is not None and _is_miscounted(read, own, previous, history):
        return Finding(
            Break.ACCEPTED_COUNT,
            history.layer,
            history.chain,
            read,
            read,
            own,
            _source(read, sources, history),
        )
    if sources and (not read.is_recent or _is_left_by_another(read, own, history)):
        return _identified(read, own, previous, sources, history)
    if own is None:
        return Unknown.FIRST_SEEN  # the same latest tokens leave the same content anywhere
    if not own.digest_known:
        return Unknown.NO_DIGEST
    if previous is None or previous.step != own.step:
        return Unknown.FROM_ELSEWHERE  # a later call may have left its state where no record shows it
    from_first = history.from_first(read.step)
    certain = adjacent and (in_place or from_first)
    if not (certain and history.is_followed(read.request, read.step)):
        return Unknown.FROM_ELSEWHERE
    if sources:
        return _identified(read, own, previous, sources, history)
    fresh = from_first and read.slot >= 0 and not history.slot_written(read.slot, read.step)
    kind = Break.NEVER_WRITTEN if fresh else Break.UNEXPLAINED
    return Finding(kind, history.layer, history.chain, read, read, own)


def _is_adjacent(read: Access, previous: PreviousCall | None, history: History) -> bool:
    """Whether the read is where the request's previous call may have ended, in one of the pool's next two
    calls."""
    return (
        previous is not None
        and previous.may_leave(read.position)
        and history.contiguous(previous.step, read.step)
        and history.calls_apart(previous.step, read.step) <= _ADJACENT
    )


def _is_in_place(read: Access, own: Access | None, previous: PreviousCall | None, history: History) -> bool:
    """Whether the request, in a call adjacent to its previous one, reads the slot that it wrote there, and
    so has no prefix hit. It may have one at just that position if it was preempted in between: then a call of
    the pool was without it, and now it computes a prompt."""
    if previous is None or own is None or not own.slot == read.slot >= 0:
        return False
    decodes = read.tokens == 1 or (previous.drafts and read.tokens == previous.tokens)
    return decodes or history.calls_apart(previous.step, read.step) <= 1


def _not_zero(read: Access, history: History) -> Finding:
    source = _source(read, history.writes_of(read.digest, read.step), history)
    if source is not None and source.is_padding:
        return Finding(Break.PADDING, history.layer, history.chain, source, read, None, source)
    # Before a request's first call there was no draft to accept: the count is another request's.
    miscounted = read.accepted > 1 and history.previous(read.request, read.step) is None
    kind = Break.ACCEPTED_COUNT if miscounted else Break.NEVER_WRITTEN
    return Finding(kind, history.layer, history.chain, read, read, None, source)


def _source(read: Access, sources: Sequence[Access], history: History) -> Access | None:
    """Of writes of the content that was read, the one that most likely left it: the last one to the slot that
    was read, or else one by the reader itself, who may have had the same prefix as another, or else one to
    the slot; of several the latest."""
    left_here = (source for source in reversed(sources) if _is_in_slot(read, source, history))
    of_reader = (source for source in reversed(sources) if source.request == read.request)
    in_slot = (source for source in reversed(sources) if source.slot == read.slot >= 0)
    found = next(left_here, None) or next(of_reader, None) or next(in_slot, None)
    return found or (sources[-1] if sources else None)


def _is_in_slot(read: Access, source: Access, history: History) -> bool:
    """Whether the slot that was read has the content of `source` because that wrote the slot last, and not
    because the engine copied a state there since."""
    if not source.slot == read.slot >= 0:
        return False
    last = history.last_write(read.slot, read.step)
    return last is not None and last.step == source.step


def _is_miscounted(read: Access, own: Access, previous: PreviousCall | None, history: History) -> bool:
    """Whether `num_accepted` is not the number of tokens that the request accepted, and so names another slot
    than the one with its state; both slots must be known. The slot must hold what was last written to it: an
    engine that restores a state after a preemption does so to the first slot, and begins to count anew."""
    if previous is None or own.step != previous.step or own.slot == read.slot or min(own.slot, read.slot) < 0:
        return False
    if not 0 <= read.accepted != previous.right_count(read.position):
        return False
    if previous.drafts:
        named = history.latest(read.request, previous.first + read.accepted, read.step)
        if named is not None and named.step == own.step and named.slot != read.slot:
            return False  # the row has other slots since
    last = history.last_write(read.slot, read.step)
    return read.digest == (ZERO if last is None else last.digest)


def _is_right(read: Access, source: Access, in_place: bool, history: History) -> bool:
    """Whether `read` may find the content of `source`: a cached state of the same prefix, which the request
    itself may have left before it was preempted. Nobody may cache the state after a rejected draft.
    `in_place`: the request reads the slot that it wrote a moment ago, so this is no prefix hit."""
    if source.position != read.position or source.is_padding or _is_rejected(source, read, history):
        return False
    same_tokens = source.prefix == read.prefix != 0
    return same_tokens or (source.request == read.request and not in_place)


def _is_rejected(source: Access, read: Access, history: History) -> bool:
    """Whether `source` is the state after a draft that its request rejected, and the reader does not have the
    draft's tokens. Other tokens may have the same window of a convolution.

    The reader does not have them if it is that request, or has the tokens that the request accepted instead.
    Another reader may have these tokens, and a state that no record has or whose digest is unknown: of the
    same bits, if the kernel rounds alike in every batch."""
    if read.is_recent or not source.is_draft or history.is_several(source.request, read.step):
        return False
    if not history.was_rejected(source, read.step):
        return False
    if source.request == read.request:
        return True
    if history.from_first(read.step) and history.all_digested(read.step):
        return True
    accepted = history.latest(source.request, source.position, read.step)
    return accepted is not None and accepted.prefix == read.prefix != 0


def _is_left_by_another(read: Access, own: Access | None, history: History) -> bool:
    """Whether the reader finds, in the slot where it left its own content, what another's write to the slot
    left last."""
    if own is None or not own.digest_known or own.slot != read.slot or read.slot < 0:
        return False
    last = history.last_write(read.slot, read.step)
    if last is None or last.step <= own.step or last.digest != read.digest:
        return False
    return last.is_padding or last.request != read.request


def _doubt(
    read: Access, own: Access | None, sources: Sequence[Access], in_place: bool, history: History
) -> Unknown | None:
    """Why the content of `sources` does not tell whether the read is wrong. `in_place`: the request reads the
    slot that it wrote a moment ago, so this is no prefix hit."""
    live = [source for source in sources if not source.is_padding]
    if any(source.request < 0 or source.position < 0 for source in live):
        return Unknown.NO_CLAIMS
    if own is not None and not own.digest_known and any(_may_be_equal(read, source) for source in live):
        return Unknown.NO_DIGEST
    positions = {source.position for source in live}
    # Without a write of its own, the content may be one that no token changes, such as NaN throughout.
    common = len(positions) > 1 and (own is None or read.position in positions)
    if len(sources) > MOST_SOURCES or common:
        return Unknown.COMMON_CONTENT
    for source in live:
        same = source.position == read.position and source.request != read.request
        # A beam search copies states of one position from slot to slot.
        written_here = in_place and source.slot == read.slot
        known = (source.prefix and read.prefix) or _is_rejected(source, read, history)
        if same and not written_here and not known:
            return Unknown.NO_PREFIX
    return None


def _may_be_equal(read: Access, source: Access) -> bool:
    """Whether the reader's own state may have the bits of `source`: both are after tokens that may be the
    same."""
    other_tokens = source.prefix and read.prefix and source.prefix != read.prefix
    return source.position == read.position and not other_tokens


def _identified(
    read: Access,
    own: Access | None,
    previous: PreviousCall | None,
    sources: Sequence[Access],
    history: History,
) -> Finding:
    """The break of a read that found the content of `sources`, none of which it may find."""
    source = _source(read, sources, history)
    assert source is not None
    goes_on = previous is not None and previous.goes_on(read.position)
    if source.is_padding:
        kind, damage = Break.PADDING, source
        if goes_on:  # a request that starts anew got its state in the slot at a moment that nobody knows
            first = _first_damage(read, own, previous, history)
            damage = source if first is read else first  # the request's state was elsewhere then
    elif source.position == read.position and _is_rejected(source, read, history):
        kind, damage = Break.REJECTED_DRAFT, source
    elif source.request == read.request:
        kind, damage = _own_break(read, own, previous, source, history)
    elif previous is None or not goes_on:
        lost = history.lost_prefix(read.slot, read.prefix, read.step)
        replaced = lost and _is_in_slot(read, source, history)
        kind, damage = Break.WRONG_PREFIX, source if replaced else read
    else:
        damage = _first_damage(read, own, previous, history)
        if damage is read:
            running = history.calls_apart(previous.step, read.step) <= _ADJACENT
        else:
            running = history.ran_near(read.request, damage.step)
        kind = Break.SHARED_SLOT if running else Break.OVERWRITTEN
    return Finding(kind, history.layer, history.chain, damage, read, own, source)


def _first_damage(
    read: Access, own: Access | None, previous: PreviousCall | None, history: History
) -> Access:
    """The first write by others to the slot in which the reader left its state, or which it used in its call
    before; otherwise the read, which names a slot that is not the request's."""
    if read.slot < 0:
        return read
    if own is not None and own.slot == read.slot:
        since = own.step
    elif previous is not None and history.used_slot(read.request, read.slot, previous.step):
        since = previous.step + 1
    else:
        return read
    found = history.first_foreign_write(read.slot, read.request, since, read.step)
    return read if found is None else found


def _own_break(
    read: Access,
    own: Access | None,
    previous: PreviousCall | None,
    source: Access,
    history: History,
) -> tuple[Break, Access]:
    """The break, and the access that did it, of a read of the request's own content of another time."""
    if previous is not None and source.step == previous.step and previous.may_leave(read.position):
        if 0 <= read.accepted != read.position - previous.first:
            return Break.ACCEPTED_COUNT, read
        if source.position > read.position:
            return Break.REJECTED_DRAFT, source
    if own is not None and own.step == source.step and own.position > source.position:
        return Break.OLDER_VERSION, read
    if history.wrote_after(read.request, source.step, read.step):
        goes_on = previous is not None and previous.goes_on(read.position)
        return Break.OLDER_VERSION if goes_on else Break.WRONG_PREFIX, read
    if source.position < read.position:
        return Break.POSITION_GAP, read
    return Break.POSITION_OVERLAP, read
