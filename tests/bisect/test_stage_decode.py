# SPDX-License-Identifier: Apache-2.0
"""The stage axis of gdn_decode: faults in a known step, in one call and in what many calls add up to."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gdnbench.bisect.session import Session
from gdnbench.bisect.stage import find as finding
from gdnbench.bisect.stage import record_probes
from gdnbench.bisect.stage.chain import chain as chain_steps
from gdnbench.bisect.stage.result import StageResult
from gdnbench.bisect.stage.text import answer, as_json, says
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State
from gdnbench.errors import BadInputError
from gdnbench.replay.kernels import load
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION, slots_of
from tests.messages import wording

FOLDER = Path(__file__).parent
KERNELS = FOLDER / "staged_decode.py"
STEPS = 20
TOLERANCE = 4e-3
"""More than one call makes of a beta of 8 bits, which moves the state by 2^-9 |v - S k| |k| at most: of
normal values, and keys of norm 1 over 16 elements, some 1e-3. Twenty calls that forget nothing add up to
more."""


def beside(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"bisect_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes run in this process."""
    stand_in = beside("here").Here
    monkeypatch.setattr(finding, "ProbeWorker", stand_in)
    monkeypatch.setattr(record_probes, "TrialWorker", stand_in)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.begin(tmp_path / "state", "stage", {}, lambda line: None)


def drafts(**options: Any) -> Call:
    """Four tokens a sequence, padding, tokens without a slot; the first sequence that runs is marked."""
    given = {
        "batch": 4,
        "heads": (1, 2),
        "head_dim": (16, 16),
        "slots": 40,
        "steps": 4,
        "speculative": True,
        "padding": 0.4,
        "holes": 0.3,
        "seed": 5,
    }
    call = synthesise("gdn_decode", **{**given, **options})
    v = call.tensors["v"].clone()
    v[int(slots_of(call).active[0]), 0, 0, 0] = beside("staged_decode").MARK
    return replace(call, tensors={**call.tensors, "v": v})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls of given and of raw gates, whose pools have slots that were not captured."""
    path = tmp_path_factory.mktemp("made") / "store.zarr"
    calls = [drafts(gate="log"), drafts(gate="raw", qk="raw")]
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call, index=index) for index, call in enumerate(calls)])
    with Store.open(path) as opened:
        assert all(len(one.info.pools["state"].rows) < 40 for one in opened.records)
    return path


def found(
    store: Path, kernel: str, session: Session, record: int = 0, carry: bool = False, **more: Any
) -> StageResult:
    return finding.find_bad_stage(
        Trial(str(store), f"{KERNELS}:{kernel}", records=(record,), **more), session, carry
    )


def said(result: StageResult) -> dict[str, str]:
    return {row.name: says(row) for row in result.rows if says(row)}


@pytest.mark.parametrize("record", [0, 1], ids=["given gates", "raw gates"])
def test_a_beta_of_8_bits_is_named_and_mended(store: Path, session: Session, record: int) -> None:
    result = found(store, "beta", session, record)
    assert result.same_bits is True
    assert {name for name, what in said(result).items() if what == "adds"} == {"beta_t"}
    assert said(result)["delta_t"] == said(result)["state"] == "inherits"
    assert re.search(wording("bisect.stage-mended", stage="beta_t") + "$", answer(result))


def test_one_element_of_an_update_is_placed(store: Path, session: Session) -> None:
    faulty = beside("staged_decode")
    result = found(store, "delta", session)
    assert said(result) == {"delta_t": "adds"}
    assert result.first is not None
    assert result.first.alone is not None
    at = result.first.alone["at"]
    with Store.open(store) as opened:
        v = opened.records[0].before["v"].read()
    (marked,) = (v[:, 0, 0, 0] == faulty.MARK).nonzero().flatten().tolist()
    assert at["index"] == [marked, faulty.TOKEN, faulty.HEAD, faulty.ROW]
    assert (at["sequence"], at["token"], at["head"]) == (marked, faulty.TOKEN, faulty.HEAD)
    assert re.search(wording("bisect.stage-harmless", within="") + "$", answer(result))


@pytest.mark.parametrize("kernel", ["state", "o"])
def test_what_the_update_leaves_is_an_output(store: Path, session: Session, kernel: str) -> None:
    result = found(store, kernel, session)
    assert said(result) == {kernel: "adds"}
    assert answer(result).endswith("it is an output")


def test_a_kernel_that_is_right_passes(store: Path, session: Session) -> None:
    for record in (0, 1):
        assert found(store, "right", session, record).label is None


def test_a_step_changes_a_pool_of_its_own() -> None:
    call, kernel = drafts(gate="log"), load("torch", OPERATION)
    before = call.tensors["state"].clone()
    made = chain_steps(kernel, OPERATION, call, {})
    assert torch.equal(call.tensors["state"], before)
    assert not torch.equal(made["state"], before)
    again = chain_steps(kernel, OPERATION, call, {})
    assert torch.equal(made["state"], again["state"])


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = beside("chains").chain(tmp_path_factory.mktemp("chain") / "chain.zarr", STEPS)
    return path


def test_what_many_calls_add_up_is_named_in_one_of_them(chain: Path, session: Session) -> None:
    """Every output keeps the tolerance; beta_t does not keep its own bound, and exact it mends the chain."""
    last = 2 * STEPS - 2  # of the first of two layers that take turns
    result = found(chain, "beta", session, last, carry=True, tol=(TOLERANCE, 0.0))
    assert {name for name, what in said(result).items() if what == "adds"} == {"beta_t"}
    assert [row.chained["passed"] for row in result.rows if not row.stage and row.chained] == [True, True]
    assert result.chain is not None
    assert result.chain.before == STEPS - 1
    assert (result.chain.own.state, result.chain.mended.state) == (State.BAD, State.GOOD)
    assert as_json(result)["chain"]["keeps_with_exact"] is True
    text = answer(result)
    assert re.search(wording("bisect.stage-harmless", within=" within their tolerance"), text)
    keeps = re.compile(wording("bisect.keeps-bound"))
    assert re.search(wording("bisect.stage-in-chain", stage="beta_t", mended=keeps) + "$", text)


def test_outputs_are_held_to_the_tolerance_and_stages_are_not(chain: Path, session: Session) -> None:
    result = found(chain, "beta", session, 0, tol=(1e-7, 0.0))
    limits = {row.name: row.chained["held"]["limit"] for row in result.rows if row.chained is not None}
    assert (limits["state"], limits["o"]) == (1e-7, 1e-7)
    assert limits["beta_t"] < 2**-24  # half an ULP of a beta below 1, and nothing of torch's
    # o is kept in 8 bits, which no exact stage brings within 1e-7.
    fails = wording("bisect.stage-not-mended", stage="beta_t", reason=re.compile("o: .*"))
    assert re.search(fails, answer(result))
    assert found(chain, "beta", session, 0, tol=(TOLERANCE, 0.0)).first is not None
    assert found(chain, "right", session, 0, tol=(TOLERANCE, 0.0)).label is None


def test_a_first_call_has_none_before_it(chain: Path, session: Session) -> None:
    assert found(chain, "beta", session, 0, carry=True).chain is None
    trial = Trial(str(chain), f"{FOLDER / 'chains.py'}:rounds_beta", records=(5,))
    with pytest.raises(BadInputError, match=wording("bisect.steps-missing")):
        finding.find_bad_stage(trial, session, carry=True)
