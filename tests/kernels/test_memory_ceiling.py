# SPDX-License-Identifier: Apache-2.0
"""The kernels that only move bytes: every word arrives, in both engines and on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench.timing.ceiling import KEY, arch_of, grids, sources
from gdnbench_kernels.artifacts import ArgumentError
from gdnbench_kernels.compiling import program
from gdnbench_kernels.source import Source
from tests.seeds import drawn

FRESH = drawn("memory ceiling", 20)
GUARD = 64
"""Words before and after a target that nobody may write."""

SOURCES = sources()
SMALL = SOURCES[2:4]
"""256 threads, 4 vectors; into L1 or not. The others differ in these numbers alone."""


def words(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64).to(torch.int32)


def moved(source: Source, arch: str, given: Tensor, ctas: int, in_place: bool, engine: str) -> Tensor:
    """What the target holds afterwards; nothing beside it may have been written."""
    whole = torch.full((len(given) + 2 * GUARD,), 77, dtype=torch.int32)
    target = whole[GUARD:-GUARD]
    before = given.clone()
    if in_place:
        target.copy_(given)
    with active(Settings(engine=engine, schedule=f"random:{FRESH}")) as session, programs_simulated():
        program(source, arch)(target if in_place else given, target, KEY, ctas)
    assert [finding for report in session.reports for finding in report.findings] == []
    assert bool((whole[:GUARD] == 77).all())
    assert bool((whole[-GUARD:] == 77).all())
    assert torch.equal(given, before)
    return target


@pytest.mark.every(2)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_word_is_moved(arch: str, engine: str, in_place: bool) -> None:
    """Whole tiles, more than there are CTAs, and a rest of 77 vectors."""
    for source in SMALL:
        for seed in (0, FRESH):
            given = words(4 * (256 * 4 * 3 + 77), seed)
            found = moved(source, arch, given, 2, in_place, engine)
            assert torch.equal(found, given ^ KEY)


@pytest.mark.every(2)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.symbol)
def test_every_build_at_every_edge(source: Source) -> None:
    """One vector; a tile less one, exactly one, and one more; with CTAs that have nothing to do."""
    options = dict(source.options)
    tile = int(options["threads"] or 0) * int(options["unroll"] or 0)
    for vectors, ctas in ((1, 1), (tile - 1, 1), (tile, 3), (tile + 1, 1), (2 * tile + 1, 2)):
        given = words(4 * vectors, FRESH + vectors)
        assert torch.equal(moved(source, "sm_100a", given, ctas, False, "compiled"), given ^ KEY)


def test_a_tensor_that_is_not_aligned_is_refused() -> None:
    """By its address, before anything is launched on a GPU: vectors of 16 bytes would fault there."""
    from gdnbench_kernels.cuda_launch import TensorType

    made = program(SOURCES[0], "sm_100a")
    taken = TensorType.parse(made.parameters[0].type or "")
    assert taken is not None
    taken.check("source", torch.zeros(8, dtype=torch.int32), torch.device("cpu"))
    with pytest.raises(ArgumentError, match=wording("kernels.unaligned", align=16)):
        taken.check("source", torch.zeros(9, dtype=torch.int32)[1:], torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("in_place", [False, True])
def test_every_word_is_moved_on_a_gpu(in_place: bool) -> None:
    """64 MiB and a rest, every build, both grids."""
    arch = arch_of(torch.device("cuda"))
    count = torch.cuda.get_device_properties(0).multi_processor_count
    given = words(4 * ((1 << 22) + 77), FRESH).cuda()
    for source in SOURCES:
        for ctas in grids(source, given.nbytes, count):
            target = given.clone() if in_place else torch.zeros_like(given)
            program(source, arch)(target if in_place else given, target, KEY, ctas)
            assert torch.equal(target, given ^ KEY), (source.symbol, ctas)
