# SPDX-License-Identifier: Apache-2.0
"""Times, and the simulator's counts, as text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gdnbench.report.outcome import Outcome
from gdnbench.report.repeats import but_for_numbers, groups_by, records_text
from gdnbench.report.report import RecordResult
from gdnbench.sim.predict import PredictedCall, Prediction
from gdnbench.timing.counting import CountsReport, RecordCounts
from gdnbench.timing.result import KernelTiming, PairTiming, RecordTiming
from gdnbench.timing.run import TimingReport
from gdnbench.timing.statistics import TimeInterval, Verdict
from gdnbench.timing.types import Form, Mode
from gdnbench.units import seconds_text

Table = Callable[[Sequence[str], Sequence[Sequence[object]], Sequence[str]], str]
"""Headers, rows, and the headers of columns that are aligned to the right, as one text."""

TIMES = ("record", "operation", "kernel", "median", "interval", "ratio", "its interval", "verdict")
RATES = ("TB/s", "of ceiling", "TFLOP/s")
COUNTS = (
    "record",
    "operation",
    "kernel",
    "launches",
    "CTAs",
    "warp instructions",
    "tensor core MACs",
    "global bytes read",
    "written",
    "must read",
    "must write",
)
PREDICTED = (
    "record",
    "operation",
    "kernel",
    "machine",
    "predicted",
    "range",
    "bound by",
    "busy",
    "HBM",
    "floor",
    "of floor",
)
NANOSECOND = 1e-9
ADVICE = "time on a quiet machine; --strict refuses such blocks"
SHOWN = 5
"""Parts of a critical path."""
RIGHT = ("predicted", "busy", "HBM", "floor", "of floor", "record", "median", "ratio", *RATES, *COUNTS[3:])


def timing_text(report: TimingReport, table: Table) -> str:
    """A row for each kernel and record, a line for each that was not timed, and what the times rest on."""
    return "\n".join([times_text(report.records, table), *_changes(report), _summary(report)])


def times_text(records: Sequence[RecordTiming], table: Table) -> str:
    """The same without the summary."""
    rows = [row for record in records for row in _rows(record)]
    lines = [table((*TIMES, *RATES), rows, RIGHT), ""] if rows else []
    lines += _troubles(records)
    lines += _programs(records)
    lines += [f"warning: {warning}" for warning in _warnings(records)]
    lines += [f"note: {note}" for note in _notes(records)]
    return "\n".join(lines)


def record_lines(timing: RecordTiming) -> dict[str, str]:
    """One record's times in a few lines: what `gdnbench show` prints of a run store."""
    found = {
        kernel.name: ", ".join(filter(None, (_said(kernel), _compared(_pair(timing, kernel)))))
        for kernel in timing.kernels
    }
    return {
        "mode": mode_text(timing.mode),
        "device": timing.machine.device,
        **found,
        "blocks": _blocks(timing),
    }


def counts_text(report: CountsReport, table: Table) -> str:
    """A row for each kernel and record, and a line for each kernel that has no counts."""
    rows = [row for record in report.records for row in _count_rows(record)]
    lines = [table(COUNTS, rows, RIGHT), ""] if rows else []
    predicted = [row for record in report.records for row in _predicted_rows(record)]
    lines += [table(PREDICTED, predicted, RIGHT), *_critical_paths(report), ""] if predicted else []
    lines += [
        f"not predicted: {kernel.name} on record {record.label}: {kernel.no_time}"
        for record in report.records
        for kernel in record.kernels
        if kernel.no_time
    ]
    for record in report.records:
        for kernel in record.kernels:
            if kernel.counts is None or kernel.outcome is not Outcome.PASS:
                lines += [f"{kernel.outcome}: {kernel.name} on record {record.label}", f"  {kernel.reason}"]
    count = len(report.records)
    times = "no times" if not predicted else "predicted times, which are a model's (docs/time_model.md)"
    what = f"{count} record{'s' if count != 1 else ''} x {len(report.kernels)} on sim: counts, and {times}"
    return "\n".join([*lines, what])


def mode_text(mode: Mode) -> str:
    return f"{mode.cache}, {'one CUDA graph a round' if mode.form is Form.GRAPH else 'plain launches'}"


def _rows(record: RecordTiming) -> Iterator[tuple[object, ...]]:
    for kernel in record.kernels:
        if kernel.summary is None:
            continue
        wrong = " WRONG" if kernel.outcome is not Outcome.PASS else ""
        pair, rates = _pair(record, kernel), kernel.rates
        ratio = interval = ""
        if pair is not None and pair.interval is not None:
            found = pair.interval
            ratio, interval = f"{found.ratio:.3f}", f"{found.low:.3f} .. {found.high:.3f}"
        yield (
            record.number,
            record.op,
            kernel.name + wrong,
            seconds_text(kernel.summary.median),
            "" if kernel.interval is None else _seconds_range(kernel.interval),
            ratio,
            interval,
            "" if pair is None else _verdict(pair),
            "" if rates is None else f"{rates.bytes_per_second / 1e12:.3g}",
            "" if rates is None or rates.of_ceiling is None else f"{rates.of_ceiling:.0%}",
            "" if rates is None else f"{rates.flop_per_second / 1e12:.3g}",
        )


