# SPDX-License-Identifier: Apache-2.0
"""A few changes of synchronisation in kda_prefill's fused kernel, each of which the checker or a fault finds.
`scripts/mutate_synchronisation.py kda_prefill_fused` judges all of them, on longer sequences."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench.sim.errors import FaultKind
from gdnbench.sim.mutants import Keeper, KeptLaunch, Kind, mutants
from gdnbench.sim.mutants.judge import run_launch
from gdnbench.sim.ptx.parser import parse
from gdnbench_kernels.kda_prefill.contract import OPERATION
from gdnbench_kernels.kda_prefill.synth import synth
from gdnbench_kernels.run import run_kernel


class Kept(Keeper):
    """Keeps a launch instead of running it."""

    class Stopped(Exception):
        pass

    def __call__(self, *launch: Any) -> None:
        super().__call__(*launch)
        raise self.Stopped


@pytest.fixture(scope="module")
def launch() -> KeptLaunch:
    """Of one token and of none, by a build of tests/kernels/test_kda_prefill_fused.py, which is clean."""
    call, keeper = synth(seqlens=(1, 0), heads=(1, 2), initial_state=True), Kept()
    with active(Settings(before=keeper)), programs_simulated(), pytest.raises(Kept.Stopped):
        run_kernel(OPERATION, "sm100_fused", call)
    return keeper.launches[0]


# By kind and opcode, which one of them in the order of the text, and what finds it.
MUTANTS: dict[str, tuple[Kind, str, int, str]] = {
    "SCALE does not wait for a copy": (Kind.REMOVED, "mbarrier.try_wait", 19, "operation in flight"),
    "STATE does not wait for its stores": (Kind.REMOVED, "tcgen05.wait::st", 0, "operation in flight"),
    "SCALE waits for the phase before": (Kind.PARITY, "mbarrier.try_wait", 19, "operation in flight"),
    "no fence ahead of a product": (Kind.REMOVED, "fence.proxy.async", 0, "no proxy fence"),
    "half of a CTA's barrier": (Kind.LESS, "bar.sync", 0, "two rounds of a barrier"),
    "tensor memory is freed while STATE reads it": (Kind.REMOVED, "bar.sync", -1, "race"),
    "a product is not committed": (Kind.REMOVED, "tcgen05.commit", 0, FaultKind.DEADLOCK),
    "an mbarrier that expects nobody": (Kind.LESS, "mbarrier.init", 8, FaultKind.BARRIER),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "op", "nth", "what"), MUTANTS.values(), ids=MUTANTS)
def test_a_change_of_synchronisation_is_found(
    launch: KeptLaunch, kind: Kind, op: str, nth: int, what: str
) -> None:
    text, entry = launch.module.text, launch.request.entry
    chosen = [one for one in mutants(launch.module, entry) if (one.kind, one.op) == (kind, op)][nth]
    ran = run_launch(launch, parse(chosen.ptx(text)), "interpreter", "late", known=())
    found = {cause for verdict, cause, *_ in ran.found if verdict == "error"}
    assert (found or {ran.fault.kind if ran.fault is not None else None}) == {what}
