# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill on SM100, all four kernels, in the simulator: against the oracles, and against itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.replay.replay import replay
from gdnbench.replay.simulated import programs_simulated
from gdnbench.report.outcome import Outcome
from gdnbench.sim import Session, Settings, active
from gdnbench.store.recover import open_store
from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import sm100 as kernels
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.sm100 import ChunkTables, Workspace, sm100
from gdnbench_kernels.gdn_prefill.synth import synth
from tests.kernels.guarded_outputs import same
from tests.messages import wording
from tests.subset import quick

CAPTURES = Path(__file__).parents[2] / "captures"
CPU = torch.device("cpu")

GUARD = 64
"""Elements before and after a tensor that nobody may write; a multiple of the alignment in any dtype."""
STAGES = ["g_cu", "A", "Ai", "U", "W", "h", "V_new"]


@contextmanager
def simulator(**settings: Any) -> Iterator[Session]:
    with active(Settings(**settings)) as session, programs_simulated():
        yield session


class Guarded:
    """Tensors full of poison within larger ones of the same, NaN or -1."""

    def __init__(self) -> None:
        self._whole: list[tuple[Tensor, Tensor]] = []

    def tensor(self, like: Tensor) -> Tensor:
        """A contiguous tensor of that shape and dtype."""
        poison = float("nan") if like.is_floating_point() else -1
        whole = torch.full((like.numel() + 2 * GUARD,), poison, dtype=like.dtype)
        self._whole.append((whole, whole.clone()))
        return whole[GUARD : GUARD + like.numel()].view(like.shape)

    def check(self) -> None:
        for whole, before in self._whole:
            changed = as_integers(whole) != as_integers(before)
            assert not changed[:GUARD].any()
            assert not changed[-GUARD:].any()


class Run:
    """A call in the simulator with everything that it writes poisoned and guarded, and checked afterwards."""

    def __init__(self, call: Call, tap: bool = True, **settings: Any) -> None:
        tensors, guarded = call.tensors, Guarded()
        sequences = len(tensors["cu_seqlens"]) - 1
        space = Workspace.allocate(*tensors["v"].shape[:1], sequences, tensors["v"].shape[1], CPU)
        space = replace(
            space,
            tables=ChunkTables(*(guarded.tensor(getattr(space.tables, f.name)) for f in fields(ChunkTables))),
            **{f.name: guarded.tensor(getattr(space, f.name)) for f in fields(space) if f.name != "tables"},
        )
        outputs = {
            name: guarded.tensor(torch.empty(shape, dtype=dtype))
            for name, (shape, dtype) in OPERATION.outputs(call).items()
        }
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        self.stages: dict[str, Tensor] = {}
        with simulator(**settings) as self.session:
            returned = sm100(
                **tensors,
                **call.scalars,
                **outputs,
                workspace=space,
                stages=self.stages if tap else None,
            )
        assert returned.keys() == outputs.keys()
        assert all(returned[name] is outputs[name] for name in outputs)
        assert all(same(tensors[name], before[name]) for name in tensors)
        guarded.check()
        total = plan_chunks(tensors["cu_seqlens"], 64).total
        for unused in (space.u[64 * total :], space.w[64 * total :], space.v_new[64 * total :]):
            assert unused.isnan().all()
        assert space.h[total:].isnan().all()
        self.outputs = outputs

    @property
    def findings(self) -> list[str]:
        return [finding.message for report in self.session.reports for finding in report.findings]


def assert_passes(call: Call) -> None:
    """Every stage and output within twice torch's error, the inverse within its own limits."""
    run = Run(call)
    assert list(run.stages) == STAGES
    results = judge_stages(OPERATION, call, {**run.stages, **run.outputs}, Bound())
    assert [result.tensor for result in results] == [*STAGES, *run.outputs]
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []
    assert run.findings == []


