# SPDX-License-Identifier: Apache-2.0
"""A tiny engine of compressed rows that logs what each call reads, right or with one wrong row."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, AccessFlag, AccessKind

PAGE, RATIO = 4, 4
"""Rows of a page, and tokens of a row."""
Content = tuple[int, int]


@dataclass(eq=False)
class Request:
    name: str
    position: int  # of the next query
    pages: list[int] = field(default_factory=list)
    shared: int = 0  # pages of a prefix that are another's

    def slot(self, row: int) -> int:
        return self.pages[row // PAGE] * PAGE + row % PAGE


class CompressedEngine:
    """A query at position p has (p + 1) // RATIO rows, and reads all of them in order, or `room` of them.

    `drafts`: queries of a request in one call, of which the next call computes the rejected ones anew.
    `sorted_rows`: whether all rows are read in order, not by their score. `bug`: "skipped", a row is not
    written; "overwritten", another row is written over it; "twice", a query reads a row twice.
    """

    def __init__(
        self, seed: int, drafts: int = 1, room: int = 8, bug: str | None = None, sorted_rows: bool = True
    ) -> None:
        self.random = random.Random(seed)
        self.drafts, self.room, self.bug, self.sorted_rows = drafts, room, bug, sorted_rows
        self.rows: dict[int, Content] = {}
        self.free = list(range(30))
        self.running: list[Request] = []
        self.log: list[tuple[object, ...]] = []
        self.names: dict[str, int] = {}
        self.call = self.born = 0
        self.planted: int | None = None  # the first call that reads the wrong row

    def content(self) -> Content:
        return self.random.getrandbits(64), self.random.getrandbits(64)

    def run(self, calls: int) -> CompressedEngine:
        while self.call < calls:
            self.step()
        return self

    def table(self) -> AccessTable:
        rows = np.array(self.log, dtype=ROW)
        return AccessTable("made", rows, ("layer",), ("compressed",), tuple(self.names))

    def step(self) -> None:
        if len(self.running) < 3 and len(self.free) > 14:
            self.born += 1
            name = (
                f"r{self.random.randrange(1, self.born)}"
                if self.born > 4 and self.random.random() < 0.1
                else ""
            )
            if any(one.name == name for one in self.running):
                name = ""
            self.admit(Request(name or f"r{self.born}", self.random.randrange(6, 24)))
        for request in list(self.running):
            chance = self.random.random()
            if request.position > 60 or chance < 0.02:
                self.release(request)
            elif chance < 0.05:
                # Preempted: its rows are computed again, with the token that it got last. Nobody logs that.
                self.release(request)
                request.position += 1
                self.admit(request)
        batch = [one for one in self.running if self.random.random() < 0.9]
        if batch:
            self.decode(batch)

    def admit(self, request: Request) -> None:
        """The prompt is computed, or its first pages are another's of the same prompt."""
        request.pages, request.shared = [], 0
        others = [one for one in self.running if self.random.random() < 0.3]
        full = request.position // RATIO
        for page in range(full // PAGE + 1):
            owner = next((one for one in others if len(one.pages) > page + 1), None)
            if owner is not None and request.shared == page and (page + 1) * PAGE <= full:
                request.pages.append(owner.pages[page])
                request.shared += 1
            else:
                request.pages.append(self.free.pop(0))
                first = request.pages[page] * PAGE
                self.rows |= {first + one: self.content() for one in range(PAGE) if page * PAGE + one < full}
        self.running.append(request)

    def release(self, request: Request) -> None:
        self.running.remove(request)
        used = {page for one in self.running for page in one.pages}
        self.free += [page for page in request.pages if page not in used and page not in self.free]

    def decode(self, batch: list[Request]) -> None:
        for request in batch:
            for position in range(request.position, request.position + self.drafts):
                if (position + 1) % RATIO == 0:
                    self.close(request, position // RATIO)
        strikes = self.planted is None and self.call > 20
        if self.bug == "overwritten" and strikes:
            request = batch[0]
            seen = self.just_read(request)
            rows = range(request.shared * PAGE, (request.position + 1 - RATIO) // RATIO)
            chosen = [row for row in rows if request.slot(row) in seen]
            if chosen and (request.position + 1) // RATIO <= self.room:
                self.rows[request.slot(chosen[0])] = self.content()
                self.planted = self.call
        queries = [(one, one.position + token) for one in batch for token in range(self.drafts)]
        for sequence, (request, position) in enumerate(queries):
            self.read(sequence, request, position)
        for request in batch:
            request.position += self.random.randrange(1, self.drafts + 1)
        self.call += 1

    def close(self, request: Request, row: int) -> None:
        """The row of tokens that are complete now."""
        while row // PAGE >= len(request.pages):
            request.pages.append(self.free.pop(0))
        slot = request.slot(row)
        old = self.rows.get(slot)
        self.rows[slot] = self.content()
        if self.bug == "skipped" and self.planted is None and self.call > 20 and old is not None:
            left = self.last_position(slot, old)
            if left not in (None, row) and row < self.room - 1:
                self.rows[slot], self.planted = old, self.call

    def read(self, sequence: int, request: Request, position: int) -> None:
        count = (position + 1) // RATIO
        chosen = list(range(count))
        flags = AccessFlag.WINDOW | AccessFlag.COMPRESSED
        if count < self.room:
            flags |= AccessFlag.ALL
            if not self.sorted_rows:
                self.random.shuffle(chosen)
        else:
            chosen = self.random.sample(chosen, self.room)
        slots = [request.slot(row) for row in chosen]
        if self.bug == "twice" and self.planted is None and self.call > 20 and len(slots) > 2:
            slots[2], self.planted = slots[1], self.call
        number = self.names.setdefault(request.name, len(self.names))
        for slot in slots:
            self.log.append(
                (self.call, self.call, 0, 0, AccessKind.READ, flags, sequence, number, position, slot, -1, 1,
                 0, self.rows[slot])
            )  # fmt: skip

    def last_position(self, slot: int, content: Content) -> int | None:
        """For which row the slot was read with this content by a query that read all rows."""
        for at in range(len(self.log) - 1, -1, -1):
            row = self.log[at]
            if row[9] == slot and row[13] == content and row[5] & AccessFlag.ALL:  # type: ignore[operator]
                first = at
                while first and self.log[first - 1][:1] + self.log[first - 1][6:9] == row[:1] + row[6:9]:
                    first -= 1
                return at - first
        return None

    def just_read(self, request: Request) -> set[object]:
        """The slots that the request read in the call before."""
        number = self.names.get(request.name)
        return {row[9] for row in self.log if row[0] == self.call - 1 and row[7] == number}
