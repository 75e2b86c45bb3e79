# SPDX-License-Identifier: Apache-2.0
"""Chunk plans, slot plans and races, for any lengths and any indices, against counting them out."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from gdnbench_kernels.chunks import gather_chunks, plan_chunks, scatter_chunks
from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 16))
def test_every_token_is_in_one_chunk_of_its_sequence(lengths: list[int], chunk_size: int) -> None:
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    plan = plan_chunks(cu_seqlens, chunk_size)
    counted = []
    for n, length in enumerate(lengths):
        start = int(cu_seqlens[n])
        for i in range(math.ceil(length / chunk_size)):
            counted.append((n, i, start + i * chunk_size, min(chunk_size, length - i * chunk_size)))
    found = zip(*(x.tolist() for x in (plan.sequence, plan.index, plan.start, plan.length)), strict=True)
    assert list(found) == counted
    assert plan.offsets.tolist() == [sum(n < m for n, *_ in counted) for m in range(len(lengths) + 1)]
    tokens, sequences = sum(lengths), len(lengths)
    assert plan.bound == (sequences - 1) + math.ceil((tokens - (sequences - 1)) / chunk_size)
    assert plan.bound >= plan.total == len(counted)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 8))
def test_gathered_chunks_hold_zeros_past_a_sequence_and_scatter_back(
    lengths: list[int], chunk_size: int
) -> None:
    plan = plan_chunks(torch.tensor([0, *lengths]).cumsum(0), chunk_size)
    x = 1 + torch.arange(plan.tokens * 6, dtype=torch.float32).view(plan.tokens, 2, 3)
    rows = plan.part(0, plan.total)
    chunks = gather_chunks(x, *rows)
    assert chunks.shape == (plan.total, 2, chunk_size, 3)
    for c, (start, length) in enumerate(zip(plan.start.tolist(), plan.length.tolist(), strict=True)):
        assert chunks[c, :, :length].movedim(0, 1).equal(x[start : start + length])
        assert not chunks[c, :, length:].any()
    back = torch.full_like(x, torch.nan)
    scatter_chunks(back, chunks, *rows)
    assert back.equal(x)


BATCHES = st.integers(1, 4).flatmap(
    lambda steps: st.lists(
        st.tuples(st.lists(st.integers(-1, 7), min_size=steps, max_size=steps), st.integers(1, steps)),
        min_size=1,
        max_size=4,
    )
)


@given(BATCHES)
def test_races_and_touched_slots(batch: list[tuple[list[int], int]]) -> None:
    rows = [slots for slots, _ in batch]
    size, steps = len(rows), len(rows[0])
    tensors = {name: torch.zeros(size, steps, 1, 1, dtype=torch.bfloat16) for name in ("q", "k", "v")}
    tensors |= {name: torch.zeros(size, steps, 1) for name in ("g", "beta")}
    tensors["state"] = torch.zeros(8, 1, 1, 1)
    tensors["state_indices"] = torch.tensor(rows, dtype=torch.int32)
    tensors["num_accepted"] = torch.tensor([count for _, count in batch], dtype=torch.int32)
    call = Call(tensors, {}, DECODE.default_conventions)
    used = [set(slots) - {-1} for slots, accepted in batch if slots[accepted - 1] != -1]
    races = sum(map(len, used)) > len(set().union(*used))
    try:
        DECODE.validate(call)
        refused = ""
    except ContractError as error:
        refused = str(error)
    assert bool(refused) == races, refused
    assert DECODE.touched(call)["state"].tolist() == sorted(set().union(*used))
    assert [region.sequence for region in DECODE.partition(call, "o").regions] == [
        i for i, (slots, accepted) in enumerate(batch) if slots[accepted - 1] != -1
    ]
