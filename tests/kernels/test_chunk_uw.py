# SPDX-License-Identifier: Apache-2.0
"""g_cu, U and W on simulated SM100, against the fp64 oracle and torch's staged bf16 kernel.

Outputs are filled with NaN beforehand, and so are rows around them that nobody may write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import chunk_uw
from gdnbench_kernels.gdn_prefill.chunk_uw import PLAN, SPLIT_PLAN, ChunkUW, Tap
from gdnbench_kernels.gdn_prefill.contract import OPERATION, PACKED
from gdnbench_kernels.gdn_prefill.stage_rules import stage_limit, with_rounded_sums
from gdnbench_kernels.plan import KernelPlan
from gdnbench_kernels.run import run_kernel
from tests.subset import quick

LENGTHS = (1, 63, 0, 64, 65, 127, 129)
STAGES = ("g_cu", "U", "W")
SUM_ERROR = 2**-24 + 2**-45
"""Relative: half an ULP of f32, and twice 64 roundings of fp64, ours and the comparison's."""
GUARD = 16
"""Rows before and behind every output: also a multiple of what TMA asks of an address."""


@cache
def compiled(heads: int, value_heads: int, tap: Tap, split: bool) -> Any:
    tokens, rows, sequences = cute.sym_int(), cute.sym_int(), cute.sym_int()
    chunks = cute.sym_int()

    def fake(dtype: Any, *shape: Any, align: int = 16) -> Any:
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        return make_fake_tensor(dtype, shape, tuple(strides), assumed_align=align)

    bf16, f32, i32 = cutlass.BFloat16, cutlass.Float32, cutlass.Int32
    gates = (tokens, value_heads)
    squares = [fake(f32, chunks, value_heads, 64, 64) for _ in range(2)]
    return sim.compile(
        ChunkUW(heads, value_heads, tap, split),
        fake(bf16, tokens, heads, 128),
        fake(bf16, tokens, value_heads, 128),
        fake(f32, *gates, align=4),
        fake(f32, *gates, align=4),
        fake(i32, sequences, align=4),
        fake(i32, chunks, 2, align=4),
        fake(i32, 1, align=4),
        fake(f32, *gates, align=4),
        fake(bf16, rows, value_heads, 128),
        fake(bf16, rows, value_heads, 128),
        squares[0] if tap in (Tap.DUMP, Tap.INJECT_A) else None,
        squares[1] if tap in (Tap.DUMP, Tap.INJECT_AI) else None,
        cutlass.Int32(1),
        make_fake_stream(),
        arch="sm_100a",
    )


@dataclass(frozen=True)
class Found:
    """What a launch wrote, its guard rows cut off."""

    stages: dict[str, Tensor]
    report: Any

    def bits(self) -> list[Tensor]:
        """g_cu, U and W, comparable where they are NaN."""
        views = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
        return [self.stages[name].view(views[self.stages[name].dtype]) for name in STAGES]

    def finite(self, call: Call) -> bool:
        """Whether every row that a chunk has is."""
        rows = 64 * PACKED.plan_of(call).total
        return all(bool(self.stages[name][:rows].isfinite().all()) for name in STAGES)


