# SPDX-License-Identifier: Apache-2.0
"""A trial: replays records of a store through one kernel on one device and judges them by one rule.

On the simulator a trial may name several schedules. It is bad if it is bad under any of them, and also if
their bits differ: a right kernel leaves the same bits whenever asynchronous effects land.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from gdnbench.bisect import cache_key
from gdnbench.bisect.failing import describe_failures
from gdnbench.bisect.predicted import verdict_of_times
from gdnbench.bisect.source_deps import OWN, with_imported
from gdnbench.bisect.symptom import Observed, Symptom, count_known, judge_symptom
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bits import as_integers
from gdnbench.errors import BadInputError
from gdnbench.judge.calls import outline_call
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Rule, make_rule
from gdnbench.replay import kernels
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.replay import Replayer, select
from gdnbench.replay.run import InProcess, Runner, why_not_found
from gdnbench.replay.simulated import SIM, requested_gpu
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim.predict import tool_versions
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Operation

SCHEDULES = ("late", "early", "random:0")
"""Under which kernels are simulated where schedules are to tell."""
BIT_DIFFERENCE = "bits depend on the schedule"
"""The kind of a trial that passes under every schedule, with other bits under another."""
IMPORT_FAILURE = "import failure"
"""The kind of a trial whose kernel failed, ended its process or hung before it could be called."""

STATES = {
    Outcome.PASS: State.GOOD,
    Outcome.MISMATCH: State.BAD,
    Outcome.CHECK: State.BAD,
    Outcome.CRASH: State.BAD,
    Outcome.HANG: State.BAD,
    Outcome.COMPILE_FAILURE: State.SKIP,
    Outcome.UNSUPPORTED: State.SKIP,
    Outcome.MISSING: State.SKIP,
    Outcome.NOT_COMPARABLE: State.SKIP,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """The arguments of a replay. `records` None: all records of `op`, or all. The rule is that of
    `gdnbench.replay.replay.replay`. With `check`, an error of the simulator's checker is bad too. With a
    `symptom` only that kind of failure is bad; `tensor` and `known`, the text of a baseline, are as in
    `judge_symptom`. With `only_schedules` the endpoints are looked at under no others than `schedules`.
    `predict`: the verdict is the predicted time on that machine, see `predicted`."""

    store: str
    kernel: str
    on: str = "cpu"
    records: tuple[int, ...] | None = None
    op: str | None = None
    k: float | None = None
    tol: tuple[float, float] | None = None
    bitwise: bool = False
    stages: bool = False
    schedules: tuple[str, ...] = ("late",)
    check: bool = False
    symptom: Symptom | None = None
    tensor: str | None = None
    known: str = ""
    only_schedules: bool = False
    predict: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, without `predict` unless it is given: earlier releases do not know it."""
        found = asdict(self)
        if self.predict is None:
            del found["predict"]
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        lists = {
            name: tuple(data[name]) for name in ("records", "tol", "schedules") if data.get(name) is not None
        }
        symptom = None if data.get("symptom") is None else Symptom(data["symptom"])
        return cls(**{**data, **lists, "symptom": symptom})

    @property
    def keep_going(self) -> bool:
        """Whether launches go on after faults: with a symptom that a fault need not hide."""
        return self.on == SIM and self.symptom in (Symptom.NUMBERS, Symptom.RACE)


def trial_question(trial: Trial) -> Question:
    """Everything that the trial's verdict depends on, with the kernel's current code."""
    return {**question_without_code(trial), "code": cache_key.digest_code(kernel_sources(trial.kernel))}


def question_without_code(trial: Trial) -> Question:
    """Everything that the trial's verdict depends on except the kernel's code. The path of the store is not
    part of it. UnsupportedError if a program that predicted times need is not here."""
    records = cache_key.digest_store(trial.store, chosen_by(trial))
    options = trial.to_json()
    del options["store"], options["records"], options["op"]
    if trial.predict is not None:
        options["tools"] = tool_versions()
    return {**options, "content": records, **toolchain(trial.on)}


