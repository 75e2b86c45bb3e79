# SPDX-License-Identifier: Apache-2.0
"""The stage axis: kernels with faults of known stages and places, on the CPU and on the simulated SM100."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gdnbench.bisect import cache_key, flakiness
from gdnbench.bisect.session import Session
from gdnbench.bisect.stage import find as finding
from gdnbench.bisect.stage import probe, record_probes
from gdnbench.bisect.stage.result import StageResult
from gdnbench.bisect.stage.text import answer, notes, says
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State
from gdnbench.errors import BadInputError
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.kda_prefill.contract import OPERATION as KDA
from gdnbench_kernels.run import run_kernel
from tests.messages import wording
from tests.subset import quick

FOLDER = Path(__file__).parent
STAGED = FOLDER / "staged.py"
SEQLENS = (70, 0, 140, 16)
SPOILED = 134
"""First token of chunk 1 of sequence 2, which is chunk 3 of all."""


def beside(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"bisect_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, *calls: tuple[str, Call]) -> Path:
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft(op, call, index=index) for index, (op, call) in enumerate(calls)])
    return path


def made(op: str = "gdn_prefill", **options: object) -> Call:
    """A call whose chunk 1 of sequence 2 is marked, or with chunks of 16 tokens its chunk 4."""
    given = {
        "seqlens": SEQLENS,
        "heads": (1, 2),
        "head_dim": (32, 32),
        "initial_state": True,
        "key_correlation": 0.5,
        "gate_span": 1.0,
        "seed": 5,
    }
    call = synthesise(op, **{**given, **options})
    v = call.tensors["v"].clone()
    v[SPOILED, 0, 0] = 3
    return Call({**call.tensors, "v": v}, call.scalars, call.conventions)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record 0: prefill. Record 1: decode attention, which has no stages."""
    attention = synthesise("swa_decode", lens=(3,), heads=1, window=4)
    return write(
        tmp_path_factory.mktemp("made") / "store.zarr", ("gdn_prefill", made()), ("swa_decode", attention)
    )


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.begin(tmp_path / "state", "stage", {}, lambda line: None)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes run in this process, with fewer repeats; tests/bisect/test_trial.py has all of them."""
    monkeypatch.setattr(flakiness, "RUNS", 2)
    stand_in = beside("here").Here
    monkeypatch.setattr(finding, "ProbeWorker", stand_in)
    monkeypatch.setattr(record_probes, "TrialWorker", stand_in)


def found(store: Path, kernel: str, session: Session, record: int = 0) -> StageResult:
    name = kernel if ":" in kernel or kernel == "torch" else f"{STAGED}:{kernel}"
    return finding.find_bad_stage(Trial(str(store), name, records=(record,)), session)


def said(result: StageResult) -> dict[str, str]:
    return {row.name: says(row) for row in result.rows if says(row)}


# Where: staged.py adds to row or token 3 of the chunk.
TAPPED = FOLDER / "tapped.py"
ALIKE = {"key_correlation": 0.9, "beta": 1.0}
COUNTED = """
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from gdnbench import sim
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse

TEXT = ".version 8.7\\n.target sm_100a\\n.address_size 64\\n.visible .entry k()\\n{{\\n    ret;\\n}}\\n"
spec = spec_from_file_location("counted_staged", {staged!r})
module = module_from_spec(spec)
spec.loader.exec_module(module)


def kernel(*, stages=None, **call):
    with Path(__file__).with_name("runs").open("a") as runs:
        runs.write("run")
    sim.launch(PtxKernel(parse(TEXT), "k", (1, 1, 1), (32, 1, 1)))
    return module.without_steps(stages=stages, **call)
