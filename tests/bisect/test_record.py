# SPDX-License-Identifier: Apache-2.0
"""The record axis: chains of decode calls with faults at a known call, or in all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.bisect.record import find as finding
from gdnbench.bisect.record.drift import first_growth, first_over
from gdnbench.bisect.record.find import Found, RecordBisection
from gdnbench.bisect.record.links import links_of
from gdnbench.bisect.record.text import answer, notes
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError
from gdnbench.judge.calls import compact_call
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

FOLDER = Path(__file__).parent
STEPS, MARKED = 48, (1, 17)
NUMBER = 2 * MARKED[1] + MARKED[0]
"""Of the marked call: two layers take turns."""
CAPTURED = FOLDER.parents[1] / "captures" / "resumed.zarr.zip"


@pytest.fixture(scope="module")
def chain(beside: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = beside("chains").chain(tmp_path_factory.mktemp("chain") / "chain.zarr", STEPS, MARKED)
    return path


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.begin(tmp_path / "state", "record", {}, lambda line: None)


@pytest.fixture(autouse=True)
def here(beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes run in this process."""
    stand_in = beside("here").Here
    monkeypatch.setattr(finding, "ProbeWorker", stand_in)
    monkeypatch.setattr(finding, "TrialWorker", stand_in)


def asked(chain: Path, kernel: str, **more: object) -> RecordBisection:
    trial = Trial(str(chain), f"{FOLDER / 'chains.py'}:{kernel}")
    given = {name: more.pop(name) for name in ("records", "tol", "k") if name in more}
    return RecordBisection(replace(trial, **given), **more)  # type: ignore[arg-type]


@pytest.mark.every(3)
@pytest.mark.parametrize("kernel", ["spoils_state", "spoils_output", "leaves_unwritten"])
def test_the_call_that_is_spoiled_is_the_first_bad_one(chain: Path, session: Session, kernel: str) -> None:
    found = finding.find_bad_call(asked(chain, kernel), session)
    assert found.first is not None
    assert (found.first.number, found.first.layer_index, found.first.step) == (NUMBER, *MARKED)
    # The other layer's calls have nothing to do with it; all of its own before it have.
    assert found.before == tuple(range(1, NUMBER, 2))
    assert found.carry is not None
    assert (found.carry.starts, found.carry.over) == (NUMBER, None)
    assert re.search(wording("bisect.starts-carried", calls="17 earlier calls") + "$", answer(found))


@pytest.mark.slow
def test_a_kernel_that_is_right_passes_alone_and_carried(chain: Path, session: Session) -> None:
    found = finding.find_bad_call(asked(chain, "right", carry=True, records=tuple(range(80))), session)
    assert not found.bad
    assert found.carry is not None
    assert (found.carry.calls, found.carry.lanes) == (80, 4)


@pytest.mark.slow  # many replays
def test_any_bad_call_will_do_and_layers_are_told_apart(chain: Path, session: Session) -> None:
    found = finding.find_bad_call(asked(chain, "spoils_state", any=True), session)
    assert found.first is not None
    assert found.first.number == NUMBER
    assert not finding.find_bad_call(asked(chain, "spoils_state", layer="0"), session).bad
    assert finding.find_bad_call(asked(chain, "spoils_state", layer="layers.1"), session).bad
    with pytest.raises(
        BadInputError, match=wording("bisect.layer-unknown", layer=7, known="layers.0, layers.1")
    ):
        finding.find_bad_call(asked(chain, "spoils_state", layer="7"), session)


# beta in bf16 is off by up to 2^-9 of it, and an element of the state by that times |v - S k| |k|: 4e-3 at
# most in one call, as the test sees for itself. Gates are slow, so calls leave the sum of what they are off.
ONE_CALL = 4e-3


