# SPDX-License-Identifier: Apache-2.0
"""A tiny engine of paged windows that logs what each call reads, right or with one stale row."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, AccessFlag, AccessKind

PAGE, WINDOW = 4, 10
Content = tuple[int, int]


@dataclass(eq=False)
class Request:
    name: str
    position: int  # of the next query
    pages: dict[int, int] = field(default_factory=dict)  # position // PAGE -> page
    shares: set[int] = field(default_factory=set)  # pages of a prefix, by number

    def slot(self, position: int) -> int:
        return self.pages[position // PAGE] * PAGE + position % PAGE


class WindowEngine:
    """`drafts`: queries of a request in one call. `bug`: "skipped", a token's row is not written; or
    "overwritten", another token's row is written over it."""

    def __init__(self, seed: int, drafts: int = 1, bug: str | None = None, tokens: int = 0) -> None:
        self.random = random.Random(seed)
        self.drafts, self.bug = drafts, bug
        self.tokens = [self.new_content() for _ in range(tokens)]
        self.rows: dict[int, Content] = {}
        self.free = list(range(40))
        self.running: list[Request] = []
        self.log: list[tuple[object, ...]] = []
        self.names: dict[str, int] = {}
        self.call = self.born = 0
        self.planted: int | None = None  # the first call that reads the stale row

    def content(self) -> Content:
        """With `tokens`, that of one of so many tokens, wherever it stands."""
        return self.random.choice(self.tokens) if self.tokens else self.new_content()

    def new_content(self) -> Content:
        return self.random.getrandbits(64), self.random.getrandbits(64)

    def run(self, calls: int) -> WindowEngine:
        while self.call < calls:
            self.step()
        return self

    def table(self) -> AccessTable:
        rows = np.array(self.log, dtype=ROW)
        return AccessTable("made", rows, ("layer",), ("window",), tuple(self.names))

    def step(self) -> None:
        if len(self.running) < 3 and len(self.free) > 12:
            self.born += 1
            self.admit(Request(f"r{self.born}", self.random.randrange(WINDOW, 20)))
        for request in list(self.running):
            chance = self.random.random()
            if request.position > 45 or chance < 0.02:
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
        request.pages = {}
        others = [one for one in self.running if self.random.random() < 0.3]
        for page in range(max(0, request.position - WINDOW) // PAGE, request.position // PAGE + 1):
            shared = [
                one.pages[page] for one in others if page in one.pages and page * PAGE + PAGE < one.position
            ]
            if shared and page * PAGE + PAGE < request.position:
                request.pages[page] = shared[0]
            else:
                request.pages[page] = self.free.pop(0)
                first = request.pages[page] * PAGE
                self.rows |= {first + one: self.content() for one in range(PAGE)}
        self.running.append(request)

    def release(self, request: Request) -> None:
        self.running.remove(request)
        used = {page for one in self.running for page in one.pages.values()}
        self.free += [page for page in request.pages.values() if page not in used and page not in self.free]

    def decode(self, batch: list[Request]) -> None:
        queries = [(one, one.position + token) for one in batch for token in range(self.drafts)]
        for request, position in queries:
            if position // PAGE not in request.pages:
                request.pages[position // PAGE] = self.free.pop(0)
            slot = request.slot(position)
            old = self.rows.get(slot)
            self.rows[slot] = self.content()
            strikes = self.bug == "skipped" and self.planted is None and self.call > 20
            if strikes and old is not None and self.left(slot, old, position):
                self.rows[slot], self.planted = old, self.call
        if self.bug == "overwritten" and self.planted is None and self.call > 20:
            request = batch[0]
            if self.just_read(request, request.slot(request.position - 2)):
                self.rows[request.slot(request.position - 2)] = self.content()
                self.planted = self.call
        for sequence, (request, position) in enumerate(queries):
            number = self.names.setdefault(request.name, len(self.names))
            for one in range(max(0, position - WINDOW + 1), position + 1):
                if one // PAGE in request.pages:
                    slot = request.slot(one)
                    self.log.append(
                        (self.call, self.call, 0, 0, AccessKind.READ, AccessFlag.WINDOW, sequence, number,
                         one, slot, -1, 1, 0, self.rows[slot])
                    )  # fmt: skip
        for request in batch:
            request.position += self.random.randrange(1, self.drafts + 1)
            old = [page for page in request.pages if (page + 1) * PAGE + WINDOW < request.position]
            for page in old:
                gone = request.pages.pop(page)
                if all(gone not in one.pages.values() for one in self.running):
                    self.free.append(gone)
        self.call += 1

    def left(self, slot: int, content: Content | None, position: int) -> bool:
        """Whether that content was last read at the slot for another position."""
        rows = [row for row in self.log if row[9] == slot]
        return bool(rows) and rows[-1][13] == content and rows[-1][8] != position

    def just_read(self, request: Request, slot: int) -> bool:
        """Whether the request read the slot in the call before."""
        number = self.names.get(request.name)
        return any(row[0] == self.call - 1 and row[7] == number and row[9] == slot for row in self.log)
