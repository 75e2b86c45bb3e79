# SPDX-License-Identifier: Apache-2.0
"""The kind of failure that a bisection looks for: a fault that both ends have does not end it."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from gdnbench.bisect import flakiness
from gdnbench.bisect import trial as trials
from gdnbench.bisect.commit import probe
from gdnbench.bisect.commit.revision_cli import verdict_of_output
from gdnbench.bisect.endpoints import Endpoint, EndpointReplays, check_endpoints
from gdnbench.bisect.flakiness import Steadiness
from gdnbench.bisect.symptom import Observed, Symptom, judge_symptom
from gdnbench.bisect.trial import Trial, of_ended_process
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import Place
from gdnbench.cli.bisect.symptom import SymptomOptions
from gdnbench.errors import BadInputError
from gdnbench.report.outcome import Outcome
from gdnbench.sim import Accepted, Finding, baseline, extended_baseline, known_findings
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

SOURCE = "s_x[0] = x\ncopy(s_x, z)\ns_x[0] = x\n"


def race(file: Path | None, first: int, second: int, kernel: str = "k_0") -> Finding:
    """A race of a store in line `first` of `file` with a copy in line `second`."""
    common = {"asynchronous": False, "cta": [0, 0, 0], "warp": 0, "role": "compute"}
    sides = [
        {
            **common,
            "does": does,
            "place": {"line": line, "text": does, "file": file and str(file), "file_line": line},
        }
        for does, line in (("st.shared.b32 writes", first), ("cp.async.bulk reads", second))
    ]
    pair = {"first": sides[0], "second": sides[1], "warps": []}
    evidence = {"verdict": "error", "cause": "race", "kernel": kernel, "missing": "a barrier", **pair}
    said = {"severity": "error", "kind": "race", "message": "a race", "launch": 0}
    return Finding.from_json({**said, "evidence": evidence})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "k.py"
    file.write_text(SOURCE)
    return file


STORE: Any = None  # of a call that asks nothing of it
PASSING, FAILING = {"U": "", "o": ""}, {"U": "U: too far off", "o": ""}


@pytest.mark.parametrize(
    ("outcome", "failing", "races", "numbers", "with_race", "crash"),
    [
        (Outcome.PASS, PASSING, False, State.GOOD, State.GOOD, State.GOOD),
        (Outcome.MISMATCH, FAILING, False, State.BAD, State.GOOD, State.GOOD),
        (Outcome.MISMATCH, PASSING, False, State.GOOD, State.GOOD, State.GOOD),  # a fault that was skipped
        (Outcome.CHECK, PASSING, True, State.GOOD, State.BAD, State.GOOD),
        (Outcome.MISMATCH, FAILING, True, State.BAD, State.BAD, State.GOOD),
        (Outcome.CRASH, {}, False, State.SKIP, State.SKIP, State.BAD),
        (Outcome.CRASH, {}, True, State.SKIP, State.BAD, State.BAD),
        (Outcome.HANG, {}, False, State.SKIP, State.SKIP, State.BAD),
        (Outcome.COMPILE_FAILURE, {}, False, State.SKIP, State.SKIP, State.SKIP),
        (Outcome.MISSING, {}, False, State.SKIP, State.SKIP, State.SKIP),
    ],
)
def test_which_failure_counts(
    source: Path,
    outcome: Outcome,
    failing: dict[str, str],
    races: bool,
    numbers: State,
    with_race: State,
    crash: State,
) -> None:
    seen = Observed(outcome, "so it ended", True, failing, (race(source, 1, 2),) if races else ())
    expected = {Symptom.NUMBERS: numbers, Symptom.RACE: with_race, Symptom.CRASH: crash}
    assert {one: judge_symptom(seen, one).state for one in Symptom} == expected
    not_imported = replace(seen, imported=False)
    assert {judge_symptom(not_imported, one).state for one in Symptom} == {State.SKIP}


def test_one_tensor_alone_counts() -> None:
    seen = Observed(Outcome.MISMATCH, "U: too far off", True, FAILING)
    bad, good = (judge_symptom(seen, Symptom.NUMBERS, name) for name in ("U", "o"))
    assert (bad.state, bad.reason, good.state) == (State.BAD, "U: too far off", State.GOOD)
    with pytest.raises(BadInputError, match=wording("bisect.tensor-unknown", tensor="W", names="U, o")):
        judge_symptom(seen, Symptom.NUMBERS, "W")


def test_known_findings_are_known_where_their_lines_have_moved(source: Path) -> None:
    known = baseline(known_findings([race(source, 1, 2)]))
    source.write_text("# one line more\n" + SOURCE)
    moved, another = race(source, 2, 3), race(source, 4, 3)
    for found, state in (([moved], State.GOOD), ([moved, another], State.BAD)):
        seen = Observed(Outcome.CHECK, "", True, PASSING, tuple(found))
        assert judge_symptom(seen, Symptom.RACE, known=known).state is state
    source.write_text(SOURCE.replace("copy(s_x", "copy(s_y"))
    changed = Observed(Outcome.CHECK, "", True, PASSING, (race(source, 1, 2),))
    assert judge_symptom(changed, Symptom.RACE, known=known).state is State.BAD


def test_known_findings_are_known_in_a_kernel_of_other_parameters(source: Path) -> None:
    """Whose name the compiler makes of their types and shapes; two such kernels in one call are one pair of
    lines."""
    known = baseline(known_findings([race(source, 1, 2, "k_o128_0")]))
    found = (race(source, 1, 2, "k_o256_i32_0"), race(source, 1, 2, "k_o64_i32_1"))
    assert judge_symptom(
        Observed(Outcome.CHECK, "", True, PASSING, found), Symptom.RACE, known=known
    ).state is (State.GOOD)
    (entry,) = known_findings([race(None, 1, 2, "k_0")])
    assert 'kernel = "k_0"' in entry  # nothing else tells its lines of PTX from those of another


GIVEN = '[[accept]]\ncause = "x"\ntext = ["a \\u007f", "\u00e9"]\ncount = 2\nreason = "y"'


@pytest.mark.parametrize(
    "given", ["", "# none", "accept = []", GIVEN, "accept = [{cause = 'x', reason = 'y'}]"]
)
def test_known_findings_are_added_to_any_baseline(source: Path, given: str) -> None:
    """Also to one whose last line does not end, or that is written in another way."""
    known = extended_baseline(given, known_findings([race(source, 1, 2)]))
    entries = Accepted.parse(known, "of the test").entries
    assert entries[:-1] == Accepted.parse(given, "of the test").entries
    seen = Observed(Outcome.CHECK, "", True, PASSING, (race(source, 1, 2),))
    assert judge_symptom(seen, Symptom.RACE, known=known).state is State.GOOD


def test_a_baseline_may_come_through_a_pipe(source: Path, tmp_path: Path) -> None:
    """As from `--baseline <(command)` of a shell: it can be read once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = baseline(known_findings([race(source, 1, 2)]))
    writer = Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    found = SymptomOptions("race", baseline=pipe).trial_arguments(STORE, None, "sim")
    writer.join(10)
    assert Accepted.parse(found["known"], "of the test").entries == Accepted.parse(text, "given").entries


