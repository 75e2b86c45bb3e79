# SPDX-License-Identifier: Apache-2.0
"""Writes a suite's result as Markdown for a CI job's summary: failures first, with the command that replays
each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gdnbench.errors import Exit
from gdnbench.printable import printable
from gdnbench.report.repeats import but_for_numbers, groups_by, records_text
from gdnbench.suite.result import EntryResult, SuiteResult
from gdnbench.suite.verdict import Verdict
from gdnbench.units import counted

MOST = 50
"""Failures listed one by one: a job's summary is limited to 1 MiB, and the JSON has all of them."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#!&])")


def to_markdown(result: SuiteResult, finished: bool = True) -> str:
    """A headline, failures, a table of entries, then other sections."""
    return "\n".join(_lines(result, finished)) + "\n"


def headline(result: SuiteResult, finished: bool = True) -> str:
    """`fails: 3 entries, 40 records: 38 pass, 2 known failure`, and whether the run finished."""
    counts: dict[str, int] = {}
    for entry in result.entries:
        for outcome, count in entry.outcomes.items():
            counts[outcome] = counts.get(outcome, 0) + count
    verdict = {
        Exit.PASS: "passes",
        Exit.MISMATCH: "fails",
        Exit.CANNOT_RUN: "cannot run here",
        Exit.BAD_INPUT: "is refused",
    }[result.exit_code]
    records = sum(counts.values())
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none"
    asked, done = len(result.suite.entries), len(result.entries)
    entries = f"{asked} entries" if asked != 1 else "1 entry"
    if result.lineage:
        passed = sum(one.exit_code is Exit.PASS for one in result.lineage)
        entries = f"{passed} of {counted(len(result.lineage), 'lineage check')} pass, {entries}"
    if result.interrupted:
        verdict = f"interrupted in entry {done} of {asked}; so far it {verdict}"
    elif not finished:
        verdict = f"not finished, {done} of {asked} entries; so far it {verdict}"
    return f"{verdict}: {entries}, {records} records: {told}"


def _lines(result: SuiteResult, finished: bool) -> Iterator[str]:
    yield f"# {escape_markdown(result.suite.path)} {escape_markdown(headline(result, finished))}"
    yield ""
    yield from _failures(result)
    yield from _broken_chains(result)
    yield "| entry | records | outcomes | beside the baseline | s |"
    yield "|---|---:|---|---|---:|"
    for one in sorted(result.entries, key=lambda one: one.exit_code is Exit.PASS):
        yield _row(one)
    for line in lineage_lines(result):
        yield f"\n{escape_markdown(line)}"
    for title, lines in sections(result):
        yield f"\n## {title}\n"
        yield from (f"- {escape_markdown(line)}" for line in lines)
    if result.update is not None:
        yield "\nTo accept what was measured:\n"
        yield from _code(result.update)


def _failures(result: SuiteResult) -> Iterator[str]:
    found = [(one, group) for one in result.entries for group in failing_alike(one)]
    stopped = [one for one in result.entries if one.error]
    if not found and not stopped:
        return
    yield "## What failed\n"
    for one in stopped:
        yield f"**{escape_markdown(one.entry.name)}** {escape_markdown(one.error)}\n"
        yield from _code(result.command(one.entry))
    for one, group in found[:MOST]:
        verdict, outcome = group[0], escape_markdown(group[0].outcome)
        yield f"**{escape_markdown(one.entry.name)}** {escape_markdown(which_records(group))}: {outcome}\n"
        yield from (f"- {escape_markdown(failure.text)}" for failure in verdict.failures)
        yield from (
            f"- known until {known.until}, which is over: {escape_markdown(known.reason)}"
            for known in verdict.expired
        )
        yield ""
        yield from _code(result.command(one.entry, verdict.record.number))
    if len(found) > MOST:
        yield f"and {len(found) - MOST} more; summary.json has them all\n"


def failing_alike(one: EntryResult) -> list[list[Verdict]]:
    """An entry's failures; in one group those records on which the kernel raised the same, or ended, but for
    numbers."""

    def key(verdict: Verdict) -> object:
        alone = verdict.record.tensors or verdict.expired or verdict.excused or len(verdict.failures) != 1
        return (
            verdict.record.number if alone else (verdict.outcome, but_for_numbers(verdict.failures[0].text))
        )

    return groups_by(one.failing, key)


