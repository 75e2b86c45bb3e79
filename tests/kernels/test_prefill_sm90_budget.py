# SPDX-License-Identifier: Apache-2.0
"""The SM90 kernels of gdn_prefill stay within their budgets, and take what their plans say.

What they take now is recorded, in this folder, by

    gdnbench compile --json --kernel sm90_fused > prefill_sm90_budget.json
    gdnbench compile --json --kernel sm90_fused_cp > prefill_sm90_cp_budget.json
    gdnbench compile --json --kernel sm90_prepared > prefill_sm90_prepared_budget.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.compile import compile_programs, sources_of
from gdnbench.kernel_figures import Figures, figures, limits, problems
from gdnbench_kernels.gdn_prefill import kernel_sm100_scan
from gdnbench_kernels.gdn_prefill.sm90_plan import planned
from gdnbench_kernels.gdn_prefill.sm90_prepared_sources import SQUARES
from gdnbench_kernels.gdn_prefill.sm90_segment_sources import SEGMENT_TUNINGS
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import PREPARED, planned_prepared, planned_squares
from gdnbench_kernels.plan import KernelPlan
from tests.subset import quick

HERE = Path(__file__).parent
BUDGETS = {
    "sm90_fused": HERE / "prefill_sm90_budget.json",
    "sm90_fused_cp": HERE / "prefill_sm90_cp_budget.json",
    "sm90_prepared": HERE / "prefill_sm90_prepared_budget.json",
}
WIDE: dict[str, Any] = {"heads": 1, "value_heads": 3, "slices": 1, "final_state": "bfloat16"}
STEEP: dict[str, Any] = {"heads": 2, "value_heads": 8, "beta_max": 2.0, "initial_state": "bfloat16"}
OTHERS = [
    ("sm90_fused", WIDE),
    ("sm90_prepared", WIDE),
    ("sm90_fused", STEEP),
    ("sm90_fused_cp", STEEP),
    ("sm90_prepared", STEEP | {"slices": 1}),
]
REGISTERS, SMEM, RESERVED = 65536, 228 * 1024, 1024
"""Of an SM: registers, bytes of shared memory, and those that each CTA takes besides."""


def compiled(kernel: str, **options: Any) -> list[Figures]:
    _, sources = sources_of("gdn_prefill", kernel)
    return [figures(program) for program in compile_programs(sources, options, "sm_90a", lambda *_: None)]


def plans(slices: int) -> dict[str, KernelPlan]:
    """By the kernel's name, for beta up to 1."""
    fused, cut, prepared = TUNINGS[slices], SEGMENT_TUNINGS[slices], PREPARED[slices]
    return {
        "fused_sm90": planned(fused),
        "transfer_sm90": planned(cut),
        "segments_sm90": planned(cut),
        "squares_sm90": planned_squares(SQUARES, False, 2),
        "prepared_whole_sm90": planned_prepared(prepared),
        "prepared_transfer_sm90": planned_prepared(prepared, outputs=False),
        "prepared_outputs_sm90": planned_prepared(prepared),
        "scan_sm90": kernel_sm100_scan.PLAN,
    }


@pytest.mark.slow  # compiles every kernel; other builds are held to the limits below
@pytest.mark.parametrize("kernel", BUDGETS)
def test_within_the_budget(kernel: str) -> None:
    budget = json.loads(BUDGETS[kernel].read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("gdn_prefill", kernel, "sm_90a")
    assert problems(compiled(kernel, **budget["options"]), budget) == []


@pytest.mark.slow  # up to five programs each
@pytest.mark.parametrize(("kernel", "options"), OTHERS)
def test_other_builds_are_within_the_limits(kernel: str, options: dict[str, Any]) -> None:
    assert [line for found in compiled(kernel, **options) for line in limits(found)] == []


@pytest.mark.slow  # the programs of the budget
@pytest.mark.parametrize("slices", quick(TUNINGS, 1))
@pytest.mark.parametrize("kernel", BUDGETS)
def test_kernels_take_what_their_plans_say(kernel: str, slices: int) -> None:
    """A CTA's threads, shared memory and the CTAs that an SM holds."""
    for found in compiled(kernel, slices=slices):
        plan = plans(slices)[found.name.partition(".")[2]]
        assert (found.smem, found.threads, found.tmem_columns) == (plan.smem_bytes, plan.threads, 0)
        assert plan.ctas_per_sm * found.threads * found.registers <= REGISTERS, found.name
        assert plan.ctas_per_sm * (found.smem + RESERVED) <= SMEM, found.name
