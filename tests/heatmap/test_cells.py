# SPDX-License-Identifier: Apache-2.0
"""The numbers of a heatmap's cells, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gdnbench.errors import BadInputError
from gdnbench.heatmap.cells import Unit, cells_of, max_pooled
from gdnbench.judge.grid import Grid
from gdnbench.report.export import grid_json
from gdnbench.report.grids import grid_from_json
from gdnbench_kernels.contract import Region
from tests.messages import wording


def grid(
    rms: list[list[float]],
    torch_rms: list[list[float]] | None = None,
    reference: float = 1.0,
    nonfinite: tuple[int, int] | None = None,
) -> Grid:
    """Of chunks [R][H]; two chunks a sequence."""
    errors = np.array(rms, np.float32)
    wrong = np.zeros(errors.shape, np.int32)
    if nonfinite is not None:
        wrong[nonfinite] = 3
    return Grid(
        regions=tuple(Region(64 * n, 64 * n + 64, n // 2, n % 2) for n in range(len(rms))),
        axes=("T", "Hv", "V"),
        rms=errors,
        rms_reference=np.full(errors.shape, reference, np.float32),
        torch_rms=None if torch_rms is None else np.array(torch_rms, np.float32),
        max_abs=2 * errors,
        nonfinite=wrong,
        worst=np.arange(errors.size * 3, dtype=np.int32).reshape(*errors.shape, 3),
        x=np.full(errors.shape, 1.5, np.float32),
        y=np.full(errors.shape, -2.0, np.float32),
    )


def test_heads_are_down_and_chunks_across_as_parts_of_torchs_error() -> None:
    cells = cells_of(grid([[1, 2], [3, 8], [0, 0]], [[0.5, 4], [1, 2], [1, 1]]), "float32")
    assert (cells.unit, cells.limit) == (Unit.TORCH, 2)
    assert cells.values.tolist() == [[2, 3, 0], [0.5, 4, 0]]
    assert cells.worst() == (1, 1)
    assert cells.place(1, 1) == "sequence 0 chunk 1 head 1"
    assert cells.sequences == [0, 2]


def test_where_torch_is_exact_rounding_takes_its_place() -> None:
    """bfloat16 has eps 2^-7: rounding moves a value of 2 by 2^-7 at most."""
    cells = cells_of(grid([[2**-8, 0.25, 0]], [[0, 2**-10, 1]], reference=2.0), "bfloat16")
    assert cells.values.tolist() == [[0.5], [256], [0]]


def test_without_torch_it_is_the_part_of_the_value() -> None:
    for found in (grid([[1, 0]], reference=4.0), grid([[1, 0]], [[0, 0]], reference=4.0)):
        cells = cells_of(found, "int32")
        assert cells.unit is Unit.VALUE
        assert cells.values.tolist() == [[0.25], [0]]


def test_limits_take_the_place_of_torchs_error() -> None:
    limits = np.array([[0.5, 3], [np.nan, 0]], np.float32)
    cells = cells_of(replace(grid([[1, 2], [3, 4]], [[1, 1], [1, 1]]), of_limit=limits), "bfloat16")
    assert (cells.unit, cells.limit) == (Unit.LIMIT, 1)
    assert cells.values.tolist() == [[0.5, np.inf], [3, 0]]


def test_what_is_not_finite_stands_above_all() -> None:
    cells = cells_of(grid([[1, 2], [3, 4]], nonfinite=(0, 1)), "float32")
    assert cells.values[1, 0] == np.inf
    assert cells.worst() == (1, 0)
    nothing = cells_of(grid([[1, 0]], reference=0.0), "float32")
    assert nothing.values.tolist() == [[np.inf], [0]]


def test_a_pool_keeps_the_largest_of_each_block() -> None:
    values = np.arange(35.0).reshape(5, 7)
    found, down, across = max_pooled(values, 2, 3)
    assert (down, across) == (3, 3)
    assert found.tolist() == [[16, 19, 20], [30, 33, 34]]
    assert max_pooled(values, 5, 7)[0].tolist() == values.tolist()
    assert max_pooled(np.zeros((4, 0)), 2, 2)[0].shape == (2, 0)


def test_a_grid_comes_back_from_json() -> None:
    made = grid([[1, 2], [3, 4]], [[1, 1], [1, 1]], nonfinite=(1, 1))
    found = grid_from_json(grid_json(made), "here")
    for name in ("rms", "rms_reference", "torch_rms", "max_abs", "nonfinite", "worst", "x", "y"):
        assert np.array_equal(getattr(found, name), getattr(made, name)), name
    assert [(r.sequence, r.chunk, r.start, r.stop) for r in found.regions] == [(0, 0, 0, 64), (0, 1, 64, 128)]
    assert (found.axes, found.left_out) == (made.axes, 0)


@pytest.mark.parametrize(
    ("name", "value"), [("rms", "AAAA"), ("rms", "%"), ("regions", [[1]]), ("heads", "x"), ("worst", "AAAA")]
)
def test_a_grid_that_is_none_is_told(name: str, value: object) -> None:
    with pytest.raises(BadInputError, match=wording("report.grid-wrong", where="here")):
        grid_from_json({**grid_json(grid([[1, 2]])), name: value}, "here")
