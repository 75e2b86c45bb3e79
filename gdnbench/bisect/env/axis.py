# SPDX-License-Identifier: Apache-2.0
"""The axis `env`: finds the package, and its first bad version, between package versions under which a kernel
is right and versions under which it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from gdnbench.bisect import cache_key
from gdnbench.bisect import trial as trials
from gdnbench.bisect.endpoints import (
    Endpoint,
    EndpointReplays,
    check_endpoints,
    failure_family,
    replay_endpoint,
)
from gdnbench.bisect.env.environments import DoesNotInstall, Environments, Package
from gdnbench.bisect.env.narrow import smallest_bad_set
from gdnbench.bisect.env.requirements import Pin, Pins, same_version, versions_between
from gdnbench.bisect.interpreter import interpreter
from gdnbench.bisect.search import first_bad
from gdnbench.bisect.session import NotKeptError, Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bisect.workers import Place, TrialWorker
from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, BadInputError, CannotRunError, Exit

NOT_INSTALLED = "does not install"
NOT_THERE = "not there"
NO_START = "does not start"


Versions = Mapping[str, str | None]
"""By package; None is not there."""


@dataclass(frozen=True, slots=True)
class EnvBisection:
    """The arguments of a bisection. `beside`: requirements of every environment. `options`: pip's options for
    indexes."""

    trial: Trial
    good: Pins
    bad: Pins
    python: str
    timeout: float
    beside: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """`lines` for people, of which the last is the answer; `found` is the same as plain JSON."""

    lines: tuple[str, ...]
    found: Mapping[str, Any]
    exit_code: Exit


@dataclass(frozen=True, slots=True)
class Step:
    """A package's change from good to bad: after `good`, at `bad` or at one of `skipped` between them."""

    package: str
    good: str | None
    bad: str | None
    skipped: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # what the two environments differ by beside it
    unsure: bool = False  # nothing could be told with its good version alone

    @property
    def line(self) -> str:
        if self.unsure:
            return f"{self.package} {self.good or 'absent'} -> {self.bad or 'absent'}"
        if self.good is None or self.bad is None:
            return f"{self.package} {self.bad or 'absent'}, where {self.good or 'absent'} is good"
        if self.skipped:
            names = ", ".join((*self.skipped, self.bad))
            return f"{self.package}: one of {names}, after {self.good}"
        return f"{self.package} {self.bad}, after {self.good}"


def bisect_packages(arguments: EnvBisection, session: Session) -> Answer:
    """Runs the bisection. BadInputError for endpoints that cannot be bisected, CannotRunError for endpoints
    that cannot be installed or replayed."""
    return _Bisection(arguments, session).find_answer()


