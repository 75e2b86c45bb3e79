# SPDX-License-Identifier: Apache-2.0
"""A tiny serving engine whose states are contents without elements: it logs accesses, right or with one bug.

Every state that is computed has a content of its own, as another batch rounds otherwise. The engine has
chunked prefill, a prefix cache, decoding with drafts that may be rejected, requests that wait, move to other
slots, are preempted and start again, names that are used again, and batches that are filled up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind

Content = tuple[int, int]
ZERO: Content = (0, 0)
BLOCK = 4  # tokens after which states are cached
DRAFTS = 3  # slots of a request, if it has drafts
WARM = 30  # calls before a bug strikes


@dataclass(eq=False)
class Request:
    name: str
    prompt: int  # its length
    tokens: list[int]  # known
    slots: list[int] = field(default_factory=list)
    column: int = 0  # of `slots`: where the state at `done` is
    done: int = 0  # position of the next token to compute
    wait: int = 0
    last: int = -9  # number of its last call
    past: list[Content] = field(default_factory=list)  # that it read in decode calls since it was admitted
    pinned: bool = False
    moved: bool = False  # to another slot since its last call

    @property
    def slot(self) -> int:
        return self.slots[self.column]

    @property
    def prefilled(self) -> bool:
        return self.done >= self.prompt and len(self.tokens) == self.done + 1


@dataclass(frozen=True)
class Options:
    """`copies`: the accepted draft's state is copied to the request's first slot, as by engines without a
    count of accepted tokens. `prefixes`: claimed. `bug`: the one that strikes."""

    drafts: bool = False
    copies: bool = False
    prefixes: bool = True
    cache: bool = True
    bug: str | None = None


@dataclass(frozen=True)
class Planted:
    """The break that the bug makes: its name, the call that did the damage, and the reader."""

    kind: str
    call: int
    request: str


class Engine:
    def __init__(self, seed: int, options: Options) -> None:
        self.random = random.Random(seed)
        self.options = options
        self.width = DRAFTS if options.drafts else 1
        self.pool: dict[int, Content] = {0: ZERO}
        self.free = list(range(1, 40))
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.cached: dict[tuple[int, ...], Content] = {}
        self.rows: list[tuple[object, ...]] = []
        self.names: dict[str, int] = {}
        self.calls = self.born = 0
        self.prefills: set[int] = set()  # calls that compute prompts
        self.planted: Planted | None = None
        self.prompts = [self.some_tokens(20) for _ in range(3)]

    def run(self, steps: int) -> Engine:
        for _ in range(steps):
            self.step()
        return self

    def table(self, whole: bool = True) -> AccessTable:
        rows = np.array(self.rows, dtype=ROW)
        return AccessTable("made", rows, ("layer",), ("state",), tuple(self.names), whole=whole)

    # The log

    def content(self) -> Content:
        return self.random.getrandbits(64), self.random.getrandbits(64)

    def some_tokens(self, count: int) -> list[int]:
        return [self.random.randrange(9) for _ in range(count)]

    def prefix(self, request: Request) -> int:
        if not self.options.prefixes or not request.done:
            return 0
        return int.from_bytes(
            blake2b(bytes(request.tokens[: request.done]), digest_size=8).digest(), "little"
        )

    def log(
        self, kind: AccessKind, sequence: int, request: Request | None, position: int, slot: int, tokens: int,
        flags: int = 0, accepted: int = UNKNOWN, prefix: int = 0,
    ) -> None:  # fmt: skip
        number = UNKNOWN if request is None else self.names.setdefault(request.name, len(self.names))
        flags |= AccessFlag.PADDING if request is None else 0
        self.rows.append(
            (self.calls, self.calls, 0, 0, kind, flags, sequence, number, position, slot, accepted, tokens,
             prefix, self.pool[slot])
        )  # fmt: skip

    # The engine

    def step(self) -> None:
        if self.random.random() < 0.4:
            self.arrive()
        self.admit()
        for request in list(self.running):
            self.disturb(request)
        ready = [request for request in self.running if not request.wait]
        for request in self.running:
            request.wait = max(0, request.wait - 1)
        self.prefill([request for request in ready if not request.prefilled])
        self.decode([request for request in ready if request.prefilled])

    def arrive(self) -> None:
        self.born += 1
        again = self.random.random() < 0.2  # a name of another request, which may be over
        name = f"r{self.random.randrange(self.born) if again else self.born}"
        if name not in {one.name for one in (*self.running, *self.waiting)}:
            tokens = self.random.choice(self.prompts)[: self.random.randrange(1, 20)] + self.some_tokens(1)
            self.waiting.append(Request(name, len(tokens), tokens))

    def admit(self) -> None:
        while self.waiting and len(self.running) < 5 and len(self.free) > self.width:
            request = self.waiting.pop(0)
            request.slots = [self.free.pop(0) for _ in range(self.width)]
            request.done = request.column = request.wait = 0
            request.prompt = len(request.tokens)
            request.past.clear()
            self.pool |= dict.fromkeys(request.slots, ZERO)
            known = [prefix for prefix in self.cached if tuple(request.tokens[: len(prefix)]) == prefix]
            hits = (
                [prefix for prefix in known if len(prefix) < len(request.tokens)]
                if self.options.cache
                else []
            )
            if hits:
                prefix = max(hits, key=len)
                self.pool[request.slot] = self.cached[prefix]
                request.done = len(prefix)
            self.running.append(request)
            self.damage_admitted(request, bool(hits))

    def disturb(self, request: Request) -> None:
        chance = self.random.random()
        if len(request.tokens) > request.prompt + 25 and not request.pinned:
            self.release(request)
        elif chance < 0.03 and request.done and not request.pinned:  # preempted
            self.release(request)
            self.waiting.insert(0, request)
        elif chance < 0.08 and request.prefilled and not request.wait:
            request.wait = self.random.randrange(1, 8)
        elif chance < 0.1 and self.free and not request.pinned and not request.wait:  # moves
            slot = self.free.pop(0)
            self.pool[slot] = self.pool[request.slot]
            self.free.append(request.slot)
            request.slots[request.column] = slot
            request.moved = True

    def release(self, request: Request) -> None:
        self.running.remove(request)
        self.free += [slot for slot in request.slots if slot not in self.free]

    def prefill(self, batch: list[Request]) -> None:
        if not batch:
            return
        self.damage_prefill(batch)
        self.prefills.add(self.calls)
        counts = []
        for sequence, request in enumerate(batch):
            left = len(request.tokens) - request.done
            count = min(left, self.random.choice((BLOCK, 2 * BLOCK, 99)))
            if count < left:
                count = max(1, count - (request.done + count) % BLOCK)
            counts.append(count)
            self.log(
                AccessKind.READ, sequence, request, request.done, request.slot, count,
                prefix=self.prefix(request),
            )  # fmt: skip
        self.pool |= {request.slot: self.content() for request in batch}
        for sequence, (request, count) in enumerate(zip(batch, counts, strict=True)):
            request.done += count
            request.last = self.calls
            self.log(AccessKind.WRITE, sequence, request, request.done, request.slot, count)
            if request.done % BLOCK == 0:
                self.cached.setdefault(tuple(request.tokens[: request.done]), self.pool[request.slot])
            if request.done == len(request.tokens):
                request.prompt = min(request.prompt, request.done)
                request.tokens += self.some_tokens(1)
        self.calls += 1

    def decode(self, batch: list[Request]) -> None:
        if not batch:
            return
        self.damage_decode(batch)
        fill = self.filling(batch)
        for sequence, request in enumerate(batch):
            # The count is of the step before; after a prefill the state is in the first column.
            counted = self.options.drafts and not self.options.copies
            self.log(
                AccessKind.READ, sequence, request, request.done, request.slot, self.width,
                accepted=request.column + 1 if counted else UNKNOWN, prefix=self.prefix(request),
            )  # fmt: skip
            request.past.append(self.pool[request.slot])
        for place, slot in enumerate(fill, len(batch)):
            self.log(AccessKind.READ, place, None, UNKNOWN, slot, self.width)
        self.pool |= {slot: self.content() for request in batch for slot in request.slots}
        self.pool |= {slot: self.content() for slot in fill}
        for sequence, request in enumerate(batch):
            for token, slot in enumerate(request.slots):
                flags = AccessFlag.DRAFT if token else 0
                position = request.done + token + 1
                self.log(AccessKind.WRITE, sequence, request, position, slot, self.width, flags)
        for place, slot in enumerate(fill, len(batch)):
            self.log(AccessKind.WRITE, place, None, UNKNOWN, slot, self.width)
        for request in batch:
            accepted = self.random.randrange(1, self.width + 1)
            request.done += accepted
            request.column = accepted - 1
            request.last, request.moved = self.calls, False
            request.tokens += self.some_tokens(accepted)
            if self.options.copies:
                self.copy_accepted(request)
        self.calls += 1

    def copy_accepted(self, request: Request) -> None:
        column = request.column
        if self.strikes("rejected-draft") and column < self.width - 1:
            column = self.width - 1
            self.plant("rejected-draft", request, self.calls)
        self.pool[request.slots[0]] = self.pool[request.slots[column]]
        request.column = 0

    def filling(self, batch: list[Request]) -> list[int]:
        """The slots of padding sequences: slot 0, which is nobody's."""
        if self.strikes("padding"):
            victims = [one for one in self.running if one.prefilled and one.last > 0 and self.lasts(one)]
            if victims:
                victim = self.random.choice(victims)
                self.plant("padding", victim, self.calls)
                return [0, victim.slots[0] if victim in batch else victim.slot]
        return [0] if self.random.random() < 0.3 else []

    # Bugs

    def strikes(self, kind: str) -> bool:
        return self.options.bug == kind and self.planted is None and self.calls > WARM

    def lasts(self, request: Request) -> bool:
        """Whether the request has decoded, and is not about to end."""
        return len(request.past) > 3 and len(request.tokens) < request.prompt + 20

    def plant(self, kind: str, request: Request, call: int) -> None:
        request.pinned = True
        self.planted = Planted(kind, call, request.name)

    def damage_admitted(self, request: Request, hit: bool) -> None:
        if not hit and self.strikes("never-written"):
            self.pool[request.slot] = self.content()
            self.plant("never-written", request, self.calls)
        lengths = {len(prefix) for prefix in self.cached} - {request.done}
        if hit and lengths and self.strikes("wrong-prefix"):
            wrong = [prefix for prefix in self.cached if len(prefix) in lengths]
            self.pool[request.slot] = self.cached[self.random.choice(wrong)]
            self.plant("wrong-prefix", request, self.calls)

    def damage_prefill(self, batch: list[Request]) -> None:
        """The slot of a request that runs is given to one that begins."""
        begins = [one for one in batch if not one.done]
        running = [
            one for one in self.running if one.last == self.calls - 1 and one.prefilled and not one.wait
        ]
        running = [one for one in running if self.lasts(one)]
        if begins and running and self.strikes("shared-slot"):
            victim, thief = running[0], begins[0]
            thief.slots[0] = victim.slot
            self.pool[victim.slot] = ZERO
            thief.pinned = True
            self.plant("shared-slot", victim, self.calls)

    def damage_decode(self, batch: list[Request]) -> None:
        absent = [one for one in self.running if one.last < self.calls - 1 and one not in batch]
        absent = [one for one in absent if one.prefilled and self.lasts(one)]
        if absent and self.strikes("overwritten"):
            victim, thief = absent[0], batch[0]
            self.pool[victim.slot] = self.pool[thief.slot]
            thief.slots[thief.column] = victim.slot
            thief.pinned = True
            self.plant("overwritten", victim, self.calls)
        lasting = [one for one in batch if self.lasts(one) and one.last == self.calls - 1]
        if not lasting:
            return
        one = lasting[0]
        if self.strikes("older-version"):
            self.pool[one.slot] = one.past[-2]
            self.plant("older-version", one, self.calls)
        elif self.strikes("position-gap"):
            one.done += DRAFTS
            one.tokens += self.some_tokens(DRAFTS)
            self.plant("position-gap", one, self.calls)
        elif self.strikes("position-overlap"):
            one.done -= DRAFTS
            del one.tokens[-DRAFTS:]
            self.plant("position-overlap", one, self.calls)
        elif self.strikes("accepted-count"):
            one.column = (one.column + 1) % DRAFTS
            self.plant("accepted-count", one, self.calls)
        elif not one.moved and self.strikes("unexplained"):
            self.pool[one.slot] = self.content()
            self.plant("unexplained", one, self.calls)
        elif len(batch) > 1 and self.strikes("written-twice"):
            other = next(two for two in batch if two is not one)
            other.slots[-1] = one.slots[0]
            self.plant("written-twice", one, self.calls)


def subset(table: AccessTable, kept: Callable[[int], bool]) -> AccessTable:
    """The rows of the calls for which `kept` holds."""
    calls = np.unique(table.rows["call"]).tolist()
    rows = table.rows[np.isin(table.rows["call"], [call for call in calls if kept(call)])]
    return AccessTable(table.process, rows, table.layers, table.chains, table.requests, whole=table.whole)


SHAPES: Sequence[Options] = (
    Options(),
    Options(prefixes=False),
    Options(drafts=True),
    Options(drafts=True, copies=True),
    Options(drafts=True, copies=True, prefixes=False),
    Options(cache=False, drafts=True, prefixes=False),
)
"""Engines without a bug."""