def test_a_baseline_of_many_thousand_findings_is_quick(source: Path) -> None:
    tables = {f'[[accept]]\ncause = "race"\ntext = ["line {n}", "other {n}"]': 1 for n in range(20_000)}
    accepted = Accepted.parse(baseline(tables | known_findings([race(source, 1, 2)])), "of the test")
    begin = time.process_time()
    found = accepted.apply([race(source, 1, 2), race(source, 3, 2)] * 20)
    assert [one.fails for one in found] == [False, True] * 20
    assert time.process_time() - begin < 1  # to compare each with all takes 10 s


@pytest.mark.parametrize(
    ("symptom", "tensor", "counted"),
    [
        (Symptom.NUMBERS, None, ["U", "o"]),
        (Symptom.NUMBERS, "o", ["o"]),
        (Symptom.RACE, None, []),
        (Symptom.CRASH, None, []),
    ],
)
def test_what_does_not_count_is_no_way_to_fail(
    symptom: Symptom, tensor: str | None, counted: list[str]
) -> None:
    """A fault that was skipped has no tensor. `bisect input` would take another one for the same failure."""
    trial = Trial("a.zarr", "torch", "sim", symptom=symptom, tensor=tensor)
    seen = Observed(Outcome.MISMATCH, "a fault", True, {"U": "too far off", "o": "too far off"})
    facts = {"failing": [{"tensor": name} for name in ("", "U", "o")]}
    judged = trials.with_symptom([seen], trial, "", facts)
    assert [entry["tensor"] for entry in judged.facts["failing"]] == counted


