"""Renders a replay or a diff as a table for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.ulp import bucket_label
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, Report
from gdnbench.sim import group_findings, lines_by_cause, text_of_groups

_COLUMNS = ("record", "operation", "tensor", "side", "max abs", "RMS ratio", "torch's", "max ULP", "verdict")
_GROUPS = 3


def render_table(report: Report, *, show_notes: bool = True, verbose: bool = False) -> RenderableType:
    """The failing records, with a row for each tensor and a line for each reason; without failures, the worst
    by tensor.

    Ends with notes (conversions, exclusions) and one summary line. Findings of the checker are grouped by
    cause and source lines, and those that somebody accepted are counted; `verbose` lists each.
    """
    parts: list[RenderableType] = []
    troubled = [record for record in report.records if record.outcome is not Outcome.PASS]
    table = _table()
    if troubled:
        for record in troubled:
            for tensor in record.tensors:
                _row(table, record, tensor)
        if table.row_count:
            parts.append(table)
        parts += [line for record in troubled for line in _reasons(record, verbose)]
    else:
        for record, tensor in worst_by_tensor(report.records):
            _row(table, record, tensor)
        parts.append(table)
    if show_notes:
        parts += [_line(f"note: {note}") for note in _notes(report.records, verbose)]
    parts.append(_line(summary_line(report)))
    return Group(*parts)


def render_text(report: Report, *, show_notes: bool = True, width: int = 120) -> str:
    """`render_table` as plain text, for files and pipes."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_table(report, show_notes=show_notes), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def summary_line(report: Report) -> str:
    """`12 records: 11 pass, 1 numeric mismatch`, with what was compared and the rule."""
    count = len(report.records)
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(report.outcomes.items()))
    header = report.header
    if header["command"] == "diff":
        what = f"{header['a']} against {header['b']}"
    else:
        what = f"{header['kernel']} on {header['on']} against {header['against']}"
    return f"{count} record{'s' if count != 1 else ''}: {outcomes} | {what} | {header['rule']}"


def render_histogram(tensor: TensorResult) -> str:
    """`50% 0, 90% 2-3, 99% 16-31, all 64-127`: how many ULP that share of the elements is off, at most."""
    counts = tensor.ulp_histogram
    total, reaching = sum(counts), dict[str, str]()  # by bucket the largest share that it closes
    for share, label in ((0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (1.0, "all")):
        reached = 0
        for bucket, count in enumerate(counts):
            reached += count
            if reached >= share * total:
                reaching[bucket_label(bucket)] = label
                break
    return ", ".join(f"{share} {distance}" for distance, share in reaching.items())


def render_groups(tensor: TensorResult) -> str:
    """`0.12 in sequence 3 chunk 1 head 0; ...`: the groups that are furthest off, see `worst_groups`."""
    words = []
    for group in tensor.groups[:_GROUPS]:
        owner = (("sequence", group.sequence), ("chunk", group.chunk), ("head", group.head))
        place = " ".join(f"{name} {value}" for name, value in owner if value is not None)
        size = f"{group.nonfinite} not finite" if group.nonfinite else f"{group.errors.rms:.3g}"
        words.append(f"{size} in {place}")
    return "; ".join(words)


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(
            column,
            no_wrap=True,
            justify="left" if column in ("operation", "tensor", "side", "verdict") else "right",
        )
    return table


def _row(table: Table, record: RecordResult, tensor: TensorResult) -> None:
    verdict = "shown" if not tensor.judged else "pass" if tensor.passed else "FAIL"
    errors, yardstick = tensor.errors, tensor.yardstick
    name = tensor.tensor if tensor.when == "after" else f"{tensor.tensor} (input)"
    name = f"{name} (stage)" if tensor.stage else name
    table.add_row(
        str(record.number),
        record.op,
        name,
        tensor.side,
        "-" if errors is None else f"{errors.max_abs:.3g}",
        "-" if errors is None else f"{errors.rms_ratio:.3g}",
        "-" if yardstick is None else f"{yardstick.rms_ratio:.3g}",
        "-" if errors is None or tensor.side is Side.CONVERSION else str(errors.max_ulp),  # of fp64
        verdict,
    )


def _reasons(record: RecordResult, verbose: bool) -> Iterator[Text]:
    lines = [f"{record.outcome}: record {record.label}"]
    if not record.tensors and not record.faults:
        lines.append(f"  {record.reason}")
    lines += [f"  {fault}" for fault in record.faults]
    for tensor in record.tensors:
        side = f"{tensor.side} " if tensor.side is Side.AGAINST else ""
        lines += [f"  {side}{tensor.tensor}: {reason}" for reason in tensor.reasons]
        if not tensor.passed and tensor.stage and tensor.worst is not None:
            lines.append(f"    worst: {tensor.worst}")
        if not tensor.passed and tensor.ulp_histogram:
            lines.append(f"    ULP off: {render_histogram(tensor)}")
        if not tensor.passed and tensor.groups:
            lines.append(f"    worst RMS: {render_groups(tensor)}")
    failing = [finding for finding in record.findings or () if finding.fails]
    for text in map(str, failing) if verbose else text_of_groups(failing):
        lines += [f"  {line}" for line in text.split("\n")]
    return (_line(line) for line in lines)


def _line(text: str) -> Text:
    """A line that is not wrapped at the console's width, so that it can be searched and copied."""
    return Text(text, no_wrap=True, overflow="ignore")


def worst_by_tensor(records: tuple[RecordResult, ...]) -> Iterator[tuple[RecordResult, TensorResult]]:
    """For each operation, tensor and side, the record with the largest RMS ratio."""
    worst: dict[tuple[str, str, str, str], tuple[RecordResult, TensorResult]] = {}
    for record in records:
        for tensor in record.tensors:
            key = (record.op, tensor.when, tensor.tensor, tensor.side)
            held = worst.get(key)
            if held is None or _ratio(tensor) > _ratio(held[1]):
                worst[key] = (record, tensor)
    return iter(worst.values())


def _ratio(tensor: TensorResult) -> float:
    return 0.0 if tensor.errors is None else tensor.errors.rms_ratio


def _excluded(tensor: TensorResult) -> str:
    return (
        f"{tensor.side} {tensor.tensor}: {tensor.excluded} of {tensor.elements} elements not judged,"
        " where torch's kernel itself is not finite"
    )


def _findings(record: RecordResult, verbose: bool) -> Iterator[str]:
    """Findings that do not fail the record: a line for each cause, with `verbose` for each finding."""
    standing = [one for one in record.findings or () if one.accepted is None and not one.fails]
    if verbose:
        yield from (f"{finding.severity}: {finding.summary}" for finding in standing)
        for finding in record.findings or ():
            if finding.accepted is not None:
                yield f"accepted {finding.severity}: {finding.summary}; {finding.accepted}"
    else:
        yield from lines_by_cause(group_findings(standing))
    accepted = sum(finding.accepted is not None for finding in record.findings or ())
    if accepted and not verbose:
        yield f"{accepted} finding{'s' if accepted > 1 else ''} of the checker accepted"


def _notes(records: tuple[RecordResult, ...], verbose: bool) -> Iterator[str]:
    """Each note once, with the number of its records."""
    counts: dict[str, int] = {}
    for record in records:
        excluded = (_excluded(tensor) for tensor in record.tensors if tensor.excluded)
        for note in (*record.notes, *excluded, *dict.fromkeys(_findings(record, verbose))):
            counts[note] = counts.get(note, 0) + 1
    return (f"{note} ({count} record{'s' if count != 1 else ''})" for note, count in counts.items())