def test_beta_in_bf16_passes_in_each_call_and_adds_up(chain: Path, session: Session) -> None:
    with Store.open(chain) as store:
        for record in store.records:
            call = compact_call(record, OPERATION, torch.device("cpu"))
            rounded = {**call.tensors, "beta": call.tensors["beta"].bfloat16().float()}
            states = [
                run_kernel(OPERATION, "reference", Call(given, call.scalars, call.conventions))["state"]
                for given in (call.tensors, rounded)
            ]
            assert float((states[0] - states[1]).abs().max()) < ONE_CALL
    found = finding.find_bad_call(asked(chain, "rounds_beta", tol=(ONE_CALL, 0.0), carry=True), session)
    assert found.bad
    assert found.first is None
    assert found.carry is not None
    assert found.carry.over is not None
    assert found.carry.over.step > 0
    assert found.carry.starts is None
    assert "calls add it up" in answer(found)


def test_beta_in_bf16_is_bad_at_once_where_states_are_fp32(chain: Path, session: Session) -> None:
    found = finding.find_bad_call(asked(chain, "rounds_beta"), session)
    assert found.first is not None
    assert found.first.number == 0
    assert re.search(wording("bisect.starts-without-state") + "$", answer(found))


def entries(own: list[float], torchs: list[float]) -> list[dict[str, object]]:
    return [
        {"number": i, "row": 0, "lane": "slot 0", "own": [x], "torch": [y], "eps": 2**-23, "beyond": None}
        for i, (x, y) in enumerate(zip(own, torchs, strict=True))
    ]


