# SPDX-License-Identifier: Apache-2.0
"""The states of the layers in pools of slots, and what each slot holds.

`States` calls the recorded functions for one layer's call of a batch. It knows of every row which request's
state it is, after how many tokens, and by which call, since it also sees the copies between calls, which no
record has. From that it knows which reads are wrong, without any digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from blake3 import blake3
from torch import Tensor

from tests.lineage.serving.calls import conv_decode, conv_prefill, gdn_decode, gdn_prefill


@dataclass(eq=False)
class Request:
    """A request in the engine. `slots` are those it has, and `column` is the one that holds its state."""

    id: str
    prompt: tuple[int, ...]
    new_tokens: int
    output: list[int] = field(default_factory=list)
    position: int = 0  # tokens that its state has consumed
    slots: list[int] = field(default_factory=list)
    column: int = 0
    accepted: int = 1  # num_accepted of its next decode call
    saved: Saved | None = None
    cache: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # keys and values of attention
    fresh: bool = True  # the state before its next token is zero

    @property
    def known(self) -> list[int]:
        return [*self.prompt, *self.output]

    @property
    def slot(self) -> int:
        return self.slots[self.column]

    @property
    def done(self) -> bool:
        return len(self.output) >= self.new_tokens


@dataclass(frozen=True, slots=True)
class Content:
    """What a row holds: the state of `request` after `position` tokens, written by `call`."""

    request: Request | None  # None: padding
    position: int
    call: int
    consumed: tuple[int, ...]  # the tokens that the request had before `position`


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a pool in host memory."""

    tensors: Mapping[str, Tensor]
    content: Content | None  # None: zeros


Saved = list[Row]  # a row of each layer


@dataclass(slots=True)
class Batch:
    """The sequences of one call. Of padding, the request is None."""

    requests: list[Request | None]
    tokens: list[list[int]]
    positions: list[int]  # as the engine claims them: of each sequence's first token
    reads: list[int]  # slots, or -1
    writes: list[list[int]]  # decode: the slot of each token, or -1; prefill: one slot a sequence
    accepted: list[int] | None = None  # num_accepted, by which the call finds what it reads
    fresh: list[bool] = field(default_factory=list)  # prefill: starts from zeros
    steps: list[dict[str, Tensor]] | None = None
    """Of a decode: receives of each layer, by pool, the states after each token, [B, S, ...]."""
    claim_prefixes: bool = False

    @property
    def width(self) -> int:
        """Tokens of a sequence, the longest one."""
        return max(len(tokens) for tokens in self.tokens)

    @property
    def padding(self) -> list[int]:
        return [number for number, request in enumerate(self.requests) if request is None]

    def prefix(self, sequence: int) -> tuple[int, ...]:
        """The tokens of a request before the first one of this call."""
        request = self.requests[sequence]
        return () if request is None else tuple(request.known[: self.positions[sequence]])


@dataclass(frozen=True, slots=True)
class Touch:
    """A sequence reads or writes a slot in a call. `content` is what the slot holds: before a read, after a
    write."""

    call: int
    step: int
    layer: int
    sequence: int
    request: Request | None
    position: int
    slot: int
    content: Content | None
    bits: bytes | None  # None: unknown
    tokens: int  # of the sequence in this call, with those that fill its row of a batch
    accepted: int
    token: int  # of a write: tokens of this call that the state has consumed
    decode: bool


class Watcher(Protocol):
    def reads(self, touch: Touch) -> None: ...
    def writes(self, touch: Touch) -> None: ...


def row_bits(row: Tensor) -> bytes:
    return row.contiguous().numpy().tobytes()


