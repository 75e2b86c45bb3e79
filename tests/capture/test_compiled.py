# SPDX-License-Identifier: Apache-2.0
"""Targets inside torch.compile: operators of the program's own, broken graphs, and what is left alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gdnbench.store.reader import Store
from tests.messages import wording

Toy = Any

COMPILED = """
    import torch, toyframe
    def calls(seed):
        make = torch.Generator().manual_seed(seed)
        q, k = (torch.randn(2, 1, 2, 8, generator=make) for _ in range(2))
        v = torch.randn(2, 1, 4, 8, generator=make)
        g, beta = -torch.rand(2, 1, 4, generator=make), torch.rand(2, 1, 4, generator=make)
        return q, k, v, g, beta
    pool = torch.zeros(5, 4, 8, 8)
    slots = torch.tensor([[1], [3]], dtype=torch.int32)
    def run(q, k, v, g, beta):
        return toyframe.step(q * 1.0, k, v, g, beta, pool, slots=slots) + 1
    compiled = torch.compile(run, backend="eager")
    for seed in range(3):
        print(float(compiled(*calls(seed)).sum()).hex())
"""

# As serving engines have it: an operator whose Python runs when the graph does, and a fake for the tracing.
OPERATOR = (
    COMPILED.replace(
        "    def run(",
        """
    @torch.library.custom_op("gdnbench_toy::step", mutates_args=("pool",))
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
             pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return toyframe.step(q, k, v, g, beta, pool, slots=slots)
    @step.register_fake
    def _(q, k, v, g, beta, pool, slots):
        return torch.empty_like(v)
    def run(""",
    )
    .replace(
        "toyframe.step(q * 1.0, k, v, g, beta, pool, slots=slots) + 1",
        "step(q, k, v, g, beta, pool, slots) + 1",
    )
    .replace('backend="eager"', 'backend="aot_eager", fullgraph=True')
)


@pytest.mark.slow  # torch.compile
def test_what_is_compiled_is_counted_by_function_and_reason(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(COMPILED)
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert (ran.status, ran.out) == (1, toy.run(script).out)
    compiled = re.compile("toyframe:step: " + wording("capture.compiled"))
    assert re.search(wording("capture.not-recorded", calls=1, reason=compiled), ran.err)


@pytest.mark.slow  # processes that import torch
def test_broken_graphs_are_recorded(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(COMPILED)
    ran = toy.capture(tmp_path / "run.zarr", script, {"break_graphs": True})
    assert (ran.status, ran.out) == (0, toy.run(script).out)
    records = Store.open(tmp_path / "run.zarr").records
    assert [one.info.step for one in records] == [0, 1, 2]
    assert "not recorded" not in ran.err


@pytest.mark.slow
def test_operators_whose_python_runs_with_the_graph_are_recorded(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(OPERATOR)
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert (ran.status, ran.out) == (0, toy.run(script).out)
    records = Store.open(tmp_path / "run.zarr").records
    assert [one.info.step for one in records] == [0, 1, 2]
    assert "not recorded" not in ran.err