"""
TOKENS, SQUARES = {"U": 5, "W": 5, "V_new": 5}, ("A", "Ai", "P")


@pytest.mark.parametrize("name", quick(["g_cu", "A", "Ai", "U", "W", "h", "V_new", "P", "o"], 2))
def test_each_spoiled_stage_is_the_one_that_adds(store: Path, session: Session, name: str) -> None:
    result = found(store, name, session)
    assert [row.name for row in result.rows if row.adds] == [name]
    assert result.same_bits is True
    first = result.first
    assert first is not None
    assert first.alone is not None
    at = first.alone["at"]
    assert (at["sequence"], at["chunk"], at["head"]) == (2, 1, 1)
    if name == "g_cu":
        assert at["index"] == [SPOILED + 3, 1]
    elif name in TOKENS:
        assert at["index"] == [3 * 64 + 3, 1, TOKENS[name]]
        assert at["token"] == 67
    elif name in SQUARES:
        assert (at["index"], at["dims"]) == ([3, 1, 3, 1], {"row": 3, "column": 1})
    elif name == "h":
        assert at["index"] == [3, 1, 3, 5]
    text = answer(result)
    assert text.startswith(f"{name} of ")
    assert "sequence 2, chunk 1" in text
    if name == "o":
        assert text.endswith("it is an output")
    else:
        assert re.search(wording("bisect.stage-mended", stage=name) + "$", text)
        assert "o" in said(result)
        assert said(result)["o"] == "inherits"


def test_what_a_chunk_hands_on_is_told_from_what_it_stores(store: Path, session: Session) -> None:
    """Chunk 1 hands on a wrong state, so that h is wrong from chunk 2 on: the fault is chunk 1's."""
    result = found(store, "carried", session)
    assert [row.name for row in result.rows if row.adds] == ["h"]
    text = answer(result)
    assert "sequence 2, chunk 1" in text
    assert re.search(
        wording("bisect.stage-handed-on") + "; " + wording("bisect.stage-mended", stage="h"), text
    )


@pytest.mark.slow
def test_two_spoiled_stages_are_both_named(store: Path, session: Session) -> None:
    result = found(store, "two", session)
    assert [row.name for row in result.rows if row.adds] == ["U", "V_new"]
    assert said(result)["V_new"] == "adds and inherits"
    assert [graft.exact for graft in result.grafts] == [("U",), ("U", "V_new")]
    assert [graft.verdict.state for graft in result.grafts] == [State.BAD, State.GOOD]
    assert re.search(wording("bisect.stage-mended-together", stages="U and V_new") + "$", answer(result))


@pytest.mark.every(3)
@pytest.mark.parametrize("name", quick(["A", "W", "P", "carried", "right"], 1, 3, 4))
def test_gates_by_channel(tmp_path: Path, session: Session, name: str) -> None:
    """kda_prefill: the same search in chunks of 16."""
    store = write(tmp_path / "store.zarr", ("kda_prefill", made("kda_prefill")))
    result = found(store, f"kda_{name}", session)
    if name == "right":
        assert result.label is None
        return
    stage = "h" if name == "carried" else name
    assert [row.name for row in result.rows if row.adds] == [stage]
    assert result.same_bits is True
    assert result.first is not None
    assert result.first.alone is not None
    at = result.first.alone["at"]
    assert (at["sequence"], at["chunk"]) == (2, 4)
    if name != "carried":  # both value heads have the key head of the wrong keys
        assert at["head"] == 1
    if name == "W":
        assert at["index"] == [(5 + 4) * 16 + 3, 1, 5]
    text = answer(result)
    assert re.search(wording("bisect.stage-mended", stage=stage) + "$", text)
    assert bool(re.search(wording("bisect.stage-handed-on"), text)) == (name == "carried")


@pytest.mark.parametrize("kernel", ["torch", "right"])
def test_a_kernel_that_is_right_passes(store: Path, session: Session, kernel: str) -> None:
    result = found(store, kernel, session)
    assert result.label is None
    assert "passes" in answer(result)


@pytest.mark.slow
def test_a_kernel_without_steps_is_compared_with_exact_steps_on_its_own_stages(
    store: Path, session: Session
) -> None:
    result = found(store, "without_steps", session)
    assert said(result)["W"] == "adds"
    assert {what for name, what in said(result).items() if name != "W"} == {"inherits"}
    assert answer(result).startswith("W of ")
    assert re.search(wording("bisect.stage-carries", reason=re.compile("o: .*")) + "$", answer(result))


