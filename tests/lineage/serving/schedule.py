# SPDX-License-Identifier: Apache-2.0
"""A seeded schedule of the serving loop: its requests, and how the engine is set up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

VOCABULARY = 32
BLOCK = 4
"""Tokens of a block of the prefix cache."""

Drafts = Literal["none", "slots", "scratch", "replay", "buffer"]
"""What becomes of the states of drafts.

slots: a request has a slot for each token of a step, and reads that of the last accepted one (vLLM).
scratch: the states go to slots of the batch; the accepted one is copied to the request's slot.
replay: the step updates the request's slot; after a rejection the slot is restored and the accepted tokens
        are computed again.
buffer: the states go to a buffer that no contract has; the accepted one is copied to the slot (SGLang).
"""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: it comes before step `step` and wants `new_tokens` tokens. It waits for the end of an
    earlier request of its id."""

    id: str
    step: int
    prompt: tuple[int, ...]
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Probabilities are those of a step or, of `draft_hit`, of a drafted token."""

    seed: int
    arrivals: tuple[Arrival, ...]
    holders: int  # requests that can have slots at once
    budget: int  # tokens of a prefill call
    batch: int  # sequences of a decode call
    drafts: Drafts
    draft_tokens: int
    draft_hit: float
    preempt: float
    swap: float  # of a preemption: its state is kept; otherwise computed again
    prefix_cache: int  # entries, 0 for none
    zero_in_pool: bool  # a new request's slot is zeroed; otherwise its gathered state is
    decode_first: bool  # a step's decode call comes before its prefill call
    pad_to: int  # decode batches are padded to a multiple of it, as the batches of CUDA graphs are
    claim_prefixes: bool
    null_slot: bool  # padding reads and writes slot 0, which no request has; otherwise its slot is -1


FORMS: tuple[Drafts, ...] = ("none", "none", "slots", "slots", "scratch", "replay", "buffer")


def make_schedule(
    seed: int,
    *,
    requests: int = 7,
    forms: Sequence[Drafts] = FORMS,
    reuse_ids: bool = True,
    **fixed: object,
) -> Schedule:
    """The schedule of that seed. `forms`: what `drafts` is drawn from. `fixed` replaces drawn fields."""
    rng = random.Random(seed)
    claim_prefixes = rng.random() < 0.7
    prefix_cache = rng.choice((0, 3, 6, 6))
    # Two requests of one id, one after another. A hit of the second in the prefix cache looks like the first
    # one's next call unless the prefix is known.
    reuse = rng.random() < 0.3 and (claim_prefixes or prefix_cache == 0) and reuse_ids
    blocks = [tuple(rng.randrange(VOCABULARY) for _ in range(BLOCK)) for _ in range(3)]
    arrivals: list[Arrival] = []
    step = 0
    for number in range(requests):
        shared = sum((rng.choice(blocks) for _ in range(rng.randrange(4))), ())
        own = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 9)))
        name = f"r{number}"
        if reuse and arrivals and rng.random() < 0.3:
            name = rng.choice(arrivals).id
        arrivals.append(Arrival(name, step, shared + own, rng.randrange(1, 14)))
        step += rng.choice((0, 0, 1, 2, 5))
    drafts = rng.choice(forms)
    drawn = {
        "seed": seed,
        "arrivals": tuple(arrivals),
        "holders": rng.randrange(2, 6),
        "budget": rng.choice((3, 6, 16, 64)),
        "batch": rng.randrange(1, 6),
        "drafts": drafts,
        "draft_tokens": rng.randrange(1, 4) if fixed.get("drafts", drafts) != "none" else 0,
        "draft_hit": rng.choice((0.3, 0.7, 0.9)),
        "preempt": rng.choice((0.0, 0.1, 0.3)),
        "swap": rng.choice((0.0, 0.5, 1.0)),
        "prefix_cache": prefix_cache,
        "zero_in_pool": rng.random() < 0.5,
        "decode_first": rng.random() < 0.5,
        "pad_to": rng.choice((1, 2, 4)),
        "claim_prefixes": claim_prefixes,
        "null_slot": rng.random() < 0.3,
    }
    return Schedule(**{**drawn, **fixed})  # type: ignore[arg-type]