def _pair(record: RecordTiming, kernel: KernelTiming) -> PairTiming | None:
    return next((pair for pair in record.pairs if pair.other == kernel.name), None)


def _verdict(pair: PairTiming) -> str:
    if pair.verdict is Verdict.NO_DIFFERENCE and pair.within is not None:
        return f"no difference within {pair.within:.1%}"
    return str(pair.verdict)


def _said(kernel: KernelTiming) -> str:
    if kernel.summary is None:
        return f"not timed: {kernel.outcome}: {kernel.reason}"
    wrong = "" if kernel.outcome is Outcome.PASS else f", {kernel.outcome}: {kernel.reason}"
    within = "" if kernel.interval is None else f" ({_seconds_range(kernel.interval)})"
    return f"{seconds_text(kernel.summary.median)} a launch{within}{wrong}"


def _compared(pair: PairTiming | None) -> str:
    if pair is None or pair.interval is None:
        return ""
    return f"{pair.interval.ratio:.3f} of {pair.first}, {_verdict(pair)}"


def _troubles(records: Sequence[RecordTiming]) -> Iterator[str]:
    """Kernels that failed, those of several records alike once, and caches that were not as asked."""
    failed = [
        (record, one) for record in records for one in record.kernels if one.outcome is not Outcome.PASS
    ]
    for group in groups_by(
        failed, lambda pair: (pair[1].name, pair[1].outcome, pair[1].timed, but_for_numbers(pair[1].reason))
    ):
        record, kernel = group[0]
        how = "timed all the same" if kernel.timed else "not timed"
        if len(group) == 1:
            yield f"{kernel.outcome}: {kernel.name} on record {record.label}, {how}"
        else:
            numbers = records_text(one.number for one, _ in group)
            yield f"{kernel.outcome}: {kernel.name} on {numbers}, {how}"
        yield f"  {kernel.reason}"
    for record in records:
        if record.control is not None and record.control.holds is False:
            yield f"NOT {record.mode.cache}: record {record.label}: {record.control.reason}"


def _warnings(records: Sequence[RecordTiming]) -> Iterator[str]:
    """What disturbed blocks that count, each reason once."""
    for reason in dict.fromkeys(reason for record in records for reason in record.disturbed):
        hit = [record for record in records if reason in record.disturbed]
        count, blocks = sum(record.disturbed[reason] for record in hit), sum(len(one.blocks) for one in hit)
        where = f"{len(hit)} record{'s' if len(hit) != 1 else ''}"
        yield f"{count} of {blocks} blocks were disturbed, and count: {reason} ({where}); {ADVICE}"


def _seconds_range(found: TimeInterval) -> str:
    return f"{seconds_text(found.low)} .. {seconds_text(found.high)}"


def _programs(records: Sequence[RecordTiming]) -> Iterator[str]:
    for record in records:
        for kernel in record.kernels:
            if kernel.programs:
                parts = ", ".join(f"{name} {seconds_text(time)}" for name, time in kernel.programs.items())
                yield f"programs: {kernel.name} on record {record.label}: {parts}"


def _notes(records: Sequence[RecordTiming]) -> Iterator[str]:
    """Each note once, with how many records it concerns; then what the times of each record rest on."""
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(dict.fromkeys(record.notes, 1))
        if record.control is not None and record.control.holds is None:
            counts[f"whether launches were {record.mode.cache} is not known: {record.control.reason}"] += 1
    for note, count in counts.items():
        yield f"{note} ({count} record{'s' if count != 1 else ''})"
    for record in records:
        if record.end is not None:
            yield f"record {record.number}: {_blocks(record)}"


def _blocks(record: RecordTiming) -> str:
    """What was measured, and what came of the first kernel beside itself."""
    if record.end is None:
        return "nothing was timed"
    lost = sum(record.discarded.values())
    why = ", ".join(f"{reason} {count}" for reason, count in record.discarded.items())
    parts = [f"{len(record.blocks)} blocks on {record.placements} placements in {record.seconds:.1f} s"]
    if record.end != "precise":
        parts.append(f"ended by {record.end}")
    if lost:
        parts.append(f"disturbed: {why}")
    if record.repeat is not None and record.repeat.interval is not None:
        again = record.repeat.interval
        parts.append(f"{record.repeat.first} beside itself {again.low:.3f} .. {again.high:.3f}")
    return ", ".join(parts)


def _changes(report: TimingReport) -> Iterator[str]:
    """What became of each kernel since the baseline."""
    for record in report.changes or ():
        for change in record.changes:
            what = f"{change.kernel} on record {record.label}"
            if change.interval is None or change.before is None or change.after is None:
                yield f"since the baseline: {what}: not compared: {change.reason}"
                continue
            found = change.interval
            verdict = "REGRESSION" if change.regression else str(change.verdict)
            yield (
                f"since the baseline: {what}: {verdict}, {seconds_text(change.before)} ->"
                f" {seconds_text(change.after)}, {found.low:.3f} .. {found.high:.3f} with a margin of"
                f" {change.margin:.1%}"
            )
        yield from (f"since the baseline: record {record.label}: {note}" for note in record.notes)


