# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels of swa_decode stay within their budgets, and take what their plans say.

What they take now is recorded, in this folder, by

    gdnbench compile --json --op swa_decode --kernel sm100 > swa_sm100_budget.json
    gdnbench compile --json --op swa_decode --kernel portable --arch sm_90a > swa_portable_budget.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.compile import compile_programs, sources_of
from gdnbench.kernel_figures import Figures, figures, limits, problems
from gdnbench_kernels.plan import KernelPlan
from gdnbench_kernels.swa_decode import portable_plan, sm100_plan
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sources import PORTABLE_ROWS
from tests.subset import quick

HERE = Path(__file__).parent
BUDGETS = {
    "sm100": ("sm_100a", HERE / "swa_sm100_budget.json"),
    "portable": ("sm_90a", HERE / "swa_portable_budget.json"),
}
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("sm100", "sm_100a", {"heads": 128, "cache_layout": "fp8_ds_mla"}),
    ("sm100", "sm_100a", {"heads": 8, "scale_dtype": "bfloat16", "sink": False, "lse": False}),
    ("portable", "sm_100a", {"heads": 128, "cache_layout": "fp8_ds_mla"}),
    ("portable", "sm_90a", {"heads": 8, "scale_dtype": "bfloat16", "sink": False, "lse": False}),
]


def compiled(kernel: str, arch: str, options: dict[str, Any]) -> list[Figures]:
    _, sources = sources_of("swa_decode", kernel)
    return [figures(program) for program in compile_programs(sources, options, arch, lambda *_: None)]


@pytest.mark.parametrize("kernel", quick(BUDGETS, list(BUDGETS).index("portable")))
def test_within_the_budget(kernel: str) -> None:
    arch, path = BUDGETS[kernel]
    budget = json.loads(path.read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("swa_decode", kernel, arch)
    assert problems(compiled(kernel, arch, budget["options"]), budget) == []


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "arch", "options"), OTHERS)
def test_other_builds_are_within_the_limits(kernel: str, arch: str, options: dict[str, Any]) -> None:
    found = compiled(kernel, arch, options)
    assert found
    assert [line for figure in found for line in limits(figure)] == []


@pytest.mark.parametrize("layout", quick(["per_token_scale", "fp8_ds_mla"], 0))
@pytest.mark.parametrize("kernel", BUDGETS)
def test_kernels_take_what_their_plans_say(kernel: str, layout: str) -> None:
    plans: list[KernelPlan] = [sm100_plan.PLAN]
    if kernel == "portable":
        plans = [portable_plan.plan(CacheLayout(layout), rows) for rows in PORTABLE_ROWS]
    heads = 8 if kernel == "sm100" else 64  # builds of other tests
    found = compiled(kernel, BUDGETS[kernel][0], {"cache_layout": layout, "heads": heads})
    for figure, plan in zip(found, plans, strict=True):
        planned = (plan.smem_bytes, plan.threads, plan.tmem_columns)
        assert (figure.smem, figure.threads, figure.tmem_columns) == planned, figure.name
        # The register file of an SM, and its shared memory with 1 KiB that each CTA takes of it besides.
        assert plan.ctas_per_sm * figure.threads * figure.registers <= 65536
        assert plan.ctas_per_sm * (figure.smem + 1024) <= 228 * 1024
