# SPDX-License-Identifier: Apache-2.0
"""Bugs of serving engines, planted in the loop: each a subclass of `Engine` that takes one wrong decision.

`thread` is the public thread that the bug is modelled on, `fixed` what a schedule needs for the bug to have a
chance to happen. Whether it happened in a schedule, `Truth` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.lineage.serving.engine import Engine
from tests.lineage.serving.schedule import BLOCK
from tests.lineage.serving.states import Batch, Request, Saved
from tests.lineage.serving.truth import WrongRead


class Bug(Engine):
    kind: ClassVar[str]
    thread: ClassVar[str]
    fixed: ClassVar[dict[str, Any]] = {}

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        """The class of a wrong read that the bug causes, and the call that is to blame."""
        return self.kind, wrong.touch.call


class SlotNotReset(Bug):
    """A request starts from what the slot's former owner left."""

    kind = "never-written"
    thread = "NVIDIA/TensorRT-LLM#14509"

    def zero(self, request: Request) -> None:
        pass

    def starts_from_zeros(self, request: Request) -> bool:
        return False


class StaleRow(Bug):
    """The first step after a request was resumed reads the slot that it had before it was preempted."""

    kind = "overwritten"
    thread = "vllm-project/vllm#34874, wtdcode/vllm-backport#63"
    fixed: ClassVar = {"preempt": 0.4, "swap": 1.0, "prefix_cache": 0, "zero_in_pool": False}

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        return wrong.by_content

    def __post_init__(self) -> None:
        super().__post_init__()
        self.former: dict[Request, int] = {}
        self.stale: dict[Request, int] = {}

    def swapped_out(self, request: Request) -> Saved:
        self.former[request] = request.slot
        return super().swapped_out(request)

    def resume(self, request: Request) -> None:
        super().resume(request)
        self.stale[request] = self.former.pop(request)

    def read_slots(self, requests: Sequence[Request]) -> list[int]:
        return [self.stale.pop(request, request.slot) for request in requests]

    def by_accepted_counts(self, batch: Batch, requests: Sequence[Request], padding: int) -> Batch:
        stale = any(slot != one.slot for slot, one in zip(batch.reads, requests, strict=False))
        return batch if stale else super().by_accepted_counts(batch, requests, padding)


