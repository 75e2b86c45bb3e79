#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Runs kernels that other projects publish, with their own host code and references, on the simulator.

    git clone https://github.com/NVIDIA/cutlass
    python scripts/public_kernels.py --cutlass cutlass
    python scripts/public_kernels.py --cutlass cutlass --quack quack --only 'dense_gemm*'

public_kernels.toml has one row for each program: its folder, command line and number of SMs. Each runs twice:

- Its launches run under the schedules late, early and random in the compiled engine, then in the interpreter,
  each from the same memory. All must leave equal bits. The program compares them with its own reference.
- `--check`: the race checker observes the same launches.

A row passes if both runs end with status 0. A row with a known fault of the kernel, `wrong`, passes if its
runs fail in the known way: each failure matches one of the regular expressions `failures`, and each of them
matches a failure. Exit status: 0 every row passed, 1 one did not, 2 bad arguments, 3 none failed, but a
package was not given or the simulator refused something. After Ctrl-C the table has the rows that were
finished.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gdnbench.cli.console import table
from gdnbench.cli.statuses import INTERRUPTED
from gdnbench.errors import Exit
from gdnbench.sim import Finding

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_suffix(".toml")
HEADERS = ("program", "reference", "bits", "checker", "CPU seconds")
PACKAGES = ("cutlass", "quack", "flash_attention", "flashinfer")
EVERY_RUN = ("--explore", "3", "--vary", "engine=interpreter")
ENTRY = 60  # characters of a kernel's name
LINES = 12  # of the end of a failed program's output


@dataclass(frozen=True, slots=True)
class Row:
    """A program of `package`: Python runs `command` in the `folder` of its checkout. `launches` chooses the
    launches that are explored and checked, as --launch does; "" is all of them. `wrong` is a known fault of
    the kernel, "" if there is none; `failures` are regular expressions of what it makes the runs report, see
    `list_failures`. `keep_going` is the option --keep-going."""

    name: str
    package: str
    command: tuple[str, ...]
    folder: str = "."
    sms: int = 4
    machine: str = "b200"
    launches: str = ""
    wrong: str = ""
    failures: tuple[str, ...] = ()
    keep_going: bool = False

    def __post_init__(self) -> None:
        if bool(self.wrong) != bool(self.failures):
            raise ValueError(f"{self.name}: `wrong` and `failures` are given together or not at all")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a program ended: a word for the table, gdnbench's exit status and the end of what was
    printed. `launches` and `explored` are those of its JSON."""

    status: int
    output: str
    launches: Sequence[Mapping[str, Any]] = ()
    explored: Sequence[Mapping[str, Any]] = ()
    refused: Sequence[str] = ()
    program_status: int = 0

    @property
    def reference(self) -> str:
        """Whether the program ended well, and so its own comparison."""
        if self.refused:
            return "refused"
        stopped = any(not launch["finished"] for launch in self.launches)
        if self.program_status or stopped:
            return "fault" if stopped else f"status {self.program_status}"
        return "pass" if self.launches else "no launch"

    @property
    def bits(self) -> str:
        """Whether all runs of each launch left equal bits."""
        ran = [launch for launch in self.explored if not launch["refused"]]
        differ = sum(launch["depends"] for launch in ran)
        if differ:
            return f"{differ} of {len(ran)} differ"
        left = len(self.explored) - len(ran)
        return (f"{len(ran)} equal" if ran else "-") + (f", {left} not explored" if left else "")

    @property
    def checker(self) -> str:
        """How many findings the checker has."""
        found = [one["severity"] for launch in self.launches for one in launch["findings"]]
        if self.refused:
            return "refused"
        counts = {"error": found.count("error"), "to review": found.count("review")}
        nonzero = [f"{count} {what}" for what, count in counts.items() if count]
        return ", ".join(nonzero) or ("clean" if self.launches and not self.program_status else "-")


def read_rows(path: Path = ROWS) -> list[Row]:
    """The rows of a TOML file: a table for each package with what its rows have in common."""
    found = []
    for package, common in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for row in common.pop("row"):
            fields = {"package": package, **common, **row}
            command = fields.pop("command").replace("{scripts}", str(path.resolve().parent))
            failures = tuple(fields.pop("failures", ()))
            found.append(Row(command=tuple(shlex.split(command)), failures=failures, **fields))
    return found


def command_of(row: Row, options: Sequence[str]) -> list[str]:
    """The command that runs a row; `options` are those of `gdnbench sim`."""
    launches = ["--launch", row.launches] if row.launches else []
    launches += ["--keep-going"] * row.keep_going
    gpu = ["--machine", row.machine, "--sms", str(row.sms)]
    program = [sys.executable, *row.command]
    return [sys.executable, "-m", "gdnbench", "sim", "--json", *gpu, *options, *launches, "--", *program]


def run_row(row: Row, folder: Path, path: Sequence[str], options: Sequence[str]) -> Outcome:
    """Run a row in its package's checkout with `path` before Python's own. Ends the program on Ctrl-C."""
    python_path = os.pathsep.join([*path, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": python_path}
    with tempfile.TemporaryFile() as output:
        ran = subprocess.Popen(
            command_of(row, options),
            cwd=folder / row.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            status = ran.wait()
        except BaseException:
            os.killpg(ran.pid, signal.SIGKILL)
            ran.wait()
            raise
        output.seek(0)
        return outcome_of(status, output.read().decode(errors="replace"))


def outcome_of(status: int, text: str) -> Outcome:
    """What a run of `gdnbench sim --json` printed, whose JSON follows the program's own output."""
    printed, brace, rest = f"\n{text}".rpartition("\n{\n")
    try:
        document, _ = json.JSONDecoder().raw_decode("{\n" + rest) if brace else (None, 0)
    except ValueError:
        document = None
    if document is None:
        return Outcome(status, text, program_status=status)
    refused = [*document["refused"], *document["problems"]]
    return Outcome(
        status,
        printed,
        document["launches"],
        document["explored"],
        refused,
        document["program_status"],
    )


