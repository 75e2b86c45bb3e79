# SPDX-License-Identifier: Apache-2.0
"""PNG files of runs: which there are, that a cell has the colour of its number, and that equal runs give
equal bytes."""

from __future__ import annotations

import json
import random
import re
import struct
import sys
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.judge.grid import Grid
from gdnbench.page import png as drawing
from gdnbench.page.build import script_of
from gdnbench.report.captured import MOST_POINTS, captured_ranges
from gdnbench.report.export import grid_json
from gdnbench.report.outcome import Outcome
from gdnbench.report.runs import Run
from gdnbench.timing.comparison import compare
from gdnbench.timing.result import KernelTiming, Machine, RecordTiming
from gdnbench.timing.statistics import Rule
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench_kernels.contract import Region
from tests.messages import wording
from tests.timing.synthetic import Machine as World
from tests.timing.synthetic import Quiet, White, kernels

quickjs = pytest.importorskip("quickjs", reason="PNG files are drawn by quickjs-ng (extra `pictures`)")
resvg_py = pytest.importorskip("resvg_py", reason="PNG files are drawn by resvg-py (extra `pictures`)")


def grid(values: np.ndarray, wrong: tuple[int, int] | None = None) -> Grid:
    """Errors [R, H] of chunks beside torch's, which is 1 everywhere; two chunks a sequence."""
    nonfinite = np.zeros(values.shape, np.int32)
    if wrong is not None:
        nonfinite[wrong] = 1
    ones = np.ones(values.shape, np.float32)
    regions = (Region(64 * n, 64 * n + 64, n // 2, n % 2) for n in range(len(values)))
    single = values.astype(np.float32)
    worst = np.zeros((*values.shape, 3), np.int32)
    return Grid(
        tuple(regions), ("T", "Hv", "V"), single, ones, ones, single, nonfinite, worst, ones, ones
    )  # fmt: skip


SHARES = ("error", "added", "inherited", "reference")


def record(number: int, outcome: str = "pass", error: float = 1.0, **more: Any) -> dict[str, Any]:
    """As `export.record_json` has one, of a tensor with 3 x 2 chunks and heads and a limit of 10."""
    tensor = {
        "tensor": "o",
        "when": "after",
        "stage": False,
        "side": "kernel",
        "dtype": "float32",
        "judged": True,
        "passed": outcome == "pass",
        "reasons": [],
        "errors": {"rms_ratio": 0.1 * (number + 1)},
        "torch_errors": {"rms_ratio": 0.01},
        "ulp_histogram": [3, 2, 0, 1],
        "held": [{"what": "largest", "error": error, "limit": 10.0}],
        "grid": grid_json(grid(np.full((3, 2), error))),
    }
    return {
        "number": number,
        "key": f"key{number}",
        "op": "gdn_decode",
        "layer": "layers.0",
        "layer_index": 0,
        "step": number,
        "decode": True,
        "outcome": outcome,
        "reason": "",
        "faults": [],
        "tensors": [tensor],
        "waterfall": [
            {"stage": "U", "step": "form_uw", "count": 4, **dict.fromkeys(SHARES, 0.1)},
            {"stage": "o", "step": "read_out", "count": 0, **dict.fromkeys(SHARES, "nan")},
        ],
        "capture": [{"name": "g", "label": "gate g", "values": {"min": "-inf", "max": -0.5}, "unit": ""}],
        "timing": None,
        **more,
    }  # fmt: skip


def run(records: Sequence[dict[str, Any]], path: str = "run.zarr") -> Run:
    header = {
        "command": "replay",
        "store": "s",
        "kernel": "k",
        "against": "reference",
        "on": "cpu",
        "rule": "r",
    }
    return Run(path, header, records=tuple(records), expected=len(records))


def size_of(png: Path) -> tuple[int, int]:
    """Width and height, as the header of a PNG has them."""
    found = png.read_bytes()
    assert found[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", found[16:24])
    return width, height


def chunks_of(png: Path) -> set[bytes]:
    """Kinds of the chunks of a PNG."""
    found, at, kinds = png.read_bytes(), 8, set()
    while at < len(found):
        (length,) = struct.unpack(">I", found[at : at + 4])
        kinds.add(found[at + 4 : at + 8])
        at += 12 + length
    return kinds


def test_the_pictures_of_a_run(tmp_path: Path) -> None:
    made = drawing.draw_pngs([run([record(0), record(1, "numeric mismatch", 20.0)])], tmp_path / "png")
    assert [path.name for path in made] == [
        "verdicts.png",
        "captured-00.png",
        "steps-00.png",
        *(f"record-00-run0-1-{kind}.png" for kind in ("errors", "growth", "ulp", "stages")),
        *(f"record-01-run0-0-{kind}.png" for kind in ("errors", "growth", "ulp", "stages")),
    ]
    for path in made:
        width, height = size_of(path)
        assert width == 720 * drawing.DENSITY
        assert 200 <= height <= 1500
        # Neither a time nor what wrote it: pHYs says how large a pixel is.
        assert chunks_of(path) <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    records = [record(0), record(1, "numeric mismatch", 20.0)]
    first = drawing.draw_pngs([run(records)], tmp_path / "a")
    second = drawing.draw_pngs([run(records)], tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    other = drawing.draw_pngs([run([record(0), record(1, "numeric mismatch", 30.0)])], tmp_path / "c")
    assert [path.read_bytes() for path in other] != [path.read_bytes() for path in first]


def svgs(*runs: Run) -> dict[str, ElementTree.Element]:
    """The SVG of each file, by name."""
    made = drawing.svg_files(runs, quickjs.Context())
    return {name: ElementTree.fromstring(svg) for name, svg in made}


def pixels(png: Path) -> np.ndarray:
    """[height, width, 3] of an RGBA file: the specification's filters, undone."""
    found, at, packed = png.read_bytes(), 8, b""
    while at < len(found):
        (length,) = struct.unpack(">I", found[at : at + 4])
        if found[at + 4 : at + 8] == b"IDAT":
            packed += found[at + 8 : at + 8 + length]
        at += 12 + length
    assert found[24:29] == bytes([8, 6, 0, 0, 0])  # 8 bits, RGBA, not interlaced
    width, height = size_of(png)
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 4 * width)
    image = np.zeros((height + 1, width + 1, 4), np.int64)  # an empty row above, a column to the left
    for y, (kind, row) in enumerate(zip(rows[:, 0], rows[:, 1:].reshape(height, width, 4), strict=True), 1):
        if kind == 1:
            image[y, 1:] = row.astype(np.int64).cumsum(axis=0) % 256
            continue
        above = image[y - 1]
        for x in range(1, width + 1):
            left, up, corner = image[y, x - 1], above[x], above[x - 1]
            if kind == 4:
                off = np.abs([up - corner, left - corner, left + up - 2 * corner])
                near = np.where(
                    off[0] <= np.minimum(off[1], off[2]), left, np.where(off[1] <= off[2], up, corner)
                )
            else:
                near = {0: 0 * up, 2: up, 3: (left + up) // 2}[int(kind)]
            image[y, x] = (row[x - 1] + near) % 256
    return image[1:, 1:, :3]


def cells(svg: ElementTree.Element) -> dict[tuple[float, float], list[int]]:
    """Colours of a heatmap's cells by place, in CSS pixels of the file."""
    found = {}
    (group,) = (one for one in svg.iter() if any(kin.get("class") == "cells" for kin in one))
    left, top = map(int, re.findall(r"\d+", group.get("transform", "")))
    for path in group:
        if path.get("class") == "cells" and "rgb" in path.get("style", ""):  # not a line at a sequence
            colour = [int(part) for part in re.findall(r"\d+", path.get("style", ""))]
            for x, y in re.findall(r"M([\d.]+) ([\d.]+)", path.get("d", "")):
                found[left + float(x), top + float(y)] = colour
    return found


@pytest.mark.slow
def test_a_cell_has_the_colour_of_its_number(tmp_path: Path) -> None:
    """Of errors 0.5 to 50 times torch's: the scale between them by decades, grey for none, orange for NaN."""
    script = files("gdnbench.page").joinpath("assets", "script", "colour.js").read_text()
    stops = re.findall(r"#\w{6}", script[script.index("STOPS = [") : script.index("];")])
    scale = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops])
    values = np.array([[0.5, 5.0], [50.0, 0.0], [1.0, 2.0]])
    one = record(0)
    one["tensors"][0]["grid"] = grid_json(grid(values, wrong=(2, 1)))
    given = run([{**one, "waterfall": None, "capture": None}])
    drawn = svgs(given)["record-00-run0-0-errors"]
    (file,) = (one for one in drawing.draw_pngs([given], tmp_path) if one.name.endswith("-errors.png"))
    image = pixels(file)
    found = cells(drawn)
    columns, rows = (sorted({place[axis] for place in found}) for axis in (0, 1))
    assert (len(columns), len(rows)) == (3, 2)
    for (chunk, head), value in np.ndenumerate(values):
        part = np.log(value / 0.5) / np.log(100) if value else 0.0
        shade = [np.interp(part * 8, range(9), scale[:, channel]) for channel in range(3)]
        wanted = [184, 74, 0] if (chunk, head) == (2, 1) else [236] * 3 if not value else shade
        x, y = columns[chunk], rows[head]
        assert np.abs(np.subtract(found[x, y], wanted)).max() <= 1, (chunk, head)  # rounding
        # Beside the middle, where the worst cell has a cross, and inside its frame.
        spot = image[int((y + 20) * drawing.DENSITY), int((x + 31) * drawing.DENSITY)]
        assert np.abs(spot - wanted).max() <= 1, (chunk, head)
    assert "o, pass: largest not finite in sequence 1, chunk 0, head 1" in "".join(drawn.itertext())


def test_growth_is_the_worst_head_of_each_chunk_and_breaks_between_sequences() -> None:
    values = np.array([[1.0, 4.0], [2.0, 3.0], [8.0, 0.0]])
    one = record(0)
    one["tensors"][0]["grid"] = grid_json(grid(values))
    engine = quickjs.Context()
    drawn = {name: ElementTree.fromstring(svg) for name, svg in drawing.svg_files([run([one])], engine)}
    lines = [path for path in drawn["record-00-run0-0-growth"].iter() if path.get("class") == "line"][:2]
    for path, worst in zip(lines, ([4, 3, 8], [1, 1, 1]), strict=True):
        points = re.findall(r"([ML])([\d.]+) ([\d.]+)", path.get("d", ""))
        assert [pen for pen, _, _ in points] == ["M", "L", "M"]  # the second sequence begins
        x, y = (np.array([float(point[axis]) for point in points]) for axis in (1, 2))
        assert np.allclose(np.diff(x), np.diff(x)[0], atol=0.11)
        # From 1 at the bottom to 10 at the top, 180 CSS pixels apart.
        assert np.allclose(y, 204 - 180 * np.log10(worst), atol=0.06)
    engine.set("grid", json.dumps(one["tensors"][0]["grid"]))
    table = "alongSequence({tensor: 'o', side: 'kernel'}, unpackedGrid(JSON.parse(grid))).rows()"
    assert json.loads(engine.eval(f"JSON.stringify({table})")) == [
        ["sequence 0, chunk 0", "4", "1"],
        ["sequence 0, chunk 1", "3", "1"],
        ["sequence 1, chunk 0", "8", "1"],
    ]


def test_the_longest_grid_is_drawn() -> None:
    """65,536 chunks of one head: more values than JavaScript takes as arguments of one call."""
    one = record(0)
    one["tensors"][0]["grid"] = grid_json(grid(np.linspace(1, 100, 65_536)[:, None]))
    drawn = svgs(run([one]))
    assert len(cells(drawn["record-00-run0-0-errors"])) == 512
    assert "record-00-run0-0-growth" in drawn


def test_times_are_drawn_with_their_ratio() -> None:
    found = compare(kernels(World(White(random.Random(5))), [1.0, 1.1]), Rule(blocks=62), Quiet())
    timed = [
        KernelTiming(name, Outcome.PASS, samples=samples, summary=summary, launches=1)
        for name, samples, summary in zip(found.names, found.samples, found.summaries, strict=True)
    ]
    machine, mode = Machine("cpu", "a CPU", "host"), Mode(Cache.WARM, Form.PLAIN)
    timing = RecordTiming(
        *("", 0, "key0", "gdn_decode", mode, machine, tuple(timed)),
        pairs=found.pairs,
        blocks=found.blocks,
        placements=found.placements,
        end=found.end,
    )
    drawn = svgs(run([record(0, timing=json.loads(timing.dumps()))]))["record-00-run0-0-times"]
    kinds = [one.get("class") for one in drawn.iter()]
    assert kinds.count("dot s0") == len(timed[0].samples) + 1  # and the ratio
    assert kinds.count("dot s1") == len(timed[1].samples)
    assert kinds.count("median") == 2
    texts = [text for text in drawn.itertext() if "÷" in text]
    assert texts == [f"{found.names[1]} ÷ {found.names[0]}: slower"]
    # A margin around the line at 1, and an interval beyond it.
    (line,) = (float(one.get("x1", "")) for one in drawn.iter() if one.get("class") == "one")
    (margin,) = (one for one in drawn.iter() if one.get("class") == "margin")
    left, wide = float(margin.get("x", "")), float(margin.get("width", ""))
    assert left + wide / 2 == pytest.approx(line, abs=0.02)
    interval = next(one.get("d", "") for one in drawn.iter() if one.get("class") == "interval")
    assert min(map(float, re.findall(r"[MH]([\d.]+)", interval))) > left + wide


def test_many_cells_are_pooled_and_none_is_lost() -> None:
    """Of 150 heads and 1,100 chunks, blocks of 3 x 3; the last ones are smaller."""
    values = np.ones((1100, 150))
    values[1099, 149] = 1000.0
    one = record(0)
    one["tensors"][0]["grid"] = grid_json(grid(values))
    found = svgs(run([one]))["record-00-run0-0-errors"]
    shown = cells(found)
    assert len(shown) == 367 * 50
    assert shown[max(shown)] == [255, 241, 118]  # the scale's end
    assert sum(colour == [255, 241, 118] for colour in shown.values()) == 1
    assert "a cell is the largest of 3 heads x 3 chunks" in "".join(found.itertext())


def test_ranges_of_many_records_keep_their_extremes() -> None:
    values = [float(n % 70) for n in range(3 * MOST_POINTS + 1)]
    records = [
        record(n, capture=[{"name": "g", "values": {"min": -value, "max": value}}])
        for n, value in enumerate(values)
    ]
    ((found,), again) = captured_ranges([run(records)]), captured_ranges([run(records), run(records)])
    assert again == [found]  # the same records, replayed twice
    assert (found["records"], found["each"]) == (len(values), 4)
    wanted = [max(values[start : start + 4]) for start in range(0, len(values), 4)]
    assert found["inputs"][0]["values"] == {"min": [-one for one in wanted], "max": wanted}


def test_ranges_of_another_form_are_left_out() -> None:
    for capture in (None, 1.5, {"g": {}}, [3], [{"name": "g"}], [{"values": {"min": "-inf", "max": [[]]}}]):
        found = captured_ranges([run([record(0, capture=capture)])])
        assert all(one["values"] == {"min": [None], "max": [None]} for of in found for one in of["inputs"])


def test_of_many_records_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of which nine fail: the worst two of them, then what came closest to its limit."""
    monkeypatch.setattr(drawing, "MOST_RECORDS", 4)
    monkeypatch.setattr(drawing, "MOST_FAILURES", 2)
    records = [{**record(n, error=float(n % 7)), "decode": False} for n in range(30)]
    for n in range(3, 30, 3):
        records[n] = {**record(n, "numeric mismatch", 20.0 + n), "decode": False}
    many = [
        *records,
        *({**records[1], "number": n, "key": f"key{n}", "tensors": []} for n in range(30, 10_000)),
    ]
    given = run(many)
    assert drawing.records_left_out([given]) == 10_000 - drawing.MOST_RECORDS
    made = drawing.draw_pngs([given], tmp_path)
    assert len(made) <= 2 + 5 * drawing.MOST_RECORDS
    chosen = [path.name.split("-")[3] for path in made if path.name.endswith("-errors.png")]
    # 13 passes with the largest error, 6; what is left of the four goes to another failure.
    assert chosen == ["27", "24", "21", "13"]


def test_text_of_a_store_is_drawn_as_it_is(tmp_path: Path) -> None:
    hostile = "$x^$ \x00 \u202e \u65e5 ../../<script>" + "long" * 99
    bad = {**record(0, "numeric mismatch"), "layer": hostile, "op": f"{hostile}/op"}
    bad["tensors"][0]["tensor"] = hostile
    bad["capture"][0] |= {"label": hostile, "unit": hostile, "values": {hostile: 1.0}}
    given = run([bad, {**bad, "step": 1}], path=hostile)
    made = drawing.draw_pngs([given], tmp_path / "png")
    assert made
    assert all(path.parent == tmp_path / "png" for path in made)
    assert sorted((tmp_path / "png").iterdir()) == sorted(made)
    for drawn in svgs(given).values():  # well-formed
        assert {one.tag.partition("}")[2] for one in drawn.iter()} <= {
            "svg",
            "g",
            "path",
            "rect",
            "circle",
            "line",
            "text",
            "title",
        }
        assert "$x^$ \\u0000 \\u202e \\u65e5 ../../<scri" in "".join(drawn.itertext())


def test_every_character_that_is_drawn_is_in_the_font(tmp_path: Path) -> None:
    font = files("gdnbench.page").joinpath("assets", "font", "DejaVuSans.ttf")

    def drawn(text: str) -> bytes:
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="30" height="30"><text y="20">{text}</text></svg>'
        )
        made: bytes = resvg_py.svg_to_bytes(
            svg_string=svg, skip_system_fonts=True, font_files=[str(font)], font_family="DejaVu Sans"
        )
        return made

    missing = drawn("\u65e5")
    for character in "aZ09~\u00b5\u00d7\u00f7\u00ff\u2013\u2026\u2260\u2264\u2713\u2717":
        assert drawn(character) not in (missing, drawn(" ")), character


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensors": [{"tensor": "o"}]}, wording("report.result-wrong")),
        ({"waterfall": [{"stage": 1}]}, wording("report.result-wrong")),
        ({"timing": {"format": 99}}, "timing"),
        # Which only the script comes upon.
        (
            {"tensors": [{**record(0)["tensors"][0], "ulp_histogram": {"1": 2}}]},
            wording("report.result-wrong"),
        ),
    ],
)
def test_a_run_that_no_replay_wrote_is_told(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=said):
        drawing.draw_pngs([run([{**record(0), **changed}])], tmp_path)


@pytest.mark.parametrize("package", ["quickjs", "resvg_py"])
def test_without_a_package_it_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CannotRunError, match=wording("page.packages-missing")):
        drawing.draw_pngs([run([record(0)])], tmp_path)


def test_no_font_of_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    rasterise = resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **given: asked.append(given) or rasterise(**given))
    drawing.draw_pngs([run([record(0)])], tmp_path)
    assert asked
    for given in asked:
        assert given["skip_system_fonts"]
        assert [Path(font).parts[-4:] for font in given["font_files"]] == [
            ("page", "assets", "font", "DejaVuSans.ttf")
        ]
        assert "var(" not in given["style_sheet"]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=wording("page.folder-unwritable")):
        drawing.draw_pngs([run([record(0)])], tmp_path / "file" / "png")


def texts_of(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("text")]


def test_axes_say_what_they_are() -> None:
    one = record(0, "numeric mismatch", 20.0)
    drawn = dict(drawing.svg_files([run([one, record(1)])], quickjs.Context()))
    wanted = {
        "record-00-run0-0-errors": ["head 0", "head 1", "chunk", "sequence 0"],
        "record-00-run0-0-growth": ["chunk, counted over all sequences", "relative RMS error"],
        "record-00-run0-0-ulp": ["units in the last place", "elements"],
        "record-00-run0-0-stages": ["relative RMS error"],
        "steps-00": ["step", "relative RMS error"],
        "captured-00": ["record, in the order captured", "value"],
    }
    for name, words in wanted.items():
        found = texts_of(drawn[name])
        assert not [word for word in words if word not in found], (name, found)


def test_what_is_counted_has_ticks_of_whole_numbers() -> None:
    """Heads, chunks, records and steps: no tick between two of them, and both ends of a short axis."""
    engine = quickjs.Context()
    engine.set("indexText", json.dumps({"columns": {"run": []}}))
    engine.set("pixelDensity", 1)
    engine.eval(script_of("png"))
    for low in (0, 1, 7):
        for span in (0, 1, 2, 3, 5, 9, 40, 1000):
            for count in (2, 4.5, 6, 12):
                ticks = json.loads(engine.eval(f"JSON.stringify(whole({low}, {low + span}, {count}))"))
                assert ticks
                assert all(tick == int(tick) and low <= tick <= low + span for tick in ticks), ticks
    drawn = dict(drawing.svg_files([run([record(0), record(1), record(2)])], quickjs.Context()))
    for name in ("captured-00", "steps-00", "record-00-run0-0-growth"):
        numbers = [text for text in texts_of(drawn[name]) if re.fullmatch(r"[\d.]+", text)]
        assert {"0", "1", "2"} <= set(numbers), name
        assert not [text for text in numbers if float(text) > 1 and "." in text], name
