# SPDX-License-Identifier: Apache-2.0
"""QuACK's softmax, RMSNorm and tcgen05 GEMM, as its wheel ships them, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.sim.third_party.apart import Apart, apart
from tests.subset import quick

# Rounding of 8 and 24 bits to nearest, relative.
BF16 = 2.0**-8
F32 = 2.0**-24


def _matrix(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(scope="module")
def quack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    yield from apart("quack", "quack_cases", tmp_path_factory.mktemp("quack"))


@pytest.mark.slow  # other tests here run a row of softmax
@pytest.mark.parametrize(("dtype", "columns"), [(torch.bfloat16, 1000), (torch.float32, 512)])
def test_softmax(dtype: torch.dtype, columns: int, quack: Apart) -> None:
    x = _matrix(5, columns, dtype, 1)
    _check_softmax(x, quack.run("softmax", {"x": x, "out": torch.full_like(x, torch.nan)}).tensors["out"])


@pytest.mark.slow  # test_softmax has the same kernel
def test_softmax_called_as_a_jit_function(quack: Apart) -> None:
    x = _matrix(5, 512, torch.float32, 1)
    ran = quack.run("softmax_called", {"x": x, "out": torch.full_like(x, torch.nan)})
    _check_softmax(x, ran.tensors["out"])


@pytest.mark.slow
def test_softmax_by_an_executor(quack: Apart) -> None:
    """As the executor takes CuTe tensors: of the compiled type. A float32 tensor for bf16 gave NaN."""
    x = _matrix(5, 512, torch.bfloat16, 1)
    given = {"x": x, "out": torch.full_like(x, torch.nan), "wrong": x.float()}
    ran = quack.run("softmax_by_executor", given)
    _check_softmax(x, ran.tensors["out"])
    assert ran.report.endswith(" is f32; the kernel was compiled for bf16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "columns", "ctas", "engine", "schedule"),
    [
        (torch.bfloat16, 1000, 2, "compiled", "late"),
        (torch.bfloat16, 1000, 2, "interpreter", "late"),
        (torch.float32, 2048, 4, "compiled", "early"),
        (torch.float32, 2048, 8, "compiled", "random:5"),
        (torch.bfloat16, 17000, 2, "compiled", "late"),  # the number that QuACK takes itself
    ],
)
def test_softmax_in_clusters(
    dtype: torch.dtype, columns: int, ctas: int, engine: str, schedule: str, quack: Apart
) -> None:
    """The CTAs of a row exchange its maximum and sum by st.async. A tile has up to 4 rows: with fewer the
    kernel reads shared memory that nothing has written, in clusters or not."""
    x = _matrix(4, columns, dtype, 1)
    given = {"x": x, "out": torch.full_like(x, torch.nan), "ctas": ctas}
    ran = quack.run("softmax_in_clusters", {**given, "engine": engine, "schedule": schedule})
    _check_softmax(x, ran.tensors["out"])
    assert ran.report.endswith("no error found"), ran.report


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("ctas", [2, 16])
def test_cross_entropy_in_clusters(ctas: int, gradient: bool, quack: Apart) -> None:
    x = _matrix(4, 2048, torch.float32, 1)
    target = torch.tensor([0, 1999, 1023, 1024], dtype=torch.int32)
    given = {"x": x, "target": target, "loss": torch.full((4,), torch.nan), "ctas": ctas}
    dx = torch.full_like(x, torch.nan) if gradient else torch.empty(0)
    ran = quack.run("cross_entropy_in_clusters", {**given, "dx": dx})
    assert ran.report.endswith("no error found"), ran.report
    wide = x.double()
    expected = torch.nn.functional.cross_entropy(wide, target.long(), reduction="none")
    # As in `_check_softmax`: a relative error of the sum is an absolute one of its logarithm, whose own
    # approximation and product with ln 2 are relative to it, as is the difference from the target's value.
    relative = F32 * (4 * x.abs().max().item() + 4 + 4 + 16 + 8)
    size = expected.abs() + 2 * x.abs().max().item()
    assert ((ran.tensors["loss"].double() - expected).abs() <= relative + 4 * 2.0**-22 * size).all()
    if gradient:
        exact = wide.softmax(1)
        one = torch.nn.functional.one_hot(target.long(), 2048)
        error = (ran.tensors["dx"].double() - (exact - one)).abs()
        assert (error <= relative * exact + F32 * (exact - one).abs()).all()


def _check_softmax(x: torch.Tensor, got: torch.Tensor) -> None:
    dtype, out = x.dtype, got.double()
    expected = x.double().softmax(1)
    # The exponent (x - m) log2(e) carries roundings of x log2(e), m log2(e) and their difference, at most
    # 4 max|x| units relative in the power; ex2.approx and rcp.approx are within 2^-22; at most 16
    # additions deep.
    relative = F32 * (4 * x.abs().max().item() + 4 + 4 + 16 + 8) + (BF16 if dtype is torch.bfloat16 else 0)
    assert ((out - expected).abs() <= relative * expected).all()


@pytest.mark.slow
def test_rmsnorm(quack: Apart) -> None:
    columns, eps = 1000, 1e-6
    x = _matrix(5, columns, torch.bfloat16, 2)
    weight = _matrix(1, columns, torch.float32, 3)[0]
    given = {
        "x": x,
        "weight": weight,
        "out": torch.full_like(x, torch.nan),
        "rstd": torch.full((5,), torch.nan),
        "eps": eps,
    }
    ran = quack.run("rmsnorm", given)
    factor = (x.double().square().mean(1) + eps).rsqrt()
    expected = x.double() * factor[:, None] * weight.double()
    # A sum of positive squares 40 additions deep, halved by its root; rsqrt.approx 2^-22; two products.
    relative = F32 * (20 + 4 + 8)
    assert ((ran.tensors["rstd"].double() - factor).abs() <= relative * factor).all()
    assert ((ran.tensors["out"].double() - expected).abs() <= (relative + BF16) * expected.abs()).all()


@pytest.mark.slow  # tests/sim/test_kernels.py has such products
@pytest.mark.parametrize("biased", [False, True])
def test_tcgen05_gemm(biased: bool, quack: Apart) -> None:
    """Two batches, no extent a multiple of the tile, three CTAs for eight tiles."""
    batch, rows, columns, inner = 2, 200, 104, 72
    a = torch.stack([_matrix(rows, inner, torch.bfloat16, 10 + i) for i in range(batch)])
    b = torch.stack([_matrix(columns, inner, torch.bfloat16, 20 + i) for i in range(batch)])
    bias = _matrix(batch, columns, torch.bfloat16, 30) if biased else torch.empty(0, dtype=torch.bfloat16)
    d = torch.full((batch, rows, columns), torch.nan, dtype=torch.bfloat16)
    given = {"a": a, "b": b, "d": d, "bias": bias, "ctas": 3}
    ran = quack.run("gemm", given)
    expected = a.double() @ b.double().mT
    size = a.double().abs() @ b.double().abs().mT
    if biased:
        expected = expected + bias.double()[:, None, :]
        size = size + bias.double().abs()[:, None, :]
    # Each of the K/16 products truncates 17 terms at 25 bits below the largest and its sum at 24 bits.
    accumulated = -(-inner // 16) * (17 * 2.0**-25 + 2.0**-23) + 2 * F32
    error = (ran.tensors["d"].double() - expected).abs()
    assert (error <= accumulated * size + BF16 * (expected.abs() + accumulated * size)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "schedule"),
    quick([("compiled", "late"), ("compiled", "random:3"), ("interpreter", "late")], 1),
)
@pytest.mark.parametrize("pingpong", quick([False, True], 1))
def test_wgmma_gemm(pingpong: bool, engine: str, schedule: str, quack: Apart) -> None:
    """Two batches, no extent a multiple of the tile, three CTAs."""
    _check_hopper_gemm(quack, 3, (1, 1, 1), pingpong, engine, schedule)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "engine", "schedule"),
    [
        ((2, 1, 1), "compiled", "late"),
        ((2, 1, 1), "compiled", "early"),
        ((2, 1, 1), "interpreter", "late"),
        ((1, 2, 1), "compiled", "random:3"),
        ((2, 2, 1), "compiled", "late"),
    ],
)
def test_wgmma_gemm_with_multicast(
    cluster: tuple[int, int, int], engine: str, schedule: str, quack: Apart
) -> None:
    """TMA loads a tile of A for the CTAs of a row of the cluster, and one of B for those of a column."""
    _check_hopper_gemm(quack, 2, cluster, False, engine, schedule)


def _check_hopper_gemm(
    quack: Apart, clusters: int, cluster: tuple[int, int, int], pingpong: bool, engine: str, schedule: str
) -> None:
    """Sums of 200 products of -3 to 3 are whole numbers below 2^11, exact in f32; bf16 rounds them as torch
    does."""
    generator = torch.Generator().manual_seed(40)
    a, b = (
        torch.randint(-3, 4, (2, rows, 200), generator=generator).to(torch.bfloat16) for rows in (200, 104)
    )
    d = torch.full((2, 200, 104), torch.nan, dtype=torch.bfloat16)
    given = {"a": a, "b": b, "d": d, "clusters": clusters, "cluster": cluster}
    given |= {"pingpong": pingpong, "engine": engine, "schedule": schedule}
    ran = quack.run("hopper_gemm", given)
    assert torch.equal(ran.tensors["d"], (a.double() @ b.double().mT).to(torch.bfloat16))