class FirstColumn(Bug):
    """A step without drafts reads the slot of the first token of the step before, whatever was accepted."""

    kind = "older-version"
    thread = "vllm-project/vllm#39273, #52942, #40738"
    fixed: ClassVar = {"drafts": "slots", "draft_tokens": 2, "draft_hit": 0.9}

    def decode_batch(self, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> Batch:
        self.undrafted = {one for one, fed in zip(requests, tokens, strict=True) if len(fed) == 1}
        return super().decode_batch(requests, tokens)

    def read_slots(self, requests: Sequence[Request]) -> list[int]:
        return [one.slots[0] if one in self.undrafted else one.slot for one in requests]

    def by_accepted_counts(self, batch: Batch, requests: Sequence[Request], padding: int) -> Batch:
        wrong = any(slot != one.slot for slot, one in zip(batch.reads, requests, strict=False))
        return batch if wrong else super().by_accepted_counts(batch, requests, padding)


class OldSnapshot(Bug):
    """A preempted request's state is saved as it was before its last step."""

    kind = "older-version"
    thread = "vllm-project/vllm#53505"
    fixed: ClassVar = {"preempt": 0.4, "swap": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.before: dict[Request, Saved] = {}

    def decode(self, requests: list[Request]) -> None:
        for request in requests:
            if not request.fresh:
                self.before[request] = self.states.save(request.slot)
        super().decode(requests)

    def swapped_out(self, request: Request) -> Saved:
        return self.before.get(request) or super().swapped_out(request)


class DuplicateRow(Bug):
    """After a change of the batch, the index table has one request's row twice."""

    kind = "written-twice"
    thread = "wtdcode/vllm-backport#63"

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        return wrong.by_content  # what the second request's lost write leads to

    def decode_batch(self, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> Batch:
        batch = super().decode_batch(requests, tokens)
        if len(requests) > 1 and self.rng.random() < 0.2:
            batch.accepted = None  # by which the call would also read the other row's slot
            first, second = batch.writes[:2]
            batch.writes[1] = [
                slot if min(slot, own) >= 0 else own for slot, own in zip(first, second, strict=True)
            ]
        return batch


class MiscountedChunk(Bug):
    """Base of bugs in the number of a prompt's tokens that a prefill computed."""

    def prefill(self, requests: Sequence[Request]) -> None:
        self.prefills = True
        super().prefill(requests)
        self.prefills = False

    def advance(self, request: Request, tokens: int) -> None:
        left = len(request.known) - request.position - tokens
        wrong = getattr(self, "prefills", False) and left > 1 and tokens > 1 and self.rng.random() < 0.3
        super().advance(request, tokens + self.off if wrong else tokens)

    off: ClassVar[int]


class SkippedToken(MiscountedChunk):
    """A chunk of a prompt counts as one token longer than it was."""

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        return wrong.by_content

    kind = "position-gap"
    thread = "vllm-project/vllm#43559"
    fixed: ClassVar = {"budget": 6, "prefix_cache": 0}
    off = 1


class RepeatedToken(MiscountedChunk):
    """A chunk of a prompt counts as one token shorter than it was."""

    kind = "position-overlap"
    thread = "vllm-project/vllm#43559"
    fixed: ClassVar = {"budget": 6, "prefix_cache": 0}
    off = -1


class PermutedCounts(Bug):
    """The counts of accepted tokens are those of other rows of the batch."""

    kind = "accepted-count"
    thread = "vllm-project/vllm#53919"
    fixed: ClassVar = {"drafts": "slots", "draft_tokens": 2, "batch": 4, "holders": 4, "preempt": 0.0}

    def accepted_counts(self, requests: Sequence[Request]) -> list[int]:
        counts = super().accepted_counts(requests)
        return counts[1:] + counts[:1] if self.rng.random() < 0.3 else counts


class RejectedDraftKept(Bug):
    """The state after the last draft becomes the request's, whatever was accepted."""

    kind = "rejected-draft"
    thread = "sgl-project/sglang#36537"
    fixed: ClassVar = {"drafts": "scratch", "draft_tokens": 2, "draft_hit": 0.5, "prefix_cache": 0}

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        assert wrong.content is not None
        return self.kind, wrong.content.call

    def keep_accepted(
        self, request: Request, batch: Batch, number: int, fed: Sequence[int], count: int
    ) -> None:
        super().keep_accepted(request, batch, number, fed, len(fed))


class StalePadding(Bug):
    """The rows that fill a batch keep the slots of an earlier, larger batch."""

    kind = "padding"
    thread = "NVIDIA/TensorRT-LLM#13278"
    fixed: ClassVar = {"pad_to": 4, "batch": 4, "holders": 4, "null_slot": False}

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        assert wrong.content is not None
        return self.kind, wrong.content.call if wrong.overwrote is None else wrong.overwrote

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffer: list[int] = [-1] * 8

    def decode_batch(self, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> Batch:
        self.rows = len(requests)
        batch = super().decode_batch(requests, tokens)
        self.buffer[: self.rows] = [request.slot for request in requests]
        return batch

    def padding_slots(self, padding: int) -> list[int]:
        return self.buffer[self.rows : self.rows + padding]


class PollutedBlock(Bug):
    """A hit in the prefix cache drops its last block, but its state has consumed that block."""

    kind = "wrong-prefix"
    thread = "vllm-project/vllm#53912, #43559"
    fixed: ClassVar = {"prefix_cache": 6, "preempt": 0.0, "reuse_ids": False, "requests": 14, "budget": 16}

    def start(self, request: Request) -> None:
        super().start(request)
        if request.position > BLOCK:
            request.position -= BLOCK


class KeyOfOneBlock(Bug):
    """The prefix cache compares only the last block of a prefix."""

    kind = "wrong-prefix"
    thread = "ROCm/ATOM#1417"
    fixed: ClassVar = {"prefix_cache": 6, "reuse_ids": False, "requests": 14, "preempt": 0.0, "budget": 16}

    def find_prefix(self, request: Request) -> tuple[int, ...]:
        known = request.known
        for blocks in range((len(known) - 1) // BLOCK, 0, -1):
            end = tuple(known[(blocks - 1) * BLOCK : blocks * BLOCK])
            for key in self.cache.entries:
                if len(key) == blocks * BLOCK and key[-BLOCK:] == end:
                    return key
        return ()


class FreedTwice(Bug):
    """The slots of a running request are free for another."""

    kind = "shared-slot"
    thread = "NVIDIA/TensorRT-LLM#13278"
    fixed: ClassVar = {"prefix_cache": 0, "preempt": 0.0, "zero_in_pool": False, "holders": 3}

    def event_of(self, wrong: WrongRead) -> tuple[str, int]:
        return wrong.by_content

    def run_step(self) -> None:
        if self.running and self.rng.random() < 0.3:
            request = self.rng.choice(self.running)
            if not set(request.slots) & set(self.free):
                self.free += request.slots
        super().run_step()


BUGS: tuple[type[Bug], ...] = (
    SlotNotReset,
    StaleRow,
    FirstColumn,
    OldSnapshot,
    DuplicateRow,
    SkippedToken,
    RepeatedToken,
    PermutedCounts,
    RejectedDraftKept,
    StalePadding,
    PollutedBlock,
    KeyOfOneBlock,
    FreedTwice,
)
