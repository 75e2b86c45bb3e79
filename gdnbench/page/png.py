# SPDX-License-Identifier: Apache-2.0
"""Draws runs as PNG files: the page's own charts, by its script and style, without a browser.

The script's module `png.js` makes SVG in an embedded JavaScript engine, and resvg rasterises it with the font
in `assets/font/`. No file depends on the machine: equal runs give equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.page.build import asset, script_of
from gdnbench.page.document import page_index
from gdnbench.page.embed import script_json
from gdnbench.report.grids import grid_from_json
from gdnbench.report.ranking import Entry, rank_records
from gdnbench.report.runs import Run, as_replayed
from gdnbench.timing.result import RecordTiming

if TYPE_CHECKING:
    import quickjs

MOST_RECORDS = 12
"""Records with files of their own, see `_chosen`."""

MOST_FAILURES = 8
"""The number of failures among these, if there are passing records too."""

DENSITY = 1.5
"""Pixels of a file for each CSS pixel."""


def draw_pngs(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write PNG files into `folder`, creating it, and return their paths; equal runs give equal files.

    BadInputError for a run with invalid content or a folder that cannot be written; CannotRunError without
    the packages that draw.
    """
    try:
        import quickjs
        import resvg_py
    except ModuleNotFoundError as error:
        if error.name not in ("quickjs", "resvg_py"):
            raise
        raise CannotRunError(
            "PNG files are drawn by quickjs-ng and resvg-py, which are not both installed:"
            " pip install 'gdnbench[pictures]'"
        ) from None
    written = []
    colours = _light_colours()
    font = files("gdnbench.page").joinpath("assets", "font", "DejaVuSans.ttf")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with as_file(font) as font_file, as_replayed(f"{', '.join(run.path for run in runs)}: a record"):
            for name, svg in svg_files(runs, quickjs.Context()):
                drawn = resvg_py.svg_to_bytes(
                    svg_string=svg,
                    style_sheet=_style(colours),
                    background=colours["ground"],
                    zoom=DENSITY,
                    skip_system_fonts=True,
                    font_files=[str(font_file)],
                )
                path = folder / f"{name}.png"
                path.write_bytes(drawn)
                written.append(path)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be written to: {error.strerror}") from None
    return written


def records_left_out(runs: Sequence[Run]) -> int:
    """The number of records without files of their own."""
    return max(0, sum(len(run.records) for run in runs) - MOST_RECORDS)


def svg_files(runs: Sequence[Run], engine: quickjs.Context) -> Iterator[tuple[str, str]]:
    """File names without suffix, and their charts as SVG, drawn in `engine`, a new one."""
    entries = rank_records(runs)
    index = page_index(runs, entries, "")
    for captured in (record.get("capture") or () for run in runs for record in run.records):
        _check_captured(captured)
    for matrix in index["growth"]:
        _check_numbers(matrix["steps"])
    engine.set("indexText", script_json(index))
    engine.set("pixelDensity", DENSITY)
    engine.eval(script_of("png"))
    below = (
        f"{MOST_RECORDS} of {len(entries)} records have files of their own: failures, and what came closest"
        if records_left_out(runs)
        else "every record has files of its own"
    )
    yield from _files(engine, "runFiles", below)
    for rank, entry in enumerate(_chosen(entries)):
        record, where = entry.record, f"{runs[entry.run].path}: record {entry.record['number']}"
        with as_replayed(where):
            _check_record(record, where)
            name = f"record-{rank:02}-run{entry.run}-{record['number']}"
            yield from _files(engine, "recordFiles", name, entry.run, script_json(record))


def _files(engine: quickjs.Context, function: str, *arguments: str | int) -> list[tuple[str, str]]:
    """What a function of `png.js` returns; ValueError for a value that it cannot draw."""
    import quickjs

    try:
        made: list[tuple[str, str]] = json.loads(engine.eval(function)(*arguments))
    except quickjs.JSException as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return made


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


def _check_record(record: Any, where: str) -> None:
    """Raises for values that the script would draw without noticing: it takes what is no number as NaN."""
    for tensor in record["tensors"]:
        if tensor["when"] == "after" and tensor.get("grid"):
            grid_from_json(tensor["grid"], where)
        _check_numbers(tensor["ulp_histogram"] or ())
    for stage in record.get("waterfall") or ():
        _check_numbers(stage[name] for name in ("added", "inherited", "reference"))
    if record.get("timing"):
        RecordTiming.from_json(record["timing"], f"{where}: its timing")


def _check_captured(captured: Any) -> None:
    for one in captured:
        str(one["name"])
        _check_numbers(value for value in one["values"].values() if value is not None)


def _check_numbers(values: Any) -> None:
    for value in values:
        float(value)


def _light_colours() -> dict[str, str]:
    """The variables of the page's light theme."""
    theme = re.search(r":root \{(.*?)\}", asset("style", "base.css"), re.DOTALL)
    assert theme is not None
    return dict(re.findall(r"--([\w-]+): (#\w+)", theme[1]))


def _style(colours: dict[str, str]) -> str:
    """The page's style of shapes; resvg knows no variables."""
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], asset("style", "shapes.css"))
