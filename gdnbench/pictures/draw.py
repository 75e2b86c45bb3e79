"""Draws runs as PNG files: verdicts, ranges of captured inputs, errors over decode steps, and details of
ranked records.

The details are error heatmaps, growth, ULP histograms, stages and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.pictures.cells import cells_of
from gdnbench.pictures.labels import drawable_text
from gdnbench.report.grids import grid_from_json
from gdnbench.report.growth import error_growth
from gdnbench.report.ranking import Entry, rank_records
from gdnbench.report.runs import Run, as_replayed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gdnbench.judge.grid import Grid

MOST_RECORDS = 12
"""Records with files of their own, see `_chosen`."""

MOST_FAILURES = 8
"""The number of failures among these, if there are passing records too."""

MOST_TENSORS = 12
"""Tensors of a record in one file: the eight stages of a prefill, its outputs, and two more."""

MOST_MATRICES = 12
"""Files of errors over decode steps."""

_LABELS = {"kernel": "", "against": ", against", "difference": ", difference"}


def draw_pictures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write PNG files into `folder`, creating it, and return their paths; equal runs give equal files.

    BadInputError for a run with invalid content or a folder that cannot be written; CannotRunError without
    matplotlib.
    """
    try:
        from gdnbench.pictures.canvas import figure_style, save_png
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise CannotRunError(
            "PNG files are drawn by matplotlib, which is not installed: pip install 'gdnbench[pictures]'"
        ) from None
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with figure_style(), as_replayed(f"{', '.join(run.path for run in runs)}: a record"):
            for name, figure in _figures(runs):
                written.append(save_png(figure, folder / f"{name}.png"))
    except OSError as error:
        raise BadInputError(f"{folder} cannot be written to: {error.strerror}") from None
    return written


def records_left_out(runs: Sequence[Run]) -> int:
    """The number of records without files of their own."""
    return max(0, sum(len(run.records) for run in runs) - MOST_RECORDS)


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
    """File names without suffix, and their figures."""
    from gdnbench.pictures.bars import verdict_bars
    from gdnbench.pictures.growth import over_steps

    entries = rank_records(runs)
    counts = [(drawable_text(run.path, 60), run.outcomes) for run in runs]
    rest = records_left_out(runs)
    below = (
        f"{MOST_RECORDS} of {len(entries)} records have files of their own: failures, and what came closest"
        if rest
        else "every record has files of its own"
    )
    yield "verdicts", verdict_bars(counts, below)
    yield from _captured(runs)
    matrices = error_growth([(entry.run, entry.record) for entry in entries])
    for number, matrix in enumerate(matrices[:MOST_MATRICES]):
        run = f" in {runs[matrix['run']].path}" if len(runs) > 1 else ""
        title = f"{matrix['op']} {matrix['tensor']}: error over decode steps{run}"
        yield f"steps-{number:02}", over_steps(title, matrix)
    for rank, entry in enumerate(_chosen(entries)):
        with as_replayed(_where(runs, entry)):
            yield from _of_record(f"{rank:02}", runs, entry)


def _chosen(entries: Sequence[Entry]) -> list[Entry]:
    """From ranked `entries`: failures, then for each run and operation the passing record closest to its
    limit, then the next."""
    first: dict[tuple[int, str], Entry] = {}
    for entry in entries:
        if not entry.failed:
            first.setdefault((entry.run, entry.record["op"]), entry)
    wanted = [*[entry for entry in entries if entry.failed][:MOST_FAILURES], *first.values(), *entries]
    chosen = list({id(entry): entry for entry in wanted}.values())[:MOST_RECORDS]
    return sorted(chosen, key=lambda entry: entry.order)


def _captured(runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
    """Ranges by operation; a record replayed by several runs counts once."""
    from gdnbench.pictures.ranges import range_chart

    by_op: dict[str, dict[tuple[str, Any], Sequence[Mapping[str, Any]]]] = {}
    for run in runs:
        store = run.header.get("store", run.path)
        for record in run.records:
            by_op.setdefault(record["op"], {}).setdefault((store, record["key"]), record.get("capture") or [])
    for number, (op, records) in enumerate(sorted(by_op.items())):
        figure = range_chart(f"{op}: ranges of the captured inputs", list(records.values()))
        if figure is not None:
            yield f"captured-{number:02}", figure


def _of_record(rank: str, runs: Sequence[Run], entry: Entry) -> Iterator[tuple[str, Figure]]:
    from gdnbench.pictures.bars import stage_bars, ulp_histogram
    from gdnbench.pictures.errors import error_heatmaps
    from gdnbench.pictures.growth import along_sequence, has_growth
    from gdnbench.pictures.times import time_chart
    from gdnbench.timing.result import RecordTiming

    record, where = entry.record, _where(runs, entry)
    run = f" in {runs[entry.run].path}" if len(runs) > 1 else ""
    label = f"{record['number']} {record['op']} {record['layer']} step {record['step']}"
    title = f"record {label}: {record['outcome']}{run}"
    name = f"record-{rank}-run{entry.run}-{record['number']}"
    tensors = [tensor for tensor in record["tensors"] if tensor["when"] == "after"]
    grids = [(tensor, grid_from_json(tensor["grid"], where)) for tensor in tensors if tensor.get("grid")]
    if grids:
        shown = [(_name(tensor), cells_of(grid, tensor["dtype"])) for tensor, grid in grids[:MOST_TENSORS]]
        yield f"{name}-errors", error_heatmaps(title, shown)
    along: list[tuple[str, Grid]] = [(_name(tensor), grid) for tensor, grid in grids if has_growth(grid)]
    if along:
        yield f"{name}-growth", along_sequence(title, along[:MOST_TENSORS])
    counted = [(_name(tensor), tensor["ulp_histogram"]) for tensor in tensors if tensor["ulp_histogram"]]
    if counted:
        yield f"{name}-ulp", ulp_histogram(title, counted[:MOST_TENSORS])
    if record.get("waterfall"):
        yield f"{name}-stages", stage_bars(title, record["waterfall"])
    if record.get("timing"):
        figure = time_chart(title, RecordTiming.from_json(record["timing"], f"{where}: its timing"))
        if figure is not None:
            yield f"{name}-times", figure


def _name(tensor: Mapping[str, Any]) -> str:
    verdict = "" if not tensor["judged"] else ", pass" if tensor["passed"] else ", FAIL"
    return drawable_text(f"{tensor['tensor']}{_LABELS.get(tensor['side'], '')}{verdict}", 60)


def _where(runs: Sequence[Run], entry: Entry) -> str:
    return f"{runs[entry.run].path}: record {entry.record['number']}"
