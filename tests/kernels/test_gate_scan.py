# SPDX-License-Identifier: Apache-2.0
"""exp of gates as the SM100 kernels carry it from chunk to chunk, in the simulator, against fp64."""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from tests.kernels.gate_kernel import THREADS, Decay

EXCESS = 2**-36 + 2**-50
"""Relative error before the rounding to f32, as `rounded_decay` derives it, and that of fp64's own exp."""


@cache
def compiled() -> Any:
    vector = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,), assumed_align=4)
    return sim.compile(Decay(), vector, vector, make_fake_stream(), arch="sm_100a")


def decayed(x: Tensor, **settings: str) -> Tensor:
    given = torch.cat([x, x.new_zeros(-len(x) % THREADS)])
    y = torch.full_like(given, torch.nan)
    report = sim.launch(compiled(), given, y, **settings)
    assert not report.findings, report
    return y[: len(x)]


@pytest.mark.parametrize(("engine", "count"), [("compiled", 1 << 16), ("interpreter", THREADS)])
def test_rounded_decay_is_half_an_ulp_off(engine: str, count: int) -> None:
    """Over all that is not 0 in f32, subnormals too: 0.5 ULP and what precedes the rounding."""
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(count, generator=generator)
    x = torch.cat([-104 * share[: count // 2], -(2.0 ** (-30 + 36 * share[count // 2 :]))])
    found, exact = decayed(x, engine=engine).double(), x.double().exp()
    ulp = torch.exp2(exact.log2().floor().clamp(min=-126) - 23)
    assert ((found - exact).abs() <= ulp / 2 + exact * EXCESS).all()
    # What exp2.approx gives is not that: the test would notice.
    approximate = torch.exp2(x * 1.4426950408889634).double()
    assert ((approximate - exact).abs() > ulp / 2 + exact * EXCESS).any()


def test_rounded_decay_of_what_is_no_number_or_none_that_counts() -> None:
    x = torch.tensor([0.0, -0.0, -1e-45, -103.0, -104.0, -128.0, -3e38, -torch.inf, torch.nan, -torch.nan])
    found = decayed(x)
    assert found[:4].tolist() == [1.0, 1.0, 1.0, 1.401298464324817e-45]
    assert found[4:8].tolist() == [0.0] * 4
    assert found[8:].isnan().all()
