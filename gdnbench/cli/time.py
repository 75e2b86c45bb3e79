# SPDX-License-Identifier: Apache-2.0
"""`gdnbench time`: kernels timed on recorded calls, against the first of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gdnbench.cli.console import print_json, print_lines, progress, table
from gdnbench.cli.record_options import (
    KernelEnvOptionWithoutPanel,
    MachineOptionWithoutPanel,
    SmsOptionWithoutPanel,
    check_on_simulator,
    positive_seconds,
)
from gdnbench.cli.stores import open_store
from gdnbench.cli.timelines import check_timeline, write_predicted
from gdnbench.errors import BadInputError, CannotRunError, Exit
from gdnbench.printable import printable
from gdnbench.record_numbers import record_numbers

if TYPE_CHECKING:
    from gdnbench.replay.predicting import Timelines
    from gdnbench.report.report import ReplayReport
    from gdnbench.store.reader import Store, StoredRecord
    from gdnbench.timing.counting import CountsReport
    from gdnbench.timing.options import TimingOptions
    from gdnbench.timing.result import RecordTiming
    from gdnbench.timing.run import TimingReport

CACHE = "State of the cache at each launch: cold or warm."
FORM = "Launch many times in a CUDA graph (graph), or one by one (plain). Default: graph on cuda."
CLOCK = (
    "Clock on cuda: events also count the gaps between launches, cupti counts the kernels alone. auto:"
    " cupti if installed."
)
STRICT = "Refuse times that other processes or clock changes disturbed. Default: give them with a warning."
SECONDS = "Seconds to spend on each record; no new block starts after that."
NO_CLOCK = (
    "the simulator executes and does not time: these are counts; times need --on cuda or cpu, predicted times"
    " --machine h200, b200 or b300"
)
TIMELINE = "With predicted times: write what an SM does for Perfetto, in predicted microseconds, e.g. t.json."


def time(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    records: Annotated[
        str | None, typer.Argument(help="Numbers of the records, e.g. 0,3-5. Default: all records.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            help="Kernel to time, as in `replay`. Repeatable; the others are compared with the first."
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Run on cpu, cuda, or sim, which counts, and predicts times on --machine h200, b200 or b300."
        ),
    ] = "cpu",
    kernel_env: KernelEnvOptionWithoutPanel = None,
    machine: MachineOptionWithoutPanel = None,
    sms: SmsOptionWithoutPanel = None,
    cache: Annotated[str, typer.Option(help=CACHE)] = "cold",
    form: Annotated[str | None, typer.Option(help=FORM)] = None,
    clock: Annotated[str, typer.Option(help=CLOCK)] = "auto",
    op: Annotated[
        str | None, typer.Option(help="Use only records of this operation, e.g. gdn_decode.")
    ] = None,
    seconds: Annotated[float, typer.Option(help=SECONDS)] = 30.0,
    precision: Annotated[
        str,
        typer.Option(
            help="Stop a record early once every ratio's confidence interval is this narrow, e.g. 1%."
        ),
    ] = "1%",
    timeout: Annotated[
        float,
        typer.Option(help="Seconds after which a kernel counts as hung.", callback=positive_seconds),
    ] = 300.0,
    time_wrong: Annotated[
        bool, typer.Option("--time-wrong", help="Also time kernels whose outputs fail, and mark them.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help=STRICT)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every sample.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, one line for each kernel and record.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the times into this run store, e.g. times.zarr.")
    ] = None,
    timeline: Annotated[Path | None, typer.Option(help=TIMELINE)] = None,
    compare: Annotated[
        str | None, typer.Option(help="Compare with earlier times, a run or a JSON file; exit 1 if slower.")
    ] = None,
) -> None:
    """Time kernels on recorded calls, in turn and on the same buffers; leave out those whose outputs fail.

    With --on sim --machine h200, b200 or b300 the times are predicted by a model, and say so.

    Exit status: 0 all timed; 1 a mismatch, crash, hang or regression; 3 something could not run here.
    """
    from gdnbench.replay.predicting import modelled_machine
    from gdnbench.timing.counting import count_records
    from gdnbench.timing.export import read_timings
    from gdnbench.timing.run import time_records

    check_on_simulator(on, machine, sms)
    if json and csv:
        raise BadInputError("choose one of --json and --csv, not both")
    if on == "sim" and (save is not None or compare is not None or csv):
        raise BadInputError(f"--save, --compare and --csv are for times; {NO_CLOCK}")
    modelled = modelled_machine(machine)
    if timeline is not None and (on != "sim" or modelled is None):
        raise BadInputError(
            "--timeline is of predicted times: give --on sim and --machine h200, b200 or b300"
        )
    check_timeline(timeline)
    timelines: Timelines | None = None if timeline is None else []
    options = timing_options(on, cache, form, seconds, precision, timeout, strict, clock)
    baseline = None if compare is None else read_timings(compare)
    with open_store(store) as opened, progress("time") as advance:
        what: dict[str, Any] = {
            "kernels": kernel or [],
            "records": None if records is None else record_numbers(records, len(opened.records)),
            "op": op,
            "time_wrong": time_wrong,
            "progress": lambda done, total, _: advance(done, total),
        }
        if on == "sim":
            counts = count_records(opened, machine=modelled, timelines=timelines, **what)
        else:
            report = time_records(opened, on=on, options=options, save=save, baseline=baseline, **what)
    if on == "sim":
        if timeline is not None:
            write_predicted(timeline, timelines or [])
        _finish_counts(counts, json, modelled)
    _finish(report, json, csv)


def timing_options(
    on: str,
    cache: str,
    form: str | None,
    seconds: float = 30.0,
    precision: str = "1%",
    timeout: float = 300.0,
    strict: bool = False,
    clock: str = "auto",
) -> TimingOptions:
    """BadInputError for words and numbers that mean nothing."""
    from gdnbench.timing.cuda_clocks import CLOCKS
    from gdnbench.timing.options import TimingOptions
    from gdnbench.timing.types import Cache, Form, Mode

    if cache not in [*Cache]:
        raise BadInputError(f"--cache {cache!r} is neither cold nor warm")
    form = form or (Form.GRAPH if on == "cuda" else Form.PLAIN)
    if form not in [*Form]:
        raise BadInputError(f"--form {form!r} is neither graph nor plain")
    if form == Form.GRAPH and on != "cuda":
        raise BadInputError(f"--form graph is a CUDA graph, which --on {on} has not; omit it")
    if clock not in CLOCKS:
        raise BadInputError(f"--clock {clock!r} is none of {', '.join(CLOCKS)}")
    if clock != "auto" and on != "cuda":
        raise BadInputError(f"--clock {clock} is a GPU's, which --on {on} is not; omit it")
    mode = Mode(Cache(cache), Form(form))
    return TimingOptions(mode, seconds, part(precision), timeout, strict, clock=clock)


def replay_timer(
    store: Store, kernel: str, against: str, on: str, options: TimingOptions
) -> AbstractContextManager[Callable[[StoredRecord], RecordTiming]]:
    """What `replay --time` times records with: the kernel, beside the one that it is compared with."""
    from gdnbench.judge.record import ORACLE
    from gdnbench.replay.replay import RECORDED
    from gdnbench.timing.run import record_timer

    beside = [] if against in (ORACLE, RECORDED, kernel) else [against]
    return record_timer(store, [*beside, kernel], on, options)


def print_times(report: ReplayReport) -> None:
    """The times of a replay, above what was judged."""
    from gdnbench.timing.table import predicted_times_text, times_text

    timings = [record.timing for record in report.records if record.timing is not None]
    if timings:
        print_lines(times_text([_labelled(one) for one in timings], table))
    if any(record.predicted for record in report.records):
        labelled = [replace(record, layer=printable(record.layer)) for record in report.records]
        print_lines(predicted_times_text(labelled, table))


def part(text: str) -> float:
    """ "1%" or "0.01" -> 0.01; BadInputError for anything else."""
    number = text.strip().removesuffix("%")
    try:
        return float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        raise BadInputError(f"--precision {text!r} is no part: write it like 1% or 0.01") from None


def _finish(report: TimingReport, json: bool, csv: bool) -> NoReturn:
    """Print the result and end the command."""
    from gdnbench.timing.export import timing_csv, timing_json
    from gdnbench.timing.table import timing_text

    if json:
        print_json(timing_json(report))
    elif csv:
        print_lines(timing_csv(_one_line_labels(report)).removesuffix("\n"))
    else:
        print_lines(timing_text(_one_line_labels(report), table))
    raise typer.Exit(report.exit_code)


def _labelled(record: RecordTiming) -> RecordTiming:
    """`record` with a label of one line: a line feed in the name of a layer would begin another."""
    return replace(record, label=printable(record.label))


def _one_line_labels(report: TimingReport) -> TimingReport:
    changes = report.changes
    if changes is not None:
        changes = tuple(replace(one, label=printable(one.label)) for one in changes)
    return replace(report, records=tuple(map(_labelled, report.records)), changes=changes)


def _finish_counts(report: CountsReport, json: bool, modelled: str | None) -> NoReturn:
    from gdnbench.timing.export import counts_json
    from gdnbench.timing.table import counts_text

    if json:
        print_json(counts_json(report))
    else:
        labelled = tuple(replace(one, label=printable(one.label)) for one in report.records)
        print_lines(counts_text(replace(report, records=labelled), table))
    if report.exit_code is Exit.CANNOT_RUN:
        raise CannotRunError(NO_CLOCK if modelled is None else f"not every kernel has a time on {modelled}")
    raise typer.Exit(report.exit_code)