def launch(
    call: Call,
    ctas: int = 3,
    tap: Tap = Tap.NONE,
    a: Tensor | None = None,
    ai: Tensor | None = None,
    **settings: Any,
) -> Found:
    """By the build for the call's betas. `a`, `ai`: what is injected."""
    given, plan = call.tensors, PACKED.plan_of(call)
    (tokens, heads, _), value_heads = given["k"].shape, given["v"].shape[1]
    indices = torch.full((plan.bound, 2), 2**30, dtype=torch.int32)
    indices[: plan.total] = torch.stack([plan.sequence, plan.index], 1)
    shapes = {
        "g_cu": ((tokens, value_heads), torch.float32),
        "U": ((plan.bound * 64, value_heads, 128), torch.bfloat16),
        "W": ((plan.bound * 64, value_heads, 128), torch.bfloat16),
    }
    if tap is Tap.DUMP:
        square = ((plan.bound, value_heads, 64, 64), torch.float32)
        shapes |= {"A": square, "Ai": square}
    guarded = {
        name: torch.full((shape[0] + 2 * GUARD, *shape[1:]), torch.nan, dtype=dtype)
        for name, (shape, dtype) in shapes.items()
    }
    found = {name: tensor[GUARD : len(tensor) - GUARD] for name, tensor in guarded.items()}
    before = {name: tensor.clone() for name, tensor in given.items()}
    report = sim.launch(
        compiled(heads, value_heads, tap, split=call.scalars["beta_max"] == 2),
        *(given[name] for name in ("k", "v", "g", "beta", "cu_seqlens")),
        indices,
        torch.tensor([plan.total], dtype=torch.int32),
        *(found[name] for name in STAGES),
        found.get("A", a),
        found.get("Ai", ai),
        ctas,
        **settings,
    )
    assert not report.findings, report
    for name, tensor in guarded.items():
        assert torch.cat([tensor[:GUARD], tensor[len(tensor) - GUARD :]]).isnan().all(), name
        if name != "g_cu":
            used = plan.total * (1 if name in ("A", "Ai") else 64)
            assert found[name][used:].isnan().all(), f"{name} written past total_chunks"
    for name, tensor in before.items():
        assert torch.equal(tensor.nan_to_num(7.0), given[name].nan_to_num(7.0)), name
    return Found(found, report)


