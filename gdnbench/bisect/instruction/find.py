# SPDX-License-Identifier: Apache-2.0
"""Finds the first instruction whose value differs beyond rounding, between two versions of a kernel."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gdnbench.bisect import cache_key, endpoints
from gdnbench.bisect import trial as trials
from gdnbench.bisect.flakiness import Steadiness
from gdnbench.bisect.instruction import text
from gdnbench.bisect.instruction.compare import first_difference
from gdnbench.bisect.instruction.edits import edits
from gdnbench.bisect.instruction.launches import (
    LaunchDifference,
    OtherLaunches,
    differences,
    kernel_name,
)
from gdnbench.bisect.instruction.version import RecordToRun, Version, VersionFails, place
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import SCHEDULES, STATES, Trial
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bisect.workers import TrialWorker
from gdnbench.diff.traces.alignment import Run, align
from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.trace.reader import open_trace

TRACE_BYTES = 256 << 20
"""Of one CTA's trace: a million events, about 1 GB in memory for both versions."""


AGREE = Verdict(State.GOOD, "pass", facts={"lines": ["the two versions leave the same bits"]})


@dataclass(frozen=True, slots=True)
class InstructionBisection:
    """The arguments of a bisection. `folders`: where the modules of each version are looked for first.
    `stage`: choose the launch that computes it. `cta`: the CTA to trace, if it cannot be found from what it
    writes."""

    store: str
    record: int
    good: str
    bad: str
    folders: tuple[Path | None, Path | None] = (None, None)
    stage: str | None = None
    tolerance: tuple[float, float] | None = None
    integers: bool = False
    cta: int | None = None
    check_ends: bool = True

    @property
    def kernels(self) -> tuple[str, str]:
        return self.good, self.bad


def find_instruction(request: InstructionBisection, session: Session) -> Verdict:
    """The verdict: BAD if a place is named or an endpoint is flaky. `facts` has the lines, and everything
    else as plain JSON."""
    questions = [_question(request, kernel, folder) for kernel, folder in _sides(request)]
    notes: list[str] = []
    if request.check_ends:
        for label, question, (kernel, folder) in zip(
            ("good", "bad"), questions, _sides(request), strict=True
        ):
            trial = Trial(request.store, kernel, SIM, (request.record,))
            end = endpoints.replay_endpoint(
                session, label, question, trial, partial(TrialWorker, place(folder))
            )
            if end.verdict.state is State.SKIP and end.verdict.kind != Outcome.NOT_COMPARABLE:
                raise CannotRunError(f"the {label} version: {end.verdict.kind}: {end.verdict.reason}")
            if end.steadiness is Steadiness.FLAKY:
                line = f"the {label} version is flaky: {end.spread}"
                return Verdict(State.BAD, "flaky", line, facts={"lines": [line]})
            if end.steadiness is Steadiness.BY_SCHEDULE:
                notes.append(f"the {label} version depends on the simulator's schedule: {end.spread}")
    asked: Question = {
        "axis": "instruction",
        "good": questions[0],
        "bad": questions[1],
        "stage": request.stage,
        "tolerance": request.tolerance,
        "integers": request.integers,
        "cta": request.cta,
    }
    found = session.find_or_probe(
        "good beside bad",
        asked,
        lambda: _Comparing(request, str(questions[0][CONTENT]), session.report).compare_versions(),
    )
    lines = [f"note: {note}" for note in notes] + list(found.facts["lines"])
    return replace(found, facts={**found.facts, "lines": lines})


def _sides(request: InstructionBisection) -> list[tuple[str, Path | None]]:
    return list(zip(request.kernels, request.folders, strict=True))


def _question(request: InstructionBisection, kernel: str, folder: Path | None) -> Question:
    trial = Trial(request.store, kernel, SIM, (request.record,))
    if folder is None:
        return trials.trial_question(trial)
    place = kernel.rpartition(":")[0]
    package = place.partition(".")[0]
    if place.endswith(".py"):
        if not (folder / place).is_file():
            raise BadInputError(f"{folder} has no file {place}")
    elif not (folder / package).is_dir() and not (folder / f"{package}.py").is_file():
        raise BadInputError(f"{folder} has no module {package!r}")
    known = trials.question_without_code(trial)
    return {**known, "code": cache_key.digest_code(trials.kernel_sources(kernel, folder))}


def _names(found: Sequence[LaunchDifference]) -> str:
    """Of the kernels that were launched."""
    return ", ".join(kernel_name(one.entry) for one in found)


@contextmanager
def _looked_at(label: str) -> Iterator[None]:
    """While a version that ran to its end runs again to be looked at: that it then fails says nothing of
    it."""
    try:
        yield
    except VersionFails as failure:
        raise CannotRunError(
            f"the {label} version ran, and ended in a {failure.outcome} when a CTA was looked at: {failure};"
            " shrink the record with `bisect input`, or give --cta"
        ) from None


