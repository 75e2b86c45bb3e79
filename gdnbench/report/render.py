# SPDX-License-Identifier: Apache-2.0
"""Renders a replay or a diff as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from gdnbench.judge.limits import LARGEST, RMS
from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.ulp import bucket_label
from gdnbench.printable import printable
from gdnbench.report.outcome import Outcome
from gdnbench.report.repeats import grouped, headline, reason_lines
from gdnbench.report.report import RecordResult, Report
from gdnbench.sim import group_findings, lines_by_cause, text_of_groups
from gdnbench.tables import End, Fit, Style, Styled, text_table

_COLUMNS = (
    *("record", "operation", "tensor", "side", "max abs", "RMS ratio", "torch's"),
    *("max ULP", "limit", "of limit", "verdict"),
)
_LEFT = ("operation", "tensor", "side", "verdict")
_GROUPS = 3
SMALL_ULP = 128
"""In bfloat16, which has the largest steps, that many lie between a number and its double. Beyond it, an
element differs in its magnitude or is near 0, and the number of steps says nothing."""


class Table(Protocol):
    """`gdnbench.tables.text_table`, with the width and colours of the place where the text goes."""

    def __call__(
        self, headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str], fit: Fit
    ) -> str: ...


def plain_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str], fit: Fit
) -> str:
    """For files and pipes."""
    return text_table(headers, rows, right, fit=fit)


def render_table(
    report: Report,
    *,
    show_notes: bool = True,
    verbose: bool = False,
    table: Table = plain_table,
    tb: str = "short",
) -> str:
    """The failing records, with a row for each tensor and a line for each reason; without failures, the worst
    by tensor.

    Ends with notes (conversions, exclusions) and one summary line. Findings of the checker are grouped by
    cause and source lines, and those that somebody accepted are counted; `verbose` lists each. Records whose
    kernel failed in the same way have one message, with a traceback as `tb` says, see `repeats`.
    """
    troubled = [record for record in report.records if record.outcome is not Outcome.PASS]
    if troubled:
        shown = [(record, tensor) for record in troubled for tensor in record.tensors]
    else:
        shown = list(worst_by_tensor(report.records))
    lines = [_table(shown, table), ""] if shown else []
    lines += [line for group in grouped(troubled) for line in _reasons(group, verbose, tb)]
    if show_notes:
        lines += [_line(f"note: {note}") for note in _notes(report.records, verbose)]
    return "\n".join([*lines, _line(summary_line(report))])


def render_text(report: Report, *, show_notes: bool = True) -> str:
    """`render_table` as plain text, for files and pipes."""
    return render_table(report, show_notes=show_notes) + "\n"


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


def _table(shown: Sequence[tuple[RecordResult, TensorResult]], table: Table) -> str:
    """A row for each tensor. Columns in which no row has a figure are left out."""
    ratios = [tensor.of_limit for _, tensor in shown if tensor.judged]
    worst = max((ratio for ratio in ratios if ratio is not None), default=None)
    rows = [_row(record, tensor, worst) for record, tensor in shown]
    kept = [n for n, name in enumerate(_COLUMNS) if name in _LEFT or any(str(row[n]) != "-" for row in rows)]
    one_operation = len({record.op for record, _ in shown}) == 1
    fit = Fit(
        drop=("max abs", "torch's", *(("operation",) if one_operation else ()), "max ULP"),
        cut={"operation": End.FIRST, "tensor": End.FIRST},
    )
    headers = [_COLUMNS[n] for n in kept]
    return table(
        headers,
        [[row[n] for n in kept] for row in rows],
        [name for name in headers if name not in _LEFT],
        fit,
    )


def _row(record: RecordResult, tensor: TensorResult, worst: float | None) -> tuple[object, ...]:
    """The cells under _COLUMNS; `worst`: the largest error / limit of the table."""
    verdict = "shown" if not tensor.judged else "pass" if tensor.passed else "FAIL"
    errors, yardstick = tensor.errors, tensor.yardstick
    name = tensor.tensor if tensor.when == "after" else f"{tensor.tensor} (input)"
    name = f"{name} (stage)" if tensor.stage else name
    ratio = tensor.of_limit if tensor.judged else None
    of_limit: object = "-" if ratio is None else f"{ratio:.3g}"
    if ratio is not None and ratio > 1:
        of_limit = Styled(of_limit, Style.WORST if ratio == worst else Style.BAD)
    elif ratio is not None and ratio == worst:
        of_limit = Styled(of_limit, Style.UNDECIDED)
    return (
        record.number,
        record.op,
        name,
        tensor.side,
        "-" if errors is None else f"{errors.max_abs:.3g}",
        "-" if errors is None else f"{errors.rms_ratio:.3g}",
        "-" if yardstick is None else f"{yardstick.rms_ratio:.3g}",
        _max_ulp(tensor),
        _limit(tensor),
        of_limit,
        verdict,
    )


def _limit(tensor: TensorResult) -> str:
    """The limit of the RMS ratio, or else that of the largest error; `equal bits` where no bit may differ."""
    held = {check.what: check for check in tensor.held}
    if tensor.bitwise:
        return "equal bits"
    if RMS in held and tensor.errors is not None and tensor.errors.rms_reference > 0:
        return f"{held[RMS].limit / tensor.errors.rms_reference:.3g}"
    if tensor.yardstick is None and LARGEST in held:
        return f"{held[LARGEST].limit:.3g}"
    return "-"


def _max_ulp(tensor: TensorResult) -> str:
    """The largest ULP distance where it says something: bits must be equal, or two results of one dtype were
    compared and are close. Beside an oracle an element near 0 may be many ULP off and right."""
    if tensor.errors is None or tensor.side is Side.CONVERSION or tensor.yardstick is not None:
        return "-"
    return str(tensor.errors.max_ulp) if tensor.bitwise or tensor.errors.max_ulp <= SMALL_ULP else "-"


def _reasons(group: Sequence[RecordResult], verbose: bool, tb: str) -> Iterator[str]:
    record, lines = group[0], [headline(group)]
    if not record.tensors and not record.faults:
        lines += reason_lines(group, tb)
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


def _line(text: str) -> str:
    """One line: a line feed in the name of a layer begins no other."""
    return printable(text)


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