def errors(call: Call, name: str, x: Tensor, exact: Tensor) -> Iterator[tuple[float, float]]:
    """(square error, elements): of each sequence and head that has a token."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for region in OPERATION.partition(call, name).regions:
        rows = slice(region.start, region.stop)
        square = (x[rows].double() - exact[rows].double()).square()
        by_head = square.movedim(1, 0).flatten(1)
        sums[region.sequence] = sums.get(region.sequence, torch.zeros(())) + by_head.sum(1)
        counts[region.sequence] = counts.get(region.sequence, 0) + by_head.shape[1]
    for sequence, heads in sums.items():
        for square in heads.tolist():
            yield square, counts[sequence]


def rms(call: Call, name: str, x: Tensor, exact: Tensor) -> tuple[float, float]:
    """Of all, and of the worst sequence and head."""
    found = list(errors(call, name, x, exact))
    squares, counts = (sum(column) for column in zip(*found, strict=True))
    return (squares / counts) ** 0.5, max((square / count) ** 0.5 for square, count in found)


def check(call: Call, found: Found) -> None:
    exact: dict[str, Tensor] = {}
    torch_stages: dict[str, Tensor] = {}
    run_kernel(OPERATION, "reference_staged", with_rounded_sums(call), exact)
    run_kernel(OPERATION, "torch", call, torch_stages)
    for name in STAGES:
        ours = rms(call, name, found.stages[name], exact[name])
        theirs = rms(call, name, torch_stages[name], exact[name])
        # The same for all and for the worst one; g_cu of torch may be exact, where every sum fits in f32.
        for figure, bound in zip(ours, theirs, strict=True):
            assert figure <= 2 * bound, (name, ours, theirs)
    check_tails(call, found)


def check_tails(call: Call, found: Found) -> None:
    """Rows of a chunk that no token owns are 0, not merely small."""
    plan = PACKED.plan_of(call)
    for chunk, length in enumerate(plan.length.tolist()):
        for name in ("U", "W"):
            assert (found.stages[name][64 * chunk + length : 64 * chunk + 64] == 0).all(), (name, chunk)


def made(heads: tuple[int, int] = (1, 2), **options: Any) -> Call:
    return OPERATION.synth(**{"seqlens": LENGTHS, "heads": heads, **options})


@pytest.mark.parametrize(
    ("heads", "lengths", "ctas"),
    quick(
        [
            ((1, 1), (1, 64), 1),
            ((1, 2), LENGTHS, 3),
            ((1, 3), (129, 0, 0, 65, 127), 5),
            ((2, 8), LENGTHS, 148),
        ],
        1,
    ),
)
def test_error_is_at_most_twice_that_of_torch(
    heads: tuple[int, int], lengths: tuple[int, ...], ctas: int
) -> None:
    call = made(heads, seqlens=lengths, key_correlation=0.3, seed=sum(heads))
    check(call, launch(call, ctas))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"key_correlation": 0.99, "gate_span": 0.06},
            {"key_correlation": 1.0, "gate_span": 0.06, "beta": 1.0},
            {"key_correlation": 0.5, "gate_span": 1e5},
            {"key_correlation": 0.9, "beta": (0.0, 2.0)},
        ],
        2,
    ),
    ids=str,
)
def test_hard_keys_gates_and_betas(options: dict[str, Any]) -> None:
    call = made(seqlens=(127, 64), seed=5, **options)
    found = launch(call)
    check(call, found)
    assert found.finite(call)


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "beta"), quick([((1, 65, 0, 128), (0.0, 1.0)), ((65,), (0.0, 2.0))], 1))
def test_equal_bits_under_every_schedule_in_both_engines(
    lengths: tuple[int, ...], beta: tuple[float, float]
) -> None:
    call = made(seqlens=lengths, key_correlation=0.5, beta=beta)
    expected = launch(call).bits()
    settings: list[dict[str, Any]] = [
        {"schedule": schedule, "engine": engine}
        for engine, schedules in {
            "compiled": ("early", "random:1", "random:2"),
            "interpreter": ("late", "early", "random:3"),
        }.items()
        for schedule in schedules
    ]
    for setting in settings:
        found = launch(call, **setting)
        assert all(map(torch.equal, found.bits(), expected)), setting


@pytest.mark.slow
def test_bits_do_not_depend_on_the_number_of_ctas() -> None:
    call = made()
    expected = launch(call, ctas=1).bits()
    for ctas in (2, 7, 40):
        assert all(map(torch.equal, launch(call, ctas).bits(), expected)), ctas


@pytest.mark.slow
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch() -> None:
    call = made()
    batch, bounds = launch(call), call.tensors["cu_seqlens"].tolist()
    plan = PACKED.plan_of(call)
    for n in (1, 6):
        tokens = slice(bounds[n], bounds[n + 1])
        alone = {name: call.tensors[name][tokens] for name in ("q", "k", "v", "g", "beta")}
        alone["cu_seqlens"] = torch.tensor([0, bounds[n + 1] - bounds[n]], dtype=torch.int32)
        found = launch(Call(alone, call.scalars, call.conventions), ctas=1)
        rows = slice(64 * int(plan.offsets[n]), 64 * int(plan.offsets[n + 1]))
        assert torch.equal(found.stages["g_cu"], batch.stages["g_cu"][tokens])
        for name in ("U", "W"):
            assert torch.equal(found.stages[name], batch.stages[name][rows])


@pytest.mark.slow  # test_gdn_prefill_sm100.py has it for the whole call
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_neighbours_hold_reaches_nobody(poison: float) -> None:
    """Sequences 1 and 3 hold NaN or Inf everywhere; the tail of 0 and 2 runs into them."""
    call = made(seqlens=(70, 3, 33, 64), key_correlation=0.5)
    clean, bounds = launch(call), call.tensors["cu_seqlens"].tolist()
    tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
    for n in (1, 3):
        for name in ("k", "v", "g", "beta"):
            tensors[name][bounds[n] : bounds[n + 1]] = poison
    found = launch(Call(tensors, call.scalars, call.conventions))
    plan = PACKED.plan_of(call)
    for n in (0, 2):
        rows = slice(64 * int(plan.offsets[n]), 64 * int(plan.offsets[n + 1]))
        assert torch.equal(*(x.stages["g_cu"][bounds[n] : bounds[n + 1]] for x in (found, clean)))
        for name in ("U", "W"):
            assert torch.equal(found.stages[name][rows], clean.stages[name][rows]), (n, name)


def lost_roundings(shape: torch.Size) -> Tensor:
    """Gates whose fp64 sums rise along the scan's trees: from tokens 0, 1 the sum is halfway between two f32
    numbers; 1.2 half ULPs of fp64 in four parts push it over where all four meet first, at token 11, and not
    where one is added alone, from token 12 on."""
    g = torch.zeros(shape)
    g[0], g[1] = -1, -(2.0**-24)
    g[2:10:2] = -0.3 * 2**-53
    return g


def scattered(shape: torch.Size) -> Tensor:
    """Gates over 60 binades."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.empty(shape).uniform_(-60, 0, generator=generator).exp2()
    return -sizes * torch.rand(shape, generator=generator)


