# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill's fused kernel in two launches, in the simulator: against its own single launch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.kernel_figures import figures, limits
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active, settings_apply
from gdnbench_kernels.compiling import program
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused import is_uneven, sm100_fused
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import PLAN, SPLIT_PLAN
from gdnbench_kernels.gdn_prefill.sources import fused_sources
from gdnbench_kernels.gdn_prefill.synth import synth
from tests.kernels.guarded_outputs import Outputs, guarded, same
from tests.subset import quick

STATE: dict[str, Any] = {"initial_state": True}
CALLS: dict[str, tuple[int, dict[str, Any]]] = {
    # 6 works on 4 SMs: two whole ones, and two first parts each of the two other CTAs.
    "no round before": (4, {"seqlens": (65, 129, 1), "heads": (1, 2), **STATE}),
    # 5 on 2: two rounds, a third one of one work; both rests.
    "a round before": (2, {"seqlens": (130, 1, 64, 0, 193), "heads": (1, 1), **STATE}),
    # 8 on 3: one CTA has three first parts. The last sequences have no rest behind 64 tokens.
    "several first parts": (3, {"seqlens": (1, 0, 200, 64, 65, 129, 0, 63), "heads": (1, 1), **STATE}),
    # 6 on 5: four CTAs have first parts, three of them two; one rest each.
    "one more than SMs": (5, {"seqlens": (70, 1, 0, 65, 129, 300), "heads": (1, 1)}),
    "states of 16 bits": (
        2,
        {"seqlens": (100, 70, 129), "heads": (1, 1), "state_dtype": "bfloat16", **STATE},
    ),
    "beta to 2": (2, {"seqlens": (100, 70, 129), "heads": (1, 1), "beta": 2.0, **STATE}),
}


def run(sms: int, options: dict[str, Any], cut: int | None, **settings: Any) -> Outputs:
    """The outputs of the kernel, in guarded memory."""
    call = synth(**options)
    with settings_apply(sms=sms), guarded(OPERATION, call, **settings) as (outputs, session):
        sm100_fused(**call.tensors, **call.scalars, **outputs, cut=cut)
    assert sum(len(report.launches) for report in session.reports) == (1 if cut is None else 2)
    return outputs


@pytest.mark.slow  # three programs each
@pytest.mark.parametrize("cut", [64, 128])
@pytest.mark.parametrize(("sms", "options"), quick(CALLS.values(), ids=CALLS))
def test_bits_are_those_of_one_launch(sms: int, options: dict[str, Any], cut: int) -> None:
    one, two = run(sms, options, None), run(sms, options, cut)
    assert one.keys() == two.keys() == {"o", "final_state"}
    assert all(same(one[name], two[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["early", "random:1"])
def test_bits_are_those_of_any_schedule(schedule: str) -> None:
    sms, options = CALLS["several first parts"]
    one, two = run(sms, options, None), run(sms, options, 64, schedule=schedule)
    assert all(same(one[name], two[name]) for name in one)


@pytest.mark.slow  # the checker follows each access
def test_no_race() -> None:
    """A CTA with a first part behind another one, and its neighbours, which carry states too."""
    run(2, CALLS["a round before"][1], 64, check=True)


@pytest.mark.slow  # two programs each
@pytest.mark.parametrize(("beta_max", "plan"), [(1.0, PLAN), (2.0, SPLIT_PLAN)])
def test_builds_take_what_the_plan_says(beta_max: float, plan: Any) -> None:
    sources = fused_sources(2, 4, beta_max=beta_max, cut=64)
    assert [source.name for source in sources] == ["gdn_prefill.chunk_rounds", "gdn_prefill.chunk_rests"]
    for source in sources:
        found = figures(program(source, "sm_100a"))
        assert limits(found) == []
        assert (found.threads, found.tmem_columns) == (plan.threads, plan.tmem_columns)


def test_only_a_round_that_leaves_sms_idle_behind_a_full_one_is_uneven() -> None:
    assert [works for works in range(1, 10) if is_uneven(works, 3)] == [4, 5, 7, 8]


def test_a_call_without_such_a_round_is_one_launch() -> None:
    """Two works, of which no SM has the second."""
    call = synth(seqlens=(3,), heads=(1, 2), initial_state=True)
    with settings_apply(sms=2), active() as session, programs_simulated():
        sm100_fused(**call.tensors, **call.scalars, cut=64)
    assert sum(len(report.launches) for report in session.reports) == 1


@pytest.mark.parametrize("cut", [0, -64, 32, 96])
def test_works_are_cut_between_chunks(cut: int) -> None:
    call = synth(seqlens=(3,), heads=(1, 1))
    with pytest.raises(ValueError, match=f"a multiple of 64 tokens, not behind {cut}"):
        sm100_fused(**call.tensors, **call.scalars, cut=cut)
