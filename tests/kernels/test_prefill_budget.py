# SPDX-License-Identifier: Apache-2.0
"""The SM100 kernels of gdn_prefill stay within their budgets, and take what their plans say.

What they take now is recorded by

    gdnbench compile --json > tests/kernels/prefill_budget.json
    gdnbench compile --json --kernel sm100_fused > tests/kernels/prefill_fused_budget.json
    gdnbench compile --json --kernel sm100_fused --cut 448 > tests/kernels/prefill_fused_rounds_budget.json
    gdnbench compile --json --kernel sm100_fused_cp > tests/kernels/prefill_cp_budget.json
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.compile import compile_programs, sources_of
from gdnbench.kernel_figures import Figures, figures, limits, problems
from gdnbench_kernels.plan import KernelPlan
from tests.subset import quick

KERNELS = {
    "prefill_budget": "sm100",
    "prefill_fused_budget": "sm100_fused",
    "prefill_fused_rounds_budget": "sm100_fused",
    "prefill_cp_budget": "sm100_fused_cp",
}
"""By file without .json, the kernel."""
MODULES = {
    "chunk_fused": "kernel_sm100_fused",
    "chunk_rounds": "kernel_sm100_fused",
    "chunk_rests": "kernel_sm100_fused",
    "segment_table": "chunk_metadata",
    "chunk_transfer": "kernel_sm100_transfer",
    "segment_scan": "kernel_sm100_scan",
    "chunk_segments": "kernel_sm100_fused",
}
"""The module of a program's plan, where they are not named alike."""


def budget_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name(f"{name}.json").read_text())
    return found


def compiled(kernel: str, **options: Any) -> list[Figures]:
    _, sources = sources_of("gdn_prefill", kernel)
    return [figures(program) for program in compile_programs(sources, options, "sm_100a", lambda *_: None)]


@pytest.mark.slow  # compiles every kernel of the prefill; other builds are held to the limits below
@pytest.mark.parametrize(("name", "kernel"), KERNELS.items())
def test_within_the_budget(name: str, kernel: str) -> None:
    budget = budget_of(name)
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("gdn_prefill", kernel, "sm_100a")
    assert problems(compiled(kernel, **budget["options"]), budget) == []


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"heads": 1, "value_heads": 3, "initial_state": None, "final_state": "bfloat16"},
            {
                "heads": 4,
                "value_heads": 4,
                "initial_state": "bfloat16",
                "final_state": None,
                "tap": "inject_a",
            },
            {"heads": 4, "value_heads": 4, "initial_state": None, "final_state": None, "tap": "dump"},
            {"heads": 2, "value_heads": 8, "initial_state": None, "final_state": None, "beta_max": 2.0},
            {"heads": 2, "value_heads": 6, "tap": "dump", "beta_max": 2.0},
            {"heads": 1, "value_heads": 2, "tap": "invert"},
            {"heads": 1, "value_heads": 2, "tap": "invert", "beta_max": 2.0},
        ],
    ),
)
def test_other_builds_are_within_the_limits(options: dict[str, Any]) -> None:
    found = compiled("sm100", **options)
    assert len(found) == 4
    assert [line for kernel in found for line in limits(kernel)] == []


@pytest.mark.slow  # other tests of each kernel compare a build that they run
@pytest.mark.parametrize(("name", "of"), KERNELS.items())
def test_kernels_take_what_their_plans_say(name: str, of: str) -> None:
    for kernel in compiled(of, **budget_of(name)["options"]):
        operation, _, program = kernel.name.partition(".")
        module = f"{operation}.{MODULES.get(program, program)}"
        plan: KernelPlan = importlib.import_module(f"gdnbench_kernels.{module}").PLAN
        planned = (plan.smem_bytes, plan.threads, plan.tmem_columns)
        assert (kernel.smem, kernel.threads, kernel.tmem_columns) == planned, kernel.name