def _summary(report: TimingReport) -> str:
    outcomes = Counter(report.outcomes)
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    count = len(report.records)
    where = report.records[0].machine.device if report.records else report.on
    first = f"ratios are to {report.kernels[0]}" if len(report.kernels) > 1 else report.kernels[0]
    return (
        f"{count} record{'s' if count != 1 else ''} x {len(report.kernels)}: {said} | {first} |"
        f" {mode_text(report.mode)} | {report.on}: {where}"
    )


def predicted_text(launches: Sequence[Prediction], table: Table, *, by_line: bool = False) -> str:
    """A row for each launch, without a record, and its critical path; also that by source line."""
    rows = [(launch.entry, *_predicted(PredictedCall(launch.machine, (launch,)))) for launch in launches]
    lines = [table(("launch", *PREDICTED[3:]), rows, RIGHT)]
    for number, launch in enumerate(launches):
        lines.append(f"critical path: launch {number}: {_parts(launch)}")
        if by_line:
            lines += [
                f"  {cycles / launch.cycles:6.1%}  {cycles:>12,.0f} cycles  {line}"
                for line, cycles in launch.lines.items()
                if cycles >= LEAST_SHOWN * launch.cycles
            ]
    return "\n".join(lines)


LEAST_SHOWN = 0.001
"""Of a source line's cycles: less is 0.0 % of them."""


def _critical_paths(report: CountsReport) -> Iterator[str]:
    for record in report.records:
        for kernel in record.kernels:
            if kernel.predicted is not None:
                yield _critical_path(kernel.name, record.number, kernel.predicted)


def _critical_path(kernel: str, record: int, call: PredictedCall) -> str:
    launches = len(call.launches)
    which = f", the longest of {launches} launches" if launches > 1 else ""
    return f"critical path: {kernel} on record {record}{which}: {_parts(call.longest)}"


def _parts(launch: Prediction) -> str:
    """The largest parts of the critical path."""
    parts = [(cycles / (launch.cycles or 1.0), name) for name, cycles in [*launch.path.items()][:SHOWN]]
    return ", ".join(f"{part:.0%} {name}" for part, name in parts if part >= LEAST_SHOWN) or "no cycles"


def predicted_times_text(records: Sequence[RecordResult], table: Table) -> str:
    """A row for each kernel of a replayed record that has a predicted time, and a line for each without."""
    rows = [
        (record.number, record.op, time.kernel, *_predicted(time.call))
        for record in records
        for time in record.predicted
        if time.call is not None
    ]
    paths = [
        _critical_path(time.kernel, record.number, time.call)
        for record in records
        for time in record.predicted
        if time.call is not None
    ]
    lines = [table(PREDICTED, rows, RIGHT), *paths, ""] if rows else []
    lines += [
        f"not predicted: {time.kernel} on record {record.label}: {time.no_time}"
        for record in records
        for time in record.predicted
        if time.call is None
    ]
    lines += ["note: predicted times are a model's (docs/time_model.md)"] if rows else []
    return "\n".join(lines)


def _predicted_rows(record: RecordCounts) -> Iterator[tuple[object, ...]]:
    """A row for each kernel with a predicted time."""
    for kernel in record.kernels:
        if kernel.predicted is not None:
            yield (record.number, record.op, kernel.name, *_predicted(kernel.predicted))


def _predicted(call: PredictedCall) -> tuple[str, ...]:
    """The columns from the machine on; what bounds the call is what bounds its longest launch."""
    (low, high), longest = call.range, call.longest
    return (
        call.machine,
        seconds_text(call.seconds),
        f"{seconds_text(low)} .. {seconds_text(high)}",
        longest.bound,
        f"{max(longest.limits.values()):.0%}",
        f"{sum(each.memory_bytes for each in call.launches):,.0f} B",
        f"{_floor(call.floor)} {longest.floor_unit}" if call.floor else "",
        _times(call.seconds / call.floor) if call.floor else "",
    )


def _floor(seconds: float) -> str:
    return seconds_text(seconds) if seconds >= NANOSECOND else "< 0.001 us"


def _times(ratio: float) -> str:
    return f"{ratio:.3g} x" if ratio < 100 else f"{ratio:,.0f} x"


def _count_rows(record: RecordCounts) -> Iterator[tuple[object, ...]]:
    for kernel in record.kernels:
        counts = kernel.counts
        if counts is None:
            continue
        wrong = " WRONG" if kernel.outcome is not Outcome.PASS else ""
        work = ("", "") if record.work is None else (f"{record.work.read:,}", f"{record.work.written:,}")
        yield (
            record.number,
            record.op,
            kernel.name + wrong,
            counts.launches,
            counts.ctas,
            f"{counts.warp_instructions:,}",
            f"{counts.tensor_core_macs:,}",
            f"{counts.global_read:,}",
            f"{counts.global_written:,}",
            *work,
        )
