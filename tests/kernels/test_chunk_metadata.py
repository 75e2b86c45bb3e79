# SPDX-License-Identifier: Apache-2.0
"""The chunk tables written on the device, against those counted out on the host."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.chunks import plan_chunks, segment_bound
from gdnbench_kernels.gdn_prefill import chunk_metadata
from gdnbench_kernels.gdn_prefill.chunk_metadata import PLAN, ChunkMetadata

UNWRITTEN = -7
STRIP = PLAN.threads


def compiled_for(**options: int) -> Any:
    offsets, rows = cute.sym_int(), cute.sym_int()

    def fake(shape: tuple[Any, ...], stride: tuple[int, ...]) -> Any:
        return make_fake_tensor(cutlass.Int32, shape, stride, assumed_align=4)

    return sim.compile(
        ChunkMetadata(**options),
        fake((offsets,), (1,)),
        fake((offsets,), (1,)),
        fake((rows, 2), (2, 1)),
        fake((1,), (1,)),
        make_fake_stream(),
        arch="sm_100a",
    )


@pytest.fixture(scope="module")
def compiled() -> Any:
    return compiled_for()


def run(
    compiled: Any, lengths: list[int], bound: int | None = None, **settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(chunk_offsets, chunk_indices, total_chunks); what surrounds them is still as it was."""
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    rows = max(plan_chunks(cu_seqlens, 64).bound, 0) if bound is None else bound
    shapes = [(len(cu_seqlens),), (rows, 2), (1,)]
    guarded = [torch.full((shape[0] + 2, *shape[1:]), UNWRITTEN, dtype=torch.int32) for shape in shapes]
    offsets, indices, total = (tensor[1:-1] for tensor in guarded)
    sim.launch(compiled, cu_seqlens, offsets, indices, total, **settings)
    for tensor in guarded:
        assert (tensor[[0, -1]] == UNWRITTEN).all()
    return offsets, indices, total


def check(compiled: Any, lengths: list[int], **settings: Any) -> None:
    plan = plan_chunks(torch.tensor([0, *lengths]).cumsum(0), 64)
    offsets, indices, total = run(compiled, lengths, **settings)
    assert offsets.tolist() == plan.offsets.tolist()
    assert total.item() == plan.total
    assert indices[: plan.total].tolist() == torch.stack([plan.sequence, plan.index], 1).tolist()
    assert (indices[plan.total :] == UNWRITTEN).all()


LENGTHS = {
    "no sequences": [],
    "one, empty": [0],
    "all empty": [0] * 40,
    "one token": [1],
    "around a chunk": [63, 64, 65, 127, 128, 129],
    "empty first, between and last": [0, 0, 5, 0, 64, 0, 0, 200, 0],
    "a chunk for no thread but the first": [64],
    "more chunks than threads": [64 * STRIP + 1, 3, 64 * STRIP],
    "a warp and one": [2] * 33,
    "a strip": [1] * STRIP,
    "a strip and one": [1] * (STRIP + 1),
    "a strip of empty ones": [0] * STRIP + [65] + [0] * STRIP + [1],
}


@pytest.mark.every(2)
@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_tables(compiled: Any, lengths: list[int], engine: str) -> None:
    check(compiled, lengths, engine=engine)


def test_tables_of_any_lengths(compiled: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for sequences in (2, 31, 257, 1023, 3000):
        lengths = torch.randint(0, 400, (sequences,), generator=generator)
        lengths[torch.rand(sequences, generator=generator) < 0.3] = 0
        check(compiled, lengths.tolist())


def test_tables_of_100_000_sequences(compiled: Any) -> None:
    check(compiled, torch.randint(0, 130, (100_000,), generator=torch.Generator().manual_seed(1)).tolist())


@pytest.mark.parametrize("schedule", ["early", "random:3"])
def test_tables_under_another_schedule(compiled: Any, schedule: str) -> None:
    check(compiled, [70, 0, 1] * 500, schedule=schedule)


def test_segments_of_which_each_sequence_has_one() -> None:
    """Against a loop over the sequences."""
    compiled = compiled_for(tokens=192, least=1)
    for lengths in ([0, 191, 192, 193, 0, 1000, 0], [0] * (STRIP + 1), [1], [192 * 2000 + 1, 0]):
        counts = [max(1, -(-length // 192)) for length in lengths]
        bound = segment_bound(sum(lengths), len(lengths), 192)
        offsets, indices, total = run(compiled, lengths, bound)
        assert offsets.diff().tolist() == counts
        assert total.item() == offsets[-1] == sum(counts) <= bound
        rows = [[n, index] for n, count in enumerate(counts) for index in range(count)]
        assert indices[: len(rows)].tolist() == rows
        assert (indices[len(rows) :] == UNWRITTEN).all()


def test_the_header_has_the_tables_of_the_plan() -> None:
    assert chunk_metadata.__doc__ is not None
    assert f"\n\n{PLAN.tables()}\n\n" in chunk_metadata.__doc__