@pytest.mark.parametrize("kernel", quick(["gates_and_u", "gates_and_u_shown"], 0))
def test_the_stage_named_is_the_one_that_explains_the_outputs(
    store: Path, session: Session, kernel: str
) -> None:
    """Gates in fp16 come first and are over their bound by far; an exact g_cu would mend nothing."""
    result = found(store, kernel, session)
    assert [row.name for row in result.rows if row.adds] == ["g_cu", "U"]
    assert [row.explains for row in result.rows if row.adds] == [False, True]
    assert result.first is not None
    assert result.first.name == "U"
    (note,) = [note for note in notes(result) if note.startswith("g_cu")]
    assert re.fullmatch(wording("bisect.stage-unexplaining", stage="g_cu"), note)
    if kernel == "gates_and_u":
        assert [(graft.exact, graft.verdict.state) for graft in result.grafts] == [(("U",), State.GOOD)]
    else:
        assert result.grafts == ()


def test_three_rounds_of_an_inverse_are_named_and_an_ulp_of_the_gates_is_not(
    tmp_path: Path, session: Session
) -> None:
    """The kernel of tapped.py shows g_cu, U and W. torch sums equal gates of few bits exactly."""
    drawn = synthesise("gdn_prefill", seqlens=(70,), heads=(1, 1), head_dim=(32, 32), seed=5, **ALIKE)
    gates = torch.full_like(drawn.tensors["g"], -(2.0**-6))
    call = Call({**drawn.tensors, "g": gates}, drawn.scalars, drawn.conventions)
    there = write(tmp_path / "store.zarr", ("gdn_prefill", call))
    assert found(there, f"{TAPPED}:four", session).label is None
    result = found(there, f"{TAPPED}:three", session)
    assert result.first is not None
    assert (result.first.name, result.first.hidden) == ("U", ("A", "Ai"))
    (gates,) = [row for row in result.rows if row.name == "g_cu"]
    assert (gates.wrong, gates.adds) == (False, False)
    assert re.search(wording("bisect.stage-hidden", stages="A or Ai"), answer(result))
    assert [(graft.exact, graft.verdict.state) for graft in result.grafts] == [(("U", "W"), State.GOOD)]
    assert re.search(wording("bisect.stage-mended", stage="U and W") + "$", answer(result))


@pytest.mark.slow  # the simulator's compiler
def test_on_the_simulator_the_run_that_was_judged_is_not_repeated(
    store: Path, session: Session, tmp_path: Path
) -> None:
    """One run shows all stages; it is repeated under each of three schedules."""
    (tmp_path / "counted.py").write_text(COUNTED.format(staged=str(STAGED)))
    trial = Trial(str(store), f"{tmp_path / 'counted.py'}:kernel", on="sim", records=(0,))
    result = finding.find_bad_stage(trial, session)
    assert result.first is not None
    assert result.first.name == "W"
    assert (tmp_path / "runs").read_text().count("run") == 1 + 3


def test_what_has_no_stages_says_what_to_use(store: Path, session: Session) -> None:
    with pytest.raises(BadInputError, match=wording("bisect.stages-missing", operation="swa_decode")):
        found(store, "torch", session, record=1)
    with pytest.raises(BadInputError, match=wording("bisect.stages-invisible")):
        found(store, "without_stages", session)


@pytest.mark.slow  # many replays; test_record.py has the same
def test_what_is_known_is_not_asked_again(store: Path, session: Session) -> None:
    first = found(store, "U", session)
    before = len(session.verdicts)
    assert answer(found(store, "U", session)) == answer(first)
    assert len(session.verdicts) == before


@pytest.mark.slow  # a long record
def test_identical_keys_where_torch_is_off(tmp_path: Path, session: Session) -> None:
    """torch keeps A in bf16: by its own rounding A passes, and Ai of it does not; no step adds anything."""
    call = made(key_correlation=1.0, beta=1.0, gate_span=0.06, head_dim=(128, 128))
    result = found(write(tmp_path / "store.zarr", ("gdn_prefill", call)), "torch", session)
    assert result.first is None
    wrong = [row.name for row in result.rows if row.wrong]
    assert wrong[:2] == ["Ai", "U"]
    assert "inherits" in answer(result)


