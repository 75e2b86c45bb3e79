"""The compiled kernels of swa_decode stay within their budgets, and take what their plans say.

What they take now is recorded by

    gdnbench compile --json --op swa_decode --kernel sm100 > tests/kernels/swa_sm100_budget.json
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

BUDGETS = {"sm100": Path(__file__).with_name("swa_sm100_budget.json")}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("sm100", {"heads": 128, "cache_layout": "fp8_ds_mla"}),
    ("sm100", {"heads": 8, "scale_dtype": "bfloat16", "sink": False, "lse": False}),
]


def compiled(kernel: str, **options: Any) -> list[Figures]:
    _, sources = sources_of("swa_decode", kernel)
    return [figures(program) for program in compile_programs(sources, options, "sm_100a", lambda *_: None)]


@pytest.mark.parametrize("kernel", BUDGETS)
def test_within_the_budget(kernel: str) -> None:
    budget = json.loads(BUDGETS[kernel].read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("swa_decode", kernel, "sm_100a")
    assert problems(compiled(kernel, **budget["options"]), budget) == []


@pytest.mark.parametrize(("kernel", "options"), OTHERS)
def test_other_builds_are_within_the_limits(kernel: str, options: dict[str, Any]) -> None:
    found = compiled(kernel, **options)
    assert found
    assert [line for figure in found for line in limits(figure)] == []


def test_sm100_takes_what_its_plan_says() -> None:
    for options in ({}, {"heads": 128, "cache_layout": "fp8_ds_mla"}):
        (kernel,) = compiled("sm100", **options)
        plan = importlib.import_module("gdnbench_kernels.swa_decode.tcgen05_decode").PLAN
        planned = (plan.smem_bytes, plan.threads, plan.tmem_columns)
        assert (kernel.smem, kernel.threads, kernel.tmem_columns) == planned
