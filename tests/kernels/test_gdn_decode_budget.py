# SPDX-License-Identifier: Apache-2.0
"""The compiled kernel of gdn_decode stays within its budget, and takes what its plans say.

What it takes now is recorded, in this folder, by

    gdnbench compile --json --op gdn_decode --kernel cute --arch sm_90a > gdn_decode_budget.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.compile import compile_programs, sources_of
from gdnbench.kernel_figures import Figures, figures, limits, problems
from gdnbench_kernels.gdn_decode.decode_plan import MIDDLE_CTAS, SMALL_CTAS, default_plans
from tests.kernels.occupancy import resident
from tests.subset import quick

BUDGET = Path(__file__).parent / "gdn_decode_budget.json"
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("sm_90a", {"state_dtype": "bfloat16"}),
    ("sm_100a", {"gate": "log", "qk": "normalised", "g_dtype": "float32", "beta_dtype": "float32"}),
    ("sm_90a", {"tokens": 2, "reads": "accepted"}),
]
CTAS = {"float32": (25, 4, 23, 4, 4, 4), "bfloat16": (28, 4, 12, 16, 16, 18)}
"""Of the chosen plans, on an SM: what docs/gdn_decode.md counts bytes in flight by."""


def compiled(arch: str, options: dict[str, Any]) -> list[Figures]:
    _, sources = sources_of("gdn_decode", "cute")
    return [figures(program) for program in compile_programs(sources, options, arch, lambda *_: None)]


def test_within_the_budget() -> None:
    budget = json.loads(BUDGET.read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("gdn_decode", "cute", "sm_90a")
    assert problems(compiled("sm_90a", budget["options"]), budget) == []


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "options"), OTHERS)
def test_other_builds_are_within_the_limits(arch: str, options: dict[str, Any]) -> None:
    found = compiled(arch, options)
    assert found
    assert [line for figure in found for line in limits(figure)] == []


@pytest.mark.parametrize("state_dtype", quick(CTAS, 0))
def test_plans_take_what_they_say(state_dtype: str) -> None:
    found = compiled("sm_90a", {"state_dtype": state_dtype})
    plans = default_plans(state_dtype, 1)
    for figure, plan in zip(found, plans, strict=True):
        assert (figure.smem, figure.threads) == (plan.shared_bytes(1, state_dtype), plan.threads), figure.name
    assert tuple(map(resident, found)) == CTAS[state_dtype]
    assert resident(found[0]) >= SMALL_CTAS
    assert resident(found[1]) == plans[1].resident
    assert state_dtype == "float32" or resident(found[1]) == MIDDLE_CTAS[state_dtype]