class States:
    """`shapes` has the shape of a slot by pool; "state" is that of the recurrence."""

    def __init__(self, layers: int, slots: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.pools = [
            {name: torch.zeros(slots, *shape) for name, shape in shapes.items()} for _ in range(layers)
        ]
        self.contents: list[list[Content | None]] = [[None] * slots for _ in range(layers)]
        self.steps = [0] * layers
        self.call = 0
        self.watchers: list[Watcher] = []

    @property
    def layers(self) -> range:
        return range(len(self.pools))

    def save(self, slot: int) -> Saved:
        return [
            Row({name: pool[slot].clone() for name, pool in self.pools[i].items()}, self.contents[i][slot])
            for i in self.layers
        ]

    def restore(self, slot: int, saved: Sequence[Row]) -> None:
        for i in self.layers:
            for name, pool in self.pools[i].items():
                pool[slot] = saved[i].tensors[name]
            self.contents[i][slot] = saved[i].content

    def copy(self, source: int, target: int) -> None:
        self.restore(target, self.save(source))

    def zero(self, slot: int) -> None:
        for i in self.layers:
            for pool in self.pools[i].values():
                pool[slot] = 0
            self.contents[i][slot] = None

    def decode(
        self, layer: int, batch: Batch, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        """o [B, S, Hv, V] of gdn_decode."""
        pool = self.pools[layer]["state"]
        found = [None if slot < 0 else self.contents[layer][slot] for slot in batch.reads]
        self._tell_reads(layer, batch, found, [pool[max(slot, 0)] for slot in batch.reads])
        accepted = batch.accepted
        o = gdn_decode(
            q, k, v, g, beta, pool,
            torch.tensor(batch.writes, dtype=torch.int32),
            None if accepted is None else torch.tensor(accepted, dtype=torch.int32),
            torch.tensor(batch.reads, dtype=torch.int32) if accepted is None else None,
            steps=None if batch.steps is None else batch.steps[layer]["state"],
            layer=layer, **self._claims(batch),
        )  # fmt: skip
        for sequence, slots in enumerate(batch.writes):
            if batch.reads[sequence] >= 0:
                for t, slot in enumerate(slots):
                    self._tell_write(layer, batch, sequence, t + 1, slot, last=slot not in slots[t + 1 :])
        self._count(layer)
        return o

    def prefill(
        self, layer: int, batch: Batch, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        """o [T, Hv, V] of gdn_prefill on the batch's gathered states, which go back to their slots."""
        pool = self.pools[layer]["state"]
        gathered = pool[batch.reads]
        gathered[torch.tensor(batch.fresh)] = 0
        found = [
            None if fresh else self.contents[layer][slot]
            for slot, fresh in zip(batch.reads, batch.fresh, strict=True)
        ]
        self._tell_reads(layer, batch, found, list(gathered))
        starts = [0]
        for tokens in batch.tokens:
            starts.append(starts[-1] + len(tokens))
        o, final = gdn_prefill(
            q, k, v, g, beta, torch.tensor(starts, dtype=torch.int32), gathered,
            slots=list(batch.reads), layer=layer, **self._claims(batch),
        )  # fmt: skip
        for sequence, ((slot,), state) in enumerate(zip(batch.writes, final, strict=True)):
            pool[slot] = state
            self._tell_write(layer, batch, sequence, len(batch.tokens[sequence]), slot, last=True)
        self._count(layer)
        return o

    def conv_decode(self, layer: int, batch: Batch, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution of x [B, S, D] with weight [D, width], then silu."""
        steps = None if batch.steps is None else batch.steps[layer]["conv_state"]
        pool = self.pools[layer]["conv_state"]
        return conv_decode(x, weight, pool, torch.tensor(batch.writes), torch.tensor(batch.reads), steps)

    def conv_prefill(self, layer: int, batch: Batch, x: Tensor, weight: Tensor) -> Tensor:
        """The same of packed sequences, x [T, D]."""
        pool = self.pools[layer]["conv_state"]
        gathered = pool[batch.reads]
        gathered[torch.tensor(batch.fresh)] = 0
        o, final = conv_prefill(x, weight, [len(fed) for fed in batch.tokens], gathered)
        pool[[slot for (slot,) in batch.writes]] = final
        return o

    def _claims(self, batch: Batch) -> dict[str, list[str | None] | list[int] | None]:
        return {
            "request_ids": [None if request is None else request.id for request in batch.requests],
            "positions": batch.positions,
            "padding": batch.padding,
            "prefixes": prefix_claims(batch),
        }

    def _count(self, layer: int) -> None:
        self.steps[layer] += 1
        self.call += 1

    def _touch(
        self, layer: int, batch: Batch, sequence: int, position: int, slot: int, content: Content | None,
        row: Tensor | None,
    ) -> Touch:  # fmt: skip
        accepted = -1 if batch.accepted is None else batch.accepted[sequence]
        bits = None if row is None else row_bits(row)
        tokens = len(batch.tokens[sequence]) if batch.fresh else batch.width
        request = batch.requests[sequence]
        step = self.steps[layer]
        return Touch(
            self.call, step, layer, sequence, request, position, slot, content, bits, tokens, accepted,
            position - batch.positions[sequence], not batch.fresh,
        )  # fmt: skip

    def _tell_reads(
        self, layer: int, batch: Batch, found: Sequence[Content | None], rows: Sequence[Tensor]
    ) -> None:
        for sequence, (slot, content, row) in enumerate(zip(batch.reads, found, rows, strict=True)):
            if slot >= 0:
                position = batch.positions[sequence]
                touch = self._touch(layer, batch, sequence, position, slot, content, row)
                for watcher in self.watchers:
                    watcher.reads(touch)

    def _tell_write(
        self, layer: int, batch: Batch, sequence: int, tokens: int, slot: int, *, last: bool
    ) -> None:
        """`last`: no later token of the sequence writes the slot, so that it holds this state after the
        call."""
        request, position = batch.requests[sequence], batch.positions[sequence] + tokens
        fed = tuple(batch.tokens[sequence][:tokens])
        content = Content(request, position, self.call, batch.prefix(sequence) + fed)
        row = None
        if last and slot >= 0:
            row = self.pools[layer]["state"][slot]
            self.contents[layer][slot] = content
        touch = self._touch(layer, batch, sequence, position, slot, content, row)
        for watcher in self.watchers:
            watcher.writes(touch)


def prefix_claims(batch: Batch) -> list[str | None] | None:
    """Hashes as claims have them: of each request's tokens before its first one in this call."""
    if not batch.claim_prefixes:
        return None
    return [
        None if request is None else prefix_hash(batch.prefix(sequence))
        for sequence, request in enumerate(batch.requests)
    ]


def prefix_hash(tokens: Sequence[int]) -> str:
    """The first 8 bytes of BLAKE3 of the tokens as little-endian int64, in hexadecimal."""
    data = b"".join(token.to_bytes(8, "little", signed=True) for token in tokens)
    return blake3(data).hexdigest()[:16]