def list_failures(outcome: Outcome) -> list[str]:
    """A line for each thing that failed in a run: what was refused, each difference between the runs of a
    launch, each error with its source lines, and the program's own exit status. What several launches of a
    kernel share is one line."""
    found: dict[str, list[int]] = {}

    def add(launch: Mapping[str, Any], text: str) -> None:
        numbers = found.setdefault(f"{launch['entry'][:ENTRY]}: {text}", [])
        if launch["number"] not in numbers:
            numbers.append(launch["number"])

    for launch in (one for one in outcome.explored if one["depends"]):
        difference = launch["difference"]
        if difference:
            add(launch, f"the runs differ: {difference['tensor']}: {difference['place']}")
        for one in launch["findings"]:
            add(launch, f"under {', '.join(one['under'])}: {_summary_of(one['finding'])}")
    for launch in outcome.launches:
        for one in launch["findings"]:
            if one["severity"] == "error":
                add(launch, _summary_of(one))
    lines = [f"refused: {text}" for text in outcome.refused]
    for text, numbers in found.items():
        launches = f"launch{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        lines.append(f"{launches}, {text}")
    if outcome.program_status:
        lines.append(f"the program ended with status {outcome.program_status}")
    return lines


def _summary_of(data: Mapping[str, Any]) -> str:
    """A finding in one line. The summary of a fault has no source line."""
    finding = Finding.from_json(data)
    at = f" at {finding.file}:{finding.line}" if finding.evidence is None and finding.file else ""
    return finding.summary + at


def describe_failure(row: Row, outcome: Outcome) -> str:
    """Why a run failed, and the end of what a program printed that failed too."""
    lines = list_failures(outcome)
    if outcome.program_status or not lines:
        lines += outcome.output.splitlines()[-LINES:]
    return "\n".join([f"{row.name}: exit status {outcome.status}", *(f"  {line}" for line in lines)])


