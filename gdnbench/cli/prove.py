# SPDX-License-Identifier: Apache-2.0
"""`gdnbench prove`: captures, made records, laws and repetitions, in one verdict on a kernel."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.console import print_json, print_line, print_note, progress, table
from gdnbench.cli.record_options import (
    KERNELS,
    IsolateOption,
    JsonOption,
    KernelEnvOptionWithoutPanel,
    MachineOptionWithoutPanel,
    SmsOptionWithoutPanel,
    TimeoutOption,
    check_on_simulator,
)
from gdnbench.cli.statuses import INTERRUPTED
from gdnbench.errors import BadInputError
from gdnbench.tables import Fit

if TYPE_CHECKING:
    from gdnbench.cli.console import Bar
    from gdnbench.prove.result import Check, Proof, Row, Section

SCHEMA = 1
SECTIONS = ("captures", "made", "laws", "repeat")
REASONS = 3
"""Of checks that could not run, printed below the table."""


def prove(
    kernel: Annotated[str, typer.Argument(help=f"Kernel to prove: {KERNELS}")],
    op: Annotated[str, typer.Option(help="Operation that it computes, e.g. gdn_prefill.")],
    on: Annotated[str, typer.Option(help="Device: cpu, cuda, or sim, a simulated GPU.")] = "cpu",
    kernel_env: KernelEnvOptionWithoutPanel = None,
    machine: MachineOptionWithoutPanel = None,
    sms: SmsOptionWithoutPanel = None,
    only: Annotated[
        str | None,
        typer.Option(help=f"Sections to run, separated by commas. Default: {','.join(SECTIONS)}."),
    ] = None,
    captures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of captures. Default: those of gdnbench's repository."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="With --on sim: also run what is too large to be quick.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Add N to the seeds of made records. Default: 0.")
    ] = 0,
    isolate: IsolateOption = None,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Check a kernel: captured calls, made calls, laws between related calls, and equal bits in each run.

    Exit status: 0 all pass; 1 a mismatch, crash or hang; 3 something could not run here.
    """
    from gdnbench.prove.result import Section
    from gdnbench.prove.run import Options, Prover

    check_on_simulator(on, machine, sms)
    options = Options(
        kernel,
        op,
        on,
        tuple(map(Section, _sections(only))),
        captures,
        everything,
        seed,
        isolate,
        timeout,
    )
    with progress("prove") as bar:
        prover = Prover(options, _told(bar))
        proof = prover.prove()
    if json:
        print_json(proof_json(proof))
    else:
        _print(proof)
    raise typer.Exit(INTERRUPTED if proof.interrupted else proof.exit_code)


def _sections(text: str | None) -> list[str]:
    """The sections of `--only`, in the order in which they run."""
    if text is None:
        return list(SECTIONS)
    asked = text.split(",")
    for name in asked:
        if name not in SECTIONS:
            raise BadInputError(f"--only {name!r} is no section; there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in asked]


def _told(bar: Bar) -> Any:
    """On a terminal a bar of the section's calls, anywhere else a line a section."""
    begun: list[Section] = []

    def advance(section: Section, done: int, total: int) -> None:
        if section not in begun:
            begun.append(section)
            if not sys.stderr.isatty():
                print_note(f"gdnbench: {section}")
        bar.say(section)
        bar(done, total)

    return advance


HEADERS = ("section", "check", "runs", "pass", "unsupported", "fail", "error/limit", "s", "verdict")


def _print(proof: Proof) -> None:
    rows: list[tuple[object, ...]] = [
        (
            row.section,
            row.name,
            sum(check.runs for check in row.checks),
            row.passed,
            row.unsupported,
            row.failed,
            "-" if row.ratio is None else f"{row.ratio:.2g}",
            f"{row.seconds:.1f}",
            _verdict(row),
        )
        for row in proof.rows
    ]
    if proof.checks:
        rows.append(("poison", "NaN where nothing was written", proof.runs, *("-",) * 5, "on"))
    print(table(HEADERS, rows, HEADERS[2:8], Fit(wrap=("check", "section"))))
    for group in proof.failing_alike:
        check = group[0]
        print()
        print_line(f"{check.outcome}: {check.section}, {check.name}: {check.subject}{_more(group)}")
        for reason in check.reasons:
            print_line(f"  {reason}")
    if proof.failing:
        print()
    print_refusals(proof)
    for note in proof.notes:
        print_line(f"note: {note}")
    if proof.left_out:
        print_line(
            f"note: left out as too much for the simulator: {', '.join(proof.left_out)}; --all runs them"
        )
    print_line(_summary(proof))


def _more(group: Sequence[Check]) -> str:
    """` and 5 more checks (captures 2, laws 4)`, of all by section; empty for one."""
    if len(group) == 1:
        return ""
    counts = Counter(str(check.section) for check in group)
    by_section = ", ".join(f"{section} {count}" for section, count in counts.items())
    return f", and {len(group) - 1} more ({by_section})"


def print_refusals(proof: Proof) -> None:
    """Why checks could not run: the most frequent reasons, and how many checks each explains."""
    refused = [check for check in proof.checks if not check.passed and check not in proof.failing]
    reasons = Counter(check.reasons[0] for check in refused if check.reasons).most_common()
    for reason, count in reasons[:REASONS]:
        print_line(f"unsupported: {reason} ({count} check{'' if count == 1 else 's'})")
    if len(reasons) > REASONS:
        print_line(f"unsupported: for {len(reasons) - REASONS} other reasons, see --json")


def _verdict(row: Row) -> str:
    if row.failed:
        return "FAIL"
    return "pass" if row.passed else "unsupported"


def _summary(proof: Proof) -> str:
    failing = proof.failing
    sections = dict.fromkeys(str(check.section) for check in failing)
    outcome = f"{len(failing)} failed, in {', '.join(sections)}" if failing else "all pass"
    refused = sum(row.unsupported for row in proof.rows)
    if refused:
        outcome += f", {refused} unsupported"
    passed = sum(row.passed for row in proof.rows)
    if not passed and not failing:
        outcome = "nothing could run here"
    what = f"{proof.kernel} on {proof.on}, {proof.op}"
    ended = "interrupted; " if proof.interrupted else ""
    return f"{ended}{len(proof.checks)} checks, {proof.runs} runs: {outcome} | {what}, seed {proof.seed}"


def proof_json(proof: Proof) -> dict[str, Any]:
    """The result as plain values; docs/prove.md has the schema."""
    return {
        "schema": SCHEMA,
        "command": "prove",
        "kernel": proof.kernel,
        "op": proof.op,
        "on": proof.on,
        "seed": proof.seed,
        "exit_code": int(proof.exit_code),
        "interrupted": proof.interrupted,
        "notes": list(proof.notes),
        "left_out": list(proof.left_out),
        "checks": [_check_json(check) for check in proof.checks],
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "section": str(check.section),
        "check": check.name,
        "subject": check.subject,
        "outcome": str(check.outcome),
        "reasons": list(check.reasons),
        "ratio": check.ratio,
        "runs": check.runs,
        "seconds": check.seconds,
    }
