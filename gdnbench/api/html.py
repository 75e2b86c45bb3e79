# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of stores and results: HTML without script, style sheet or link, from escaped text.

Styles stand in the elements, and images are in the page as PNG: what viewers of notebooks leave of a page.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdnbench.printable import printable
from gdnbench.units import counted, human_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.judge.result import TensorResult
    from gdnbench.report.report import RecordResult, Report
    from gdnbench.sim import Finding, LaunchReport
    from gdnbench.sim import Report as SimReport
    from gdnbench.store.reader import StoredRecord

MOST_ROWS = 100
MOST_HEATMAPS = 4

# As in the HTML report, for text on a light ground of its own; a mark says what the colour says.
_PASSED, _FAILED, _OTHER = (
    ("\N{CHECK MARK}", "#0b5e57", "#e2f3f0"),
    ("\N{BALLOT X}", "#a32a00", "#fdeae1"),
    ("\N{EN DASH}", "#6b5200", "#fbf2d0"),
)


def text(value: object) -> str:
    """`value` as text that is safe in HTML, with escapes for what would change how text is shown."""
    return html.escape(printable(str(value)))


def badge(word: object, kind: tuple[str, str, str]) -> str:
    mark, ink, ground = kind
    return f'<span style="color:{ink};background:{ground};padding:0 .3em">{mark} {text(word)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A table; the cells of `rows` are HTML, the names of `columns` text."""
    align = [f"text-align:{'right' if name in right else 'left'}" for name in columns]
    head = "".join(f'<th style="{side}">{text(name)}</th>' for name, side in zip(columns, align, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{side}">{cell}</td>' for cell, side in zip(row, align, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def store_html(title: str, rows: Sequence[Mapping[str, Any]], count: int, problems: Sequence[str]) -> str:
    """A store of `count` records: its first ones, as `gdnbench ls` lists them."""
    shown = [
        [
            text(row["record"]),
            text(row["op"]),
            text(row["layer"]),
            text(row["step"]),
            text(" ".join(f"{axis}={size}" for axis, size in row["sizes"].items())),
            human_bytes(row["bytes"]),
            text(row["status"]),
        ]
        for row in rows
    ]
    columns = ("record", "op", "layer", "step", "sizes", "bytes", "status")
    parts = [_paragraph(title), table(columns, shown, right=("record", "step", "bytes"))]
    if count > len(rows):
        parts.append(_paragraph(f"and {counted(count - len(rows), 'record')} more"))
    return _page([*parts, *map(_paragraph, problems)])


def record_html(record: StoredRecord) -> str:
    """A record: its call and its tensors, which are not read."""
    info = record.info
    about = {"target": info.target, "layer": info.layer, "step": info.step, "key": record.key}
    about |= {"scalars": _pairs(info.scalars), "conventions": _pairs(info.conventions)}
    rows = [
        [
            text(name),
            when,
            text(handle.meta.dtype),
            "x".join(map(str, handle.meta.shape)) or "scalar",
            text(" ".join(handle.meta.axes)),
            human_bytes(handle.nbytes),
        ]
        for when, handles in (("before", record.before), ("after", record.after))
        for name, handle in handles.items()
    ]
    lines = [_paragraph(f"{name}: {value}") for name, value in about.items() if value != ""]
    columns = ("tensor", "when", "dtype", "shape", "axes", "bytes")
    return _page([_title(f"record {record.number}: {info.op}"), *lines, table(columns, rows, ("bytes",))])


def report_html(report: Report, summary: str) -> str:
    """A replay or diff: `summary`, a table of the failing records or of the worst rows, why records failed,
    and heatmaps of the errors."""
    from gdnbench.report.render import worst_by_tensor

    failing = [record for record in report.records if record.outcome.exit_code != 0]
    shown = (
        [(record, tensor) for record in failing for tensor in record.tensors]
        if failing
        else list(worst_by_tensor(report.records))
    )
    parts = [_title(summary)]
    if shown:
        parts.append(_verdicts(shown[:MOST_ROWS]))
    if len(shown) > MOST_ROWS:
        parts.append(_paragraph(f"and {len(shown) - MOST_ROWS} rows more"))
    for record in failing[:MOST_ROWS]:
        said = f"record {record.label}: {record.reason}"
        parts.append(f"<p>{badge(record.outcome, _kind(record))} {text(said)}</p>")
    wrong = [(record, tensor) for record, tensor in shown if not tensor.passed]
    return _page([*parts, *_heatmaps(wrong or shown)])


def sim_html(reports: Sequence[SimReport], tensors: Mapping[str, Tensor]) -> str:
    """Simulated calls: their launches, findings and tensors."""
    findings = [finding for report in reports for finding in report.findings]
    ok = all(report.ok for report in reports)
    word = "no error found" if ok else f"{counted(sum(one.fails for one in findings), 'error')} found"
    parts = [f"<p>{badge(word, _PASSED if ok else _FAILED)}</p>"]
    parts.append(_launches([launch for report in reports for launch in report.launches]))
    if findings:
        parts.append(_findings(findings))
    if tensors:
        parts.append(_outputs(tensors))
    return _page(parts)


def _launches(launches: Sequence[LaunchReport]) -> str:
    rows = [
        [
            text(launch.entry),
            "x".join(map(str, launch.grid)),
            "x".join(map(str, launch.block)),
            f"{launch.warp_instructions:,}",
            f"{launch.mma_macs:,}",
            f"{launch.seconds:.2f}" if launch.finished else "stopped",
        ]
        for launch in launches[:MOST_ROWS]
    ]
    columns = ("kernel", "grid", "block", "warp instructions", "MACs", "seconds")
    return table(columns, rows, columns[1:])


def _findings(findings: Sequence[Finding]) -> str:
    rows = [
        [
            badge(one.severity, _FAILED if one.fails else _OTHER),
            text(one.kind),
            text(one.summary),
            text(f"{one.file}:{one.line}" if one.file is not None else ""),
            str(one.count),
        ]
        for one in findings[:MOST_ROWS]
    ]
    return table(("severity", "kind", "finding", "source", "count"), rows, ("count",))


def _outputs(tensors: Mapping[str, Tensor]) -> str:
    """Names, dtypes and shapes."""
    rows = [
        [text(name), text(str(tensor.dtype).removeprefix("torch.")), "x".join(map(str, tensor.shape))]
        for name, tensor in tensors.items()
    ]
    return table(("tensor", "dtype", "shape"), rows)


def _verdicts(shown: Sequence[tuple[RecordResult, TensorResult]]) -> str:
    columns = ("record", "op", "tensor", "side", "max abs", "RMS ratio", "torch's", "of limit", "verdict")
    rows = []
    for record, tensor in shown:
        errors, torchs = tensor.errors, tensor.yardstick
        word, kind = ("pass", _PASSED) if tensor.passed else ("FAIL", _FAILED)
        if not tensor.judged:
            word, kind = "shown", _OTHER
        numbers = (
            errors and errors.max_abs,
            errors and errors.rms_ratio,
            torchs and torchs.rms_ratio,
            tensor.of_limit,
        )
        name = f"{tensor.tensor} (stage)" if tensor.stage else tensor.tensor
        rows.append(
            [
                str(record.number),
                text(record.op),
                text(name),
                text(tensor.side),
                *("" if number is None else f"{number:.3g}" for number in numbers),
                badge(word, kind),
            ]
        )
    return table(columns, rows, ("record", *columns[4:8]))


def _heatmaps(shown: Sequence[tuple[RecordResult, TensorResult]]) -> Iterator[str]:
    drawn = [(record, tensor) for record, tensor in shown if tensor.grid is not None and tensor.unequal]
    for record, tensor in drawn[:MOST_HEATMAPS]:
        yield heatmap_html(record, tensor)
    if len(drawn) > MOST_HEATMAPS:
        yield _paragraph(f"heatmaps of {len(drawn) - MOST_HEATMAPS} more tensors left out")


def heatmap_html(record: RecordResult, tensor: TensorResult) -> str:
    """Errors of a tensor by head and chunk as an image, with its scale and the worst cell in words."""
    from gdnbench.api import png
    from gdnbench.heatmap.cells import cells_of

    assert tensor.grid is not None
    cells = cells_of(tensor.grid, tensor.dtype)
    image, down, across = png.heatmap_png(cells)
    heads, regions = cells.values.shape
    size = f"{_numbers('head', heads)} down, {_numbers(cells.column, regions)} across"
    if down > 1 or across > 1:
        size += f", a cell is the largest of {down} by {across}"
    worst = cells.worst()
    said = ""
    if worst is not None:
        value = cells.values[worst]
        most = "not finite on one side only" if math.isinf(value) else f"{value:.3g}"
        said = f"; largest {most} in {cells.place(*worst)}"
    within, beyond = (
        "".join(f'<span style="background:{stop};color:{stop}">\N{FULL BLOCK}</span>' for stop in stops)
        for stops in (png.STOPS[:4], png.STOPS[5:])
    )
    key = f"{within} up to {cells.limit:.3g} {beyond} beyond"
    label = f"record {record.label}: {tensor.side} {tensor.tensor}: {cells.label}"
    source = base64.b64encode(image).decode("ascii")
    return (
        f"<p>{text(label)}<br>{text(size)}{text(said)}<br>"
        f'<img alt="{text(label + said)}" src="data:image/png;base64,{source}"><br>{key}</p>'
    )


def _numbers(noun: str, count: int) -> str:
    """ "heads 0 to 3", "chunk 0"."""
    return f"{noun}s 0 to {count - 1}" if count > 1 else f"{noun} 0"


def _kind(record: RecordResult) -> tuple[str, str, str]:
    code = int(record.outcome.exit_code)
    return _PASSED if code == 0 else _FAILED if code == 1 else _OTHER


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _title(words: str) -> str:
    return f"<p><b>{text(words)}</b></p>"


def _paragraph(words: str) -> str:
    return f"<p>{text(words)}</p>"


def _page(parts: Sequence[str]) -> str:
    return f"<div>{''.join(parts)}</div>"