def test_a_process_that_ends_is_bad_for_a_crash_alone() -> None:
    ended, trial = Verdict(State.BAD, str(Outcome.HANG), "no answer"), Trial("a.zarr", "torch", "sim")
    states = [of_ended_process(ended, replace(trial, symptom=one)).state for one in (None, *Symptom)]
    assert states == [State.BAD, State.SKIP, State.SKIP, State.BAD]
    assert [replace(trial, symptom=one).keep_going for one in (None, *Symptom)] == [False, True, True, False]
    for one in (None, *Symptom):
        kept = replace(trial, symptom=one, schedules=("early",), only_schedules=True)
        assert Trial.from_json(json.loads(json.dumps(kept.to_json()))) == kept


def test_what_another_gdnbench_prints_is_judged_by_the_symptom_too(source: Path) -> None:
    record = {"key": "0", "outcome": "check error", "reason": "race", "imported": True, "tensors": []}
    record["findings"] = [race(source, 1, 2).as_json()]
    tensor = {"tensor": "o", "side": "kernel", "passed": False, "reasons": ["too far off"], "errors": None}
    wrong = {**record, "outcome": "numeric mismatch", "tensors": [tensor], "findings": None}
    trial = Trial("a.zarr", "torch", "sim")
    for printed, symptom, state in (
        (record, Symptom.RACE, State.BAD),
        (record, Symptom.CRASH, State.GOOD),
        (wrong, Symptom.NUMBERS, State.BAD),
        (wrong, Symptom.RACE, State.GOOD),
    ):
        out = json.dumps({"records": [printed]})
        assert verdict_of_output(1, out, "", 0.0, replace(trial, symptom=symptom)).state is state
    unreadable = json.dumps({"records": [{**record, "findings": [{"severity": "error"}]}]})
    with pytest.raises(BadInputError, match=wording("bisect.findings-unreadable")):
        verdict_of_output(1, unreadable, "", 0.0, replace(trial, symptom=Symptom.RACE))


BY_SCHEDULE = {"late": State.SKIP, "early": State.BAD, "random:0": State.GOOD}


@pytest.mark.parametrize(
    ("schedules", "state", "kind"),
    [
        (("late",), State.SKIP, "under late"),
        (("late", "early"), State.BAD, "under early"),
        (("late", "random:0"), State.SKIP, "under late"),
        (("random:0", "late"), State.SKIP, "under late"),
        (("random:0", "early"), State.BAD, "under early"),
    ],
)
def test_a_schedule_under_which_nothing_can_be_judged_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, schedules: tuple[str, ...], state: State, kind: str
) -> None:
    """Such as one under which the kernel crashes, where its numbers are what is looked for."""
    monkeypatch.setattr(trials, "import_kernel", lambda kernel, on: None)
    monkeypatch.setattr(trials, "_once", lambda trial, one, _: Verdict(BY_SCHEDULE[one], f"under {one}"))
    trial = Trial("a.zarr", "k.py:kernel", "sim", schedules=schedules, symptom=Symptom.NUMBERS)
    found = trials.run_trial(trial)
    assert (found.state, found.kind) == (state, kind)