def compare_failures(row: Row, failed: Sequence[Outcome], *, all_runs: bool) -> list[str]:
    """What the runs of a row with a known fault report that the fault does not explain, and what they do not
    report although it should. `all_runs`: no option left a run out, so that each failure is expected."""
    lines = [
        line
        for outcome in failed
        for line in list_failures(outcome)
        or [f"exit status {outcome.status}, {len(outcome.launches)} launches"]
    ]
    other = [line for line in lines if not any(re.search(pattern, line) for pattern in row.failures)]
    missing = [
        pattern
        for pattern in row.failures
        if all_runs and not any(re.search(pattern, line) for line in lines)
    ]
    return [
        *(f"not the known fault: {line}" for line in other),
        *(f"no failure matches {pattern!r}" for pattern in missing),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for package in PACKAGES:
        parser.add_argument(f"--{package.replace('_', '-')}", type=Path, metavar="DIR", help="its checkout")
    parser.add_argument(
        "--site",
        type=Path,
        action="append",
        default=[],
        help="a folder of packages that they need; may repeat",
    )
    parser.add_argument("--only", action="append", default=[], help="a pattern of names; may repeat")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--no-interpreter", action="store_true", help="explore the compiled engine alone")
    parser.add_argument("--no-check", action="store_true", help="leave the checker's run out")
    options = parser.parse_args()
    rows = [
        row
        for row in read_rows()
        if not options.only or any(fnmatchcase(row.name, pattern) for pattern in options.only)
    ]
    if not rows:
        print(
            f"error: no row is called {' or '.join(options.only)}; --list prints the names", file=sys.stderr
        )
        return Exit.BAD_INPUT
    if options.list:
        print("\n".join(row.name for row in rows))
        return Exit.PASS
    return run_rows(rows, options)


def _processor_seconds() -> float:
    """Those of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_rows(rows: Sequence[Row], options: argparse.Namespace) -> int:
    """Run and print the rows. The exit status."""
    every_run = EVERY_RUN[:2] if options.no_interpreter else EVERY_RUN
    finished: list[tuple[object, ...]] = []
    statuses: set[int] = set()
    try:
        for row in rows:
            folder = getattr(options, row.package)
            if folder is None:
                finished.append((row.name, f"--{row.package.replace('_', '-')} is not given", "", "", ""))
                statuses.add(Exit.CANNOT_RUN)
                continue
            before = _processor_seconds()
            path = [str(one.resolve()) for one in (folder, *options.site)]
            runs = [run_row(row, folder.resolve(), path, every_run)]
            if not options.no_check:
                runs.append(run_row(row, folder.resolve(), path, ["--check"]))
            failed = [run for run in runs if run.status or not run.launches]
            for run in failed:
                print(describe_failure(row, run), file=sys.stderr, flush=True)
            status = failed[0].status or Exit.MISMATCH if failed else Exit.PASS
            if row.wrong and status != Exit.CANNOT_RUN:
                all_runs = not (options.no_interpreter or options.no_check)
                unexpected = compare_failures(row, failed, all_runs=all_runs)
                head = "not only the known fault" if unexpected else "known"
                print("\n  ".join([f"{row.name}: {head}: {row.wrong}", *unexpected]), file=sys.stderr)
                status = Exit.MISMATCH if unexpected else Exit.PASS
            statuses.add(status)
            seconds = f"{_processor_seconds() - before:.0f}"
            checker = runs[1].checker if len(runs) > 1 else "-"
            finished.append((row.name, runs[0].reference, runs[0].bits, checker, seconds))
            print(*finished[-1], sep="; ", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        statuses = {INTERRUPTED}
    print(table(HEADERS, finished, right=HEADERS[-1:]))
    if INTERRUPTED in statuses:
        return INTERRUPTED
    if statuses - {Exit.PASS, Exit.CANNOT_RUN}:
        return Exit.MISMATCH
    return Exit.CANNOT_RUN if Exit.CANNOT_RUN in statuses else Exit.PASS


if __name__ == "__main__":
    sys.exit(main())
