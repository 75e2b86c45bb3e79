# SPDX-License-Identifier: Apache-2.0
"""A loop over the pages of a sliding window, as engines have them for swa_decode: pages leave a request when
the window has passed them, whole pages of a shared prefix are shared, preempted requests are swapped out or
computed again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import gdnbench.capture

PAGE = 16
WINDOW = 20


@gdnbench.capture.record(
    "swa_decode",
    conventions={"cache_layout": "bfloat16"},
    lineage={"requests": "request_ids", "positions": "positions"},
    layer="layer",
)
def swa_decode(
    q: Tensor,
    cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    *,
    layer: int = 0,
    request_ids: Sequence[str | None] = (),
    positions: Sequence[int] = (),
) -> Tensor:
    """o [T, H, 512] of one query token per request; the tensors are those of the contract of swa_decode."""
    used = torch.arange(swa_indices.shape[1]) < swa_lens[:, None]
    rows = cache.flatten(0, 1)[swa_indices.clamp(min=0).long()].float()
    scores = torch.einsum("thd,twd->thw", q.float(), rows) * 512**-0.5
    weights = scores.masked_fill(~used[:, None], -torch.inf).softmax(-1)
    return torch.einsum("thw,twd->thd", weights, rows).to(q.dtype)


@dataclass(eq=False)
class PagedRequest:
    id: str
    tokens: list[int]  # the prompt, then what is decoded
    end: int  # tokens when it is done
    pages: dict[int, int] = field(default_factory=dict)  # by position // PAGE; those the window needs
    kept: dict[int, tuple[Tensor, Owner | None]] | None = None  # rows in host memory, while it is preempted
    computed: int = 0  # how often its rows were computed


Owner = tuple[PagedRequest, int]
"""Whose row it is, and of which position."""


@dataclass(frozen=True, slots=True)
class RowRead:
    """A row of a window that a call reads. `wrong`: it is not the row of this request and position; `left`
    and `left_position`: whose it is."""

    call: int
    request: PagedRequest
    position: int
    slot: int
    sequence: int
    row: Tensor
    wrong: bool
    left: PagedRequest | None
    left_position: int


class PagedLoop:
    """`noise`: rows that are computed again differ in their last bits. `width`: elements of a row."""

    def __init__(self, seed: int, width: int = 8, requests: int = 6) -> None:
        self.rng = random.Random(seed)
        self.width = width
        self.noise = self.rng.random() < 0.5
        self.swap = self.rng.choice((0.0, 0.5, 1.0))
        self.preemption = self.rng.choice((0.0, 0.1, 0.3))
        self.batch = self.rng.randrange(1, 5)
        pages = self.rng.randrange(10, 16)
        self.free = list(range(pages))
        self.cache = torch.zeros(pages, PAGE, width, dtype=torch.bfloat16)
        self.users: Counter[int] = Counter()
        self.shared: dict[tuple[int, ...], dict[int, int]] = {}  # by prefix of whole pages: its last pages
        self.owners: list[Owner | None] = [None] * (pages * PAGE)
        prefixes = [[self.rng.randrange(32) for _ in range(2 * PAGE)] for _ in range(2)]
        self.waiting: list[PagedRequest] = []
        for number in range(requests):
            own = [self.rng.randrange(32) for _ in range(self.rng.randrange(2, 20))]
            tokens = self.rng.choice([*prefixes, []]) + own
            self.waiting.append(PagedRequest(f"r{number}", tokens, len(tokens) + self.rng.randrange(2, 30)))
        self.running: list[PagedRequest] = []
        self.preempted: list[PagedRequest] = []
        self.call = 0
        self.calls: list[list[RowRead]] = []

    def run(self) -> None:
        for _ in range(2000):
            if not (self.waiting or self.running or self.preempted):
                return
            self.run_step()
        raise AssertionError("the loop does not end")

    def run_step(self) -> None:
        # A preempted request waits for the next step at least, in which the others go on.
        back = [*self.preempted]
        if len(self.running) > 1 and self.rng.random() < self.preemption:
            self.preempt(self.rng.choice(self.running))
        for queue in (back, self.waiting):
            while queue and self.room() >= 4:
                request = queue.pop(0)
                if request in self.preempted:
                    self.preempted.remove(request)
                self.start(request)
                self.running.append(request)
        chosen = [request for request in self.running if self.rng.random() < 0.9][: self.batch]
        chosen = [request for request in chosen or self.running[:1] if self.grow(request)]
        while not chosen and self.running:
            self.preempt(self.running[-1])
            chosen = [request for request in self.running[:1] if self.grow(request)]
        if chosen:
            self.decode(chosen)
        for request in chosen:
            self.drop_pages(request, self.passed(request))
        for request in [one for one in self.running if len(one.tokens) >= one.end]:
            self.running.remove(request)
            self.drop_pages(request, list(request.pages))

    # Pages.

    def room(self) -> int:
        while len(self.free) < 4 and self.shared:
            pages = self.shared.pop(next(iter(self.shared)))
            self.unuse(list(pages.values()))
        return len(self.free)

    def use(self) -> int:
        page = self.free.pop(self.rng.randrange(len(self.free)))
        self.users[page] += 1
        return page

    def unuse(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.users[page] -= 1
            if self.users[page] == 0:
                self.free.append(page)

    def drop_pages(self, request: PagedRequest, numbers: Sequence[int]) -> None:
        self.unuse([request.pages.pop(number) for number in numbers])

    def passed(self, request: PagedRequest) -> list[int]:
        """Pages that no later window reaches."""
        first = self.needed(len(request.tokens)).start
        return [number for number in request.pages if (number + 1) * PAGE <= first]

    def slot(self, request: PagedRequest, position: int) -> int:
        return request.pages[position // PAGE] * PAGE + position % PAGE

    # Rows.

    def row(self, request: PagedRequest, position: int) -> Tensor:
        """What the layer computes for a token: it depends on all tokens up to it."""
        key = hash(tuple(request.tokens[: position + 1]))
        drawn = torch.Generator().manual_seed(key & 0x7FFFFFFF)
        row = torch.randn(self.width, generator=drawn).to(torch.bfloat16)
        if self.noise and request.computed > 1 and key % 2:
            row[position % self.width] *= 1 + 2**-7  # another order of a sum
        return row

    def write(self, request: PagedRequest, position: int) -> None:
        self.put(self.slot(request, position), self.row(request, position), (request, position))

    def put(self, slot: int, row: Tensor, owner: Owner | None) -> None:
        self.cache.view(-1, self.width)[slot] = row
        self.owners[slot] = owner

    def window(self, length: int) -> range:
        """The positions to which the last of `length` tokens attends."""
        return range(max(0, length - WINDOW), length)

    def needed(self, length: int) -> range:
        """Of `length` tokens, those to which the next one attends."""
        return range(max(0, length + 1 - WINDOW), length)

    # Requests.

    def start(self, request: PagedRequest) -> None:
        """Fills the window of the known tokens: from a prefix's pages, the swapped rows, or computed."""
        request.computed += request.kept is None
        length = len(request.tokens)
        shared = self.find_shared(request) if request.kept is None else {}
        for number, page in shared.items():
            request.pages[number] = page
            self.users[page] += 1
        for position in self.needed(length):
            if position // PAGE in shared:
                continue
            if position // PAGE not in request.pages:
                request.pages[position // PAGE] = self.use()
            if request.kept is None:
                self.write(request, position)
            else:
                self.put(self.slot(request, position), *request.kept[position])
        request.kept = None
        self.share(request)

    def find_shared(self, request: PagedRequest) -> dict[int, int]:
        """The pages of the longest shared prefix, if the window needs them."""
        whole = len(request.tokens) // PAGE
        for count in range(whole, 0, -1):
            pages = self.shared.get(tuple(request.tokens[: count * PAGE]))
            if pages is not None:
                first = self.needed(len(request.tokens)).start // PAGE
                needed = range(first, count)
                return {n: pages[n] for n in needed if n in pages} if all(n in pages for n in needed) else {}
        return {}

    def share(self, request: PagedRequest) -> None:
        whole = len(request.tokens) // PAGE
        key = tuple(request.tokens[: whole * PAGE])
        pages = {n: page for n, page in request.pages.items() if n < whole}
        first = self.needed(len(request.tokens)).start
        pages = {n: page for n, page in pages.items() if n * PAGE >= first}
        if pages and key not in self.shared:
            self.shared[key] = pages
            for page in pages.values():
                self.users[page] += 1

    def preempt(self, request: PagedRequest) -> None:
        self.running.remove(request)
        self.preempted.append(request)
        if self.rng.random() < self.swap:
            rows = self.cache.view(-1, self.width)
            places = [(one, self.slot(request, one)) for one in self.needed(len(request.tokens))]
            request.kept = {one: (rows[slot].clone(), self.owners[slot]) for one, slot in places}
        self.drop_pages(request, list(request.pages))

    def grow(self, request: PagedRequest) -> bool:
        """One more token, if there is a page for it."""
        position = len(request.tokens)
        if position // PAGE not in request.pages:
            if self.room() == 0:
                return False
            request.pages[position // PAGE] = self.use()
        request.tokens.append(self.rng.randrange(32))
        self.write(request, position)
        return True

    def decode(self, requests: Sequence[PagedRequest]) -> None:
        indices = torch.full((len(requests), WINDOW), -1, dtype=torch.int32)
        lens = torch.zeros(len(requests), dtype=torch.int32)
        reads: list[RowRead] = []
        for sequence, request in enumerate(requests):
            window = self.window(len(request.tokens))
            lens[sequence] = len(window)
            for entry, position in enumerate(window):
                slot = self.slot(request, position)
                indices[sequence, entry] = slot
                reads.append(self.read_row(sequence, request, position, slot))
        self.calls.append(reads)
        if self.width == 512:
            swa_decode(
                torch.zeros(len(requests), 1, 512, dtype=torch.bfloat16), self.cache, indices, lens,
                request_ids=[request.id for request in requests],
                positions=[len(request.tokens) - 1 for request in requests],
            )  # fmt: skip
        self.call += 1

    def read_row(self, sequence: int, request: PagedRequest, position: int, slot: int) -> RowRead:
        row = self.cache.view(-1, self.width)[slot].clone()
        owner = self.owners[slot]
        right = False
        if owner is not None:
            left, place = owner
            right = place == position and left.tokens[: place + 1] == request.tokens[: position + 1]
        left, place = owner if owner is not None else (None, -1)
        return RowRead(self.call, request, position, slot, sequence, row, not right, left, place)


class WindowNotShared(PagedLoop):
    """A hit in the prefix cache gives a request pages of its own for the window and does not fill them:
    ROCm/ATOM#1417, tokenspeed#361."""

    def find_shared(self, request: PagedRequest) -> dict[int, int]:
        return {number: self.use_unfilled() for number in super().find_shared(request)}

    def use_unfilled(self) -> int:
        page = self.use()
        self.users[page] -= 1  # `start` counts it
        return page


class PageFreedEarly(PagedLoop):
    """A page of the window is free for other requests before the window has passed it: tokenspeed#1595."""

    def passed(self, request: PagedRequest) -> list[int]:
        first = max(0, len(request.tokens) + 1 - WINDOW // 2)
        early = [number for number in request.pages if (number + 1) * PAGE <= first]
        for number in early:
            page = request.pages[number]
            if page not in self.free and self.users[page] == 1:
                self.free.append(page)
        return super().passed(request)
