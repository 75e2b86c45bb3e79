# SPDX-License-Identifier: Apache-2.0
"""Triton kernels on a virtual GPU: what Triton's own launcher passes arrives, on SM100 and on SM90."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.messages import wording
from tests.sim.third_party.apart import Apart, apart_with_triton
from tests.subset import quick

MACHINES = ("b200", "h100")
# Rounding of 24 bits to nearest, relative.
F32 = 2.0**-24


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    yield from apart_with_triton("triton_cases", tmp_path_factory.mktemp("triton"))


@pytest.mark.parametrize("machine", quick(MACHINES, 0))
def test_masked_addition(machine: str, cases: Apart) -> None:
    """The last of three blocks has 44 of 128 elements, and what lies behind them stays."""
    x, y, out = _normal(1, 300), _normal(2, 300), torch.full((310,), torch.nan)
    ran = cases.run("add", {"machine": machine, "x": x, "y": y, "out": out})
    found = ran.tensors["out"]
    # A fused multiply-add rounds once, a product and a sum twice.
    exact = 1.5 * x.double() + y.double()
    assert ((found[:300].double() - exact).abs() <= F32 * (exact.abs() + 1.5 * x.double().abs())).all()
    assert found[300:].isnan().all()
    assert ran.report == "add_kernel(3, 1, 1)(128, 1, 1)"


def test_numbers_arrive_in_their_types(cases: Apart) -> None:
    """A negative integer of 32 bits, one of 64, one that needs 64 without a sign, and floats in fp32."""
    ran = cases.run("scalars", {"machine": "b200", "out": torch.zeros(5, dtype=torch.float64)})
    single = torch.tensor(0.1).double().item()
    assert ran.tensors["out"].tolist() == [(1 << 33) - 7, single, 1.0, 2.5, float((1 << 63) + 1)]


@pytest.mark.parametrize(("machine", "product"), [("b200", "tcgen05.mma"), ("h100", "wgmma.mma_async")])
def test_gemm_on_the_tensor_cores(machine: str, product: str, cases: Apart) -> None:
    """No extent is a multiple of the tile."""
    m, n, k = 200, 104, 136
    a, b = _normal(3, m, k).bfloat16(), _normal(4, k, n).bfloat16()
    given = {"machine": machine, "a": a, "b": b, "c": torch.full((m, n), torch.nan)}
    ran = cases.run("gemm", given)
    assert product in ran.report
    _check_product(a, b, ran.tensors["c"])


def _check_product(a: Tensor, b: Tensor, c: Tensor) -> None:
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    # Each of the K/16 products truncates 17 terms at 25 bits below the largest and its sum at 24 bits.
    bound = (-(-a.shape[1] // 16) * (17 * 2.0**-25 + 2.0**-23) + F32) * size
    assert ((c.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("machine", quick(MACHINES, 0))
@pytest.mark.parametrize("case", ["tiles", "made_tiles"])
def test_tensor_descriptors(case: str, machine: str, cases: Apart) -> None:
    """Made on the host, which is a tensor map among the arguments, or by the kernel. The last tile of rows
    reaches past the tensor."""
    x = _normal(5, 100, 64)
    ran = cases.run(case, {"machine": machine, "x": x, "out": torch.zeros(100, 64)})
    assert torch.equal(ran.tensors["out"], 2 * x)
    if case == "tiles":
        assert "cp.async.bulk.tensor" in ran.report


@pytest.mark.parametrize(
    ("setting", "size"), [(None, 32), ("2", 128), ("1,other_kernel=2", 64), ("0,tuned_kernel=2", 128)]
)
def test_one_configuration_of_an_autotuned_kernel(setting: str | None, size: int, cases: Apart) -> None:
    """Nothing else is launched: the kernel doubles its tensor in place, and is called twice."""
    x = _normal(6, 100)
    ran = cases.run("tuned", {"machine": "b200", "setting": setting, "x": x})
    assert torch.equal(ran.tensors["x"], 4 * x)
    once = f"tuned_kernel({-(-100 // size)}, 1, 1)(32, 1, 1)"
    assert ran.report == f"{once} {once} nothing"


def test_a_configuration_that_is_not_there(cases: Apart) -> None:
    ran = cases.run("tuned", {"machine": "b200", "setting": "3", "x": torch.ones(100)})
    variable = "GDNBENCH_TRITON_CONFIG"
    expected = wording("sim.triton-config-number", variable=variable, name="tuned_kernel", last=2, wanted=3)
    assert re.search(expected, ran.report)


def test_a_setting_that_is_no_number(cases: Apart) -> None:
    ran = cases.run("tuned", {"machine": "b200", "setting": "fast", "x": torch.ones(100)})
    assert re.search(wording("sim.triton-config-setting", setting="fast", part="fast"), ran.report)


def test_the_first_configuration_that_fits(cases: Apart) -> None:
    """On an H100 1,024 rows of 128 fp32 values are more shared memory than there is."""
    a, b = _normal(7, 100, 128), _normal(8, 128, 64)
    ran = cases.run("large", {"machine": "h100", "a": a, "b": b, "c": torch.zeros(100, 64)})
    assert ran.report.startswith("large_kernel(2, 1, 1)")
    # The operands are cut to tf32, 11 bits: twice 2^-10 of each product.
    size = a.double().abs() @ b.double().abs()
    assert ((ran.tensors["c"].double() - a.double() @ b.double()).abs() <= 2.0**-8 * size).all()


REDUCTIONS = [(kernel, warps) for kernel in ("softmax", "layer_norm", "sums") for warps in (4, 32)]


@pytest.mark.parametrize(("kernel", "warps"), quick(REDUCTIONS, 0, 5))
def test_reductions_have_no_finding(kernel: str, warps: int, cases: Apart) -> None:
    """The first lanes load the results of the warps, and all lanes go on with them; 32 warps use `redux`."""
    x = _normal(11, 3, 1000) if kernel != "sums" else torch.randint(-500, 500, (3, 1000), dtype=torch.int32)
    y = torch.zeros_like(x)
    ran = cases.run("reduced", {"machine": "b200", "kernel": kernel, "warps": warps, "x": x, "y": y})
    assert ran.report == ""
    found = ran.tensors["y"].double()
    if kernel == "sums":
        expected = torch.stack([x.sum(1), x.amax(1)], 1).double()
        assert torch.equal(found[:, :2], expected)
        assert torch.equal(x.gather(1, found[:, 2:].long())[:, 0], x.amax(1))
        return
    wide = x.double()
    exact = wide.softmax(1) if kernel == "softmax" else torch.nn.functional.layer_norm(wide, (1000,))
    # Sums of 1,000 terms in fp32, and the hardware's approximate functions, relative to the largest value.
    assert ((found - exact).abs() <= 1e-5 * exact.abs().amax()).all()


def test_a_sum_over_two_axes_is_for_review(cases: Apart) -> None:
    """Of 8 warps two have each row's sum, and both store it to one shared address: the first store of the
    kernel has no guard."""
    x, y = torch.arange(4 * 32, dtype=torch.int32).view(4, 32), torch.zeros(1, dtype=torch.int32)
    ran = cases.run("reduced", {"machine": "b200", "kernel": "total", "warps": 8, "x": x, "y": y})
    assert ran.tensors["y"].item() == 127 * 64  # 0 + 1 + ... + 127
    assert re.fullmatch(r"stores of equal bits: shared memory at .*", ran.report)


@pytest.mark.slow  # tests/sim/clusters runs such kernels in PTX
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
def test_programs_of_two_ctas(machine: str, engine: str, cases: Apart) -> None:
    """Triton divides the tile among the CTAs of a cluster."""
    m, n, k = 200, 104, 136
    a, b = _normal(3, m, k).bfloat16(), _normal(4, k, n).bfloat16()
    given = {"machine": machine, "engine": engine, "a": a, "b": b, "c": torch.full((m, n), torch.nan)}
    ran = cases.run("clusters", given)
    assert ran.report == "gemm_kernel(4, 2, 1)(128, 1, 1)"
    _check_product(a, b, ran.tensors["c"])


@pytest.mark.slow
def test_what_does_not_run(cases: Apart) -> None:
    cooperative, host, outside, empty = cases.run("refused", {"machine": "b200"}).report.split("\n")
    assert re.search(wording("sim.triton-cooperative"), cooperative)
    assert "Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)" in host  # Triton's own text
    assert outside.startswith("KernelFault: out-of-bounds access: 4 bytes at global address")
    assert "nearest is x (256 bytes), 256 bytes after its start" in outside
    assert re.search(r"triton_cases\.py:\d+$", outside)
    assert empty == "nothing"