def test_a_schedule_under_which_an_end_cannot_be_judged_is_left_out() -> None:
    trial = Trial("a.zarr", "k.py:kernel", "sim", symptom=Symptom.NUMBERS)
    states = {
        "good": {"late": State.GOOD, "early": State.SKIP, "random:0": State.GOOD},
        "bad": {"late": State.BAD, "early": State.BAD, "random:0": State.SKIP},
    }

    def asking(end: str) -> EndpointReplays:
        def once(trial: Trial) -> Verdict:
            return Verdict(states[end][trial.schedules[0]], end)

        def steadily(trial: Trial) -> Endpoint:
            facts = {"schedules": {name: str(state) for name, state in states[end].items()}}
            return Endpoint(replace(once(trial), facts=facts), Steadiness.BY_SCHEDULE, "it does")

        return EndpointReplays(end, steadily, once)

    found = check_endpoints(trial, asking("good"), asking("bad"), lambda line: None)
    assert found.trial.schedules == ("late",)
    said = [("good", "early", "late, random:0"), ("bad", "random:0", "late")]
    for note, (end, failing, left) in zip(found.notes[-2:], said, strict=True):
        wanted = wording(
            "bisect.schedules-unjudged", end=f"{end} endpoint {end}", failing=failing, schedules=left
        )
        assert re.fullmatch(wanted, note)


class _Here:
    """Runs a revision's kernel in this process, each text and trial once."""

    def __init__(self, known: dict[tuple[str, Trial], Verdict]) -> None:
        self._known = known

    def __call__(self, place: Place, timeout: float) -> _Here:
        self._file = Path(str(place.folder)) / "k.py"
        return self

    def run_trial(self, trial: Trial) -> Verdict:
        asked = self._file.read_text(), trial
        if asked not in self._known:
            self._known[asked] = trials.run_trial(replace(trial, kernel=f"{self._file}:kernel"))
        return self._known[asked]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def engine(beside: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Path, _Here]:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    path = tmp_path_factory.mktemp("symptom") / "prefill.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        call = synthesise("gdn_prefill", seqlens=(1,), heads=(1, 1), seed=1)
        writer.write("0", [draft("gdn_prefill", call)])
    return beside("raced"), path, _Here({})


@pytest.fixture
def find(
    engine: tuple[ModuleType, Path, _Here], bisecting: Any, history: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Bisects commits of these names of `raced`, from the first to the last, by a trial with these options;
    the number of the first bad one, and the notes."""
    raced, store, here = engine
    monkeypatch.setattr(probe, "TrialWorker", here)
    monkeypatch.setattr(flakiness, "RUNS", 1)

    def run(*names: str, **options: Any) -> tuple[int, list[str]]:
        texts = [getattr(raced, name) for name in names]
        made = [
            history.commit(name, {"k.py": text + f"# {n}\n"})
            for n, (name, text) in enumerate(zip(names, texts, strict=True))
        ]
        answer = bisecting(made[0], made[-1], Trial(str(store), "k.py:kernel", "sim", **options))
        return made.index(answer.found["commit"]["hash"]), answer.found["notes"]

    return run


LATE = {"schedules": ("late",), "only_schedules": True}
PLANTED = ("BEGIN", "MOVED", "OFF_BY_ONE", "OFF_BY_ONE")


@pytest.mark.slow  # the two below take less
def test_a_wrong_number_is_found_beside_a_race_that_both_ends_have(find: Any) -> None:
    with pytest.raises(BadInputError, match=wording("bisect.good-fails")):
        find(*PLANTED)
    assert find(*PLANTED, symptom=Symptom.NUMBERS, **LATE) == (2, [])
    number, notes = find(*PLANTED, symptom=Symptom.NUMBERS)
    assert number == 2
    assert re.fullmatch(wording("bisect.schedules-left-out", failing="early"), notes[-1])


@pytest.mark.slow
def test_a_race_is_found_beside_another_that_both_ends_have(find: Any) -> None:
    number, notes = find("BEGIN", "MOVED", "UNWAITED", "UNWAITED", symptom=Symptom.RACE, check=True, **LATE)
    assert number == 2
    assert re.fullmatch(wording("bisect.findings-known"), notes[0])


def test_a_crash_is_found_beside_wrong_numbers(find: Any) -> None:
    assert find("BEGIN", "OFF_BY_ONE", "CRASHES", symptom=Symptom.CRASH, **LATE) == (2, [])
