# SPDX-License-Identifier: Apache-2.0
"""The regressions, each looked for by the command line, and what the answers are to say.

Where a regression lies is known from the tags of the repository and from how the captures were made, and from
nothing that a bisection says.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gdnbench.store.reader import Store
from tests.bisect.regressions import captures
from tests.bisect.regressions.history import (
    BARRIER,
    BEFORE_BARRIER,
    BEFORE_FENCE,
    BEFORE_OPERAND,
    BETA,
    FENCE,
    GOOD,
    INVERSE,
    OPERAND,
    TAIL,
    WITH_BARRIER,
    WITH_FENCE,
    WITH_OPERAND,
)
from tests.bisect.regressions.repository import check_out, make

PREFILL, DECODE = "served_kernels.prefill:prefill", "served_kernels.decode:decode"
TOLERANCE = "4e-3"
"""What the states of case `beta` may be off: more than a single call makes of a beta of 8 bits, which is off
by 2^-9 of 1 at most, times |v - S k| |k|."""
MANY = 32
"""Steps of decode before which a beta in bf16 is not to be seen."""

Found = Mapping[str, Any]
Check = Callable[[Found], str]
"""Of a command's JSON: what is wrong with it, nothing if it is as it has to be."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A command of gdnbench, the folder it runs in, its exit status, and what its answer is to say."""

    case: str
    what: str
    arguments: tuple[str, ...]
    folder: Path
    status: int
    check: Check
    answer: Callable[[Found], str]


@dataclass(frozen=True, slots=True)
class Answered:
    case: str
    what: str
    answer: str
    wrong: str
    seconds: float
    busy: float
    """Seconds of CPU time, which other work on the machine does not add to."""


