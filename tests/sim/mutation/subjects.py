# SPDX-License-Identifier: Apache-2.0
"""The kernels whose mutants are judged, each called on small inputs that take every path.

A call runs in a process of its own, with the environment that the packages of other people's kernels need.
FlashInfer's prefill kernel is not among them: it frees tensor memory that its other warps may still load,
which is a fault under some schedules.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Subject:
    """`call` compiles the kernels and calls them; `architecture` is what the packages are told, `sms` how
    many SMs the launches run on, if not all."""

    call: Callable[[], None]
    architecture: str = ""
    sms: int | None = None


def whole_numbers(*shape: int) -> Tensor:
    """Between -3 and 3 in bf16: sums of a few hundred products are exact."""
    values = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0))
    return values.to(torch.bfloat16)


def _test_kernels() -> Any:
    """The helpers of the simulator's test kernels."""
    from tests.sim.kernels import compiling

    return compiling


def _rows(dtype: torch.dtype, compiling: Any) -> Any:
    return compiling.fake(dtype, (None, None), divisible=128 // compiling.NUMERIC[dtype].width)


def gemm() -> None:
    """11 tiles of K in a ring of 3: the loops, which are unrolled by 4, go round twice and have a rest."""
    compiling = _test_kernels()
    import cutlass
    from cutlass.cute.nvgpu import OperandMajorMode

    from gdnbench import sim
    from tests.sim.kernels.tcgen05_gemm import Gemm

    k = OperandMajorMode.K
    work = Gemm(cutlass.BFloat16, k, k, 64, 64, load_shape="16x256b")
    operands = [_rows(torch.bfloat16, compiling) for _ in "ab"]
    kernel = compiling.compiled(work, *operands, compiling.fake(torch.float32, (None, None), align=4))
    sim.launch(kernel, whole_numbers(40, 704), whole_numbers(24, 704), torch.zeros(40, 24))


def persistent() -> None:
    """Five tiles for one CTA."""
    compiling = _test_kernels()
    import cutlass

    from gdnbench import sim
    from tests.sim.kernels.persistent import PersistentGemm

    operands = [_rows(torch.bfloat16, compiling) for _ in "ab"]
    out = compiling.fake(torch.float32, (None, None), divisible=4)
    kernel = compiling.compiled(PersistentGemm(cutlass.BFloat16, 1), *operands, out)
    sim.launch(kernel, whole_numbers(600, 264), whole_numbers(24, 264), torch.zeros(600, 24))


def tma_stream(rows: int = 700) -> None:
    """11 tiles through a ring of 2, in a loop that is unrolled by 4."""
    compiling = _test_kernels()
    from gdnbench import sim
    from tests.sim.kernels.tma_copy import TmaStream

    kernel = compiling.compiled(TmaStream(), *(_rows(torch.bfloat16, compiling) for _ in "xy"))
    sim.launch(kernel, whole_numbers(rows, 40), torch.zeros(rows, 40, dtype=torch.bfloat16))


def tmem_operand() -> None:
    compiling = _test_kernels()
    import cutlass

    from gdnbench import sim
    from tests.sim.kernels.tmem_operand import TmemOperand

    fakes = [compiling.fake(torch.bfloat16, (128, 64)), compiling.fake(torch.bfloat16, (64, 64))]
    kernel = compiling.compiled(
        TmemOperand(cutlass.BFloat16), *fakes, compiling.fake(torch.float32, (128, 64))
    )
    sim.launch(kernel, whole_numbers(128, 64), whole_numbers(64, 64), torch.zeros(128, 64))


def block_scaled() -> None:
    """One product of bytes, whose scales tcgen05.cp brings to TMEM."""
    from gdnbench import sim
    from gdnbench.sim.host import PtxKernel
    from gdnbench.sim.ptx.parser import parse
    from tests.sim.kernels.block_scaled import block_scaled as made

    kernel, text, buffers = made()
    work = PtxKernel(parse(text), kernel.name, (1, 1, 1), (kernel.block, 1, 1))
    sim.launch(work, *(torch.from_numpy(buffer.view(np.int32)) for buffer in buffers))


def ldmatrix() -> None:
    compiling = _test_kernels()
    import cutlass

    from gdnbench import sim
    from tests.sim.kernels.ldmatrix_mma import LdmatrixMma

    operands = [_rows(torch.bfloat16, compiling) for _ in "ab"]
    out = compiling.fake(torch.float32, (None, None), align=4)
    kernel = compiling.compiled(LdmatrixMma(cutlass.BFloat16), *operands, out)
    sim.launch(kernel, whole_numbers(20, 200), whole_numbers(24, 200), torch.zeros(20, 24))


def wgmma() -> None:
    compiling = _test_kernels()
    import cutlass
    from cutlass.cute.runtime import make_fake_stream

    from gdnbench import sim
    from tests.sim.kernels import wgmma_gemm

    fakes = [compiling.fake(torch.bfloat16, shape) for shape in ((64, 192), (16, 192))]
    out = compiling.fake(torch.float32, (64, 16))
    work = wgmma_gemm.Gemm(cutlass.BFloat16, 16, 64)
    kernel = sim.compile(work, *fakes, out, make_fake_stream(), arch="sm_90a")
    sim.launch(kernel, whole_numbers(64, 192), whole_numbers(16, 192), torch.zeros(64, 16))


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A kernel of PTX, launched in one cluster of `ctas` CTAs of `threads`."""

    body: str
    ctas: int
    threads: int = 32

    def __call__(self) -> None:
        from gdnbench import sim
        from gdnbench.sim.host import PtxKernel
        from gdnbench.sim.ptx import parse
        from tests.sim.clusters.cluster_kernels import ROUNDS, TILES, WORDS, kernel

        shape = (self.ctas, 1, 1)
        ready = PtxKernel(parse(kernel(self.body)), "k", shape, (self.threads, 1, 1), cluster=shape)
        x = torch.arange(max(ROUNDS * self.ctas * self.threads, TILES * WORDS), dtype=torch.int32)
        sim.launch(ready, x, torch.zeros(self.ctas, WORDS, dtype=torch.int32), bytes(128))


def cluster_ring() -> None:
    from tests.sim.clusters.cluster_kernels import RING

    _Cluster(RING, 4)()


def cluster_stream() -> None:
    from tests.sim.clusters.cluster_kernels import STREAM

    _Cluster(STREAM, 2)()


def pair_gemm() -> None:
    from gdnbench import sim
    from gdnbench.sim.host import PtxKernel
    from gdnbench.sim.ptx import parse
    from tests.sim.clusters import pair_kernels

    shape = (2, 1, 1)
    ready = PtxKernel(parse(pair_kernels.PAIR_GEMM), "k", shape, (192, 1, 1), cluster=shape)
    a, b, _ = pair_kernels.operands()
    out = torch.zeros(pair_kernels.M, pair_kernels.N)
    reachable = [torch.from_numpy(matrix.view(np.int16)) for matrix in (a, b)]
    sim.launch(ready, out, *pair_kernels.maps(a, b), reachable=reachable)


def cluster_reduction() -> None:
    from tests.sim.clusters.cluster_kernels import REDUCTION

    _Cluster(REDUCTION, 4, threads=64)()


def launch_control() -> None:
    """One cluster of two, which does the work of seven others."""
    from gdnbench import sim
    from gdnbench.sim.host import PtxKernel
    from gdnbench.sim.ptx import parse
    from tests.sim.clusters.launch_control_kernels import PIPELINE, PIPELINE_BLOCK, PIPELINE_WORDS

    block = (PIPELINE_BLOCK, 1, 1)
    ready = PtxKernel(parse(PIPELINE), "k", (16, 1, 1), block, 200_000, (2, 1, 1))
    x = torch.arange(16 * PIPELINE_WORDS, dtype=torch.int32)
    sim.launch(ready, x, torch.zeros_like(x), torch.zeros_like(x))


@dataclass(frozen=True, slots=True)
class _Operation:
    """A kernel of an operation of this project, on made calls; `sms` are so few that the CTAs of a persistent
    kernel have several items each."""

    op: str
    kernel: str
    calls: tuple[dict[str, Any], ...]
    sms: int = 1

    def __call__(self) -> None:
        from gdnbench.ops import operation
        from gdnbench.replay.simulated import programs_simulated
        from gdnbench.sim import settings_apply
        from gdnbench.synth import synthesise
        from gdnbench_kernels.run import run_kernel

        with settings_apply(sms=self.sms), programs_simulated():
            for options in self.calls:
                run_kernel(operation(self.op), self.kernel, synthesise(self.op, **options))


@dataclass(frozen=True, slots=True)
class _CutPrefill:
    """A function of gdn_prefill, module:name, that takes where sequences are cut: the entry `cuts` of each
    call is its argument, segment or cut."""

    target: str
    calls: tuple[dict[str, Any], ...]
    sms: int = 1  # a CTA goes through several segments

    def __call__(self) -> None:
        from gdnbench.replay.simulated import programs_simulated
        from gdnbench.sim import settings_apply
        from gdnbench.synth import synthesise

        module, _, function = self.target.partition(":")
        kernel = getattr(importlib.import_module(f"gdnbench_kernels.gdn_prefill.{module}"), function)
        with settings_apply(sms=self.sms), programs_simulated():
            for options in self.calls:
                given = dict(options)
                cuts = given.pop("cuts")
                call = synthesise("gdn_prefill", **given)
                kernel(**call.tensors, **call.scalars, **cuts)


def segment_scan() -> None:
    """The scan alone: three steps, so that the ring of M, of which a step fills four fifths, is used twice
    over; and a sequence without a step."""
    from gdnbench import sim
    from gdnbench_kernels.gdn_prefill.segment_sources import build_scan

    kernel, examples = build_scan(1)
    compiled = sim.compile(kernel, *examples, arch="sm_100a")
    maps, firsts = (whole_numbers(6, 1, 128, 128).float() for _ in range(2))
    sim.launch(compiled, torch.tensor([0, 5, 6], dtype=torch.int32), maps, firsts)


def prefill_squares() -> None:
    """Hopper's squares alone, two value heads a work: 12 works and a slot without a chunk for one CTA, so
    that each of INVERT's three warpgroups comes back to each stage of its rings."""
    from gdnbench.replay.simulated import programs_simulated
    from gdnbench.synth import synthesise
    from gdnbench_kernels import programs
    from gdnbench_kernels.gdn_prefill.sm90_prepared_sources import squares_source
    from gdnbench_kernels.gpu import SM90

    given = synthesise("gdn_prefill", seqlens=(577, 0, 65), heads=(1, 2)).tensors
    squares = torch.zeros(len(given["v"]) // 64 + 3, 2, 2, 64, 64, dtype=torch.bfloat16)
    inputs = (given[name] for name in ("q", "k", "g", "beta", "cu_seqlens"))
    with programs_simulated():
        programs.compiled(SM90, squares_source, 1, 2, 1.0)(*inputs, squares, 1)


@dataclass(frozen=True, slots=True)
class _Decode:
    """gdn_decode with a plan."""

    transport: str

    def __call__(self) -> None:
        from gdnbench.replay.simulated import programs_simulated
        from gdnbench.synth import synthesise
        from gdnbench_kernels.gdn_decode.cute import cute
        from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan

        plan = DecodePlan(warps=2, transport=self.transport, passes=2)  # type: ignore[arg-type]
        call = synthesise("gdn_decode", batch=2, heads=(1, 1), steps=2, gate="raw", qk="raw")
        conventions = {name: call.conventions[name] for name in ("gate", "qk")}
        with programs_simulated():
            cute(**call.tensors, **call.scalars, **conventions, plan=plan)


@dataclass(frozen=True, slots=True)
class _KdaDecode:
    """kda_decode with a plan."""

    transport: str

    def __call__(self) -> None:
        from gdnbench.replay.simulated import programs_simulated
        from gdnbench.synth import synthesise
        from gdnbench_kernels.kda_decode.cute import cute
        from gdnbench_kernels.kda_decode.decode_plan import ChannelPlan

        plan = ChannelPlan(warps=2, transport=self.transport, passes=2)  # type: ignore[arg-type]
        forms = {"gate": "raw", "beta_form": "logit", "qk": "raw"}
        call = synthesise("kda_decode", batch=2, heads=(1, 1), steps=2, **forms)
        with programs_simulated():
            cute(**call.tensors, **call.scalars, **forms, plan=plan)


_PREFILL: tuple[dict[str, Any], ...] = (
    {"seqlens": (193, 1), "heads": (1, 1), "initial_state": True},
    {"seqlens": (64,), "heads": (1, 1), "initial_state": True},  # nothing comes after a full chunk
)
# A CTA goes through all sequences: one without tokens between others, two with a last chunk of their own.
_FUSED_PREFILL: tuple[dict[str, Any], ...] = (
    {"seqlens": (193, 0, 65), "heads": (1, 1), "initial_state": True},
    _PREFILL[1],
)
# Four segments, so that the scan has two steps and its ring goes round; a sequence without tokens. Then
# segments of six chunks, so that a CTA comes back to each stage of its rings, for B and for M. Then a second
# sequence whose last chunk is whole, behind the last chunk of another.
_CUT_PREFILL: tuple[dict[str, Any], ...] = (
    {"seqlens": (193, 0, 1), "heads": (1, 1), "initial_state": True, "cuts": {"segment": 64}},
    {"seqlens": (769,), "heads": (1, 1), "initial_state": True, "cuts": {"segment": 384}},
    {"seqlens": (1, 832), "heads": (1, 1), "initial_state": True, "cuts": {"segment": 320}},
)
# Five works on two CTAs. CTA 0 has two whole ones; CTA 1 one without tokens, then two first parts. Rests of
# three chunks and of two. Then a whole work of one chunk beside a first part without a rest, and a rest of
# six chunks, so that its CTA comes back to each stage of its rings.
_ROUNDS_PREFILL: tuple[dict[str, Any], ...] = (
    {"seqlens": (65, 0, 193, 256, 129), "heads": (1, 1), "initial_state": True, "cuts": {"cut": 64}},
    {"seqlens": (64, 1, 385), "heads": (1, 1), "initial_state": True, "cuts": {"cut": 64}},
)
# The state of a sequence without tokens goes through tensor memory, which only the CTA's barrier keeps.
_KDA_PREFILL = (_PREFILL[0], {**_PREFILL[1], "seqlens": (64, 0)})
_DECODE_ATTENTION = tuple(
    {"heads": 8, "lens": (17, 128, 5, 0, 100), "cache_layout": layout, "sink": 0.0}
    for layout in ("per_token_scale", "fp8_ds_mla")
)
# Rows of o that two warps store, a first window that all warps load, an empty one between others.
_WIDE_DECODE = tuple(call | {"heads": 24, "lens": (128, 17, 0, 100, 5)} for call in _DECODE_ATTENTION)


@dataclass(frozen=True, slots=True)
class _SplitDecode:
    """v4_decode in `splits`, and the merge. One query of three tiles and one of none: in two splits one
    has two tiles; the pools have the layouts of `calls`. `extra_first`: also a query without a window,
    whose first tile is one of the extra segment, which has code of its own where the layouts differ."""

    splits: int
    calls: tuple[tuple[str, str], ...]
    extra_first: bool = False

    def __call__(self) -> None:
        from gdnbench.replay.simulated import programs_simulated
        from gdnbench.synth import synthesise
        from gdnbench_kernels.v4_decode.portable import portable

        with programs_simulated():
            for window, extra in self.calls:
                call = synthesise(
                    "v4_decode",
                    heads=8,
                    lens=(100, 0, 0) if self.extra_first else (100, 0),
                    extra_lens=(140, 0, 3) if self.extra_first else (140, 0),
                    topk=140,
                    sink=0.0,
                    cache_layout=window,
                    extra_layout=extra,
                )
                portable(**call.tensors, **call.scalars, **call.conventions, splits=self.splits)


_ALIKE = (("per_token_scale", "per_token_scale"), ("fp8_ds_mla", "fp8_ds_mla"))
_UNLIKE = (("per_token_scale", "fp8_ds_mla"), ("fp8_ds_mla", "per_token_scale"))

# Tiles of both segments, an item of three tiles between items of one, and a row with nothing at all.
_TWO_SEGMENTS: tuple[dict[str, Any], ...] = tuple(
    {
        "heads": 8,
        "lens": (17, 128, 0, 0),
        "extra_lens": (0, 200, 0, 150),
        "topk": 200,
        "cache_layout": layout,
        "extra_layout": layout,
        "sink": 0.0,
    }
    for layout in ("per_token_scale", "fp8_ds_mla")
)
# Rows of o that two warps store, a first tile that all warps load.
_WIDE_SEGMENTS = tuple(call | {"heads": 24, "lens": (128, 17, 0, 0)} for call in _TWO_SEGMENTS)
_SPLIT_TILES = ({**_TWO_SEGMENTS[1], "lens": (128,), "extra_lens": (300,), "topk": 300},)


def v4_decode_sm100_splits() -> None:
    """In two splits, a CTA each: items of two tiles, of one, and with nothing at all, so that every ring goes
    round several times."""
    from gdnbench.replay.simulated import programs_simulated
    from gdnbench.synth import synthesise
    from gdnbench_kernels.v4_decode.sm100 import sm100

    lens = {"lens": (128, 17, 128), "extra_lens": (300, 0, 200), "topk": 300}
    call = synthesise("v4_decode", **_TWO_SEGMENTS[1] | lens)
    with programs_simulated():
        sm100(**call.tensors, **call.scalars, **call.conventions, splits=2, parts=1, workers=1)


def v4_decode_wgmma_splits() -> None:
    """In two splits: a CTA each, of two tiles; then one CTA that has all items, of one tile or of nothing at
    all, so that every ring goes round. One stage has two tiles with entries one after the other."""
    from gdnbench.replay.simulated import programs_simulated
    from gdnbench.synth import synthesise
    from gdnbench_kernels.v4_decode.wgmma import wgmma

    _Operation("v4_decode", "wgmma", _SPLIT_TILES, sms=3)()
    lens = {"lens": (100, 17, 0), "extra_lens": (0, 17, 0), "topk": 300}
    call = synthesise("v4_decode", **_TWO_SEGMENTS[1] | lens)
    with programs_simulated():
        wgmma(**call.tensors, **call.scalars, **call.conventions, splits=2, workers=1)


def _third_party(module: str) -> Any:
    import importlib

    return importlib.import_module(f"tests.sim.third_party.{module}")


def quack_gemm() -> None:
    """Three tiles for one CTA, four tiles of K."""
    out = torch.full((1, 300, 64), torch.nan, dtype=torch.bfloat16)
    bias = torch.ones(1, 64)
    a, b = whole_numbers(1, 300, 456), whole_numbers(1, 64, 456)
    _third_party("quack_cases").gemm(a=a, b=b, d=out, bias=bias, ctas=1)


def quack_hopper_gemm() -> None:
    """Three tiles for one CTA, five where the warpgroups take turns. Of 13 tiles of K: one ring has 8 stages,
    and in the other, of 13, a tile begins in the stage in which that of the other warpgroup did. Of 2 tiles
    of K: the loads of a tile wait for no stage, so that only the scheduler's barriers hold them back."""
    cases = _third_party("quack_cases")
    for inner in (776, 72):
        out = torch.full((1, 300, 64), torch.nan, dtype=torch.bfloat16)
        a, b = whole_numbers(1, 300, inner), whole_numbers(1, 64, inner)
        for pingpong in (False, True):
            cases.hopper_gemm(a=a, b=b, d=out, ctas=1, pingpong=pingpong, engine="compiled", schedule="late")


def quack_softmax() -> None:
    x = whole_numbers(8, 1024)
    _third_party("quack_cases").softmax(x=x, out=torch.full_like(x, torch.nan))


def flashinfer_fold() -> None:
    generator = torch.Generator().manual_seed(0)
    layers, slots, value_heads, length, dim = 1, 2, 1, 8, 128
    rows = layers * slots
    _third_party("flashinfer_cases").fold(
        state=torch.randn(rows, value_heads, dim, dim, generator=generator),
        rawv=whole_numbers(rows, value_heads, length, dim),
        rawk=whole_numbers(rows, 1, length, dim),
        log_g=-torch.rand(rows, value_heads, length, generator=generator),
        beta=torch.rand(rows, value_heads, length, generator=generator),
        slots=torch.tensor([1, -1], dtype=torch.int32),
        accepted=torch.tensor([5, 8], dtype=torch.int32),
        layers=layers,
    )


SUBJECTS: dict[str, Subject] = {
    "gemm": Subject(gemm),
    "persistent": Subject(persistent),
    "tma_stream": Subject(tma_stream),
    "tmem_operand": Subject(tmem_operand),
    "block_scaled": Subject(block_scaled),
    "ldmatrix": Subject(ldmatrix),
    "wgmma": Subject(wgmma),
    "cluster_ring": Subject(cluster_ring),
    "cluster_stream": Subject(cluster_stream),
    "pair_gemm": Subject(pair_gemm),
    "cluster_reduction": Subject(cluster_reduction),
    "launch_control": Subject(launch_control, sms=2),
    "gdn_prefill": Subject(_Operation("gdn_prefill", "sm100", _PREFILL)),
    "gdn_prefill_fused": Subject(_Operation("gdn_prefill", "sm100_fused", _FUSED_PREFILL)),
    "gdn_prefill_fused_rounds": Subject(_CutPrefill("fused:sm100_fused", _ROUNDS_PREFILL, sms=2)),
    "gdn_prefill_cp_scan": Subject(segment_scan),
    "gdn_prefill_cp": Subject(_CutPrefill("fused_cp:sm100_fused_cp", _CUT_PREFILL)),
    "gdn_prefill_sm90": Subject(_Operation("gdn_prefill", "sm90_fused", _FUSED_PREFILL)),
    "gdn_prefill_sm90_squares": Subject(prefill_squares),
    "gdn_prefill_sm90_prepared": Subject(_CutPrefill("sm90_cp:sm90_prepared", _CUT_PREFILL)),
    "kda_prefill_fused": Subject(_Operation("kda_prefill", "sm100_fused", _KDA_PREFILL)),
    "gdn_decode": Subject(_Decode("registers")),
    "gdn_decode_bulk_in": Subject(_Decode("bulk_in")),
    "gdn_decode_bulk": Subject(_Decode("bulk")),
    "kda_decode": Subject(_KdaDecode("registers")),
    "kda_decode_bulk_in": Subject(_KdaDecode("bulk_in")),
    "kda_decode_bulk": Subject(_KdaDecode("bulk")),
    "swa_decode_portable": Subject(_Operation("swa_decode", "portable", _DECODE_ATTENTION)),
    "swa_decode_sm100": Subject(_Operation("swa_decode", "sm100", _DECODE_ATTENTION)),
    "swa_decode_wgmma": Subject(_Operation("swa_decode", "wgmma", _WIDE_DECODE)),
    "v4_decode_portable": Subject(_SplitDecode(1, _ALIKE)),
    "v4_decode_splits": Subject(_SplitDecode(2, _ALIKE)),
    "v4_decode_unlike": Subject(_SplitDecode(1, _UNLIKE, extra_first=True)),
    "v4_decode_sm100": Subject(_Operation("v4_decode", "sm100", _TWO_SEGMENTS)),
    "v4_decode_sm100_splits": Subject(v4_decode_sm100_splits),
    "v4_decode_wgmma": Subject(_Operation("v4_decode", "wgmma", _WIDE_SEGMENTS)),
    "v4_decode_wgmma_splits": Subject(v4_decode_wgmma_splits),
    "quack_gemm": Subject(quack_gemm, "sm_100a"),
    "quack_hopper_gemm": Subject(quack_hopper_gemm, "sm_100a"),
    "quack_softmax": Subject(quack_softmax, "sm_100a"),
    "flashinfer_fold": Subject(flashinfer_fold, "sm_100a"),
}
