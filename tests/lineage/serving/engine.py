# SPDX-License-Identifier: Apache-2.0
"""The serving loop: a scheduler over a pool of slots, as serving engines have them, around any `Model`.

Each step of `Engine.run` admits, preempts and resumes requests, then makes at most one prefill call and one
decode call of each layer. Every decision that a planted bug changes is a method of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from tests.lineage.serving.prefix_cache import PrefixCache
from tests.lineage.serving.schedule import BLOCK, Arrival, Schedule
from tests.lineage.serving.states import Batch, Content, Request, Row, Saved, States


class Model(Protocol):
    """Computes logits [sequences, tokens, vocabulary] of a batch; calls `States.prefill` and `States.decode`
    for its recurrences."""

    layers: int

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def prefill(self, states: States, batch: Batch) -> list[Tensor]: ...

    def decode(self, states: States, batch: Batch) -> Tensor: ...

    def generate(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """The greedy tokens of a prompt alone, without any pool."""


@dataclass
class Engine:
    schedule: Schedule
    model: Model
    expected: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Greedy tokens by prompt, from which right drafts are made."""

    def __post_init__(self) -> None:
        plan = self.schedule
        self.rng = random.Random(plan.seed + 1)
        self.width = 1 + plan.draft_tokens if plan.drafts == "slots" else 1
        scratch = plan.batch * (1 + plan.draft_tokens) if plan.drafts == "scratch" else 0
        entries = plan.prefix_cache
        null = 1 if plan.null_slot else 0
        total = null + plan.holders * self.width + scratch + entries
        self.states = States(self.model.layers, total, self.model.shapes())
        self.free = list(range(null, null + plan.holders * self.width))
        first = null + plan.holders * self.width
        self.scratch = list(range(first, first + scratch))
        self.cache = PrefixCache(self.states, list(range(first + scratch, total)))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.finished: list[Request] = []
        self.step = 0

    # The loop.

    def run(self) -> list[Request]:
        """Serves every request of the schedule. Returns them in the order of their ends."""
        coming = list(self.schedule.arrivals)
        while coming or self.waiting or self.running or self.preempted:
            while coming and coming[0].step <= self.step:
                self.waiting.append(_request(coming.pop(0)))
            self.run_step()
            self.step += 1
            assert self.step < 2000, "the loop does not end"
        return self.finished

    def run_step(self) -> None:
        if self.running and self.rng.random() < self.schedule.preempt:
            self.preempt(self.rng.choice(self.running))
        self.admit()
        prefills = [request for request in self.running if not self.decodable(request)]
        decodes = [request for request in self.running if self.decodable(request)]
        for kind in ("decode", "prefill") if self.schedule.decode_first else ("prefill", "decode"):
            if kind == "prefill" and prefills:
                self.prefill(prefills)
            if kind == "decode" and decodes:
                self.decode(self.choose_decodes(decodes))
        for request in [one for one in self.running if one.done]:
            self.running.remove(request)
            self.finished.append(request)
            self.release(request)

    def decodable(self, request: Request) -> bool:
        """One token is left to feed. At position 0 its slot must hold zeros for that."""
        left = len(request.known) - request.position
        return left == 1 and (not request.fresh or self.schedule.zero_in_pool)

    # Slots.

    def admit(self) -> None:
        """Resumes preempted requests, then starts waiting ones, while there are slots."""
        for request in list(self.preempted):
            if len(self.free) < self.width or self.rng.random() < 0.4:
                break
            self.preempted.remove(request)
            if request.saved is not None:
                self.resume(request)
            else:
                self.start(request)
        for request in list(self.waiting):
            if len(self.free) < self.width:
                break
            if any(one.id == request.id for one in (*self.running, *self.preempted)):
                continue
            self.waiting.remove(request)
            self.start(request)

    def allocate(self) -> list[int]:
        """Slots for one request."""
        return [self.free.pop(self.rng.randrange(len(self.free))) for _ in range(self.width)]

    def release(self, request: Request) -> None:
        self.free += request.slots
        request.slots = []

    def start(self, request: Request) -> None:
        """From the first token, or from the longest prefix in the cache."""
        request.slots = self.allocate()
        request.column, request.accepted, request.position = 0, 1, 0
        request.fresh = True
        request.cache = {}
        self.running.append(request)
        hit = self.find_prefix(request)
        if hit:
            self.cache.load(hit, request)
        elif self.schedule.zero_in_pool:
            self.zero(request)

    def zero(self, request: Request) -> None:
        self.states.zero(request.slot)

    def find_prefix(self, request: Request) -> tuple[int, ...]:
        """The key of the longest cached prefix that leaves a token to compute."""
        known = request.known
        for blocks in range((len(known) - 1) // BLOCK, 0, -1):
            key = tuple(known[: blocks * BLOCK])
            if key in self.cache:
                return key
        return ()

    def preempt(self, request: Request) -> None:
        """Takes the slots of a running request; its state is kept in host memory, or computed again."""
        self.running.remove(request)
        self.preempted.append(request)
        request.saved = None
        if not request.fresh and self.rng.random() < self.schedule.swap:
            request.saved = self.swapped_out(request)
        self.release(request)

    def swapped_out(self, request: Request) -> Saved:
        return self.states.save(request.slot)

    def resume(self, request: Request) -> None:
        """Restores a state that was kept."""
        assert request.saved is not None
        request.slots = self.allocate()
        request.column, request.accepted = 0, 1
        self.states.restore(request.slot, request.saved)
        self.running.append(request)

    # Prefill.

    def prefill(self, requests: Sequence[Request]) -> None:
        """One call with a chunk of as many prompts as the budget allows."""
        budget = self.schedule.budget
        chosen: list[Request] = []
        tokens: list[list[int]] = []
        for request in requests:
            size = min(len(request.known) - request.position, budget)
            if size and self.schedule.prefix_cache and self.rng.random() < 0.7:
                size = _to_block_end(request.position, size)
            if size == 0:
                break
            chosen.append(request)
            tokens.append(request.known[request.position : request.position + size])
            budget -= size
        batch = Batch(
            requests=[*chosen],
            tokens=tokens,
            positions=[request.position for request in chosen],
            reads=[request.slot for request in chosen],
            writes=[[request.slots[0]] for request in chosen],
            fresh=[self.starts_from_zeros(request) for request in chosen],
            claim_prefixes=self.schedule.claim_prefixes,
        )
        logits = self.model.prefill(self.states, batch)
        for request, fed, row in zip(chosen, tokens, logits, strict=True):
            request.column, request.accepted = 0, 1
            self.advance(request, len(fed))
            if request.position >= len(request.known):
                request.output.append(int(row[-1].argmax()))
            self.keep_prefix(request, request.slot)

    def starts_from_zeros(self, request: Request) -> bool:
        """Whether the gathered state of a prefill is zeroed."""
        return request.fresh and not self.schedule.zero_in_pool

    def advance(self, request: Request, tokens: int) -> None:
        """The state of a request has consumed more tokens."""
        request.position += tokens
        request.fresh = False

    def keep_prefix(self, request: Request, slot: int) -> None:
        """Copies the state to the prefix cache if the request is at the end of a block."""
        position = request.position
        if self.schedule.prefix_cache and position and position % BLOCK == 0 and not request.done:
            self.cache.store(tuple(request.known[:position]), request, slot)

    # Decode.

    def choose_decodes(self, requests: Sequence[Request]) -> list[Request]:
        chosen = list(requests)
        self.rng.shuffle(chosen)
        return chosen[: self.schedule.batch]

    def drafts_of(self, request: Request) -> list[int]:
        """Guesses of the tokens after the next one. They leave one token to sample."""
        left = request.new_tokens - len(request.output)
        count = min(self.schedule.draft_tokens, left - 1)
        if self.schedule.draft_tokens and self.rng.random() < 0.2:
            count = 0  # nothing to guess from, as for n-gram drafts
        right = self.expected[request.prompt][len(request.output) :][:count]
        hit = self.schedule.draft_hit
        return [token if self.rng.random() < hit else self.rng.randrange(32) for token in right]

    def decode(self, requests: list[Request]) -> None:
        """One call with the next token of each request, and its drafts."""
        tokens = [[request.known[request.position], *self.drafts_of(request)] for request in requests]
        batch = self.decode_batch(requests, tokens)
        drafted = self.schedule.drafts
        before = [self.states.save(request.slot) for request in requests] if drafted == "replay" else []
        logits = self.model.decode(self.states, batch)
        accepted = [_accepted(fed, logits[number].argmax(-1).tolist()) for number, fed in enumerate(tokens)]
        if drafted == "replay":
            self.replay(requests, tokens, [len(one) for one in accepted], before)
        for number, (request, sampled) in enumerate(zip(requests, accepted, strict=True)):
            count = len(sampled)
            start = request.position
            self.keep_accepted(request, batch, number, tokens[number], count)
            request.output += sampled
            self.advance(request, count)
            if drafted == "slots":
                self.keep_passed_prefix(request, start)
            else:
                self.keep_prefix(request, request.slot)

    def decode_batch(self, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> Batch:
        width = max(len(fed) for fed in tokens)
        padding = -len(requests) % self.schedule.pad_to
        batch = Batch(
            requests=[*requests, *[None] * padding],
            tokens=[[*fed] for fed in tokens] + [[0] * width] * padding,
            positions=[request.position for request in requests] + [0] * padding,
            reads=self.read_slots(requests) + self.padding_slots(padding),
            writes=[self.write_slots(i, request, width, len(tokens[i])) for i, request in enumerate(requests)]
            + [[slot] * width for slot in self.padding_slots(padding)],
            claim_prefixes=self.schedule.claim_prefixes,
        )
        if self.schedule.drafts == "slots":
            batch = self.by_accepted_counts(batch, requests, padding)
        if self.schedule.drafts == "buffer":
            batch.steps = self.state_buffers(len(batch.requests), width)
        return batch

    def read_slots(self, requests: Sequence[Request]) -> list[int]:
        return [request.slot for request in requests]

    def padding_slots(self, padding: int) -> list[int]:
        return [0 if self.schedule.null_slot else -1] * padding

    def write_slots(self, number: int, request: Request, width: int, fed: int) -> list[int]:
        """The slot of each token's state, for a row of `width` tokens of which `fed` are the request's."""
        drafts = self.schedule.drafts
        if drafts == "slots":
            return request.slots[:fed] + [-1] * (width - fed)
        if drafts == "scratch":
            each = 1 + self.schedule.draft_tokens
            mine = self.scratch[number * each : (number + 1) * each]
            return mine[:fed] + [-1] * (width - fed)
        if drafts == "buffer":
            return [-1] * width
        return [-1] * (fed - 1) + [request.slot] + [-1] * (width - fed)

    def by_accepted_counts(self, batch: Batch, requests: Sequence[Request], padding: int) -> Batch:
        """The same batch with num_accepted, if each sequence has a token in the column that it reads."""
        counts = self.accepted_counts(requests) + [1] * padding
        columns = [
            row[count - 1] if count <= len(row) else -1
            for row, count in zip(batch.writes, counts, strict=True)
        ]
        if all(slot >= 0 for slot in columns[: len(requests)]):
            batch.accepted, batch.reads = counts, columns
        return batch

    def accepted_counts(self, requests: Sequence[Request]) -> list[int]:
        return [request.accepted for request in requests]

    def state_buffers(self, sequences: int, width: int) -> list[dict[str, Tensor]]:
        shapes = self.model.shapes()
        return [
            {name: torch.zeros(sequences, width, *shape) for name, shape in shapes.items()}
            for _ in self.states.layers
        ]

    def keep_accepted(
        self, request: Request, batch: Batch, number: int, fed: Sequence[int], count: int
    ) -> None:
        """Makes the state after the accepted tokens the request's state."""
        drafts = self.schedule.drafts
        if drafts == "slots":
            request.column, request.accepted = count - 1, count
        elif drafts == "scratch":
            self.states.copy(batch.writes[number][count - 1], request.slot)
        elif drafts == "buffer":
            self.from_buffer(request, batch, number, fed, count)

    def from_buffer(
        self, request: Request, batch: Batch, number: int, fed: Sequence[int], count: int
    ) -> None:
        assert batch.steps is not None
        position = batch.positions[number]
        content = Content(
            request, position + count, self.states.call - 1, (*request.known[:position], *fed[:count])
        )
        rows = [
            Row({name: buffer[number, count - 1] for name, buffer in buffers.items()}, content)
            for buffers in batch.steps
        ]
        self.states.restore(request.slot, rows)

    def replay(
        self, requests: list[Request], tokens: list[list[int]], counts: list[int], before: list[Saved]
    ) -> None:
        """After a rejection: restores the state before the step and computes the accepted tokens again."""
        again = [number for number, fed in enumerate(tokens) if counts[number] < len(fed)]
        if not again:
            return
        for number in again:
            self.states.restore(requests[number].slot, before[number])
        fed = [tokens[number][: counts[number]] for number in again]
        self.model.decode(self.states, self.decode_batch([requests[number] for number in again], fed))

    def keep_passed_prefix(self, request: Request, start: int) -> None:
        """Copies the state at the last end of a block that the step passed to the prefix cache: one of the
        slots of its tokens has it."""
        end = request.position - request.position % BLOCK
        if self.schedule.prefix_cache and end > start and not request.done:
            self.cache.store(tuple(request.known[:end]), request, request.slots[end - start - 1])


def _request(arrival: Arrival) -> Request:
    return Request(arrival.id, arrival.prompt, arrival.new_tokens)


def _to_block_end(position: int, size: int) -> int:
    """The largest chunk of at most `size` tokens that ends with a block, or `size` if there is none."""
    end = (position + size) - (position + size) % BLOCK
    return end - position if end > position else size


def _accepted(fed: Sequence[int], best: Sequence[int]) -> list[int]:
    """The tokens that a step gives: accepted drafts, then the model's own."""
    sampled = [best[0]]
    for draft, after in zip(fed[1:], best[1:], strict=False):
        if draft != sampled[-1]:
            break
        sampled.append(after)
    return sampled
