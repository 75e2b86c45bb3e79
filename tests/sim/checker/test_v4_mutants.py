# SPDX-License-Identifier: Apache-2.0
"""Changed synchronisation of v4_decode's kernels is found: a few mutants of each, which the checker sees at
once. scripts/mutate_synchronisation.py judges all of them, under all schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import ENGINES, Settings, active
from gdnbench.sim.mutants import Keeper, KeptLaunch, Kind, mutants
from gdnbench.sim.mutants.judge import run_launch
from gdnbench.sim.ptx import parse
from gdnbench_kernels.v4_decode.portable import portable
from gdnbench_kernels.v4_decode.sm100 import sm100
from gdnbench_kernels.v4_decode.wgmma import wgmma
from tests.kernels.v4_calls import made
from tests.subset import quick

KERNELS: dict[str, Callable[..., Any]] = {"portable": portable, "sm100": sm100, "wgmma": wgmma}
WAIT, BARRIER = ("mbarrier.try_wait", Kind.REMOVED), ("bar.sync", Kind.REMOVED)
ARRIVAL, COUNT = ("mbarrier.arrive", Kind.REMOVED), ("mbarrier.init", Kind.MORE)
CHANGES = {"portable": (WAIT, BARRIER), "sm100": (ARRIVAL, COUNT), "wgmma": (WAIT, COUNT)}
"""By kernel, opcodes and what is done to the first instruction that begins so. Without a wait or the
barrier a warp reads rows before their copies have landed, or before other warps have described them; without
an arrival, or with a count too large, somebody waits for ever."""


@pytest.fixture(scope="module")
def interpreted() -> Any:
    """With the compiled tensor core, which gives the same bits in less time. Compiling a mutant takes longer
    than interpreting it up to its error."""
    with pytest.MonkeyPatch.context() as patch:
        engine = replace(ENGINES["interpreter"], multiply=ENGINES["compiled"].multiply)
        patch.setitem(ENGINES, "interpreter", engine)
        yield


def kept(name: str, splits: int) -> KeptLaunch:
    """The attention kernel's launch for one query, a tile of each segment."""
    call = made(lens=(17,), extra_lens=(3,), topk=3, seed=0)
    keeper = Keeper(1)
    with active(Settings(before=keeper)), programs_simulated():
        KERNELS[name](**call.tensors, **call.scalars, **call.conventions, splits=splits)
    return keeper.launches[0]


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("name", "splits"), quick([("portable", 1), ("portable", 2), ("sm100", 1), ("wgmma", 1)], 0)
)
def test_mutants_are_found(name: str, splits: int) -> None:
    launch = kept(name, splits)
    entry, text = launch.request.entry, launch.module.text
    for op, kind in CHANGES[name]:
        mutant = next(
            one for one in mutants(launch.module, entry) if one.kind is kind and one.op.startswith(op)
        )
        ran = run_launch(launch, parse(mutant.ptx(text)), "interpreter", "late", known=())
        assert ran.found or ran.fault is not None, f"{kind.value} {op} at PTX line {mutant.place.line}"


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_themselves_have_no_findings(name: str) -> None:
    launch = kept(name, 1)
    ran = run_launch(launch, launch.module, "interpreter", "late")
    assert not ran.found
    assert ran.fault is None