class _Bisection:
    def __init__(self, arguments: EnvBisection, session: Session) -> None:
        self._arguments, self._session, self._trial = arguments, session, arguments.trial
        self._base = interpreter(arguments.python)
        self._environments = Environments(self._base, arguments.options)
        self._extras = {
            pin.name: pin.extras
            for pins in (arguments.good, arguments.bad)
            for pin in pins.values()
            if pin.extras
        }
        names = dict.fromkeys((*arguments.good, *arguments.bad))
        self._good = {name: self._version(arguments.good, name) for name in names}
        self._bad = {name: self._version(arguments.bad, name) for name in names}
        self._differing = [name for name in names if not same_version(self._good[name], self._bad[name])]
        self._asked_of: dict[Trial, Question] = {}
        self._kind = ""
        self._seen: dict[str, Verdict] = {}
        if not self._differing:
            raise BadInputError("--good and --bad are the same versions")

    def find_answer(self) -> Answer:
        settled = check_endpoints(
            self._trial, self._asking(self._good), self._asking(self._bad), self._session.report
        )
        if settled.ended:
            found = {**self._ends(), "result": settled.result, "reason": settled.ended}
            return Answer((settled.ended,), found, settled.exit_code)
        self._trial, self._kind = settled.trial, failure_family(settled.bad.kind)
        least = smallest_bad_set(self._differing, lambda chosen: self._state(self._mixed(chosen)))
        versions = dict(self._mixed(frozenset(least.changes)))
        steps = []
        for name in least.changes:
            without = self._state({**versions, name: self._good[name]})
            if without is State.BAD:  # with versions of the others that are older than their bad ends
                versions[name] = self._good[name]
                continue
            steps.append(self._narrowed(name, versions, without is State.GOOD))
            versions[name] = steps[-1].bad
        return self._answer(steps, versions, settled.notes)

    def _version(self, pins: Pins, name: str) -> str | None:
        """The version of a package; one that is not named has the version of the interpreter below, if it is
        there."""
        return pins[name].version if name in pins else self._base.packages.get(name)

    def _mixed(self, bad: frozenset[str]) -> dict[str, str | None]:
        return {name: (self._bad if name in bad else self._good)[name] for name in self._good}

    def _narrowed(self, name: str, versions: Versions, decisive: bool) -> Step:
        """Which version of package `name` makes `versions`, which are bad, bad. `decisive`: they are
        good with its good version."""
        good, bad = self._good[name], self._bad[name]
        if not decisive or good is None or bad is None:
            return Step(name, good, bad, unsure=not decisive)
        try:
            known = self._environments.versions(name)
        except DoesNotInstall as error:
            self._session.report(f"{name}: {error}; its two ends are all that is known")
            known = []
        line = versions_between(good, bad, known)
        span = first_bad(0, len(line) - 1, lambda at: self._state({**versions, name: line[at]}))
        last, first = line[span.good], line[span.bad]
        also = self._differences({**versions, name: last}, {**versions, name: first}, name)
        return Step(name, last, first, tuple(line[at] for at in span.skipped), also)

    def _differences(self, one: Versions, other: Versions, name: str) -> tuple[str, ...]:
        """What pip installs differently for two sets of versions, except `name`."""
        before, after = (
            {package.name: package.version for package in self._environments.resolve(self._wanted(versions))}
            for versions in (one, other)
        )
        below = self._base.packages
        return tuple(
            f"{package} {before.get(package, below.get(package, 'absent'))} ->"
            f" {after.get(package, below.get(package, 'absent'))}"
            for package in sorted(before.keys() | after.keys())
            if package != name and before.get(package) != after.get(package)
        )

    def _state(self, versions: Versions) -> State:
        """GOOD, BAD for the bad endpoint's failure, else SKIP."""
        verdict = self._ask(versions, self._trial)
        self._seen[_label(versions)] = verdict
        other = self._trial.symptom is None and failure_family(verdict.kind) != self._kind
        if verdict.state is State.BAD and other:
            return State.SKIP
        return verdict.state

    def _asking(self, versions: Versions) -> EndpointReplays:
        def end(trial: Trial) -> Endpoint:
            try:
                packages = self._environments.resolve(self._wanted(versions))
                self._session.report(f"{_label(versions)}: {_made_of(packages)}")
                place = Place(self._environments.python(packages))
            except DoesNotInstall as error:
                raise CannotRunError(f"{_label(versions)} does not install: {error}") from None
            question = self._question(packages, trial)
            try:
                return replay_endpoint(
                    self._session,
                    _label(versions),
                    question,
                    trial,
                    lambda: TrialWorker(place, self._arguments.timeout),
                )
            except (*BAD_INPUT_ERRORS, *CANNOT_RUN_ERRORS) as error:
                raise type(error)(f"{_label(versions)}: {error}") from None

        return EndpointReplays(_label(versions), end, lambda trial: self._ask(versions, trial))

    def _ask(self, versions: Versions, trial: Trial) -> Verdict:
        wanted, label = self._wanted(versions), _label(versions)
        try:
            packages = self._environments.resolve(wanted)
        except DoesNotInstall as error:
            verdict = Verdict(State.SKIP, NOT_INSTALLED, str(error))
            question = {"axis": "env", "wanted": list(wanted), "options": list(self._arguments.options)}
            return self._session.find_or_probe(label, {**question, "base": self._below()}, lambda: verdict)

        def probe() -> Verdict:
            try:
                python = self._environments.python(packages)
            except DoesNotInstall as error:
                return Verdict(State.SKIP, NOT_INSTALLED, str(error))
            try:
                with closing(TrialWorker(Place(python), self._arguments.timeout)) as worker:
                    return worker.run_trial(trial)
            except BAD_INPUT_ERRORS as error:  # a kernel that these versions do not have
                return Verdict(State.SKIP, NOT_THERE, str(error))
            except CANNOT_RUN_ERRORS as error:  # be it for its packages or for this machine at that time
                raise NotKeptError(Verdict(State.SKIP, NO_START, str(error))) from None

        return self._session.find_or_probe(label, self._question(packages, trial), probe)

    def _question(self, packages: Sequence[Package], trial: Trial) -> Question:
        try:
            code = cache_key.digest_code(trials.kernel_sources(trial.kernel))
        except BAD_INPUT_ERRORS:  # of a package that the environments alone have
            code = ""
        if trial not in self._asked_of:
            self._asked_of[trial] = trials.question_without_code(trial)
        return {
            **self._asked_of[trial],
            "axis": "env",
            "code": code,
            "packages": [[one.name, one.version, one.source] for one in packages],
            "base": self._below(),
            "timeout": self._arguments.timeout,
        }

    def _below(self) -> list[Any]:
        return [self._base.version, self._base.platform, dict(self._base.packages)]

    def _wanted(self, versions: Versions) -> tuple[str, ...]:
        pins = [
            str(Pin(name, version, self._extras.get(name, "")))
            for name, version in versions.items()
            if version is not None
        ]
        return (*pins, *self._arguments.beside)

    def _answer(self, steps: Sequence[Step], versions: Versions, notes: Sequence[str]) -> Answer:
        verdict = self._ask(versions, self._trial)
        lines = list(notes)
        for label, one in self._seen.items():
            if one.state is State.SKIP:
                lines.append(f"{label}: {one.kind}, {one.reason}")
            elif one.state is State.BAD and failure_family(one.kind) != self._kind:
                lines.append(f"{label}: another failure, {one.kind}, {one.reason}")
        for step in steps:
            if step.also:
                lines.append(f"with {step.package} {step.good} -> {step.bad} also: {', '.join(step.also)}")
        unsure = [step.package for step in steps if step.unsure]
        for name in unsure:
            lines.append(f"nothing can be told with {name} {self._good[name]}: it may not be at fault")
        said = "; ".join(step.line for step in steps)
        together = " only together" if len(steps) > 1 and not unsure else ""
        lines.append(f"first bad{together}: {said}: {verdict.kind}, {verdict.reason}")
        found = {
            **self._ends(),
            "result": "found" if not any(step.skipped for step in steps) and not unsure else "candidates",
            "packages": [
                {
                    "name": step.package,
                    "good": step.good,
                    "bad": step.bad,
                    "skipped": list(step.skipped),
                    "also": list(step.also),
                    "unsure": step.unsure,
                }
                for step in steps
            ],
            "verdict": verdict.to_json(),
            "notes": list(notes),
        }
        return Answer(tuple(lines), found, Exit.MISMATCH)

    def _ends(self) -> dict[str, Any]:
        return {"axis": "env", "good": self._good, "bad": self._bad}


def _label(versions: Versions) -> str:
    return " ".join(f"{name}=={version}" for name, version in versions.items() if version) or "no package"


def _made_of(packages: Sequence[Package]) -> str:
    names = ", ".join(f"{one.name} {one.version}" for one in packages)
    return f"installs {names}" if names else "is there already"
