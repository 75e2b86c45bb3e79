"""PNG files of runs: which there are, that a cell has the colour of its number, and that equal runs give
equal bytes."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.errors import BadInputError, CannotRunError
from gdnbench.judge.grid import Grid
from gdnbench.pictures import draw as drawing
from gdnbench.pictures.cells import cells_of
from gdnbench.report.export import grid_json
from gdnbench.report.runs import Run
from gdnbench_kernels.contract import Region
from tests.messages import wording

pytest.importorskip("matplotlib", reason="PNG files are drawn by matplotlib (extra `pictures`)")

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from gdnbench.pictures.canvas import DPI, NOTHING, ORANGE, figure_style
from gdnbench.pictures.errors import error_heatmaps
from gdnbench.pictures.growth import along_sequence


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
    made = drawing.draw_pictures([run([record(0), record(1, "numeric mismatch", 20.0)])], tmp_path / "png")
    assert [path.name for path in made] == [
        "verdicts.png",
        "captured-00.png",
        "steps-00.png",
        *(f"record-00-run0-1-{kind}.png" for kind in ("errors", "growth", "ulp", "stages")),
        *(f"record-01-run0-0-{kind}.png" for kind in ("errors", "growth", "ulp", "stages")),
    ]
    for path in made:
        width, height = size_of(path)
        assert width == 9 * DPI
        assert 200 <= height <= 1500
        # Neither a time nor what wrote it: pHYs says how large a pixel is.
        assert chunks_of(path) <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    records = [record(0), record(1, "numeric mismatch", 20.0)]
    first = drawing.draw_pictures([run(records)], tmp_path / "a")
    second = drawing.draw_pictures([run(records)], tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    other = drawing.draw_pictures([run([record(0), record(1, "numeric mismatch", 30.0)])], tmp_path / "c")
    assert [path.read_bytes() for path in other] != [path.read_bytes() for path in first]


def pixel(figure: Figure, axis: Axes, x: float, y: float) -> tuple[int, int, int]:
    """The colour at a place of `axis` in what is drawn."""
    import matplotlib.image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    drawn.seek(0)
    image = matplotlib.image.imread(drawn, format="png")
    column, row = axis.transData.transform((x, y))
    found = np.rint(image[image.shape[0] - 1 - int(row), int(column), :3] * 255).astype(int)
    return int(found[0]), int(found[1]), int(found[2])


def as_rgb(colour: Any) -> tuple[int, int, int]:
    from matplotlib.colors import to_rgb

    red, green, blue = (round(part * 255) for part in to_rgb(colour))
    return red, green, blue


def test_a_cell_has_the_colour_of_its_number() -> None:
    """Of errors 0.5 to 50 times torch's: cividis between the decade ends, grey for none, orange for NaN."""
    values = np.array([[0.5, 5.0], [50.0, 0.0], [1.0, 2.0]])
    with figure_style():
        figure = error_heatmaps("a record", [("o", cells_of(grid(values, wrong=(2, 1)), "float32"))])
        axis = figure.axes[0]
        scale = colormaps["cividis"]
        norm = LogNorm(0.5, 50.0)
        # A little beside the middle, where the worst cell has a frame.
        for chunk, head in ((0, 0), (0, 1), (1, 0), (2, 0)):
            found = pixel(figure, axis, chunk + 0.4, head + 0.4)
            wanted = as_rgb(scale(norm(values[chunk, head])))
            assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= 1, (chunk, head)  # rounding
        assert pixel(figure, axis, 1.4, 1.4) == as_rgb(NOTHING)
        assert pixel(figure, axis, 2.4, 1.4) == as_rgb(ORANGE)
    assert "not finite" in axis.get_title(loc="left")


def test_growth_is_the_worst_head_of_each_chunk_and_breaks_between_sequences() -> None:
    values = np.array([[1.0, 4.0], [2.0, 3.0], [8.0, 0.0]])
    with figure_style():
        figure = along_sequence("a record", [("o", grid(values))])
    kernels, torchs = figure.axes[0].lines
    assert np.array_equal(kernels.get_ydata(), [4, 3, np.nan, 8], equal_nan=True)
    assert np.array_equal(kernels.get_xdata(), [0, 1, 1.5, 2])
    assert np.array_equal(torchs.get_ydata(), [1, 1, np.nan, 1], equal_nan=True)


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
    made = drawing.draw_pictures([given], tmp_path)
    assert len(made) <= 2 + 5 * drawing.MOST_RECORDS
    chosen = [path.name.split("-")[3] for path in made if path.name.endswith("-errors.png")]
    # 13 passes with the largest error, 6; what is left of the four goes to another failure.
    assert chosen == ["27", "24", "21", "13"]


def test_text_of_a_store_is_drawn_as_it_is(tmp_path: Path) -> None:
    hostile = "$x^$ \x00 \u202e \u65e5 ../../<script>" + "long" * 99
    bad = {**record(0, "numeric mismatch"), "layer": hostile, "op": f"{hostile}/op"}
    bad["tensors"][0]["tensor"] = hostile
    bad["capture"][0] |= {"label": hostile, "unit": hostile, "values": {hostile: 1.0}}
    made = drawing.draw_pictures([run([bad, {**bad, "step": 1}], path=hostile)], tmp_path / "png")
    assert made
    assert all(path.parent == tmp_path / "png" for path in made)
    assert sorted((tmp_path / "png").iterdir()) == sorted(made)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensors": [{"tensor": "o"}]}, wording("report.result-wrong")),
        ({"waterfall": [{"stage": 1}]}, wording("report.result-wrong")),
        ({"timing": {"format": 99}}, "timing"),
    ],
)
def test_a_run_that_no_replay_wrote_is_told(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=said):
        drawing.draw_pictures([run([{**record(0), **changed}])], tmp_path)


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "gdnbench.pictures.canvas"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CannotRunError, match=wording("pictures.matplotlib-missing")):
        drawing.draw_pictures([run([record(0)])], tmp_path)


def test_the_users_own_settings_do_not_count(tmp_path: Path) -> None:
    import matplotlib

    given = [run([{**record(0), "waterfall": None, "capture": None}])]
    plain = drawing.draw_pictures(given, tmp_path / "a")
    with matplotlib.rc_context({"font.size": 20.0, "axes.facecolor": "red", "savefig.dpi": 50}):
        other = drawing.draw_pictures(given, tmp_path / "b")
        assert matplotlib.rcParams["font.size"] == 20.0
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in other]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=wording("pictures.folder-unwritable")):
        drawing.draw_pictures([run([record(0)])], tmp_path / "file" / "png")