def answered(asked: Asked) -> Answered:
    begin, used = time.monotonic(), _used()
    command = [sys.executable, "-m", "gdnbench", *asked.arguments, "--json"]
    done = subprocess.run(command, cwd=asked.folder, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.monotonic() - begin, _used() - used
    try:
        found: Found = json.loads(done.stdout)
    except ValueError:
        return Answered(asked.case, asked.what, "", f"no answer, exit status {done.returncode}", *seconds)
    wrong = "" if done.returncode == asked.status else f"exit status {done.returncode}"
    wrong = wrong or asked.check(found)
    # What is wrong may be that there is nothing of what the answer tells.
    said = asked.answer(found) if not wrong else _answer(found)
    return Answered(asked.case, asked.what, said, wrong, *seconds)


def _used() -> float:
    """CPU time of processes that have ended, and of those that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Cases:
    """The repository, its checkouts and the captures, all in one folder, which is new or empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.repository = self.folder / "repository"
        self.tags = make(self.repository)

    def all(self) -> dict[str, Iterator[Asked]]:
        """Questions by case, made as they are asked: a capture is written when its case begins."""
        return {
            INVERSE: self.inverse(),
            BARRIER: self.barrier(),
            OPERAND: self.operand(),
            BETA: self.beta(),
            TAIL: self.tail(),
            FENCE: self.fence(),
        }

    def inverse(self) -> Iterator[Asked]:
        """A round less in the inverse: random keys do not show it, keys that are alike do."""
        alike, unlike = (
            captures.alike(self.folder / "alike.zarr"),
            captures.unlike(self.folder / "unlike.zarr"),
        )
        good, bad = self.checkout(f"{INVERSE}~1"), self.checkout(INVERSE)
        yield self._replay(INVERSE, "random keys", unlike, bad, passes=True)
        yield self._commit(INVERSE, alike, BEFORE_BARRIER, stage="Ai")
        yield self._asked(INVERSE, "stage", [alike, "--kernel", PREFILL, "--on", "sim"], bad, _names_inverse)
        yield self._input(INVERSE, alike, bad, {"sequence": 1, "chunk": 1, "head": 1})
        paths = ["--good-path", good, "--bad-path", bad]
        yield self._asked(
            INVERSE,
            "instruction",
            [alike, "0", "--good", PREFILL, "--bad", PREFILL, *paths],
            self.folder,
            _names_line(bad),
        )

    def barrier(self) -> Iterator[Asked]:
        """A store that is not waited for before its shared memory is written again: what lands at once has
        read it by then."""
        chunks = captures.chunks(self.folder / "chunks.zarr")
        yield self._commit(BARRIER, chunks, WITH_BARRIER, schedules=("late",))

    def operand(self) -> Iterator[Asked]:
        """A product whose operand is not waited for: what lands when it is waited for finds it written."""
        chunks = captures.chunks(self.folder / "operand.zarr")
        yield self._commit(OPERAND, chunks, WITH_OPERAND, good=BEFORE_OPERAND, schedules=("early",))

    def beta(self) -> Iterator[Asked]:
        """beta in bf16: within the tolerance in each call, and out of it once many calls have added it up."""
        steps, bad = captures.steps(self.folder / "steps.zarr"), self.checkout(BETA)
        carried = [steps, "--kernel", DECODE, "--carry", "--tol", TOLERANCE]
        yield self._asked(BETA, "record, good", carried, self.checkout(GOOD), _nothing, status=0)
        named: list[int] = []
        yield self._asked(BETA, "record", carried, bad, partial(_adds_up, named))
        # The call that was named: what it leaves is within the tolerance, and one of its stages is not within
        # its own bound.
        number = named[0] if named else captures.STEPS - 1
        yield self._asked(BETA, "stage", [steps, number, *carried[1:]], bad, _names_beta)
        # States are kept in fp32: by the rule that calls are judged by without a tolerance, the first one
        # shows it.
        yield self._commit(BETA, steps, BEFORE_BARRIER, kernel=DECODE, records="0", on="cpu", stage="beta_t")

    def tail(self) -> Iterator[Asked]:
        """NaN of the next sequence behind the end of a chunk that is not whole."""
        spoilt, bad = captures.spoilt(self.folder / "spoilt.zarr"), self.checkout(TAIL)
        yield self._commit(TAIL, spoilt, BEFORE_BARRIER, stage="U")
        yield self._input(TAIL, spoilt, bad, {"sequence": 2})

    def fence(self) -> Iterator[Asked]:
        """A fence between the proxies that is left out: no number shows it, the checker does."""
        chunks = captures.chunks(self.folder / "fence.zarr")
        yield self._replay(FENCE, "its numbers", chunks, self.checkout(FENCE), passes=True)
        yield self._commit(FENCE, chunks, WITH_FENCE, good=BEFORE_FENCE, check=True)

    def checkout(self, revision: str) -> Path:
        """The files of a revision, in a folder that is made once."""
        folder = self.folder / revision.replace("~", "-")
        return folder if folder.exists() else check_out(self.repository, revision, folder)

    def _asked(
        self,
        case: str,
        axis: str,
        arguments: list[Any],
        folder: Path,
        check: Check,
        status: int = 1,
        answer: Callable[[Found], str] | None = None,
    ) -> Asked:
        words = (
            "bisect",
            axis.partition(",")[0],
            *map(str, arguments),
            "--state",
            str(self.folder / "state"),
        )
        return Asked(case, axis, words, folder, status, check, answer or _answer)

    def _replay(self, case: str, what: str, store: Path, folder: Path, passes: bool) -> Asked:
        def check(found: Found) -> str:
            return (
                "" if bool(found["outcomes"].get("pass")) is passes else f"outcomes are {found['outcomes']}"
            )

        words = ("replay", str(store), "--kernel", PREFILL, "--on", "sim")
        return Asked(
            case, what, words, folder, 0 if passes else 1, check, lambda found: str(found["outcomes"])
        )

    def _commit(
        self,
        case: str,
        store: Path,
        bad: str,
        *,
        kernel: str = PREFILL,
        records: str = "",
        on: str = "sim",
        stage: str = "",
        good: str = GOOD,
        schedules: tuple[str, ...] = (),
        check: bool = False,
    ) -> Asked:
        def judge(found: Found) -> str:
            if found["result"] != "found" or found["commit"]["hash"] != self.tags[case]:
                return f"not {self.tags[case][:10]}"
            if stage and (found["stage"] or {}).get("tensor") != stage:
                return f"stage {found['stage']}, not {stage}"
            return _tells_schedules(found, schedules) if schedules else ""

        arguments = [store, *([records] if records else []), "--repo", self.repository, "--kernel", kernel]
        arguments += ["--good", good, "--bad", bad, "--on", on, *["--check"] * check]
        return self._asked(case, "commit", arguments, self.folder, judge)

    def _input(self, case: str, store: Path, folder: Path, most: Mapping[str, int]) -> Asked:
        small = self.folder / f"{case}-small.zarr"

        def check(found: Found) -> str:
            if not found["shrunk"]:
                return str(found["reason"])
            there = _sizes(small)
            over = {name: there[name] for name, count in most.items() if there[name] > count}
            return f"there are {over}" if over else ""

        arguments = [store, "0", "--kernel", PREFILL, "--on", "sim", "--out", small]
        return self._asked(case, "input", arguments, folder, check, answer=lambda found: f"{_sizes(small)}")


def _sizes(store: Path) -> dict[str, int]:
    """Of its record, by what its own tensors say."""
    with Store.open(store) as opened:
        before = opened.records[0].before
        lengths = before["cu_seqlens"].read().diff()
        return {
            "sequence": len(lengths),
            "chunk": int(((lengths + 63) // 64).sum()),
            "token": int(lengths.sum()),
            "head": before["v"].meta.shape[1],
        }


def _tells_schedules(found: Found, wrong: tuple[str, ...]) -> str:
    """`wrong`: those of late and early under which it shows."""
    notes = [note for note in found["notes"] if "depends on the schedule" in note]
    if not notes:
        return "it does not say that it depends on the schedule"
    said = [name for name in ("late", "early") if f"numeric mismatch under {name}" in notes[0]]
    return "" if said == list(wrong) else f"it is said to show under {said}, not {wrong}"


def _names_inverse(found: Found) -> str:
    if found["first"] != "Ai":
        return f"stage {found['first']}, not Ai"
    return "" if found["grafts"] and found["grafts"][0]["passes"] else "an exact Ai does not mend the outputs"


def _names_line(bad: Path) -> Check:
    """The loop over rounds is what the commit has edited; what differs is what it repeats."""
    file = bad / "served_kernels" / "inverse.py"
    (line,) = (
        number
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if "range_constexpr(3)" in text
    )

    def check(found: Found) -> str:
        places = [found[name] for name in ("place", "bad") if isinstance(found.get(name), dict)]
        if not any(Path(place["file"] or "").name == file.name for place in places):
            return "the place is not in inverse.py"
        named = [(Path(place["file"]).name, place["line"]) for place in found.get("edited", ())]
        return "" if (file.name, line) in named else f"line {line} is not named, {named} are"

    return check


def _adds_up(named: list[int], found: Found) -> str:
    """`named` gets the number of the record."""
    if found["first"] is not None:
        return f"call {found['first']} is bad by itself"
    over = (found["carry"] or {}).get("over")
    if not over:
        return "no state is over its tolerance"
    named.append(over["record"])
    return "" if over["step"] >= MANY else f"step {over['step']} is one of the first {MANY}"


def _names_beta(found: Found) -> str:
    if found["first"] != "beta_t":
        return f"stage {found['first']}, not beta_t"
    if wrong := [one["name"] for one in found["stages"] if not one["stage"] and not one["chained"]["passed"]]:
        return f"{wrong[0]} is over its tolerance in one call"
    chain = found["chain"]
    if chain is None or chain["keeps"]:
        return "the calls before do not add it up"
    return "" if chain["keeps_with_exact"] else "an exact beta_t in each call does not mend it"


def _nothing(found: Found) -> str:
    return "" if found["first"] is None and not (found["carry"] or {}).get("over") else "it is not to be bad"


def _answer(found: Found) -> str:
    if "answer" in found:
        return str(found["answer"])
    if found.get("commit"):
        return f"{found['commit']['hash'][:10]} {found['commit']['subject']}"
    lines = found.get("lines") or [found.get("reason") or ""]
    return str(lines[-1])