@pytest.mark.parametrize("operation", [OPERATION, KDA], ids=lambda operation: operation.name)
def test_chunks_apart_are_the_call(operation: Operation) -> None:
    """The chunks of a call, each from the exact state before it, leave what the call leaves."""
    call = made(operation.name, seqlens=(70, 0, 140, 64))  # the last chunk is whole
    exact: dict[str, torch.Tensor] = {}
    whole = run_kernel(operation, "reference_staged", call, exact)
    assert operation.cut is not None
    cut = operation.cut.of(call, exact)
    operation.validate(cut)
    stages: dict[str, torch.Tensor] = {}
    apart = run_kernel(operation, "reference_staged", cut, stages)
    # States go through fp32 on the way: relative 2^-24, of which a chunk makes no more.
    assert torch.allclose(apart["o"], whole["o"], rtol=0, atol=64 * 2**-24 * float(whole["o"].abs().max()))
    back = operation.cut.back(call, {**stages, **apart})
    final = whole["final_state"].float()
    assert torch.allclose(back["final_state"], final, rtol=0, atol=64 * 2**-24 * float(final.abs().max()))
    assert torch.equal(back["final_state"][1], call.tensors["initial_state"][1].float())


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Identical keys and beta 1, which an inverse that stops early does not bear: one chunk of one head."""
    call = synthesise(
        "gdn_prefill",
        seqlens=(64,),
        heads=(1, 1),
        head_dim=(128, 128),
        key_correlation=1.0,
        beta=1.0,
        gate_span=0.06,
        offsets_dtype="int32",
        initial_state=True,
        seed=5,
    )
    return write(tmp_path_factory.mktemp("alike") / "store.zarr", ("gdn_prefill", call))


def asked(kernel: str, store: Path) -> dict[str, object]:
    return {
        "store": str(store),
        "kernel": kernel,
        "on": "sim",
        "record": 0,
        "content": cache_key.digest_store(str(store), lambda _: [0]),
        "k": None,
        "tol": None,
        "schedules": ["late"],
    }


SM100 = {"A": "float32", "Ai": "float32", "U": "bfloat16", "W": "bfloat16", "g_cu": "float32"}
KEPT = SM100 | {"h": "bfloat16", "V_new": "bfloat16"}


@pytest.mark.slow
def test_sm100_adds_nothing_and_its_steps_are_what_it_does(alike: Path) -> None:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    chained = probe.chained(**asked("sm100", alike), compare_steps=True)  # type: ignore[arg-type]
    assert chained.state is State.GOOD, chained.reason
    assert chained.facts["same_bits"] is True
    for step in ("form_a", "invert", "form_uw", "chunk_state", "chunk_output"):
        alone = probe.alone(**asked("sm100", alike), step=step, dtypes=KEPT)  # type: ignore[arg-type]
        assert alone.state is State.GOOD, (step, alone.reason)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """sm100 with an inverse that stops too early."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "planted"]:
        monkeypatch.delitem(sys.modules, name)
    return str(beside("planted").plant(tmp_path))


@pytest.mark.slow
def test_an_inverse_that_stops_early_on_sm100_is_named(alike: Path, planted: str) -> None:
    given = asked(planted, alike)
    chained = probe.chained(**given)  # type: ignore[arg-type]
    assert chained.state is State.BAD
    wrong = [entry["tensor"] for entry in chained.facts["tensors"] if not entry["passed"]]
    assert wrong[0] == "Ai"
    assert "o" in wrong
    states = {
        step: probe.alone(**given, step=step, dtypes=KEPT).state  # type: ignore[arg-type]
        for step in ("form_a", "invert", "form_uw")
    }
    assert states == {"form_a": State.GOOD, "invert": State.BAD, "form_uw": State.GOOD}
    mended = probe.grafted(**given, exact=["Ai"], dtypes=KEPT)  # type: ignore[arg-type]
    assert mended.state is State.GOOD


def test_the_store_of_these_tests_is_what_they_say(store: Path) -> None:
    with Store.open(store) as opened:
        v = opened.records[0].before["v"].read()
    assert [int(i) for i in torch.nonzero(v[:, 0, 0] == 3).flatten()] == [SPOILED]
