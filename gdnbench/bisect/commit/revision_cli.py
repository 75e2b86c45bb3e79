# SPDX-License-Identifier: Apache-2.0
"""Runs trials by the `gdnbench replay` command of a revision.

Kernels, contracts and oracles of a repository with its own gdnbench belong together, so this gdnbench could
not load them. The verdict is read from the command's JSON, so older revisions work too. The code strings
below run inside the revision: they may use only names that older revisions have.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from gdnbench.bisect import cache_key
from gdnbench.bisect.symptom import Observed
from gdnbench.bisect.trial import (
    IMPORT_FAILURE,
    STATES,
    Trial,
    chosen_by,
    decided_by,
    of_ended_process,
    verdict_under_all,
    with_symptom,
)
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.workers import TIMEOUT, Place
from gdnbench.errors import BadInputError, Exit
from gdnbench.judge.result import Side
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.sim import Finding
from gdnbench.workers import python_code
from gdnbench.workers.process import START_SECONDS, describe_exit

KEEP_GOING = "--keep-going"
NOT_RUN = "not run"
"""The kind of a revision whose replay says that it cannot."""

_PLAIN = """
import runpy
runpy.run_module("gdnbench", run_name="__main__", alter_sys=True)
"""
_SCHEDULED = """
import runpy
try:
    from gdnbench.sim import Settings, active
except ImportError:  # a revision from before gdnbench.sim had names of its own
    from gdnbench.sim.simulate import Settings, active
schedule = sys.argv.pop(1)
with active(Settings(schedule=schedule)):
    runpy.run_module("gdnbench", run_name="__main__", alter_sys=True)
"""


class RevisionReplay:
    """A `TrialRunner` for one revision, whose files are in the folder of `place`."""

    def __init__(self, place: Place, timeout: float = TIMEOUT) -> None:
        self._place, self._timeout = place, timeout

    def run_trial(self, trial: Trial) -> Verdict:
        """The verdict on `trial`. StoreError if the store is gone."""
        found = self._run(trial)
        # A revision does not say what it read: so much is sure that it was not replaced for good.
        content = cache_key.digest_store(trial.store, chosen_by(trial))
        return replace(found, facts={**found.facts, CONTENT: content})

    def _run(self, trial: Trial) -> Verdict:
        found: list[Verdict] = []
        for schedule in trial.schedules if trial.on == SIM else trial.schedules[:1]:
            found.append(self._once(trial, schedule))
            if found[-1].state is State.SKIP and not found[-1].facts:  # it does not even start
                return found[-1]
            if (decided := decided_by(found, trial, "errors")) is not None:
                return decided
        return verdict_under_all(found, sum(one.seconds for one in found))

    def close(self) -> None:
        """Does nothing: every trial has a process of its own."""

    def _once(self, trial: Trial, schedule: str) -> Verdict:
        # In that process: a schedule is that process' own, and to end is a verdict.
        code, schedules = (_SCHEDULED, [schedule]) if trial.on == SIM else (_PLAIN, [])
        limit = START_SECONDS + self._timeout
        arguments = [*_arguments(trial), *self._keep_going(trial)]
        found = self._replayed(trial, code, [*schedules, *arguments, "--no-isolate"], limit)
        if found.facts or found.state is not State.BAD:
            return found
        # It left no word of whether the kernel was there to be called: a process beside it tells.
        beside = ["--isolate", "--timeout", repr(self._timeout)]
        limit = 2 * START_SECONDS + max(START_SECONDS, self._timeout)  # starts, imports, replays
        again = self._replayed(trial, _PLAIN, [*arguments, *beside], limit)
        return again if again.facts and again.kind == IMPORT_FAILURE else of_ended_process(found, trial)

    def _keep_going(self, trial: Trial) -> list[str]:
        """The option to go on after faults, if the trial asks for it and the revision's `replay` has it."""
        files = Path(str(self._place.folder)).glob("gdnbench/cli/**/*.py") if trial.keep_going else ()
        has = any(f'"{KEEP_GOING}"' in file.read_text(errors="replace") for file in files)
        return [KEEP_GOING] if has else []

    def _replayed(self, trial: Trial, code: str, arguments: Sequence[str], limit: float) -> Verdict:
        """The verdict of one command; it has no facts if the command printed no records."""
        begin = time.monotonic()
        try:
            ended = python_code.run_python_code(
                [self._place.python],
                code,
                arguments,
                folder=str(self._place.folder),
                environment={**os.environ, **self._place.environment},
                seconds=limit,
            )
        except TimeoutError:
            return Verdict(State.BAD, str(Outcome.HANG), f"no answer within {limit:g} s", seconds=limit)
        return verdict_of_output(ended.status, ended.out, ended.err, time.monotonic() - begin, trial)


