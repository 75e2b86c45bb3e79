# SPDX-License-Identifier: Apache-2.0
"""Prints what a check found: a line for each break, a chain as a table, and the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdnbench.lineage.check import LineageReport, ProcessResult
from gdnbench.lineage.finding import Finding, Unknown
from gdnbench.lineage.table import Access, AccessTable
from gdnbench.store.access_log import AccessKind
from gdnbench.units import counted

HEADERS = (
    "break",
    "layer",
    "request",
    "position",
    "slot",
    "times",
    "damaged by",
    "shown by",
    "last written by",
)

RIGHT = ("position", "slot", "times")

DIGITS = 12
"""Of a digest: enough to tell contents apart by eye."""


@dataclass(frozen=True, slots=True)
class Line:
    """A break, its first occurrence in the first layer that has it; `layers`: how many have it, `times`: how
    often one does."""

    process: ProcessResult
    finding: Finding
    layers: int
    times: int


def request_name(table: AccessTable, access: Access) -> str:
    """The request of an access as tables print it: its name, "padding" or "unknown"."""
    if access.is_padding:
        return "padding"
    return "unknown" if access.request < 0 else table.requests[access.request]


def short_digest(digest: tuple[int, int]) -> str:
    """The first digits of a digest; "zeros" for that of zeros."""
    return "zeros" if digest == (0, 0) else f"{digest[0]:016x}{digest[1]:016x}"[:DIGITS]


def describe(table: AccessTable, access: Access) -> str:
    """ "record 12 (step 3): r1 writes slot 5 at 40"; a log has calls instead of records."""
    number = table.records.get(access.call)
    call = f"call {access.call}" if number is None else f"record {number}"
    does = "writes" if access.kind == AccessKind.WRITE else "reads"
    slot = f"slot {access.slot}" if access.slot >= 0 else "a state"
    at = f" at {access.position}" if access.position >= 0 else ""
    return f"{call} (step {access.step}): {request_name(table, access)} {does} {slot}{at}"


def lines(report: LineageReport) -> Iterator[Line]:
    """The breaks of each process, by the call that did the damage. The same break in other layers is no line
    of its own, nor is a later one of the same kind between the same requests at the same slot."""
    for process in report.processes:
        merged: dict[tuple[object, ...], Counter[str]] = {}
        first: dict[tuple[object, ...], Finding] = {}
        for chain in process.chains:
            for one in chain.findings:
                by = None if one.damage.is_padding else one.damage.request
                key = (one.kind, one.chain, one.found.request, one.found.slot, by)
                first.setdefault(key, one)
                merged.setdefault(key, Counter())[chain.layer] += 1
        of_process = [
            Line(process, first[key], len(counts), max(counts.values())) for key, counts in merged.items()
        ]
        yield from sorted(of_process, key=lambda line: (line.finding.damage.call, line.finding.found.call))


def table_row(line: Line) -> tuple[str, ...]:
    """The cells under HEADERS."""
    finding, table = line.finding, line.process.table
    found, more = finding.found, f" +{line.layers - 1}" if line.layers > 1 else ""
    damage = describe(table, finding.damage)
    shown = "the same" if finding.found == finding.damage else describe(table, found)
    return (
        finding.kind.value,
        finding.layer + more,
        request_name(table, found),
        str(found.position),
        str(found.slot) if found.slot >= 0 else "",
        str(line.times),
        damage + _content(line),
        shown,
        "" if finding.own is None or finding.own == found else describe(table, finding.own),
    )


def table_of_lines(report: LineageReport, shown: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows. With several processes a column says which: by rank, if it has one."""
    several = len(report.processes) > 1
    headers = ["process"] * several + list(HEADERS)
    rows = []
    for line in shown:
        process = line.process
        name = f"rank {process.rank}" if process.rank else process.process
        rows.append([name] * several + list(table_row(line)))
    return headers, rows


def _content(line: Line) -> str:
    """Whose content a read found, where the call that did the damage is not the one that wrote it."""
    finding = line.finding
    source = finding.source
    if source is None or source == finding.damage:
        return ""
    return f", the content of {describe(line.process.table, source)}"


def break_text(line: Line) -> str:
    """The break in one line, as a message."""
    kind, layer, request, position, *_, damage, shown, _ = table_row(line)
    return f"{kind} in {layer}, {request} at {position}: {damage}; shown by {shown}"


def nothing_checked(report: LineageReport) -> str | None:
    """Why no read could be told right or wrong, and what to do; None if one could."""
    unknown = report.unknown
    if report.breaks or report.total("right"):
        return None
    if not unknown:
        return "nothing could be checked: no call reads a state"
    reason = unknown.most_common(1)[0][0]
    hint = {
        Unknown.NO_REQUEST: "; capture with an adapter that names requests, see docs/lineage.md",
        Unknown.NO_POSITION: "; capture with an adapter that names positions, see docs/lineage.md",
        Unknown.CALLS_MISSING: "; capture consecutive calls, without --every",
    }.get(reason, "")
    return f"nothing could be checked: {reason}{hint}"


def summary(report: LineageReport) -> list[str]:
    """What was checked: processes, chains, reads, and what is unknown for which reason."""
    unknown = report.unknown
    processes = counted(len(report.processes), "process")
    wrong = report.breaks
    text = (
        f"{processes}, {counted(report.chains, 'chain')}, {counted(report.total('reads'), 'read')}:"
        f" {report.total('right')} right, {counted(wrong, 'break')}, {unknown.total()} unknown"
    )
    found = [text]
    found += [f"  {count} unknown: {reason}" for reason, count in unknown.most_common()]
    return found