def chosen_by(trial: Trial) -> cache_key.Choice:
    """Which records a trial replays."""
    return lambda store: select(store, trial.records, trial.op)


def kernel_sources(kernel: str, folder: Path | None = None) -> list[Path]:
    """The files of a kernel's code: its file or whole package, and its imports, see `source_deps`. Modules
    are looked for in `folder` first, by default the current folder. BadInputError if there is no such
    module."""
    if not kernels.is_user_kernel(kernel):
        return [_package("gdnbench_kernels", Path.cwd())]
    here = Path.cwd() if folder is None else folder
    place = kernel.rpartition(":")[0]
    start = (here / place).resolve() if place.endswith(".py") else _package(place.partition(".")[0], here)
    return with_imported(start, here)


def toolchain(on: str = "cpu") -> dict[str, Any]:
    """Versions of all installed packages, the digest of this project's code, on cuda the name of the GPU, and
    on the simulator the virtual GPU that was asked for."""
    versions = dict(filter(None, map(_name_and_version, importlib.metadata.distributions())))
    own = cache_key.digest_code([_package(name, Path.cwd()) for name in OWN])
    device: dict[str, Any] = {"device": _device()} if on == "cuda" else {}
    if on == SIM and requested_gpu() != (None, None):
        device["gpu"] = list(requested_gpu())
    return {"versions": versions, "gdnbench": own, **device}


def _name_and_version(found: importlib.metadata.Distribution) -> tuple[str, str] | None:
    """Name and version of a package; None without a name. `found.metadata` would parse the description too,
    which takes 30 times as long."""
    text = next(filter(None, map(found.read_text, ("METADATA", "PKG-INFO", ""))), "")
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(": ")
        fields.setdefault(key, value.strip())
    return (fields["Name"], fields.get("Version", "")) if fields.get("Name") else None


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _package(name: str, here: Path) -> Path:
    folder, file = here / name, here / f"{name}.py"
    if (folder / "__init__.py").is_file() or file.is_file():  # as `kernels.load_function`
        return folder if folder.is_dir() else file
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        if folder.is_dir():  # a package without __init__.py, after any that has one
            return folder
        raise BadInputError(
            f"there is no module {name!r}; write package.module:function or path/file.py:function"
        )
    origin = Path(found.origin)
    return origin.parent if found.submodule_search_locations else origin


def import_kernel(kernel: str, on: str) -> None:
    """Imports the kernel and ignores its errors. BadInputError if it does not exist."""
    problem = why_not_found(kernel, on)
    if problem is not None:
        raise BadInputError(problem)


def run_trial(trial: Trial, report: Callable[[str], None] = lambda line: None) -> Verdict:
    """Replays in this process, which a crash of the kernel ends; `workers` runs trials in a worker process.
    `report` gets a line for each record. BadInputError for a kernel or record that does not exist, or a
    record that its operation refuses; StoreError for a store that changes meanwhile."""
    import_kernel(trial.kernel, trial.on)
    begin = time.monotonic()
    found: list[Verdict] = []
    for schedule in trial.schedules if trial.on == SIM else trial.schedules[:1]:
        found.append(replace(_once(trial, schedule, report), seconds=time.monotonic() - begin))
        if (decided := decided_by(found, trial, "bits")) is not None:
            return decided
    return verdict_under_all(found, time.monotonic() - begin)


def decided_by(found: Sequence[Verdict], trial: Trial, unequal: str) -> Verdict | None:
    """The verdict of a trial if those under its first schedules are `found` and the last of them decides:
    bad, or without a symptom of another digest than the first, of what is `unequal`. A schedule under which
    it cannot be judged decides nothing: it may be bad under the next."""
    last = found[-1]
    if last.state is State.BAD:
        return last
    good = [one for one in found if one.state is State.GOOD]
    if trial.symptom is not None or last.state is not State.GOOD or last.digest == good[0].digest:
        return None
    under = trial.schedules[found.index(good[0])], trial.schedules[len(found) - 1]
    reason = f"schedule {under[1]} leaves other {unequal} than {under[0]}"
    return replace(last, state=State.BAD, kind=BIT_DIFFERENCE, reason=reason)