CALLS: dict[str, dict[str, Any]] = {
    "every length, (1, 1)": {
        "seqlens": (1, 63, 64, 65, 127, 129, 500),
        "heads": (1, 1),
        "initial_state": True,
    },
    "(1, 2), no initial state": {"seqlens": (130, 64, 3), "heads": (1, 2)},
    "(1, 3), bf16 states": {
        "seqlens": (65, 0, 127),
        "heads": (1, 3),
        "initial_state": True,
        "state_dtype": "bfloat16",
    },
    "(2, 8)": {"seqlens": (63, 129), "heads": (2, 8), "initial_state": True},
    "keys of correlation 0.99": {"seqlens": (200,), "heads": (1, 2), "key_correlation": 0.99, "beta": 1.0},
    "equal keys, open gates": {
        "seqlens": (129,),
        "heads": (1, 2),
        "key_correlation": 1.0,
        "beta": 1.0,
        "gate_span": 0.01,
    },
    "gates of 1e5 a chunk": {"seqlens": (150, 64), "heads": (1, 2), "gate_span": 1e5, "initial_state": True},
    "no sequence but empty ones around it": {
        "seqlens": (0, 0, 70, 0),
        "heads": (1, 2),
        "initial_state": True,
    },
}


@pytest.mark.parametrize("options", quick(CALLS.values(), 6, ids=CALLS))
def test_stages_and_outputs(options: dict[str, Any]) -> None:
    assert_passes(synth(**options))


@pytest.mark.slow
@pytest.mark.parametrize("gate", quick([torch.inf, -torch.inf, -3e38], 1))
def test_gates_that_no_sum_takes(gate: float) -> None:
    """+inf is no decay and becomes NaN, before what never rises is taken back; the others close the gate."""
    call = synth(seqlens=(65, 70), heads=(1, 2), initial_state=True)
    g = call.tensors["g"].clone()
    g[[3, 40, 41], 0] = gate
    bad = Call({**call.tensors, "g": g}, call.scalars, call.conventions)
    assert_passes(bad)
    run = Run(bad)
    assert bool(run.stages["g_cu"][3:64, 0].isnan().all()) == (gate > 0)
    assert run.stages["g_cu"][:, 1].isfinite().all()


@pytest.mark.parametrize("value", quick([torch.inf, torch.nan], 1))
@pytest.mark.parametrize("name", ["k", "beta"])
def test_a_token_that_is_not_finite(name: str, value: float) -> None:
    """The inverse has it in what depends on it; the oracle, which judges that, spreads it no further."""
    call = synth(seqlens=(65, 70), heads=(1, 2), initial_state=True)
    tensor = call.tensors[name].clone()
    tensor[[0, 90]] = value
    assert_passes(Call({**call.tensors, name: tensor}, call.scalars, call.conventions))


@pytest.mark.slow  # each compiles a build of its own
@pytest.mark.parametrize("gate_span", quick([0.01, 1.0, 20.0], 1))
def test_states_that_only_decay(gate_span: float) -> None:
    """exp(g_last) of eight chunks multiplied: an error of theirs would be that of all of the state."""
    call = synth(seqlens=(500,), heads=(1, 1), beta=0.0, gate_span=gate_span, initial_state=True)
    final = Run(call, tap=False).outputs["final_state"]
    (result,) = judge_stages(OPERATION, call, {"final_state": final}, Bound())
    assert result.reasons == ()


@pytest.mark.slow  # a program of its own
def test_values_at_the_end_of_bf16() -> None:
    """U is subnormal, where a rounding is no part of it, and its limit has a floor of its own."""
    call = synth(seqlens=(70,), heads=(1, 1))
    v = (call.tensors["v"].float() * 2.0**-131).bfloat16()
    small = Call({**call.tensors, "v": v}, call.scalars, call.conventions)
    assert_passes(small)
    limit = OPERATION.stage_limit(small, "U")
    assert limit is not None
    (_, _, _, u, *_) = judge_stages(OPERATION, small, Run(small).stages, Bound())
    assert u.errors is not None
    assert u.errors.rms > limit.relative * u.errors.rms_reference


@pytest.mark.slow
def test_257_sequences() -> None:
    """Most of them empty, among them the first and the last."""
    lengths = [0] * 257
    lengths[1:256:12] = torch.arange(22).mul(31).remainder(75).tolist()
    assert_passes(synth(seqlens=tuple(lengths), heads=(1, 1), initial_state=True))