@pytest.mark.parametrize("gates", [lost_roundings, scattered])
def test_gate_sums_are_rounded_once_and_never_rise(gates: Callable[[torch.Size], Tensor]) -> None:
    call = made(seqlens=(64 * 5 + 9,))
    g = gates(call.tensors["g"].shape)
    found = launch(Call({**call.tensors, "g": g}, call.scalars, call.conventions)).stages["g_cu"]
    for start in range(0, len(g), 64):
        exact = g[start : start + 64].double().cumsum(0)
        sums = found[start : start + 64]
        assert (sums.diff(dim=0) <= 0).all()
        assert ((sums.double() - exact).abs() <= exact.abs() * SUM_ERROR).all()


def test_closed_gates_and_gates_beyond_any_sum() -> None:
    """g = -inf counts as -128; gates below -2^14 as that."""
    call = made(seqlens=(64, 40))
    g = call.tensors["g"].clone()
    g[10], g[11], g[70] = -torch.inf, -torch.inf, -3e38
    g[80:] = -3e38
    closed = Call({**call.tensors, "g": g}, call.scalars, call.conventions)
    found = launch(closed)
    counted = g.clamp(min=-(2.0**14)).double()
    counted[g.isneginf()] = -128
    exact = torch.cat([counted[:64].cumsum(0), counted[64:].cumsum(0)])
    assert ((found.stages["g_cu"].double() - exact).abs() <= exact.abs() * SUM_ERROR).all()
    assert found.finite(closed)
    check_tails(closed, found)


@pytest.mark.slow  # a build without taps beside that with them
@pytest.mark.parametrize("upper", [1.0, 2.0], ids=["beta to 1", "beta to 2"])
def test_taps_change_nothing_and_are_what_they_say(upper: float) -> None:
    call = made(seqlens=(129, 0, 20), key_correlation=0.9, gate_span=0.06, beta=(0.0, upper))
    plain, dump = launch(call), launch(call, tap=Tap.DUMP)
    assert all(map(torch.equal, dump.bits(), plain.bits()))
    a, ai = dump.stages["A"], dump.stages["Ai"]
    for injected in (launch(call, tap=Tap.INJECT_A, a=a), launch(call, tap=Tap.INJECT_AI, ai=ai)):
        assert all(map(torch.equal, injected.bits(), plain.bits()))

    exact: dict[str, Tensor] = {}
    run_kernel(OPERATION, "reference_staged", with_rounded_sums(call), exact)
    plan = PACKED.plan_of(call)
    for chunk, length in enumerate(plan.length.tolist()):
        assert (a[chunk].triu() == 0).all()
        assert (a[chunk, :, length:] == 0).all()
        assert (ai[chunk].triu() == torch.eye(64)).all()
        assert (ai[chunk, :, length:] == torch.eye(64)[length:]).all()
        for name, square in (("A", a), ("Ai", ai)):
            limit = stage_limit(call, name)
            assert limit is not None
            error = norms(square[chunk].double() - exact[name][chunk])
            assert (error <= limit.relative * norms(exact[name][chunk]) + limit.absolute).all(), (name, chunk)