class _Comparing:
    """Compares both versions, each in a worker process."""

    def __init__(self, request: InstructionBisection, content: str, report: Callable[[str], None]) -> None:
        self.request = request
        self.content = content
        self.report = report
        self.versions: list[Version] = []
        self.digests: set[str] = set()
        self.cut = ""
        self.traces = itertools.count()

    def compare_versions(self) -> Verdict:
        """The verdict. CannotRunError if a version cannot run, or if the traced part is too short to tell."""
        begin = time.monotonic()
        return replace(self._compare_versions(), seconds=time.monotonic() - begin)

    def _compare_versions(self) -> Verdict:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gdnbench-bisect-")))
            self.versions = [
                stack.enter_context(closing(Version(kernel, folder)))
                for kernel, folder in _sides(self.request)
            ]
            agree = AGREE
            for schedule in SCHEDULES:
                found = self._under(schedule, scratch)
                if found.state is State.BAD:
                    return found
                if found.kind != "pass":
                    agree = found
            if self.cut:
                raise CannotRunError(self.cut)
            return agree

    def _under(self, schedule: str, scratch: Path) -> Verdict:
        request = self.request
        asked = RecordToRun(request.store, request.record, self.content, request.stage is not None, schedule)
        folders = (scratch / "good", scratch / "bad")
        seen: list[dict[str, Any]] = []
        for label, version, folder in zip(("good", "bad"), self.versions, folders, strict=True):
            try:
                seen.append(version.survey(asked, folder))
            except VersionFails as failure:
                if STATES[Outcome(failure.outcome)] is State.SKIP:
                    raise CannotRunError(f"the {label} version: {failure.outcome}: {failure}") from None
                if label == "good":
                    raise BadInputError(f"the good version does not run: {failure.reason}") from None
                line = f"the bad version ends in a {failure.outcome}, the good one does not: {failure.reason}"
                return Verdict(State.BAD, failure.outcome, line, facts={"lines": [line]})
        launches = [one["launches"] for one in seen]
        digest = repr([[launch["digest"] for launch in side] for side in launches])
        if digest in self.digests:
            return AGREE
        self.digests.add(digest)
        stage = self._stage(seen[0])
        found: list[LaunchDifference] = []
        other = ""
        try:
            for one in differences(launches[0], launches[1], folders, request.tolerance):
                found.append(one)
        except OtherLaunches as error:
            other = str(error)
        looked = [
            one for one in found if stage in (None, one.launch) and (request.tolerance is None or one.beyond)
        ]
        let_be, found = [one for one in found if one not in looked], looked
        for one in sorted(found, key=lambda one: not one.beyond):
            verdict = self._trace(asked, one, len(launches[0]), scratch)
            if verdict is not None:
                return verdict
        if other:
            return Verdict(State.BAD, "other launches", other, facts={"lines": [other]})
        if not found and not let_be:
            return AGREE
        line = (
            f"the versions differ in the bits that {_names(found)} leaves, and no value by more than rounding"
            if found
            else f"the versions differ in the bits that {_names(let_be)} leaves, which --stage or --tolerance"
            " lets be, and in no others"
        )
        return Verdict(State.GOOD, "rounding", line, facts={"lines": [line]})

    def _stage(self, seen: dict[str, Any]) -> int | None:
        """The launch that gives the stage asked for."""
        name = self.request.stage
        if name is None:
            return None
        if name not in seen["stages"]:
            raise BadInputError(f"the kernel shows no stage {name!r}; it shows {', '.join(seen['stages'])}")
        pointer = seen["stages"][name]
        for number, launch in enumerate(seen["launches"]):
            if pointer in launch["tensors"].values():
                return number
        raise BadInputError(f"no launch gives stage {name}: it is not a tensor that the kernels write")

    def _trace(
        self, asked: RecordToRun, difference: LaunchDifference, launches: int, scratch: Path
    ) -> Verdict | None:
        """What the traces of the CTA that made the worst element say; None if all is rounding."""
        where = text.launch_line(difference, launches)
        self.report(where)
        cta = self.request.cta
        if cta is None:
            element = (difference.launch, difference.tensor, difference.place)
            with _looked_at("good"):
                cta = self.versions[0].writer(asked, *element)
        if cta is None:
            raise BadInputError(
                f"{where}; which CTA writes it cannot be told, its CTAs take turns: give --cta"
            )
        self.report(f"tracing CTA {cta} of {kernel_name(difference.entry)} in both versions")
        runs, files, grid = [], [], (1, 1, 1)
        for label, version in zip(("good", "bad"), self.versions, strict=True):
            path = scratch / f"{label}-{next(self.traces)}.zarr"
            with _looked_at(label):
                files.append(version.trace(asked, difference.launch, cta, path, TRACE_BYTES))
            with open_trace(path) as trace:
                (launch,) = trace.launches
                runs.append(Run.of_launch(launch))
                grid = launch.grid
        alignment = align(runs[0], runs[1])
        found = first_difference(alignment, difference.inputs, self.request.integers)
        notes = []
        if found is None and difference.beyond:
            found = first_difference(alignment, difference.inputs, self.request.integers, exact=True)
            notes = ["no single value differs by more than rounding explains; this is the first that differs"]
        for label, run in zip(("good", "bad"), runs, strict=True):
            if not run.whole:
                self.report(f"the trace of the {label} version ends after {len(run.events):,} events")
        if found is None:
            if not all(run.whole for run in runs):
                shortest = min(len(run.events) for run in runs)
                self.cut = (
                    f"{where}; no value differs by more than rounding in the first {shortest:,} events of CTA"
                    f" {cta}, where its trace ends: shrink the record with `bisect input`, or give --cta"
                )
            return None
        facts = text.difference_facts(found, alignment, cta, grid)
        if not facts["edited"]:
            sources = ([*known, *run.source.files()] for known, run in zip(files, runs, strict=True))
            facts["edits"] = [one.to_json() for one in edits(*sources)]
        lines = [where, *notes, *text.difference_lines(facts)]
        return Verdict(State.BAD, facts["kind"], lines[-1], facts={**facts, "launch": where, "lines": lines})