def which_records(group: Sequence[Verdict]) -> str:
    """`record 3 gdn_prefill model.layers.0 step 0`, or `records 0-53 (54)`."""
    if len(group) == 1:
        return f"record {group[0].record.label}"
    return records_text(verdict.record.number for verdict in group)


def _broken_chains(result: SuiteResult) -> Iterator[str]:
    for one in result.lineage:
        if not one.breaks and not one.error:
            continue
        yield f"**{escape_markdown(one.check.name)}** {escape_markdown(one.error or one.summary)}\n"
        yield from (f"- {escape_markdown(line)}" for line in one.breaks[:MOST])
        if len(one.breaks) > MOST:
            yield f"- and {len(one.breaks) - MOST} more; summary.json has them all"
        yield ""
        yield from _code(one.command)


def lineage_lines(result: SuiteResult) -> list[str]:
    """A line for each lineage check: what it checked, or why it could not."""
    return [f"{one.check.name}: {one.error or one.summary}" for one in result.lineage]


def sections(result: SuiteResult) -> Iterator[tuple[str, list[str]]]:
    """Sections that concern more than one failure: (title, lines)."""
    known = {
        f"{one.entry.name} record {verdict.record.label}: {failure.text}; {by.reason}, until {by.until}"
        f"{f', {by.link}' if by.link else ''}": None
        for one in result.entries
        for verdict in one.verdicts
        for failure, by in verdict.excused
    }
    skipped = [
        f"{one.entry.name} record {verdict.record.label}: {verdict.record.reason}"
        for one in result.entries
        for verdict in one.verdicts
        if verdict.skipped
    ]
    better = [
        f"{one.entry.name} record {verdict.record.label} {change.tensor}: {change}"
        for one in result.entries
        for verdict in one.verdicts
        for change in verdict.better
    ]
    missing = sum(len(verdict.missing) for _, verdict in result.verdicts())
    passing = [f"{known.where}: {known} passes: remove it" for known in result.known_passing]
    unmatched = [f"{known.where}: {known} is of no record: remove it" for known in result.known_unmatched]
    none = [f"{missing} tensors have no accepted error yet"] if missing else []
    for title, lines in (
        ("Known failures", list(known)),
        ("Known failures that do not fail", [*passing, *unmatched]),
        ("Skipped", skipped),
        ("Better than accepted", better),
        ("Without a baseline", none),
        ("Not run", [entry.name for entry in result.suite.entries[len(result.entries) :]]),
    ):
        if lines:
            more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
            yield title, lines[:MOST] + more


def baseline_text(one: EntryResult) -> str:
    """`64 compared, 1 worse, 2 better, 3 missing`, without zero counts."""
    parts = [
        (sum(verdict.compared for verdict in one.verdicts), "compared"),
        (sum(len(verdict.worse) for verdict in one.verdicts), "worse"),
        (sum(len(verdict.better) for verdict in one.verdicts), "better"),
        (sum(len(verdict.missing) for verdict in one.verdicts), "missing"),
    ]
    return ", ".join(f"{count} {what}" for count, what in parts if count) or "-"


def outcomes_text(one: EntryResult) -> str:
    told = [f"{count} {outcome}" for outcome, count in one.outcomes.items()]
    told += ["cannot run here"] if one.error and one.code is not Exit.BAD_INPUT else []
    told += ["refused"] if one.error and one.code is Exit.BAD_INPUT else []
    return ", ".join(told + ["interrupted"] * one.interrupted) or "none"


def _row(one: EntryResult) -> str:
    mark = "" if one.exit_code is Exit.PASS else "**"
    cells = (
        f"{mark}{escape_markdown(one.entry.name)}{mark}",
        str(len(one.verdicts)),
        escape_markdown(outcomes_text(one)),
        baseline_text(one),
        f"{one.seconds:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def escape_markdown(text: object) -> str:
    """Untrusted text on one line, with Markdown escaped."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def _code(command: str) -> Iterator[str]:
    """A fenced block, with a fence longer than any in the text."""
    text = printable(command)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    yield f"{fence}sh"
    yield text
    yield f"{fence}\n"
