# SPDX-License-Identifier: Apache-2.0
"""CuTe DSL kernels through `sim.launch`, in both engines and all schedules, against float64.

A kernel whose synchronisation is right gives the same bits whatever the schedule; both engines give the same
bits though they share no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import cutlass
import pytest
import torch
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench import sim
from tests.sim.kernels import simt
from tests.sim.kernels.compiling import NUMERIC, compiled, fake
from tests.sim.kernels.ldmatrix_mma import LdmatrixMma
from tests.sim.kernels.persistent import PersistentGemm
from tests.sim.kernels.tcgen05_gemm import Gemm
from tests.sim.kernels.tma_copy import AtomKind, TmaScale, TmaStream
from tests.sim.kernels.tmem_operand import TmemOperand
from tests.subset import quick

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
K, MN = OperandMajorMode.K, OperandMajorMode.MN
SCHEDULES = ("early", "random:1")


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def launched(kernel: Any, given: list[Any], out: torch.Tensor, *, interpreter: bool = True) -> torch.Tensor:
    """What `kernel` leaves in the last argument, `out`: the same in both engines and all schedules."""
    left = _left(kernel, given, out, engine="compiled", schedule="late")
    others = [("compiled", schedule) for schedule in SCHEDULES]
    others += [("interpreter", "late")] if interpreter else []
    for engine, schedule in others:
        other = _left(kernel, given, out, engine=engine, schedule=schedule)
        same = other.contiguous().view(torch.uint8) == left.contiguous().view(torch.uint8)
        assert same.all(), f"{engine}, {schedule}: {int((~same).sum())} bytes differ from compiled, late"
    return left


def _left(kernel: Any, given: list[Any], out: torch.Tensor, **settings: Any) -> torch.Tensor:
    # `clone` would drop the padding between rows.
    left = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype).copy_(out)
    sim.launch(kernel, *given, left, **settings)
    return left


def major(tensor: torch.Tensor, mode: OperandMajorMode) -> torch.Tensor:
    """`tensor` with the mode's dimension contiguous, its rows padded to 16 bytes as TMA strides have to
    be."""
    order = tensor if mode is K else tensor.mT
    unit = 16 // tensor.element_size()
    rows, columns = order.shape
    padded = torch.zeros(rows, -(-columns // unit) * unit, dtype=tensor.dtype)[:, :columns]
    padded.copy_(order)
    return padded if mode is K else padded.mT


def operand(seed: int, dtype: torch.dtype, rows: int, columns: int, mode: OperandMajorMode) -> torch.Tensor:
    return major(normal(seed, rows, columns).to(dtype), mode)


def fake_operand(dtype: torch.dtype, mode: OperandMajorMode) -> Any:
    return fake(dtype, (None, None), contiguous=1 if mode is K else 0, divisible=128 // NUMERIC[dtype].width)


# Products: how far a sum over K in steps of one MMA may be from the exact one, relative to the sum of |a|
# |b|.
# f16 and bf16 (fp8 alike): K/16 (fp8: K/32) times, each of 17 (33) terms is truncated 25 bits below the
# largest and the result at 24 bits. tf32: operands of 11 bits first, two a product.
def accumulated(inner: int, dtype: torch.dtype) -> float:
    step = 32 // dtype.itemsize
    bound = -(-inner // step) * ((step + 1) * 2.0**-25 + 2.0**-23)
    return bound + (2 * 2.0**-10 + 2.0**-20 if dtype is F32 else 0)


def near_product(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bound: float) -> None:
    exact = a.double() @ b.double().mT
    error = (c.double() - exact).abs()
    allowed = bound * (a.double().abs() @ b.double().abs().mT)
    worst = int((error - allowed).argmax())
    where = divmod(worst, c.shape[1])
    assert (error <= allowed).all(), f"at {where}: {c[where].item()} for {exact[where].item()}"


@cache
def simt_kernel(name: str) -> Any:
    vector, matrix = (None,), (None, None)
    fakes: dict[str, list[Any]] = {
        "scaled_sum": [
            fake(BF16, matrix, align=2),
            fake(BF16, matrix, contiguous=0, align=2),
            fake(F32, matrix, align=4),
            cutlass.Float32(1.0),
        ],
        "row_sums": [fake(BF16, matrix, align=2), fake(F32, vector, align=4)],
        "total": [fake(F32, vector, align=4), fake(F32, (1,), align=4)],
        "histogram": [fake(torch.int32, vector, align=4), fake(torch.int32, (simt.BINS,), align=4)],
    }
    return compiled(getattr(simt, name), *fakes[name])


def test_scaled_sum() -> None:
    """Strides of three kinds: rows, columns, and a slice of a wider matrix."""
    x, y = normal(1, 13, 40).to(BF16)[:, ::1], normal(2, 40, 13).to(BF16).mT
    wide = torch.full((13, 64), torch.nan)
    z = wide[:, 3:43]
    for engine in ("compiled", "interpreter"):
        z.fill_(torch.nan)
        sim.launch(simt_kernel("scaled_sum"), x, y, z, -1.5, engine=engine)
        # Both products and their sum are exact in float64; -1.5 x is exact in float32, so one rounding
        # remains.
        assert torch.equal(z, (-1.5 * x.double() + y.double()).float())
        assert wide[:, :3].isnan().all()
        assert wide[:, 43:].isnan().all()


def test_row_sums() -> None:
    x = normal(3, 5, 300).to(BF16)
    sums = launched(simt_kernel("row_sums"), [x], torch.full((5,), torch.nan))
    # 3 elements a thread, 5 + 2 steps of the tree: 10 roundings of partial sums.
    assert ((sums.double() - x.double().sum(1)).abs() <= 10 * 2.0**-24 * x.double().abs().sum(1)).all()


def test_total_over_ctas() -> None:
    """Integers, so that the order of the atomic additions does not matter."""
    x = torch.randint(-50, 50, (1000,), generator=torch.Generator().manual_seed(4)).float()
    assert launched(simt_kernel("total"), [x], torch.tensor([7.0])).item() == 7.0 + x.sum().item()


def test_histogram() -> None:
    x = torch.randint(0, simt.BINS, (777,), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
    counts = launched(simt_kernel("histogram"), [x], torch.ones(simt.BINS, dtype=torch.int32))
    assert torch.equal(counts - 1, torch.bincount(x, minlength=simt.BINS).int())


LOADS = (AtomKind.K_INTER, AtomKind.K_SW32, AtomKind.K_SW64, AtomKind.K_SW128)
STORES = (AtomKind.MN_SW128, AtomKind.MN_SW64, AtomKind.MN_SW32, AtomKind.MN_INTER)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("load", "store"), [*zip(LOADS, STORES, strict=True), (AtomKind.MN_SW128, AtomKind.K_SW32)]
)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_tma_copy(load: Any, store: Any, dtype: torch.dtype) -> None:
    """Every swizzle and both major modes; 1.6 by 1.2 tiles."""
    loads, stores = (K if kind.name.startswith("K") else MN for kind in (load, store))
    kernel = compiled(TmaScale(load, store), fake_operand(dtype, loads), fake_operand(dtype, stores))
    x = operand(6, dtype, 104, 77, loads)
    out = major(torch.full((104, 77), torch.nan, dtype=dtype), stores)
    left = launched(kernel, [x], out, interpreter=dtype is BF16)
    assert torch.equal(left, 2 * x)


def test_tma_stream() -> None:
    """Five tiles through two stages: every buffer is used again before the end."""
    kernel = compiled(TmaStream(), fake_operand(BF16, K), fake_operand(BF16, K))
    x = operand(7, BF16, 300, 72, K)
    assert torch.equal(launched(kernel, [x], torch.full_like(x, torch.nan)), x)


def test_tma_store_leaves_its_surroundings() -> None:
    """A clipped store writes nothing outside the tensor, also where the tensor is a slice of a larger one."""
    kernel = compiled(TmaStream(), fake_operand(BF16, K), fake_operand(BF16, K))
    x = operand(8, BF16, 70, 72, K)
    wide = torch.full((80, 96), torch.nan, dtype=BF16)
    sim.launch(kernel, x, wide[4:74, 8:80])
    assert torch.equal(wide[4:74, 8:80], x)
    wide[4:74, 8:80] = torch.nan
    assert wide.isnan().all()


@pytest.mark.parametrize("dtype", quick([BF16, F16], 0))
def test_ldmatrix_mma(dtype: torch.dtype) -> None:
    c_fake = fake(F32, (None, None), align=4)
    kernel = compiled(LdmatrixMma(NUMERIC[dtype]), fake_operand(dtype, K), fake_operand(dtype, K), c_fake)
    a, b = operand(9, dtype, 70, 136, K), operand(10, dtype, 100, 136, K)
    c = launched(kernel, [a, b], torch.full((70, 100), torch.nan))
    near_product(c, a, b, accumulated(136, dtype))


# M, N and K all different and no multiples of the tile; every kind, both majors of A and B, both M.
GEMMS = [
    (BF16, K, K, 128, 64, (200, 100, 136)),
    (F16, MN, K, 64, 96, (88, 104, 200)),
    (BF16, MN, MN, 128, 48, (136, 56, 72)),
    (BF16, K, MN, 64, 64, (72, 80, 40)),
    (F32, K, K, 128, 32, (132, 36, 68)),
    (E4M3, K, K, 64, 64, (80, 112, 272)),
    (E5M2, K, MN, 128, 128, (144, 160, 144)),
]


def _gemm(dtype: torch.dtype, a_major: Any, b_major: Any, tile_m: int, tile_n: int, **choices: Any) -> Any:
    operands = [fake_operand(dtype, mode) for mode in (a_major, b_major)]
    choices.setdefault("load_shape", "32x32b" if tile_m == 128 else "16x256b")
    kernel = Gemm(NUMERIC[dtype], a_major, b_major, tile_m, tile_n, **choices)
    return compiled(kernel, *operands, fake(F32, (None, None), align=4))


@pytest.mark.parametrize(("dtype", "a_major", "b_major", "tile_m", "tile_n", "shape"), quick(GEMMS, 1, 6))
def test_tcgen05_gemm(
    dtype: torch.dtype, a_major: Any, b_major: Any, tile_m: int, tile_n: int, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = operand(11, dtype, m, k, a_major), operand(12, dtype, n, k, b_major)
    kernel = _gemm(dtype, a_major, b_major, tile_m, tile_n)
    c = launched(kernel, [a, b], torch.full((m, n), torch.nan), interpreter=m * n * k < 500_000)
    near_product(c, a, b, accumulated(k, dtype))


def pattern(rows: int, columns: int) -> torch.Tensor:
    """A different half-precision number at each place."""
    return torch.arange(1, rows * columns + 1, dtype=torch.int16).view(F16).view(rows, columns)


SHAPES = [(128, shape) for shape in ("32x32b", "16x64b", "16x128b", "16x256b")]
SHAPES += [(64, shape) for shape in ("16x64b", "16x128b", "16x256b")]


@pytest.mark.every(2)
@pytest.mark.parametrize(("a_major", "b_major"), quick([(K, MN), (MN, K)], 1))
@pytest.mark.parametrize(("tile_m", "load_shape"), quick(SHAPES, 0, 6))
def test_numbers_keep_their_places(tile_m: int, load_shape: str, a_major: Any, b_major: Any) -> None:
    """By TMA and swizzle through the tensor core and each shape of tcgen05.ld: A times one, one times B."""
    kernel = _gemm(F16, a_major, b_major, tile_m, 48, load_shape=load_shape)
    a, b = pattern(tile_m, 64), pattern(48, 64)
    for left, right, expected in (
        (a, torch.eye(48, 64), a[:, :48]),
        (torch.eye(tile_m, 64), b, torch.cat([b.mT, torch.zeros(64, 48)])[:tile_m]),
    ):
        given = [major(left.to(F16), a_major), major(right.to(F16), b_major)]
        c = torch.full((tile_m, 48), torch.nan)
        sim.launch(kernel, *given, c)
        assert torch.equal(c, expected.float())


@pytest.mark.slow
@pytest.mark.parametrize("displaced", quick([128, 256, 512], 1))
def test_operands_off_the_swizzle_alignment(displaced: int) -> None:
    """The swizzle goes by the address and not by the distance from the start of the tile."""
    a, b = pattern(128, 64), torch.eye(64)
    for modes in ((K, K), (MN, MN)):
        kernel = _gemm(F16, *modes, 128, 64, displaced=displaced)
        given = [major(a, modes[0]), major(b.to(F16), modes[1])]
        c = torch.full((128, 64), torch.nan)
        sim.launch(kernel, *given, c)
        assert torch.equal(c, a.float())


@pytest.mark.parametrize("dtype", quick([BF16, F16], 1))
def test_operand_in_tensor_memory(dtype: torch.dtype) -> None:
    kernel = compiled(
        TmemOperand(NUMERIC[dtype]), fake(dtype, (128, 64)), fake(dtype, (64, 64)), fake(F32, (128, 64))
    )
    a, b = normal(17, 128, 64).to(dtype), normal(18, 64, 64).to(dtype)
    d = launched(kernel, [a, b], torch.full((128, 64), torch.nan))
    near_product(d, a, b, accumulated(64, dtype))


def test_persistent_gemm() -> None:
    """Seven tiles for three CTAs; two steps of K for three stages, so that the phases shift from tile to
    tile."""
    kernel = compiled(
        PersistentGemm(cutlass.BFloat16, 3),
        *[fake_operand(BF16, K)] * 2,
        fake(F32, (None, None), divisible=4),
    )
    a, b = operand(13, BF16, 130, 104, K), operand(14, BF16, 200, 104, K)
    c = launched(kernel, [a, b], torch.full((130, 200), torch.nan), interpreter=False)
    near_product(c, a, b, accumulated(104, BF16))


def test_report_and_determinism() -> None:
    """Two runs give the same bits and the same counts."""
    x = normal(15, 3, 200).to(BF16)
    reports = []
    sums = []
    for _ in range(2):
        out = torch.zeros(3)
        reports.append(sim.launch(simt_kernel("row_sums"), x, out, schedule="random:3"))
        sums.append(out)
    assert torch.equal(*sums)
    first, second = reports
    assert first.findings == second.findings
    assert [replace(launch, seconds=0.0) for launch in first.launches] == [
        replace(launch, seconds=0.0) for launch in second.launches
    ]
    assert first.launches[0].warp_instructions > 0


@pytest.mark.parametrize("function", [simt.row_sums])
def test_tvm_ffi_form(function: Callable[..., Any]) -> None:
    """The same kernel compiled for the tvm-ffi call gives the same bits."""
    pytest.importorskip("tvm_ffi")
    fakes = [fake(BF16, (None, None), align=2), fake(F32, (None,), align=4)]
    x = normal(16, 4, 130).to(BF16)
    plain, ffi = torch.zeros(4), torch.zeros(4)
    sim.launch(compiled(function, *fakes), x, plain)
    sim.launch(compiled(function, *fakes, tvm_ffi=True), x, ffi)
    assert torch.equal(plain, ffi)