def test_where_an_error_goes_over_its_bound() -> None:
    """torch's 1e-7 allows 2e-7 and half an ULP, 6e-8, over 16 calls together."""
    steady = [1e-7] * 64
    assert first_over(entries(steady, steady), None, False, range(64)) is None
    jumps = [1e-7] * 37 + [1e-3] * 27
    over = first_over(entries(jumps, steady), None, False, range(64))
    assert over is not None
    assert (over.number, over.step, over.error) == (37, 37, 1e-3)
    assert over.limit == pytest.approx(2e-7 + 2**-24)
    at_the_end = [1e-7] * 63 + [1e-3]
    over = first_over(entries(at_the_end[:60] + at_the_end[60:], steady), None, False, range(64))
    assert over is not None
    assert over.number == 63
    assert first_growth(entries(steady, steady)) is None
    grows = [1e-8 * (i // 16 + 1) ** 0.5 for i in range(64)]
    found = first_growth(entries(grows, [1e-8] * 64))
    assert found is not None
    assert found.slope == pytest.approx(0.5)


def test_links_stand_where_the_bits_do(chain: Path, tmp_path: Path) -> None:
    with Store.open(chain) as store:
        links = links_of(store.records)
        assert links.before[(NUMBER, 0)] == (NUMBER - 2, 0)
        assert links.ancestors(NUMBER) == list(range(1, NUMBER, 2))
        assert links.lanes[(NUMBER, 1)] == links.lanes[(1, 1)] == "slot 2 from record 1"
        assert (0, 0) not in links.before
    with Store.open(CAPTURED) as store:
        assert links_of(store.records).before == {(1, 0): (0, 0)}


def test_a_state_that_was_reset_begins_a_lane_of_its_own(tmp_path: Path) -> None:
    first = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), slots=1, seed=1)
    again = Call({**first.tensors, "state": first.tensors["state"] * 2}, first.scalars, first.conventions)
    with StoreWriter(tmp_path / "reset.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call, index=i) for i, call in enumerate((first, again))])
    with Store.open(tmp_path / "reset.zarr") as store:
        assert links_of(store.records).before == {}


def test_carry_needs_a_state_that_is_carried(tmp_path: Path, session: Session) -> None:
    call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8))
    with StoreWriter(tmp_path / "one.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    with pytest.raises(BadInputError, match="--carry: " + wording("bisect.carry-unlinked")):
        finding.find_bad_call(asked(tmp_path / "one.zarr", "right", carry=True), session)


def test_what_is_known_is_not_asked_again(chain: Path, session: Session) -> None:
    first: Found = finding.find_bad_call(asked(chain, "spoils_state"), session)
    before = len(session.verdicts)
    assert answer(finding.find_bad_call(asked(chain, "spoils_state"), session)) == answer(first)
    assert len(session.verdicts) == before


@pytest.mark.slow  # processes that import torch
def test_the_same_calls_in_another_store_have_their_own_numbers(
    chain: Path, beside: Any, tmp_path: Path, session: Session
) -> None:
    """What is known of states is known by the numbers of one store's records."""
    more = {"tol": (ONE_CALL, 0.0), "carry": True, "layer": "1"}
    first = finding.find_bad_call(asked(chain, "rounds_beta", **more), session)
    moved = beside("chains").chain(tmp_path / "moved.zarr", STEPS, MARKED, ahead=3)
    other = finding.find_bad_call(asked(moved, "rounds_beta", **more), session)
    for found in (first, other):
        assert found.carry is not None
        assert found.carry.over is not None
    assert other.carry.over.number == first.carry.over.number + 3
    assert f"record {other.carry.over.number}, " in answer(other)
    spoilt = [finding.find_bad_call(asked(store, "spoils_state"), session) for store in (chain, moved)]
    assert [found.carry.starts for found in spoilt if found.carry] == [NUMBER, NUMBER + 3]
    assert spoilt[1].before == tuple(range(4, NUMBER + 3, 2))


def test_a_state_of_a_call_that_was_not_chosen(chain: Path, session: Session) -> None:
    """Of layer 1 are the odd ones."""
    alone = finding.find_bad_call(asked(chain, "spoils_state", records=(NUMBER,)), session)
    assert (alone.before, alone.unchosen) == ((), (NUMBER - 2,))
    assert re.search(wording("bisect.state-unchosen", records=f"record {NUMBER - 2}") + "$", answer(alone))
    few = finding.find_bad_call(
        asked(chain, "spoils_state", records=(NUMBER - 4, NUMBER - 2, NUMBER)), session
    )
    assert (few.before, few.unchosen) == ((NUMBER - 4, NUMBER - 2), (NUMBER - 6,))
    (note,) = notes(few)
    assert re.fullmatch(wording("bisect.states-as-recorded", records=f"record {NUMBER - 6}"), note)
    first = finding.find_bad_call(asked(chain, "rounds_beta", records=(0,)), session)
    assert re.search(wording("bisect.starts-without-state") + "$", answer(first))


def test_calls_that_are_skipped_do_not_pass(
    chain: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finding.TrialWorker.run_trial

    def lacking(self: Any, trial: Trial) -> Verdict:
        if 2 not in (trial.records or ()):
            return run(self, trial)
        records = [
            {"outcome": "missing device or package" if number == 2 else "pass"}
            for number in trial.records or ()
        ]
        return Verdict(State.SKIP, "missing", "no package", facts={"records": records})

    monkeypatch.setattr(finding.TrialWorker, "run_trial", lacking)
    found = finding.find_bad_call(asked(chain, "right", records=(0, 1, 2, 3)), session)
    passes = wording("bisect.calls-pass", calls=3, plural="s")
    assert re.search(passes + wording("bisect.calls-skipped", calls=1) + "$", answer(found))


def test_a_block_that_is_bad_and_none_of_its_calls(
    chain: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though one of them is skipped, which comes first."""
    run = finding.TrialWorker.run_trial

    def beside_others(self: Any, trial: Trial) -> Verdict:
        numbers = trial.records or ()
        if numbers == (0,):
            return Verdict(State.SKIP, "missing", "no package")
        if len(numbers) == 1:
            return run(self, trial)
        outcomes = {0: "missing device or package", 2: "numeric mismatch"}
        records = [{"outcome": outcomes.get(number, "pass")} for number in numbers]
        return Verdict(State.BAD, "numeric mismatch", "o: off", facts={"records": records})

    monkeypatch.setattr(finding.TrialWorker, "run_trial", beside_others)
    found = finding.find_bad_call(asked(chain, "right", records=(0, 1, 2, 3)), session)
    assert found.first is not None
    assert found.first.number == 2
    assert re.search(wording("bisect.fails-apart") + ": o: off", answer(found))
