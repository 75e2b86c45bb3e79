# SPDX-License-Identifier: Apache-2.0
"""chunk_state alone, in the simulator: its inputs are the fp64 oracle's stages, rounded once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.chunks import ChunkPlan, gather_chunks
from gdnbench_kernels.gdn_prefill import chunk_state
from gdnbench_kernels.gdn_prefill.chunk_state import PLAN
from gdnbench_kernels.gdn_prefill.chunked import advance_state
from gdnbench_kernels.gdn_prefill.contract import OPERATION, PACKED
from gdnbench_kernels.gdn_prefill.sources import StateDtype, build_state
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.rounding import EXACT, Arithmetic, tensor_core_arithmetic
from gdnbench_kernels.run import run_kernel
from tests.subset import quick

LENGTHS = (1, 63, 0, 64, 65, 127, 129)
GUARD = 3
"""Rows before and after every output that nobody may write to."""
BF16 = tensor_core_arithmetic(torch.bfloat16)
DTYPES: dict[StateDtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NAMES: dict[torch.dtype, StateDtype] = {dtype: name for name, dtype in DTYPES.items()}

Outputs = dict[str, Tensor]
"""h [UB, Hv, V, K], V_new [UB C, Hv, V] and final_state [N, Hv, V, K]: NaN where nothing was written."""


@cache
def compiled(heads: int, value_heads: int, initial: StateDtype | None, final: StateDtype | None) -> Any:
    host, arguments = build_state(heads, value_heads, initial, final)
    return sim.compile(host, *arguments, arch="sm_100a")


@dataclass(frozen=True)
class Given:
    """What the kernel is given."""

    tensors: dict[str, Tensor | None]
    chunks: ChunkPlan

    @classmethod
    def of(cls, initial: StateDtype | None = "float32", **options: Any) -> Given:
        call = synth(initial_state=initial is not None, state_dtype=initial or "float32", **options)
        stages: dict[str, Tensor] = {}
        run_kernel(OPERATION, "reference_staged", call, stages)
        plan = PACKED.plan_of(call)
        given: dict[str, Tensor | None] = {name: call.tensors[name] for name in ("k", "cu_seqlens")}
        given["g_cu"] = stages["g_cu"].float()
        given |= {name: stages[name].bfloat16() for name in ("U", "W")}
        given["initial_state"] = call.tensors.get("initial_state")
        return cls(given, plan)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        assert tensor is not None
        return tensor

    @property
    def heads(self) -> tuple[int, int]:
        return self["k"].shape[1], self["g_cu"].shape[1]

    def run(self, final: StateDtype | None = "float32", **options: Any) -> Outputs:
        """Outputs; the inputs and what surrounds the outputs are as they were."""
        sequences, (_, value_heads) = len(self["cu_seqlens"]) - 1, self.heads
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "h": ((self.chunks.bound, value_heads, 128, 128), torch.bfloat16),
            "V_new": ((64 * self.chunks.bound, value_heads, 128), torch.bfloat16),
        }
        if final is not None:
            shapes["final_state"] = ((sequences, value_heads, 128, 128), DTYPES[final])
        guarded = {
            name: torch.full((size[0] + 2 * GUARD, *size[1:]), torch.nan, dtype=dtype)
            for name, (size, dtype) in shapes.items()
        }
        out = {name: tensor[GUARD:-GUARD] for name, tensor in guarded.items()}
        x = {name: None if tensor is None else tensor.clone() for name, tensor in self.tensors.items()}
        first = x["initial_state"]
        program = compiled(*self.heads, None if first is None else NAMES[first.dtype], final)
        inputs = [x[name] for name in ("k", "U", "W", "g_cu", "cu_seqlens")]
        offsets = self.chunks.offsets.int()
        outputs = (out["h"], out["V_new"], out.get("final_state"))
        report = sim.launch(program, *inputs, offsets, first, *outputs, **options)
        assert not report.findings, report
        for name, tensor in x.items():
            assert tensor is None or same_bits(tensor, self[name]), f"{name} was written to"
        for name, tensor in guarded.items():
            assert tensor[:GUARD].isnan().all(), f"{name} was written ahead of its start"
            assert tensor[-GUARD:].isnan().all(), f"{name} was written behind its end"
        return out

    def expected(self, arithmetic: Arithmetic, final: StateDtype = "float32") -> Outputs:
        """Outputs of these very inputs."""
        total, offsets = self.chunks.total, self.chunks.offsets.tolist()
        rows = self.chunks.part(0, total)
        k = arithmetic.load(gather_chunks(self["k"], *rows))
        # Behind the end the last token's gate.
        last = rows[0].where(rows[1], rows[0].where(rows[1], 0).amax(1, keepdim=True))
        g_cu = self["g_cu"][last.flatten()].view(*last.shape, -1).movedim(2, 1).to(arithmetic.compute)
        u, w = (chunked(self[name]).movedim(1, 2)[:total] for name in ("U", "W"))
        value_heads = self.heads[1]
        first = self.tensors["initial_state"]
        sequences = len(offsets) - 1
        state = torch.zeros(sequences, value_heads, 128, 128, dtype=arithmetic.compute)
        if first is not None:
            state = first.to(arithmetic.compute, copy=True)
        h = torch.full((self.chunks.bound, value_heads, 128, 128), torch.nan, dtype=arithmetic.stored)
        v_new = torch.full((self.chunks.bound, 64, value_heads, 128), torch.nan, dtype=arithmetic.stored)
        for n, (start, stop) in enumerate(pairwise(offsets)):
            for c in range(start, stop):
                one = slice(c, c + 1)
                h[one], update, state[n : n + 1] = advance_state(
                    state[n : n + 1], k[one], u[one], w[one], g_cu[one], arithmetic
                )
                v_new[c] = update[0].movedim(0, 1)
        if arithmetic is not EXACT:
            state = state.to(DTYPES[final])
        return {"h": h, "V_new": v_new.flatten(0, 1), "final_state": state}


def chunked(rows: Tensor) -> Tensor:
    """[UB, C, Hv, ...] of [UB C, Hv, ...]."""
    return rows.view(-1, 64, *rows.shape[1:])


def same_bits(x: Tensor, y: Tensor) -> bool:
    integers = {2: torch.int16, 4: torch.int32}[x.element_size()]
    return torch.equal(x.contiguous().view(integers), y.contiguous().view(integers))


def all_same(x: Outputs, y: Outputs) -> bool:
    return x.keys() == y.keys() and all(same_bits(x[name], y[name]) for name in x)


def errors(given: Given, found: Tensor, exact: Tensor, name: str) -> Tensor:
    """RMS of the error over that of the exact values, of every (sequence, head) that has any not 0."""
    offsets = given.chunks.offsets.tolist()
    size = {"h": 1, "V_new": 64}.get(name)
    bounds = range(len(offsets)) if size is None else [size * offset for offset in offsets]
    rms = []
    for start, stop in pairwise(bounds):
        x, y = found[start:stop].double(), exact[start:stop].double()
        axes = [axis for axis in range(y.ndim) if axis != 1]
        if y.any():
            rms.append(((x - y).square().mean(axes) / y.square().mean(axes)).sqrt())
        else:
            assert not x.any()
    return torch.stack(rms)


def assert_accurate(given: Given, out: Outputs, final: StateDtype = "float32") -> None:
    """At most twice the error of the same roundings in torch: the worst (sequence, head), and all."""
    exact, torchs = given.expected(EXACT), given.expected(BF16, final)
    for name, tensor in out.items():
        ours, theirs = (errors(given, x, exact[name], name) for x in (tensor, torchs[name]))
        assert ours.isfinite().all(), name
        assert ours.max() <= 2 * theirs.max(), (name, ours, theirs)
        assert ours.square().mean() <= 4 * theirs.square().mean(), (name, ours, theirs)


@pytest.mark.parametrize(("heads", "value_heads"), quick([(1, 1), (1, 2), (1, 3), (2, 8)], 2))
def test_every_sequence_and_head_is_accurate(heads: int, value_heads: int) -> None:
    given = Given.of(seqlens=LENGTHS, heads=(heads, value_heads))
    assert_accurate(given, given.run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initial", "final"), quick([("float32", "bfloat16"), ("bfloat16", "float32"), (None, "bfloat16")], 0)
)
def test_states_of_either_dtype_or_none(initial: StateDtype | None, final: StateDtype) -> None:
    given = Given.of(initial, seqlens=(0, 65, 130), heads=(1, 2))
    out = given.run(final)
    assert_accurate(given, out, final)
    first = given.tensors["initial_state"]
    # Without a token a state is only converted; h of a first chunk is the state rounded.
    zero = torch.zeros(2, 128, 128)
    assert same_bits(
        out["final_state"][0], (zero if first is None else first[0]).to(out["final_state"].dtype)
    )
    for n, chunk in ((1, 0), (2, 2)):
        assert same_bits(out["h"][chunk], (zero if first is None else first[n]).bfloat16())


@pytest.mark.slow  # builds the kernel twice
def test_a_final_state_is_left_out_and_changes_nothing(mixed: tuple[Given, Outputs]) -> None:
    given, out = mixed
    assert all_same(given.run(None), {name: out[name] for name in ("h", "V_new")})


@pytest.mark.slow
@pytest.mark.parametrize("gate_span", quick([((1e-3, 1e5),), (1e5,)], 0, ids=["to 1e5", "1e5"]))
def test_wide_gates(gate_span: float | tuple[float, float]) -> None:
    """Sums of g over a chunk down to -1e5: exp(g_cu - g_last) would be as large as exp of that."""
    given = Given.of(seqlens=LENGTHS, heads=(1, 2), gate_span=gate_span)
    assert given["g_cu"].min() < -1e3
    assert_accurate(given, given.run())


def test_gates_that_hardly_close_over_many_chunks() -> None:
    """What is wrong in a chunk is still there eight chunks later."""
    given = Given.of(seqlens=(500,), heads=(1, 3), gate_span=1e-3, key_correlation=0.5)
    assert_accurate(given, given.run())


@pytest.fixture(scope="module")
def mixed() -> tuple[Given, Outputs]:
    given = Given.of(seqlens=(1, 63, 64, 65, 0, 129), heads=(1, 3))
    return given, given.run()


@pytest.mark.parametrize("schedule", quick(["early", "random:1", "random:2"], 1))
def test_bits_are_those_of_every_schedule(mixed: tuple[Given, Outputs], schedule: str) -> None:
    given, out = mixed
    assert all_same(given.run(schedule=schedule), out)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", quick(["late", "early", "random:1"], 2))
def test_bits_are_those_of_the_interpreter(mixed: tuple[Given, Outputs], schedule: str) -> None:
    given, out = mixed
    parts = only(given, 3), only(given, 4)  # 65 tokens, none
    for n, part in zip((3, 4), parts, strict=True):
        found = part.run(engine="interpreter", schedule=schedule)
        chunks = slice(*given.chunks.offsets[n : n + 2].tolist())
        assert same_bits(found["h"], out["h"][chunks])
        assert same_bits(found["V_new"], out["V_new"][64 * chunks.start : 64 * chunks.stop])
        assert same_bits(found["final_state"][0], out["final_state"][n])


def test_rows_behind_an_end_are_zeros_and_chunks_past_the_last_untouched(
    mixed: tuple[Given, Outputs],
) -> None:
    """chunk_output multiplies those zeros; rows past the last chunk nobody reads or writes."""
    given, out = mixed
    plan = given.chunks
    assert plan.bound > plan.total
    assert out["h"][plan.total :].isnan().all()
    assert out["V_new"][64 * plan.total :].isnan().all()
    rows = chunked(out["V_new"])
    assert min(plan.length) < 64
    for chunk, length in enumerate(plan.length.tolist()):
        assert not rows[chunk, length:].any()
        assert rows[chunk, :length].any()


def only(given: Given, n: int) -> Given:
    """Sequence n alone."""
    (start, stop), (first, last) = (
        given["cu_seqlens"][n : n + 2].tolist(),
        given.chunks.offsets[n : n + 2].tolist(),
    )
    x = {name: given[name][start:stop] for name in ("k", "g_cu")}
    x |= {name: given[name][64 * first : 64 * last] for name in ("U", "W")}
    x["initial_state"] = given["initial_state"][n : n + 1]
    x["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
    return Given(dict(x), PACKED.plan_of(synth(seqlens=(stop - start,), heads=given.heads)))


def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(mixed: tuple[Given, Outputs]) -> None:
    given, out = mixed
    for n, (first, last) in enumerate(pairwise(given.chunks.offsets.tolist())):
        if first == last:
            continue
        alone = only(given, n).run()
        assert same_bits(alone["h"], out["h"][first:last])
        assert same_bits(alone["V_new"], out["V_new"][64 * first : 64 * last])
        assert same_bits(alone["final_state"][0], out["final_state"][n])


@pytest.mark.slow
@pytest.mark.parametrize("value", quick([torch.nan, torch.inf], 0))
def test_what_a_neighbour_holds_is_nobody_elses(mixed: tuple[Given, Outputs], value: float) -> None:
    """Each sequence is NaN or Inf in every input: the others keep their bits, tails before it too."""
    given, out = mixed
    for n in (0, 2, 3, 5):
        tokens = slice(*given["cu_seqlens"][n : n + 2].tolist())
        chunks = slice(*given.chunks.offsets[n : n + 2].tolist())
        rows = slice(64 * chunks.start, 64 * chunks.stop)
        x = {name: given[name].clone() for name in given.tensors}
        x["k"][tokens], x["g_cu"][tokens] = value, torch.nan
        x["U"][rows], x["W"][rows], x["initial_state"][n] = value, value, value
        spoilt = replace(given, tensors=dict(x)).run()
        for name, own in {"h": chunks, "V_new": rows, "final_state": slice(n, n + 1)}.items():
            others = torch.ones(len(out[name]), dtype=torch.bool)
            others[own] = False
            assert same_bits(spoilt[name][others], out[name][others]), name
            assert not spoilt[name][own].isfinite().any(), name


@pytest.mark.slow
def test_a_gate_that_is_not_a_number_does_not_look_like_one() -> None:
    """NaN in g_cu of one token of the first of two chunks: NaN is all that comes after that chunk."""
    given = Given.of(seqlens=(128, 70), heads=(1, 1))
    given["g_cu"][5] = torch.nan
    out = given.run()
    assert out["h"][0].isfinite().all()
    assert out["h"][1].isnan().all()
    assert out["final_state"][0].isnan().all()
    assert out["final_state"][1].isfinite().all()


@pytest.mark.slow
def test_many_sequences_without_tokens() -> None:
    given = Given.of(seqlens=(0,) * 20 + (3,) + (0,) * 20, heads=(1, 1))
    out = given.run()
    kept = torch.arange(41) != 20
    assert same_bits(out["final_state"][kept], given["initial_state"][kept])
    assert_accurate(given, out)


def test_reads_of_what_tma_overwrites_are_fenced() -> None:
    """The simulator knows one proxy: in PTX, a fence stands between the last ldmatrix, whose tile TMA writes
    next, and the arrival that lets it."""
    ptx = compiled(1, 3, "float32", "float32").artifacts.PTX
    names = ("ldmatrix", "fence.proxy.async", "mbarrier.arrive.shared")
    steps = [name for line in ptx.splitlines() for name in names if line.strip().startswith(name)]
    last = max(i for i, name in enumerate(steps) if name == "ldmatrix")
    assert steps[last + 1 : last + 3] == ["fence.proxy.async", "mbarrier.arrive.shared"]


def test_the_launch_is_the_plans() -> None:
    given = Given.of(seqlens=(1,), heads=(1, 3))
    x = given.tensors
    h, v_new = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((1, 3, 128, 128), (64, 3, 128)))
    state = torch.empty(1, 3, 128, 128)
    inputs = (*(x[name] for name in ("k", "U", "W", "g_cu", "cu_seqlens")), given.chunks.offsets.int())
    program = compiled(1, 3, "float32", "float32")
    (launch,) = sim.launch(program, *inputs, x["initial_state"], h, v_new, state).launches
    assert (launch.shared_bytes, launch.block) == (PLAN.smem_bytes, (PLAN.threads, 1, 1))
    # Two CTAs fit into an SM of 64 K registers; shared memory is the plan's to check.
    assert launch.registers is not None
    assert PLAN.ctas_per_sm * PLAN.threads * launch.registers <= 65536


def test_the_header_has_the_tables_of_the_plan() -> None:
    assert chunk_state.__doc__ is not None
    assert f"\n\n{PLAN.tables()}\n\n" in chunk_state.__doc__