@pytest.mark.slow  # each pair compiles a build of its own
@pytest.mark.parametrize(
    ("initial", "final"), [(None, "bfloat16"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_states_of_two_dtypes(initial: str | None, final: str) -> None:
    call = synth(
        seqlens=(70, 0), heads=(1, 1), initial_state=initial is not None, state_dtype=initial or "float32"
    )
    wanted = Call(call.tensors, {**call.scalars, "final_state_dtype": final}, call.conventions)
    assert_passes(wanted)
    assert Run(wanted).outputs["final_state"].dtype is getattr(torch, final)


@pytest.mark.parametrize("state_dtype", quick(["float32", "bfloat16"], 0))
def test_an_empty_sequence_keeps_its_state(state_dtype: str) -> None:
    call = synth(seqlens=(0, 5, 0), heads=(1, 2), initial_state=True, state_dtype=state_dtype)
    final = Run(call).outputs["final_state"]
    assert same(final[[0, 2]], call.tensors["initial_state"][[0, 2]])
    without = Run(synth(seqlens=(0, 5, 0), heads=(1, 2))).outputs["final_state"]
    assert not without[[0, 2]].any()


def test_no_tokens_at_all() -> None:
    call = synth(seqlens=(0, 0, 0), heads=(1, 2), initial_state=True)
    run = Run(call)
    assert same(run.outputs["final_state"], call.tensors["initial_state"])
    assert run.session.reports == []
    assert not Run(synth(seqlens=(0,), heads=(1, 2))).outputs["final_state"].any()
    assert Run(synth(seqlens=(), heads=(1, 2))).outputs["final_state"].shape[0] == 0


def alone(call: Call, sequence: int) -> Call:
    """The call of one sequence of a batch."""
    start, stop = call.tensors["cu_seqlens"][sequence : sequence + 2].tolist()
    tensors = {name: call.tensors[name][start:stop] for name in ("q", "k", "v", "g", "beta")}
    tensors["cu_seqlens"] = torch.tensor([0, stop - start], dtype=torch.int32)
    tensors["initial_state"] = call.tensors["initial_state"][sequence : sequence + 1]
    return Call(tensors, call.scalars, call.conventions)


BATCH: dict[str, Any] = {"seqlens": (130, 1, 65, 0, 64), "heads": (1, 2), "initial_state": True}


@pytest.mark.slow
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch() -> None:
    call = synth(**BATCH)
    whole = Run(call).outputs
    bounds = call.tensors["cu_seqlens"].tolist()
    for n, (start, stop) in enumerate(pairwise(bounds)):
        found = Run(alone(call, n)).outputs
        assert same(found["o"], whole["o"][start:stop])
        assert same(found["final_state"][0], whole["final_state"][n])


@pytest.fixture(scope="module")
def usual() -> dict[str, Tensor]:
    """Stages and outputs of `BATCH`."""
    run = Run(synth(**BATCH))
    return {**run.stages, **run.outputs}


def test_a_sequence_of_nan_and_inf_reaches_no_other(usual: dict[str, Tensor]) -> None:
    """The neighbours of every tail: a chunk that is not full ends where another sequence begins."""
    call, bad = synth(**BATCH), 2
    bounds = call.tensors["cu_seqlens"].tolist()
    tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
    for name, value in (("q", torch.nan), ("k", torch.inf), ("v", torch.nan), ("g", torch.nan)):
        tensors[name][bounds[bad] : bounds[bad + 1]] = value
    tensors["beta"][bounds[bad] : bounds[bad + 1]] = torch.inf
    tensors["initial_state"][bad] = torch.nan
    found = Run(Call(tensors, call.scalars, call.conventions)).outputs
    assert found["o"][bounds[bad] : bounds[bad + 1]].isnan().all()
    others = [n for n in range(len(bounds) - 1) if n != bad]
    assert same(found["final_state"][others], usual["final_state"][others])
    for n in others:
        assert same(found["o"][bounds[n] : bounds[n + 1]], usual["o"][bounds[n] : bounds[n + 1]])


def assert_same_bits(call: Call, run: Run, wanted: dict[str, Tensor]) -> None:
    total = plan_chunks(call.tensors["cu_seqlens"], 64).total
    for name, tensor in {**run.stages, **run.outputs}.items():
        # A and Ai are not of the workspace: past the last chunk they hold whatever was there.
        rows = slice(total if name in ("A", "Ai") else None)
        assert same(tensor[rows], wanted[name][rows]), name


@pytest.mark.parametrize("schedule", quick(["late", "early", "random:1", "random:2"], 2))
def test_bits_are_those_of_any_schedule(usual: dict[str, Tensor], schedule: str) -> None:
    """The default, "late", a second time: a run does not differ from the next."""
    call = synth(**BATCH)
    assert_same_bits(call, Run(call, schedule=schedule), usual)


@pytest.mark.slow  # each kernel's own tests run both engines
def test_bits_are_those_of_the_other_engine() -> None:
    call = synth(seqlens=(65,), heads=(1, 1), initial_state=True)
    wanted = Run(call)
    found = Run(call, engine="interpreter")
    assert_same_bits(call, found, {**wanted.stages, **wanted.outputs})
    assert found.findings == []


@pytest.mark.slow  # a build of its own; test_chunk_uw.py has the stages
def test_the_build_that_stores_a_and_ai_has_the_same_bits(usual: dict[str, Tensor]) -> None:
    plain = Run(synth(**BATCH), tap=False)
    assert plain.stages == {}
    assert all(same(tensor, usual[name]) for name, tensor in plain.outputs.items())


@pytest.mark.slow  # a build of its own; test_chunk_uw.py has the kernel that differs
def test_beta_to_two_on_its_own_build() -> None:
    """Identical keys and beta 2, where U of the build for beta up to 1 is off by more than its limit."""
    call = synth(seqlens=(256,), heads=(1, 1), key_correlation=1.0, gate_span=0.06, beta=2.0)
    assert_passes(call)
    plain: dict[str, Tensor] = {}
    with simulator():
        sm100(**call.tensors, beta_max=1.0, stages=plain)
    (_, _, _, u, *_) = judge_stages(OPERATION, call, plain, Bound())
    assert u.tensor == "U"
    assert not u.passed


@pytest.mark.slow  # each kernel has tests of its own
def test_kernels_alone_make_the_whole() -> None:
    """Chained by hand, from an inverse that another run stored."""
    call = synth(**BATCH)
    t, whole = call.tensors, Run(call)
    space = Workspace.allocate(len(t["v"]), len(t["cu_seqlens"]) - 1, t["v"].shape[1], CPU)
    o, final, tables = torch.empty_like(t["v"]), torch.empty_like(t["initial_state"]), space.tables
    with simulator():
        kernels.chunk_metadata(t["cu_seqlens"], tables)
        kernels.chunk_uw(
            *(t[name] for name in ("k", "v", "g", "beta", "cu_seqlens")),
            tables,
            g_cu=space.g_cu,
            u=space.u,
            w=space.w,
            ai=whole.stages["Ai"],
            tap="inject_ai",
        )
        kernels.chunk_state(
            t["k"],
            space.u,
            space.w,
            space.g_cu,
            t["cu_seqlens"],
            tables,
            initial_state=t["initial_state"],
            h=space.h,
            v_new=space.v_new,
            final_state=final,
        )
        kernels.chunk_output(
            t["q"], t["k"], space.v_new, space.h, space.g_cu, t["cu_seqlens"], tables, o=o, scale=128**-0.5
        )
    assert same(o, whole.outputs["o"])
    assert same(final, whole.outputs["final_state"])


@pytest.mark.slow
def test_a_state_may_be_updated_in_place(usual: dict[str, Tensor]) -> None:
    call = synth(**BATCH)
    states = call.tensors["initial_state"].clone()
    with simulator():
        returned = sm100(**{**call.tensors, "initial_state": states}, final_state=states)
    assert returned["final_state"] is states
    assert same(states, usual["final_state"])
    assert same(returned["o"], usual["o"])


@pytest.mark.slow
def test_strided_and_unaligned_tensors_are_taken(usual: dict[str, Tensor]) -> None:
    """q and k as views of one tensor, the rest an element off, outputs too."""
    call = synth(**BATCH)

    def shifted(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)

    tensors = {name: shifted(tensor) for name, tensor in call.tensors.items()}
    both = torch.cat([tensors["q"], tensors["k"]], dim=1)
    tensors["q"], tensors["k"] = both[:, :1], both[:, 1:]
    o = torch.full((len(tensors["v"]), 2, 256), 7.0, dtype=torch.bfloat16)[..., 64:192]
    final = shifted(torch.zeros_like(usual["final_state"]))
    with simulator():
        returned = sm100(**tensors, o=o, final_state=final)
    assert returned["o"] is o
    assert returned["final_state"] is final
    assert same(o.contiguous(), usual["o"])
    assert same(final, usual["final_state"])


def test_gates_and_steps_of_16_bits_are_widened() -> None:
    call = synth(seqlens=(70,), heads=(1, 2), initial_state=True)
    narrow = {name: call.tensors[name].to(torch.bfloat16) for name in ("g", "beta")}
    wide = {name: tensor.float() for name, tensor in narrow.items()}
    with simulator():  # the build with taps, as the other tests'
        found, wanted = (sm100(**{**call.tensors, **given}, stages={}) for given in (narrow, wide))
    assert all(same(found[name], wanted[name]) for name in wanted)


@pytest.mark.slow  # so is suites/check.toml, which has them all
@pytest.mark.parametrize("capture", ["resumed", "packed", "prefill"])
def test_shipped_captures(capture: str) -> None:
    with open_store(CAPTURES / f"{capture}.zarr.zip") as store:
        report = replay(store, kernel="sm100", on="sim", op="gdn_prefill")
    assert [(result.outcome, result.reason) for result in report.records] == [(Outcome.PASS, "")] * len(
        report.records
    )


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "K and V": ({"head_dim": (64, 128)}, {}, "take K = V = 128, not K = 64 and V = 128"),
    "dtype of q": ({"dtype": "float16"}, {}, "take . as bfloat16, not as float16"),
    "dtype of a state": ({"initial_state": True, "state_dtype": "float16"}, {}, "not as float16"),
    "dtype of the final state": ({}, {"final_state_dtype": "float16"}, "not as float16"),
    "offsets": ({"offsets_dtype": "int64"}, {}, "take cu_seqlens as int32, not as int64"),
    "chunk size": ({}, {"chunk_size": 32}, "take chunks of 64 tokens, not of 32"),
    "beta_max": ({}, {"beta_max": 2.5}, "take beta up to 2, .* beta_max is 2.5"),
    "beta_max NaN": ({}, {"beta_max": float("nan")}, "take beta up to 2, .* beta_max is nan"),
}


@pytest.mark.parametrize(("made", "passed", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("tokens", [0, 3])
def test_refused_by_name(made: dict[str, Any], passed: dict[str, Any], message: str, tokens: int) -> None:
    call = synth(**{"seqlens": (tokens,), "heads": (1, 1), **made})
    with simulator() as session, pytest.raises(NotImplementedError, match=message):
        sm100(**call.tensors, **{**call.scalars, **passed})
    assert session.reports == []


WRONG: dict[str, tuple[str, Tensor, str]] = {
    "g": ("g", torch.zeros(3, 1), wording("kernels.shape-refused", tensor="g", shape=[3, 1], wanted=[3, 2])),
    "heads": (
        "v",
        torch.zeros(3, 3, 128).bfloat16(),
        wording("kernels.heads-multiple", value_heads=3, heads=2),
    ),
    "o": (
        "o",
        torch.zeros(3, 1, 128).bfloat16(),
        wording("kernels.shape-refused", tensor="o", shape=[3, 1, 128]),
    ),
    "axes": ("q", torch.zeros(3, 128).bfloat16(), "q has 2 axes"),
}


@pytest.mark.parametrize(("name", "tensor", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(name: str, tensor: Tensor, message: str) -> None:
    call = synth(seqlens=(3,), heads=(2, 2))
    with simulator() as session, pytest.raises(ValueError, match=message):
        sm100(**{**call.tensors, name: tensor})
    assert session.reports == []


def test_a_final_state_that_is_not_to_be_filled_is_refused() -> None:
    call = synth(seqlens=(3,), heads=(1, 1))
    final = torch.zeros(1, 1, 128, 128)
    with simulator() as session, pytest.raises(ValueError, match=wording("kernels.final-state-given")):
        sm100(**call.tensors, final_state=final, output_final_state=False)
    assert session.reports == []


@pytest.mark.parametrize(("tokens", "elements"), [(3, 1), (3, 0), (0, 0)])
def test_tokens_of_no_sequence_are_refused(tokens: int, elements: int) -> None:
    call = synth(seqlens=(tokens,), heads=(1, 1))
    none = torch.zeros(elements, dtype=torch.int32)
    with (
        simulator() as session,
        pytest.raises(ValueError, match=wording("kernels.no-sequence", elements=elements)),
    ):
        sm100(**{**call.tensors, "cu_seqlens": none})
    assert session.reports == []


def test_a_state_needs_a_sequence_to_be_carried_through() -> None:
    space = Workspace.allocate(3, 1, 1, CPU)
    tables = replace(space.tables, offsets=torch.zeros(1, dtype=torch.int32))
    k, bounds = torch.zeros(3, 1, 128).bfloat16(), torch.zeros(1, dtype=torch.int32)
    given = (k, space.u, space.w, space.g_cu, bounds, tables)
    with simulator() as session, pytest.raises(ValueError, match=wording("kernels.no-sequence-state")):
        kernels.chunk_state(*given, initial_state=None, h=space.h, v_new=space.v_new, final_state=None)
    assert session.reports == []


def test_offsets_past_the_tokens_write_no_table_behind_its_end() -> None:
    """cu_seqlens is not read on the host: what it may do is bounded by the tables."""
    guarded = Guarded()
    made = ChunkTables.allocate(130, 3, CPU)
    tables = ChunkTables(*(guarded.tensor(getattr(made, field.name)) for field in fields(made)))
    bound = len(tables.indices)
    with simulator():
        kernels.chunk_metadata(torch.tensor([0, 64, 10**6, 2 * 10**6], dtype=torch.int32), tables)
    guarded.check()
    assert tables.offsets.tolist() == [0, 1, bound, bound]
    assert tables.total.item() == bound
    assert tables.indices.tolist() == [[0, 0], *([1, c] for c in range(bound - 1))]


LARGE: dict[str, tuple[int, int, int, str]] = {  # T, N, Hv
    "gates": (2**26, 1, 32, "take (g|beta) of less than 2.31 elements; it has 2147483648"),
    "initial states": (4, 2**12, 32, "take initial_state of less than 2.31 elements; it has 2147483648"),
    "rows of chunks": (2**20, 2**20, 32, "take less than 2.31 rows of chunks and value heads"),
}


@pytest.mark.parametrize(("tokens", "sequences", "heads", "message"), LARGE.values(), ids=LARGE)
def test_what_32_bits_do_not_count_is_refused(tokens: int, sequences: int, heads: int, message: str) -> None:
    """Tensors of no memory, which no kernel could be launched on."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q = k = meta(tokens, 1, 128)
    v, gates = meta(tokens, heads, 128), meta(tokens, heads, dtype=torch.float32)
    bounds = meta(sequences + 1, dtype=torch.int32)
    first = meta(sequences, heads, 128, 128) if message.startswith("take initial") else None
    with simulator() as session, pytest.raises(NotImplementedError, match=message):
        sm100(
            q=q,
            k=k,
            v=v,
            g=gates,
            beta=gates,
            cu_seqlens=bounds,
            initial_state=first,
            output_final_state=first is not None,
        )
    assert session.reports == []


def test_a_stored_inverse_of_2_31_elements_is_refused() -> None:
    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q, v, gates = meta(2**20, 1, 128), meta(2**20, 32, 128), meta(2**20, 32, dtype=torch.float32)
    inputs = {"q": q, "k": q, "v": v, "g": gates, "beta": gates, "cu_seqlens": meta(2, dtype=torch.int32)}
    with (
        simulator() as session,
        pytest.raises(NotImplementedError, match=wording("kernels.element-count", tensor="a")),
    ):
        sm100(**inputs, stages={})
    assert session.reports == []
