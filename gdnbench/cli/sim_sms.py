# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim --explore N --vary sms=1,2,4 -- PROGRAM`: the whole program again with other numbers of SMs.

A program sizes its grids by the number of SMs. So launches cannot be compared one by one: what is compared is
how each run ended, what was refused and what was found.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gdnbench.cli.console import table
from gdnbench.errors import BadInputError, Exit

if TYPE_CHECKING:
    from gdnbench.sim.virtual import Log, ProgramRun, Request

HEADERS = ("sms", "status", "launches", "warp instructions", "errors", "review", "explored")
LAST_LINES = 10  # of the output of a run whose exit status is another


def wanted_sms_and_engines(texts: Sequence[str]) -> tuple[list[int], list[str]]:
    """The numbers of `--vary sms=1,2,4` and the names of `--vary engine=interpreter`. BadInputError for
    anything else."""
    counts: list[int] = []
    engines: list[str] = []
    for text in texts:
        name, _, joined = text.partition("=")
        values = joined.split(",")
        if name == "engine":
            engines += values
        elif name == "sms" and all(map(_is_number, values)):
            counts += map(int, values)
        else:
            raise BadInputError(
                f"--vary {text!r}: of a program it is sms=N,N with numbers of SMs, sms=1,2,4, or engine=NAME"
            )
    return list(dict.fromkeys(counts)), list(dict.fromkeys(engines))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0


@dataclass(frozen=True, slots=True)
class SmsRun:
    """A run with `sms` SMs; `output` is the end of what it printed."""

    sms: int
    done: ProgramRun
    output: str


@dataclass(frozen=True, slots=True)
class SmsRuns:
    """Runs of one program; the first is the one whose output the user saw."""

    runs: Sequence[SmsRun]

    @property
    def logs(self) -> list[Log]:
        """Those of all runs but the first."""
        return [run.done.log for run in self.runs[1:]]

    @property
    def status(self) -> int:
        """The exit status if the first run passed."""
        if any(list(self._differences(run)) or run.done.log.failed for run in self.runs[1:]):
            return Exit.MISMATCH
        logs = [run.done.log for run in self.runs]
        refused = any(log.refusals or log.problems or log.incomplete for log in logs)
        return Exit.CANNOT_RUN if refused else Exit.PASS

    def accepting(self, accept: Callable[[Log], Log]) -> SmsRuns:
        """A copy whose logs, but the first, `accept` has judged."""
        first, *others = self.runs
        judged = (replace(run, done=replace(run.done, log=accept(run.done.log))) for run in others)
        return SmsRuns([first, *judged])

    def _differences(self, run: SmsRun) -> Iterator[str]:
        first = self.runs[0]
        if run.done.status != first.done.status:
            yield f"the program ends with status {run.done.status} instead of {first.done.status}"
        for text in run.done.log.refusals:
            if text not in first.done.log.refusals:
                yield f"refused: {text}"

    def text(self, *, verbose: bool) -> str:
        """A table of the runs, and what later runs have that the first has not."""
        from gdnbench.sim.virtual import explored_text, findings_text

        first = self.runs[0]
        right = ("sms", "status", "launches", "warp instructions", "errors", "review")
        lines = [table(HEADERS, [_row(run) for run in self.runs], right=right)]
        for run in self.runs[1:]:
            said = list(self._differences(run))
            if run.done.status != first.done.status:
                said += [f"  {line}" for line in run.output.splitlines()[-LAST_LINES:]]
            new = _not_in(first.done.log, run.done.log)
            said += findings_text(new.launches, verbose=verbose)
            said += [text for _, text in explored_text(new.explored, verbose=verbose)]
            lines += [f"with {run.sms} SM{'s' if run.sms > 1 else ''}: {text}" for text in said]
        return "\n".join(lines)

    def as_json(self) -> list[dict[str, Any]]:
        """The runs as JSON values."""
        return [
            {
                "sms": run.sms,
                "program_status": run.done.status,
                "launches": len(run.done.log.launches),
                "differences": [] if run is self.runs[0] else list(self._differences(run)),
                "findings": [finding.as_json() for finding in run.done.log.findings],
                "explored": [launch.as_json() for launch in run.done.log.explored],
            }
            for run in self.runs
        ]


def _not_in(first: Log, log: Log) -> Log:
    """`log` without the findings, and the launches that depend on the schedule, that `first` has too."""
    from gdnbench.sim.explore import finding_cause

    known = {(one.entry, finding_cause(finding)) for one in first.launches for finding in one.findings}
    launches = tuple(
        replace(
            one,
            findings=tuple(
                finding for finding in one.findings if (one.entry, finding_cause(finding)) not in known
            ),
        )
        for one in log.launches
    )
    depend = {(one.entry, one.origin) for one in first.explored if one.failed}
    explored = tuple(one for one in log.explored if (one.entry, one.origin) not in depend)
    return replace(log, launches=launches, explored=explored)


def _row(run: SmsRun) -> list[object]:
    from gdnbench.sim.virtual import kernel_rows

    rows = kernel_rows(run.done.log.launches)
    explored = run.done.log.explored
    depend = sum(one.depends for one in explored)
    return [
        run.sms,
        run.done.status,
        sum(row.launches for row in rows),
        f"{sum(row.instructions for row in rows):,}",
        sum(row.errors for row in rows) or "",
        sum(row.review for row in rows) or "",
        f"{depend} of {len(explored)} depend" if depend else "equal bits" if explored else "-",
    ]


def run_with_sms(
    command: Sequence[str],
    request: Request,
    done: ProgramRun,
    counts: Sequence[int],
    progress: Callable[[int, int], None],
) -> SmsRuns:
    """Run `command` once more for each of `counts` but that of `request`, whose run is `done`, one after the
    other. What they print is kept from the user's terminal."""
    from gdnbench.sim.virtual import machine_named, run_program

    given = machine_named(request.machine, request.sms).device.multiprocessors
    runs = [SmsRun(given, done, "")]
    wanted = [count for count in counts if count != given]
    for number, count in enumerate(wanted, 1):
        with tempfile.TemporaryFile() as output:
            again = run_program(command, replace(request, sms=count), output)
            output.seek(0)
            runs.append(SmsRun(count, again, output.read().decode(errors="replace")))
        progress(number, len(wanted))
    return SmsRuns(runs)
