# SPDX-License-Identifier: Apache-2.0
"""Heatmaps as text: which tensors, which characters, how wide."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gdnbench.heatmap.terminal import ASCII, MOST_TENSORS, heatmaps
from gdnbench.judge.grid import Grid
from gdnbench.judge.result import Side, TensorResult
from gdnbench.record import When
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench_kernels.contract import Region
from tests.messages import wording


def tensor(values: np.ndarray, *, passed: bool, name: str = "o", chunked: bool = True) -> TensorResult:
    """Of errors [R, H] beside limits, which are 1 everywhere."""
    shape = values.shape
    regions = (Region(n, n + 1, n // 3, n % 3 if chunked else None) for n in range(shape[0]))
    made = Grid(
        regions=tuple(regions),
        axes=("T", "Hv"),
        rms=values.astype(np.float32),
        rms_reference=np.ones(shape, np.float32),
        torch_rms=np.ones(shape, np.float32),
        max_abs=values.astype(np.float32),
        nonfinite=np.zeros(shape, np.int32),
        worst=np.full((*shape, 2), 7, np.int32),
        x=np.full(shape, 0.25, np.float32),
        y=np.full(shape, 0.5, np.float32),
        of_limit=values.astype(np.float32),
    )
    return TensorResult(
        name, When.AFTER, Side.KERNEL, "float32", (4, 2), () if passed else ("wrong",), unequal=1, grid=made
    )


def report(*records: tuple[TensorResult, ...], layer: str = "layers.0") -> ReplayReport:
    made = (
        RecordResult(
            number,
            f"key{number}",
            "gdn_prefill",
            layer,
            0,
            0,
            Outcome.PASS if all(one.passed for one in tensors) else Outcome.MISMATCH,
            tensors=tensors,
        )
        for number, tensors in enumerate(records)
    )
    return ReplayReport("store", "k", "reference", "cpu", "rule", tuple(made))


def test_a_character_says_between_which_bounds_a_cell_lies() -> None:
    values = np.array([[0, 0.5], [1, 1.5], [3.3, 90], [1100, np.nan]])
    lines = heatmaps(report((tensor(values, passed=False),)), 80).splitlines()
    label = wording(
        "heatmap.label",
        record="record 0 gdn_prefill layers.0 step 0",
        tensor="o",
        side="",
        label=re.compile(wording("heatmap.of-limit")),
    )
    assert re.fullmatch(label, lines[0])
    assert lines[1] == "· 0  ▁ up to 1  ▂ 3.2  ▃ 10  ▄ 32  ▅ 100  ▆ 320  ▇ 1000  █ more  ! not finite"
    assert lines[2:5] == ["seq.   0  1", "head 0 ·▁▃█", "head 1 ▁▂▅!"]
    largest = wording(
        "heatmap.largest",
        largest="not finite",
        place="sequence 1 chunk 0 head 1",
        index="7, 7",
        x=0.25,
        y=0.5,
    )
    assert re.match(largest, lines[5])


def test_errors_that_half_decades_do_not_reach_have_whole_ones() -> None:
    """Seven half decades end at 3162 times the limit."""
    values = np.array([[1, 2], [300, 5000]])
    lines = heatmaps(report((tensor(values, passed=False),)), 80).splitlines()
    assert "▂ 10  ▃ 100  ▄ 1000  ▅ 10000  ▆ 1e+05  ▇ 1e+06  █ more" in lines[1]
    assert lines[3:5] == ["head 0 ▁▄", "head 1 ▂▅"]


def test_colours_are_by_distance_from_the_limit_and_the_worst_is_inverse() -> None:
    text = heatmaps(
        report((tensor(np.array([[0.5, 2], [50, 2]]), passed=False),)),
        80,
        paint=lambda marks, style: f"<{style.name} {marks}>",
    )
    assert text.splitlines()[3:5] == ["head 0 <ASIDE ▁><WORST ▅>", "head 1 <UNDECIDED ▂▂>"]


def test_what_fails_is_shown_and_nothing_else() -> None:
    bad, good = tensor(np.ones((2, 1)), passed=False, name="bad"), tensor(np.ones((2, 1)), passed=True)
    text = heatmaps(report((good,), (bad, good)), 80)
    assert text.count("log scale") == 1
    assert text.startswith("record 1 gdn_prefill layers.0 step 0: bad:")


def test_where_nothing_fails_the_largest_error_of_each_tensor_is_shown() -> None:
    from gdnbench.judge.metrics import Errors

    def of(error: float) -> TensorResult:
        errors = Errors(1, error, error, error, 1.0, error, 0.0, 1)
        return replace(tensor(np.full((2, 1), error), passed=True), errors=errors)

    text = heatmaps(report((of(0.1),), (of(0.3),), (of(0.2),)), 80)
    assert text.count("log scale") == 1
    assert text.startswith("record 1 ")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_the_width_and_loses_no_outlier(width: int) -> None:
    values = np.full((999, 70), 0.5)
    values[500, 66] = 999
    lines = heatmaps(report((tensor(values, passed=False),)), width).splitlines()
    rows = [line for line in lines if line.startswith("head")]
    assert 16 < len(rows) <= 32
    assert max(map(len, rows)) <= width
    # A character is the largest of so many: what rounding up leaves out of the width is less than half.
    assert max(map(len, rows)) > width / 2
    assert sum(line.count("▇") for line in rows) == 1
    row, column = next((n, line.index("▇") - 8) for n, line in enumerate(rows) if "▇" in line)
    (said,) = [line for line in lines if line.startswith("a character is the largest of")]
    down, across = int(said.split()[6]), int(said.split()[9])
    assert (row, column) == (66 // down, 500 // across)
    assert said.endswith("of 70 x 999")


def test_ascii_where_there_are_no_blocks() -> None:
    text = heatmaps(report((tensor(np.array([[0, 2000.0]]), passed=False, chunked=False),)), 80, ASCII)
    assert text.isascii()
    assert "head 0 .\nhead 1 7\n" in text


def test_text_of_a_store_does_nothing_to_a_terminal() -> None:
    text = heatmaps(report((tensor(np.ones((1, 1)), passed=False),), layer="a\x1b[2Jb\n"), 80)
    assert "a\\x1b[2Jb\\n" in text
    assert "\x1b" not in text


def test_no_more_than_so_many_are_drawn_and_the_rest_is_counted() -> None:
    one = tensor(np.ones((1, 1)), passed=False)
    text = heatmaps(report(*[(one,)] * (MOST_TENSORS + 5)), 80)
    assert text.count("log scale") == MOST_TENSORS
    assert re.search(wording("heatmap.left-out", tensors=5) + "\n\\Z", text)


def test_nothing_to_show_is_said() -> None:
    same = replace(tensor(np.zeros((1, 1)), passed=True), unequal=0)
    assert re.fullmatch(wording("heatmap.nothing") + "\n", heatmaps(report((same,)), 80))
