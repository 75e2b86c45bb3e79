# SPDX-License-Identifier: Apache-2.0
"""What became of each mutant, a line of JSON each, and the reasons why some are equivalent."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gdnbench.errors import BadInputError
from gdnbench.sim.mutants import KILLED, Kind, Mutant, Outcome

EQUIVALENT = Path(__file__).parents[1] / "checker" / "equivalent_mutants.toml"
TOLD = ("kernel", "kind", "mutants", "killed", *KILLED, Outcome.SURVIVOR, "equivalent", Outcome.UNREACHED)


@dataclass(frozen=True, slots=True)
class Result:
    """`ptx` is a digest of the kernel's text and its launches' sizes, `line` a line of the text, `source` the
    Python line as `file.py:number`; `engine` ran it, in `seconds` of a core. `nth` counts the kernel's
    instructions of this `source` and `op`, in the order of the text, from 1: one Python line may be many."""

    kernel: str
    ptx: str
    engine: str
    kind: str
    op: str
    line: int
    source: str
    nth: int
    change: str
    outcome: str
    why: str = ""
    schedule: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, kernel: str, ptx: str, engine: str, mutant: Mutant, nth: int) -> Result:
        """Of one that is not judged yet."""
        what = (mutant.kind.value, mutant.op, mutant.place.line, source_of(mutant), nth, mutant.change)
        return cls(kernel, ptx, engine, *what, Outcome.SURVIVOR.value)

    @property
    def key(self) -> tuple[object, ...]:
        return (self.kernel, self.ptx, self.engine, self.kind, self.line, self.op, self.change)

    def __str__(self) -> str:
        where = f"PTX line {self.line}" + (f", {self.source} ({self.nth})" if self.source else "")
        return f"{self.kernel}: {self.op} at {where}, {self.kind}: {self.change}"


def source_of(mutant: Mutant) -> str:
    """The Python line, as results and reasons have it."""
    place = mutant.place
    return f"{Path(place.file).name}:{place.file_line}" if place.file else ""


def read(path: Path) -> Iterator[Result]:
    """The results in a file, which may end in the middle of a line: a run that was stopped."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Result(**json.loads(line))


def latest(path: Path, names: Collection[str]) -> list[Result]:
    """The results of these kernels as they are now: of a kernel that has changed since, those of its latest
    text, of a mutant that was judged twice the later one."""
    results = [result for result in read(path) if result.kernel.partition("/")[0] in names]
    text = {result.kernel: result.ptx for result in results}
    return list({result.key: result for result in results if text[result.kernel] == result.ptx}.values())


def write(path: Path, result: Result) -> None:
    """Append one, in the place of a line that was not finished."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(asdict(result)).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Mutants that change nothing, by patterns, of `kernel` and `kind` several, and `why` they do not. A
    Python line may be many instructions: then `nth` says which of them, or `most` how many of a kernel's
    mutants at most."""

    kernel: tuple[str, ...]
    source: str
    kind: tuple[str, ...]
    op: str
    change: str
    why: str
    nth: tuple[int, ...] | None = None
    most: int | None = None

    def matches(self, result: Result) -> bool:
        if self.nth is not None and result.nth not in self.nth:
            return False
        if not _fits(result.kind, self.kind) or not _fits(result.kernel, self.kernel):
            return False
        pairs = ((name, getattr(result, name)) for name in ("source", "op", "change"))
        return all(fnmatchcase(value, getattr(self, name)) for name, value in pairs)

    def is_about(self, subject: str) -> bool:
        """Whether it is there for kernels of a subject."""
        return _fits(subject, tuple(one.partition("/")[0] for one in self.kernel))

    def explains(self, result: Result) -> bool:
        """Whether it is what this is there for."""
        return result.outcome == Outcome.SURVIVOR.value and self.matches(result)

    def __str__(self) -> str:
        which = f" ({', '.join(map(str, self.nth))})" if self.nth is not None else ""
        return f"{', '.join(self.kernel)} {self.source}{which} {', '.join(self.kind)}, {self.op}"


def equivalents(path: Path = EQUIVALENT) -> list[Equivalent]:
    """BadInputError for a file that does not say what it has to."""
    if not path.exists():
        return []
    found = []
    for entry in tomllib.loads(path.read_text()).get("mutant", []):
        try:
            nth = tuple(entry["nth"]) if "nth" in entry else None
            several = {name: _several(entry[name]) for name in ("kernel", "kind") if name in entry}
            one = Equivalent(**{"op": "*", "change": "*", **entry, "nth": nth, **several})
        except TypeError as error:
            raise BadInputError(f"{path}: {entry}: {error}") from None
        known = [any(fnmatchcase(kind, pattern) for kind in Kind) for pattern in one.kind]
        if not one.why.strip() or not known or not all(known):
            raise BadInputError(
                f"{path}: {entry}: kind is {', '.join(Kind)}, a pattern or a list, and why says a reason"
            )
        found.append(one)
    return found


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    """Patterns, of which one need not be in a list."""
    return (given,) if isinstance(given, str) else tuple(given)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)


def unexplained(results: Iterable[Result], known: Sequence[Equivalent]) -> list[Result]:
    """The survivors for which no reason is written, and what took too long to be judged."""
    left = []
    given: Counter[tuple[Equivalent, str]] = Counter()
    for result in results:
        if result.outcome not in (Outcome.SURVIVOR.value, Outcome.UNDECIDED.value):
            continue
        reason = next((one for one in known if one.matches(result)), None)
        if reason is not None and result.outcome == Outcome.SURVIVOR.value:
            given[reason, result.kernel] += 1
            if reason.most is None or given[reason, result.kernel] <= reason.most:
                continue
        left.append(result)
    return left


def rows(results: Sequence[Result], known: Sequence[Equivalent]) -> list[tuple[object, ...]]:
    """A row for each kind of each kernel, then for each kind, then for all: as `TOLD` says."""
    found = []
    kernels = list(dict.fromkeys(result.kernel for result in results))
    for kernel in [*kernels, "all"] if len(kernels) > 1 else kernels:
        own = [result for result in results if kernel in (result.kernel, "all")]
        found += [_row(kernel, kind, [one for one in own if one.kind == kind], known) for kind in Kind]
        found.append(_row(kernel, "", own, known))
    return [row for row in found if row[2]]


def _row(
    kernel: str, kind: str, results: Sequence[Result], known: Sequence[Equivalent]
) -> tuple[object, ...]:
    count = {outcome: sum(one.outcome == outcome.value for one in results) for outcome in Outcome}
    left = unexplained(results, known)
    survivors = sum(one.outcome == Outcome.SURVIVOR.value for one in left)
    equivalent = count[Outcome.SURVIVOR] - survivors
    killed = sum(count[outcome] for outcome in KILLED)
    judged = len(results) - count[Outcome.UNREACHED] - equivalent
    rate = f"{killed / judged:.1%}" if judged else ""
    outcomes = [count[outcome] for outcome in KILLED]
    return (kernel, kind, len(results), rate, *outcomes, survivors, equivalent, count[Outcome.UNREACHED])
