# SPDX-License-Identifier: Apache-2.0
"""The result of a suite, entry by entry."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdnbench.errors import Exit
from gdnbench.judge.record import ORACLE
from gdnbench.report.outcome import worst_exit_code
from gdnbench.suite.plan import Entry, Known, LineageCheck, Suite, TensorRule
from gdnbench.suite.verdict import Verdict


@dataclass(frozen=True, slots=True)
class EntryResult:
    """An entry's records. `expected`: the number of records.

    `error`: why it could not run, or not completely; `code` is the error's exit code, PASS for an optional
    entry.
    """

    entry: Entry
    verdicts: tuple[Verdict, ...] = ()
    error: str = ""
    code: Exit = Exit.PASS
    expected: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def exit_code(self) -> Exit:
        return worst_exit_code([self.code, *(verdict.exit_code for verdict in self.verdicts)])

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(sorted(Counter(verdict.outcome for verdict in self.verdicts).items()))

    @property
    def failing(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.exit_code is not Exit.PASS]

    @property
    def run_store(self) -> str:
        """The path of its run store in the folder of results."""
        return f"runs/{self.entry.name}.zarr"


@dataclass(frozen=True, slots=True)
class LineageResult:
    """The result of a lineage check. `summary`: what was checked; `breaks`: a line for each; `error`: why
    nothing was, with `code`."""

    check: LineageCheck
    summary: str = ""
    breaks: tuple[str, ...] = ()
    error: str = ""
    code: Exit = Exit.PASS
    seconds: float = 0.0

    @property
    def exit_code(self) -> Exit:
        return Exit.MISMATCH if self.breaks else self.code

    @property
    def command(self) -> str:
        return shlex.join(["gdnbench", "lineage", str(self.check.path)])


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The results of entries and lineage checks. `whole`: whether all of the suite were requested."""

    suite: Suite
    folder: Path
    entries: tuple[EntryResult, ...]
    interrupted: bool = False
    whole: bool = True
    lineage: tuple[LineageResult, ...] = ()

    @property
    def exit_code(self) -> Exit:
        checks = [check.exit_code for check in self.lineage]
        return worst_exit_code([*checks, *(entry.exit_code for entry in self.entries)])

    def verdicts(self) -> Iterator[tuple[EntryResult, Verdict]]:
        return ((entry, verdict) for entry in self.entries for verdict in entry.verdicts)

    @property
    def known_passing(self) -> list[Known]:
        """Known failures that matched a judged record but excused nothing."""
        return [known for known, seen, used in self._known() if seen and not used]

    @property
    def known_unmatched(self) -> list[Known]:
        """Known failures that matched no record, if all were requested."""
        whole = self.whole and not self.interrupted
        return [known for known, seen, used in self._known() if whole and not seen and not used]

    def _known(self) -> Iterator[tuple[Known, bool, bool]]:
        """Each known failure with whether it matched a judged record, and whether it excused a failure."""
        for known in self.suite.known:
            of = [
                verdict for entry, verdict in self.verdicts() if known.is_of(entry.entry.name, verdict.record)
            ]
            used = any(
                known in [*verdict.expired, *(by for _, by in verdict.excused)]
                or any(failure.known_by(known) for failure, _ in verdict.excused)
                for verdict in of
            )
            seen = any(verdict.record.outcome.exit_code is not Exit.CANNOT_RUN for verdict in of)
            yield known, seen, used

    @property
    def update(self) -> str | None:
        """The command that accepts the measured errors; None if it would not improve or complete the
        baseline."""
        if self.suite.baselines is None:
            return None
        if not any(verdict.better or verdict.missing for _, verdict in self.verdicts()):
            return None
        words = ["gdnbench", "baseline", "update", str(self.suite.path), str(self.folder), "--reason", "WHY"]
        return shlex.join(words)

    def command(self, entry: Entry, number: int | None = None) -> str:
        """The command that replays an entry, or one record of it."""
        return shlex.join(replay_words(entry, number))


def replay_words(entry: Entry, number: int | None = None) -> list[str]:
    """`gdnbench replay` with the options of an entry that are not defaults; for made records, of which there
    is no store, the `gdnbench suite` that replays them."""
    options = entry.options
    if entry.made:
        words = ["gdnbench", "suite", entry.where.partition(": [[")[0], "--entry", entry.name]
        return words + ([] if number is None else ["--records", str(number)])
    words = ["gdnbench", "replay", str(entry.path)]
    numbers = options.records if number is None else (number,)
    words += [] if numbers is None else [",".join(map(str, numbers))]
    words += ["--kernel", entry.kernel, "--on", entry.on]
    words += [] if options.against == ORACLE else ["--against", options.against]
    words += [] if options.op is None or number is not None else ["--op", options.op]
    words += _rule(options.rule)
    for name, rule in options.tensors.items():
        words += ["--rule", f"{name}={rule_text(rule)}"]
    words += ["--stages"] * options.stages + ["--check"] * options.check
    words += [] if options.accept is None else ["--accept", os.path.relpath(options.accept)]
    words += [] if options.machine is None else ["--machine", options.machine]
    words += [] if options.sms is None else ["--sms", str(options.sms)]
    words += [] if options.isolate is None else ["--isolate" if options.isolate else "--no-isolate"]
    return words + ([] if options.timeout is None else ["--timeout", f"{options.timeout:g}"])


def _rule(rule: TensorRule) -> list[str]:
    if rule.tol is not None:
        return ["--tol", ",".join(f"{value!r}" for value in rule.tol)]
    return ["--bitwise"] if rule.bitwise else [] if rule.k is None else ["--k", f"{rule.k!r}"]


def rule_text(rule: TensorRule) -> str:
    """The rule as `replay --rule` takes it."""
    if rule.tol is not None:
        return "tol:" + ",".join(f"{value!r}" for value in rule.tol)
    return "bitwise" if rule.bitwise else "k:2" if rule.k is None else f"k:{rule.k!r}"