def _arguments(trial: Trial) -> list[str]:
    found = ["replay", trial.store]
    if trial.records is not None:
        found.append(",".join(map(str, trial.records)))
    found += ["--kernel", trial.kernel, "--on", trial.on, "--json"]
    if trial.op is not None:
        found += ["--op", trial.op]
    if trial.k is not None:
        found += ["--k", repr(trial.k)]
    if trial.tol is not None:
        found += ["--tol", ",".join(map(repr, trial.tol))]
    return found + [f"--{name}" for name in ("bitwise", "stages", "check") if getattr(trial, name)]


def verdict_of_output(status: int, out: str, err: str, seconds: float, trial: Trial | None = None) -> Verdict:
    """The verdict from the exit status and the output of `gdnbench replay --json`, by the symptom of `trial`
    if it has one. BadInputError for findings that cannot be read."""
    if status < 0:
        return Verdict(
            State.BAD, str(Outcome.CRASH), f"the process ended by {describe_exit(status)}", seconds=seconds
        )
    said = err.strip().splitlines()
    reason = said[-1].strip() if said else describe_exit(status)
    try:
        records = json.loads(out)["records"]
        return _verdict(records, seconds, trial)
    except BadInputError:  # a ValueError too
        raise
    except (ValueError, KeyError, TypeError):
        kind = NOT_RUN if status in (Exit.BAD_INPUT, Exit.CANNOT_RUN) else IMPORT_FAILURE
        return Verdict(State.SKIP, kind, reason, seconds=seconds)


def _verdict(records: Sequence[Mapping[str, Any]], seconds: float, trial: Trial | None) -> Verdict:
    states = [_state(record) for record in records]
    state = next((one for one in (State.BAD, State.SKIP) if one in states), State.GOOD)
    first = records[states.index(state)]
    kept = [(one["outcome"], one["tensors"]) for one in records]
    tensors: dict[str, bool] = {}
    errors: dict[str, float] = {}
    for tensor in (tensor for one in records for tensor in one["tensors"]):
        name = tensor["tensor"]
        tensors[name] = tensors.get(name, True) and bool(tensor["passed"])
        if tensor["errors"] is not None:
            errors[name] = max(errors.get(name, 0.0), float(tensor["errors"]["rms"]))
    facts = {
        "records": [{name: one[name] for name in ("key", "outcome", "reason")} for one in records],
        "errors": errors,
        "tensors": tensors,
    }
    if trial is not None and trial.symptom is not None:
        digest = blake3(json.dumps(kept, sort_keys=True).encode()).hexdigest()
        found = with_symptom([_observed(one) for one in records], trial, digest, facts)
        return replace(found, seconds=seconds)
    kind = str(first["outcome"]) if first.get("imported", True) else IMPORT_FAILURE
    digest = blake3(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return Verdict(state, kind, str(first["reason"]), digest, facts, seconds)


def _observed(record: Mapping[str, Any]) -> Observed:
    failing = {
        str(one["tensor"]): ""
        if one["passed"]
        else f"{one['tensor']}: {(one.get('reasons') or ['fails'])[0]}"
        for one in record["tensors"]
        if one.get("side", Side.KERNEL) == Side.KERNEL
    }
    try:
        findings = tuple(Finding.from_json(one) for one in record.get("findings") or ())
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(
            f"this revision's gdnbench prints findings that this one cannot read: {error!r}"
        ) from None
    imported = bool(record.get("imported", True))
    return Observed(Outcome(record["outcome"]), str(record["reason"]), imported, failing, findings)


def _state(record: Mapping[str, Any]) -> State:
    found = STATES.get(Outcome(record["outcome"]), State.SKIP)
    return found if found is not State.BAD or record.get("imported", True) else State.SKIP
