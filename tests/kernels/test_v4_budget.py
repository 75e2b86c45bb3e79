# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels of v4_decode stay within their budgets, and take what their plans say.

What they take now is recorded, in this folder, by

    gdnbench compile --json --op v4_decode --kernel portable --arch sm_90a > v4_portable_budget.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.compile import compile_programs, sources_of
from gdnbench.kernel_figures import Figures, figures, limits, problems
from gdnbench_kernels.compiling import program
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.v4_decode.portable_plan import plan
from gdnbench_kernels.v4_decode.sources import merge_source, portable_source

BUDGET = Path(__file__).with_name("v4_portable_budget.json")
PER_TOKEN, DS_MLA = CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("sm_100a", {"heads": 128, "lse_base": "2", "lse_sink": "with", "lse_empty": "plus_inf"}),
    ("sm_90a", {"cache_layout": PER_TOKEN.value, "extra_layout": PER_TOKEN.value, "sink": False}),
    ("sm_90a", {"cache_layout": PER_TOKEN.value, "scale_dtype": "bfloat16"}),
    ("sm_100a", {"extra_layout": PER_TOKEN.value, "lse": False}),
    ("sm_100a", {"extra_layout": "none"}),
]


def compiled(arch: str, options: dict[str, Any]) -> list[Figures]:
    _, sources = sources_of("v4_decode", "portable")
    return [figures(made) for made in compile_programs(sources, options, arch, lambda *_: None)]


@pytest.mark.slow
def test_within_the_budget() -> None:
    budget = json.loads(BUDGET.read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("v4_decode", "portable", "sm_90a")
    assert problems(compiled("sm_90a", budget["options"]), budget) == []


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "options"), OTHERS)
def test_other_builds_are_within_the_limits(arch: str, options: dict[str, Any]) -> None:
    found = compiled(arch, options)
    assert found
    assert [line for figure in found for line in limits(figure)] == []


def test_the_kernels_take_what_their_plans_say() -> None:
    """Those that other tests compile, too."""
    planned = plan([DS_MLA])
    source = portable_source(8, DS_MLA.value, None, DS_MLA.value, None, split=True, sink=True, lse=True)
    attention = figures(program(source, "sm_100a"))
    merge = figures(program(merge_source(True, True, "e", "without", "minus_inf"), "sm_100a"))
    assert [line for figure in (attention, merge) for line in limits(figure)] == []
    assert (attention.smem, attention.threads) == (planned.smem_bytes, planned.threads)
    # The register file of an SM, and its shared memory with 1 KiB that each CTA takes of it besides.
    assert planned.ctas_per_sm * attention.threads * attention.registers <= 65536
    assert planned.ctas_per_sm * (attention.smem + 1024) <= 228 * 1024
    assert (merge.smem, merge.threads) == (0, 128)