# What f32 leaves of Ai, 4e-5 at most (test_inverse.py), and of A, 64 products and an exponential: the limits
# of the contract, 2e-2, would not notice that the other build had been taken, whose errors are up to 5e-2 of
# the worst chunk's and 5e-3 of most. U is rounded to bf16, and so is its operand Ai beta: 3e-3 of the norm.
INVERSE_BEYOND_ONE, U_BEYOND_ONE = 2e-3, 5e-3


@pytest.mark.slow  # the split inverse has tests of its own
@pytest.mark.parametrize("correlation", quick([0.0, 0.9, 0.99, 1.0], 1, 3))
@pytest.mark.parametrize("beta", [(2.0,), ((0.0, 2.0),)], ids=str)
def test_beta_to_two(correlation: float, beta: float | tuple[float, float]) -> None:
    call = made(seqlens=(256, 70), key_correlation=correlation, gate_span=0.06, beta=beta, seed=13)
    found = launch(call, tap=Tap.DUMP)
    check(call, found)
    exact: dict[str, Tensor] = {}
    run_kernel(OPERATION, "reference_staged", with_rounded_sums(call), exact)
    chunks = PACKED.plan_of(call).total
    ai, wanted = found.stages["Ai"][:chunks].double(), exact["Ai"][:chunks]
    assert (norms(ai - wanted) <= INVERSE_BEYOND_ONE * norms(wanted)).all()
    # 4 is the norm of an identity: a block may be zero but for rounding.
    of_block = norms(blocks(ai - wanted)) / norms(blocks(wanted)).clamp(min=4)
    assert of_block.max() <= INVERSE_BEYOND_ONE
    u, wanted = (
        x["U"][: 64 * chunks].double().reshape(chunks, 64, 2, 128).transpose(1, 2)
        for x in (found.stages, exact)
    )
    assert (norms(u - wanted) <= U_BEYOND_ONE * norms(wanted)).all()


def norms(x: Tensor) -> Tensor:
    return x.square().sum(dim=(-2, -1)).sqrt()


def blocks(x: Tensor) -> Tensor:
    """(..., 64, 64) as (..., 4, 4, 16, 16)."""
    return x.reshape(*x.shape[:-2], 4, 16, 4, 16).transpose(-3, -2)


@pytest.mark.slow
@pytest.mark.parametrize("tap", quick([Tap.INJECT_A, Tap.INJECT_AI], 1))
def test_injected_squares_are_used(tap: Tap) -> None:
    """A = 0, or Ai = I: U is v times beta as an operand, rounded once more."""
    call = made(seqlens=(70,))
    identity = torch.eye(64).expand(2, 2, 64, 64).contiguous()
    zeros = torch.zeros_like(identity)
    found = launch(
        call,
        tap=tap,
        a=zeros if tap is Tap.INJECT_A else None,
        ai=identity if tap is Tap.INJECT_AI else None,
    ).stages
    beta, v = call.tensors["beta"], call.tensors["v"]
    expected = (beta.bfloat16().double()[..., None] * v.double()).bfloat16()
    assert torch.equal(found["U"][:70], expected)


@pytest.mark.parametrize("lengths", [(0,), (0, 0, 0)])
def test_no_tokens_no_work(lengths: tuple[int, ...]) -> None:
    launch(made(seqlens=lengths), ctas=4)


@pytest.mark.parametrize(("plan", "beta"), quick([(PLAN, 1.0), (SPLIT_PLAN, 2.0)], 0, ids=["plain", "split"]))
def test_header_and_launch_are_the_plan(plan: KernelPlan, beta: float) -> None:
    header = chunk_uw.__doc__ or ""
    assert PLAN.tables() in header
    assert f"{plan.smem_bytes} bytes of SMEM" in header
    report = launch(made(seqlens=(64,), beta=beta), ctas=1).report.launches[0]
    assert report.shared_bytes == plan.smem_bytes
    assert tuple(report.block) == (plan.threads, 1, 1)