def verdict_under_all(found: Sequence[Verdict], seconds: float) -> Verdict:
    """The verdict of a trial from those under all its schedules, of which none is bad."""
    first = next((one for one in found if one.state is State.SKIP), found[0])
    return replace(first, seconds=seconds)


def _once(trial: Trial, schedule: str, report: Callable[[str], None]) -> Verdict:
    rule = make_rule(trial.k, None, trial.tol, trial.bitwise)
    with (
        cache_key.open_unchanged(trial.store, chosen_by(trial)) as (store, chosen, read),
        with_schedule(trial.on, schedule),
    ):
        kernels.check_name(trial.kernel, trial.on)
        runner = InProcess(
            trial.kernel,
            trial.on,
            trial.stages,
            trial.check,
            keep_going=trial.keep_going,
            predict=trial.predict,
        )
        with closing(_Digesting(runner)) as digesting:
            records = [store.records[number] for number in chosen]
            judge = _judge_of(rule, trial.on, read, records)
            replayer = Replayer(digesting, None, ORACLE, judge)
            results = []
            for record in records:
                results.append(replayer.replay(record))
                report(f"{results[-1].label}: {results[-1].outcome}")
        found = verdict_of(results, digesting.digest, schedule if trial.on == SIM else "", trial)
    return replace(found, facts={**found.facts, CONTENT: read})


_last_judge: tuple[tuple[Rule, str, str], Judge] | None = None
"""Of the last trial in this process, by its rule, device and digest of records."""


def _judge_of(rule: Rule, on: str, content: str, records: Sequence[StoredRecord]) -> Judge:
    """The judge of a trial. If the last trial had the same single record, as the repeated runs of an endpoint
    do, its results of oracle and torch are used again."""
    global _last_judge
    key = (rule, on, content)
    if _last_judge is not None and _last_judge[0] == key and len(records) == 1:
        _last_judge[1].continue_with(records[0])
    else:
        _last_judge = (key, Judge(rule, device_of(on)))
    return _last_judge[1]


@contextlib.contextmanager
def with_schedule(on: str, schedule: str) -> Iterator[None]:
    """Simulates kernels under `schedule` inside the `with` block, if `on` is the simulator."""
    if on != SIM:
        yield
        return
    from gdnbench.sim import Settings, active

    with active(Settings(schedule=schedule)):
        yield


def verdict_of(
    results: Sequence[RecordResult], digest: str, schedule: str = "", trial: Trial | None = None
) -> Verdict:
    """The verdict on records replayed one after another: BAD if one is bad, by the symptom of `trial` if it
    has one, else SKIP if one cannot be judged. Kind and reason are those of the first such record. If all are
    good, and `trial` predicts, see `verdict_of_times`. BadInputError for a record that was refused."""
    for result in results:
        if result.outcome is Outcome.REFUSED:
            raise BadInputError(f"record {result.label} cannot be replayed: {result.reason}")
    states = [STATES[result.outcome] if result.imported else State.SKIP for result in results]
    state = next((one for one in (State.BAD, State.SKIP) if one in states), State.GOOD)
    first = results[states.index(state)]
    facts: dict[str, Any] = {
        "records": [
            {"label": one.label, "key": one.key, "outcome": str(one.outcome), "reason": one.reason}
            for one in results
        ],
        "errors": _errors(results),
        "failing": describe_failures(results),
        "tensors": _passed(results),
    }
    if schedule:
        facts["schedule"] = schedule
    if trial is not None and trial.predict is not None:
        if state is State.GOOD:
            return verdict_of_times(results, digest, facts)
        state = State.SKIP  # of a wrong kernel no time is asked
    if trial is not None and trial.symptom is not None:
        return with_symptom([Observed.of_result(one) for one in results], trial, digest, facts)
    as_crash = not first.imported and STATES[first.outcome] is State.BAD
    return Verdict(state, IMPORT_FAILURE if as_crash else str(first.outcome), first.reason, digest, facts)


