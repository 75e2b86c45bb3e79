# SPDX-License-Identifier: Apache-2.0
"""Both checkers on the same PTX and launch: a kernel as it is, then mutants of it."""

from __future__ import annotations

import random
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gdnbench.errors import BadInputError
from gdnbench.sim import Verdict as Found
from gdnbench.sim.errors import SimError
from gdnbench.sim.mutants import KILLED, Judge, KeptLaunch, Mutant, Outcome, mutants
from tests.sim.static_check.launch_input import launch_input, plain_ptx
from tests.sim.static_check.sentryward import Says, SentryWard, Verdict

DIFFERENCES = Path(__file__).with_name("differences.toml")
AS_IT_IS = "as it is"
TOLD = ("kernel", "op", "line", "change", "sentryward", "seconds", "ours", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel or mutant. `ours` is an outcome of `gdnbench.sim.mutants.judge`, or `clean`."""

    kernel: str
    op: str
    line: int
    change: str
    static: str
    says: str
    static_why: str
    seconds: float
    ours: str
    ours_why: str

    @property
    def agreement(self) -> str:
        """Agree, differ, or "" where one of the two says nothing."""
        if self.says == Says.NOTHING.value or self.ours in (Outcome.UNREACHED.value, Outcome.UNDECIDED.value):
            return ""
        found = self.ours in (outcome.value for outcome in KILLED)
        return "agree" if found == (self.says == Says.FOUND.value) else "differ"

    def __str__(self) -> str:
        where = f" at PTX line {self.line}" if self.line else ""
        static = f"{self.static} ({self.static_why})" if self.static_why else self.static
        ours = f"{self.ours} ({self.ours_why})" if self.ours_why else self.ours
        return f"{self.kernel}: {self.op}{where} {self.change}: sentryward {static}; ours {ours}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows in which the two differ, by patterns, and `why`: which is right."""

    kernel: str
    op: str
    change: str
    static: str
    ours: str
    why: str

    def matches(self, row: Row) -> bool:
        names = ("kernel", "op", "change", "static", "ours")
        return all(fnmatchcase(getattr(row, name), getattr(self, name)) for name in names)


def differences(path: Path = DIFFERENCES) -> list[Difference]:
    """Those that are explained. BadInputError for an entry that does not say what it has to."""
    found = []
    for entry in tomllib.loads(path.read_text()).get("difference", []):
        try:
            one = Difference(**{"kernel": "*", "change": "*", **entry})
        except TypeError as error:
            raise BadInputError(f"{path}: {entry}: {error}") from None
        if not one.why.strip():
            raise BadInputError(f"{path}: {entry}: why says a reason")
        found.append(one)
    return found


def compared(kernel: str, launch: KeptLaunch, static: SentryWard, sample: int, seed: int) -> Iterator[Row]:
    """The kernel, then `sample` of its mutants if SentryWard takes it and finds nothing."""
    try:
        judge = Judge(launch, seconds=static.seconds)
    except SimError as error:
        yield _row(kernel, None, Verdict(Says.NOTHING, "not asked"), 0.0, Outcome.FAULT.value, str(error))
        return
    after = next(iter(judge.own.values())).after
    assert after is not None
    sizes = launch_input(launch, after)
    own, why = _own(judge)
    text = launch.module.text
    start = time.monotonic()
    verdict = static.check(plain_ptx(text), sizes)
    yield _row(kernel, None, verdict, time.monotonic() - start, own, why)
    if verdict.says is not Says.CLEAN:
        return
    every = list(mutants(launch.module, launch.request.entry))
    drawn = random.Random(f"{seed} {kernel}").sample(range(len(every)), min(sample, len(every)))
    for index in sorted(drawn):
        start = time.monotonic()
        verdict = static.check(plain_ptx(every[index].ptx(text)), sizes)
        seconds = time.monotonic() - start
        judgement = judge.judge(every[index])
        yield _row(kernel, every[index], verdict, seconds, judgement.outcome.value, judgement.why)


def _own(judge: Judge) -> tuple[str, str]:
    """What the checker finds in the kernel as it is, in the words of a mutant's outcome."""
    found = sorted(cause for own in judge.own.values() for cause in own.found)
    for verdict, outcome in ((Found.ERROR, Outcome.ERROR), (Found.REVIEW, Outcome.REVIEW)):
        for cause in found:
            if cause[0] == verdict.value:
                return outcome.value, " ".join(filter(None, cause))
    return "clean", ""


def _row(
    kernel: str, mutant: Mutant | None, verdict: Verdict, seconds: float, ours: str, ours_why: str
) -> Row:
    op, line, change = ("", 0, AS_IT_IS)
    if mutant is not None:
        op, line, change = mutant.op, mutant.place.line, f"{mutant.kind.value}: {mutant.change}"
    static = (verdict.result, verdict.says.value, verdict.why)
    return Row(kernel, op, line, change, *static, round(seconds, 1), ours, ours_why)


def unexplained(rows: Sequence[Row], known: Sequence[Difference]) -> list[Row]:
    """The rows in which the two differ and for which no reason is written."""
    differ = [row for row in rows if row.agreement == "differ"]
    return [row for row in differ if not any(one.matches(row) for one in known)]


def lines(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    """As `TOLD` says."""
    return [
        (
            row.kernel,
            row.op,
            row.line or "",
            row.change,
            row.static,
            f"{row.seconds:.1f}",
            row.ours,
            row.agreement,
        )
        for row in rows
    ]