def with_symptom(
    observed: Sequence[Observed], trial: Trial, digest: str, facts: Mapping[str, Any]
) -> Verdict:
    """The verdict on records by the trial's symptom. Facts have the `findings` that are not known, see
    `count_known`, if that is `race`."""
    assert trial.symptom is not None
    judged = [judge_symptom(one, trial.symptom, trial.tensor, trial.known) for one in observed]
    states = [one.state for one in judged]
    state = next((one for one in (State.BAD, State.SKIP) if one in states), State.GOOD)
    first = judged[states.index(state)]
    found: dict[str, Any] = {"failing": _counting(facts.get("failing", ()), trial)}
    if trial.symptom is Symptom.RACE:
        found["findings"] = count_known(observed, trial.known)
    kind = IMPORT_FAILURE if not observed[states.index(state)].imported else first.kind
    return Verdict(state, kind, first.reason, digest, {**facts, **found})


def _counting(failing: Sequence[Mapping[str, Any]], trial: Trial) -> list[Mapping[str, Any]]:
    """Those of `describe_failures` that count by the trial's symptom."""
    if trial.symptom is not Symptom.NUMBERS:
        return []
    return [entry for entry in failing if entry["tensor"] and trial.tensor in (None, entry["tensor"])]


def of_ended_process(verdict: Verdict, trial: Trial) -> Verdict:
    """The verdict of a process that crashed or hung, by the trial's symptom; SKIP where a time is asked."""
    hides = trial.symptom in (Symptom.NUMBERS, Symptom.RACE) or trial.predict is not None
    return replace(verdict, state=State.SKIP) if hides and verdict.state is State.BAD else verdict


def _errors(results: Sequence[RecordResult]) -> dict[str, float]:
    """RMS error by tensor, the largest over the records; `flakiness` prints its range."""
    found: dict[str, float] = {}
    for tensor in _tensors(results):
        if tensor.errors is not None:
            found[tensor.tensor] = max(found.get(tensor.tensor, 0.0), tensor.errors.rms)
    return found


def _passed(results: Sequence[RecordResult]) -> dict[str, bool]:
    """Whether each tensor passed in all records, stages ahead of outputs, in the contract's order."""
    found: dict[str, bool] = {}
    for tensor in _tensors(results):
        found[tensor.tensor] = found.get(tensor.tensor, True) and tensor.passed
    return found


def _tensors(results: Sequence[RecordResult]) -> Iterator[TensorResult]:
    for result in results:
        yield from result.tensors


class ResultDigest:
    """The digest of every bit that kernels leave, record after record."""

    def __init__(self) -> None:
        self._hasher = blake3()

    def add_result(self, record: StoredRecord, operation: Operation, found: Execution | Failure) -> None:
        """Outputs, and of stages the rows that belong to a sequence: a kernel owes no others."""
        self._hasher.update(f"{record.key}\0{isinstance(found, Failure)}\0".encode())
        if isinstance(found, Failure):
            return
        for name, tensor in sorted(found.outputs.items()):
            self._add(name, tensor)
        call = outline_call(record, operation) if found.stages else None
        for name, tensor in sorted(found.stages.items()):
            assert call is not None
            for region in operation.partition(call, name).regions:
                rows = tensor[region.start : region.stop]
                in_part = region.tokens is not None and rows.dim() > 2
                self._add(name, rows[:, :, : region.tokens] if in_part else rows)

    def _add(self, name: str, tensor: Tensor) -> None:
        self._hasher.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        self._hasher.update(as_integers(tensor.cpu().contiguous()).numpy().tobytes())

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


class _Digesting:
    """A runner that computes the digest of every bit that kernels leave."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._digest = ResultDigest()

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        found = self._runner.run_record(record, operation)
        self._digest.add_result(record, operation, found)
        return found

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def close(self) -> None:
        self._runner.close()
