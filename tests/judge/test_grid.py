# SPDX-License-Identifier: Apache-2.0
"""Errors by chunk and head, and the element that is furthest off in each, on tensors made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge import grid as grids
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.grid import Grid
from gdnbench.judge.row_source import Memory
from gdnbench.judge.rule import Bound
from gdnbench.judge.tensor import Subject, judge, judge_against_target, show_difference
from gdnbench.record import When
from gdnbench_kernels.contract import Partition, Region
from tests.seeds import drawn, fresh

HEADS, WIDTH = 3, 5
# Two sequences of 10 and 7 tokens in chunks of 4, and two rows of padding between them.
REGIONS = (
    Region(0, 4, 0, 0, 0),
    Region(4, 8, 0, 1, 4),
    Region(8, 10, 0, 2, 8),
    Region(12, 16, 1, 0, 0),
    Region(16, 19, 1, 1, 4),
)
ROWS = 20


def subject(head_axis: int | None = 1, rows: tuple[int, ...] | None = None) -> Subject:
    return Subject("o", When.AFTER, Partition(REGIONS, head_axis), ("T", "Hv", "V"), rows=rows, grid=True)


def noise(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, HEADS, WIDTH, dtype=torch.float64, generator=generator)


def by_hand(x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray, list[list[tuple[int, ...]]]]:
    """rms, max and the coordinates of the largest difference, element by element."""
    rms, peak = np.zeros((len(REGIONS), HEADS)), np.zeros((len(REGIONS), HEADS))
    where: list[list[tuple[int, ...]]] = []
    for r, region in enumerate(REGIONS):
        where.append([])
        for head in range(HEADS):
            cells = {
                (row, head, column): abs(float(x[row, head, column]) - float(y[row, head, column]))
                for row in range(region.start, region.stop)
                for column in range(WIDTH)
            }
            rms[r, head] = math.sqrt(sum(value**2 for value in cells.values()) / len(cells))
            at = max(cells, key=cells.__getitem__)
            peak[r, head] = cells[at]
            where[-1].append(at)
    return rms, peak, where


@pytest.mark.parametrize("seed", [0, fresh(drawn("judge grid", 31))])
def test_cells_are_those_counted_by_hand(seed: int) -> None:
    oracle = noise(seed)
    kernel, yardstick = (oracle + 1e-3 * noise(seed + 1)).float(), (oracle + 1e-4 * noise(seed + 2)).float()
    found = judge(subject(), kernel, oracle, yardstick, Bound()).grid
    assert found is not None
    rms, peak, where = by_hand(kernel, oracle)
    # fp64 sums in another order, then kept as fp32: a few units of 2**-24.
    np.testing.assert_allclose(found.rms, rms, rtol=1e-6)
    np.testing.assert_allclose(found.max_abs, peak, rtol=1e-6)
    np.testing.assert_allclose(found.torch_rms, by_hand(yardstick, oracle)[0], rtol=1e-6)
    np.testing.assert_allclose(found.rms_reference, by_hand(oracle, torch.zeros_like(oracle))[0], rtol=1e-6)
    assert [[tuple(at) for at in heads] for heads in found.worst.tolist()] == where, f"seed {seed}"
    for r, heads in enumerate(where):
        for head, at in enumerate(heads):
            assert found.x[r, head] == kernel[at].item()
            assert found.y[r, head] == pytest.approx(oracle[at].item(), rel=2**-23)
    assert found.regions == REGIONS
    assert found.heads == HEADS
    assert not found.nonfinite.any()


def test_a_nan_is_where_its_chunk_and_head_is_worst() -> None:
    oracle = noise(3)
    kernel = oracle.float()
    kernel[5, 1, 2], kernel[6, 1, 0], kernel[17, 0, 4] = math.nan, math.inf, 9.0
    kernel[11], kernel[19] = math.nan, math.nan  # padding
    found = judge(subject(), kernel, oracle, oracle.float(), Bound()).grid
    assert found is not None
    assert found.nonfinite.tolist() == [[0, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert found.worst[1, 1].tolist() == [5, 1, 2]
    assert math.isnan(found.x[1, 1])
    assert found.worst[4, 0].tolist() == [17, 0, 4]


def test_rows_of_a_pool_are_its_slots() -> None:
    oracle = noise(4)
    kernel = oracle.float()
    kernel[13, 2, 1] += 1
    slots = tuple(range(100, 100 + 3 * ROWS, 3))
    found = judge(subject(rows=slots), kernel, oracle, oracle.float(), Bound()).grid
    assert found is not None
    assert found.worst[3, 2].tolist() == [100 + 3 * 13, 2, 1]


def test_without_heads_there_is_one_column() -> None:
    oracle = noise(5)
    kernel = oracle.float()
    kernel[9, 2, 4] -= 1
    found = judge(subject(head_axis=None), kernel, oracle, oracle.float(), Bound()).grid
    assert found is not None
    assert found.rms.shape == (len(REGIONS), 1)
    assert found.worst[2, 0].tolist() == [9, 2, 4]


def test_whole_chunks_count_up_to_their_last_token() -> None:
    """A stage [chunks, Hv, C, C]: its third axis counts tokens of the chunk, the last chunk is short."""
    oracle = torch.zeros(2, HEADS, 4, 4, dtype=torch.float64)
    kernel = oracle.float()
    kernel[1, 2, 1, 3], kernel[1, 2, 3, 0] = 1.0, 5.0  # the second is past the two tokens
    regions = (Region(0, 1, 0, 0, None, 4), Region(1, 2, 0, 1, None, 2))
    made = Subject("A", When.AFTER, Partition(regions, 1), ("N", "Hv", "row", "column"), grid=True)
    found = judge(made, kernel, oracle, oracle.float(), Bound()).grid
    assert found is not None
    assert found.worst[1, 2].tolist() == [1, 2, 1, 3]
    assert found.max_abs[1, 2] == 1.0


def test_differences_have_grids_too_and_only_where_they_are_asked_for() -> None:
    oracle = noise(6)
    kernel = oracle.float()
    kernel[14, 0, 0] += 0.5
    x, y = Memory(kernel), Memory(oracle.float())
    for found in (
        show_difference(subject(), x, y).grid,
        judge_against_target(subject(), x, y, Tolerance(1.0)).grid,
    ):
        assert isinstance(found, Grid)
        assert found.worst[3, 0].tolist() == [14, 0, 0]
        assert found.torch_rms is None
    plain = Subject("o", When.AFTER, Partition(REGIONS, 1), ("T", "Hv", "V"))
    assert judge(plain, kernel, oracle, oracle.float(), Bound()).grid is None


def test_of_too_many_regions_the_worst_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "MOST_CELLS", 2 * HEADS)
    oracle = noise(7)
    kernel = oracle.float()
    kernel[2, 0, 0] += 1
    kernel[18, 1, 1] += 2
    found = judge(subject(), kernel, oracle, oracle.float(), Bound()).grid
    assert found is not None
    assert found.regions == (REGIONS[0], REGIONS[4])
    assert found.left_out == 3
    assert found.worst[1, 1].tolist() == [18, 1, 1]


def test_no_rows_make_an_empty_grid() -> None:
    empty = torch.zeros(0, HEADS, WIDTH)
    made = Subject("o", When.AFTER, Partition((), 1), ("T", "Hv", "V"), grid=True)
    found = judge(made, empty, empty.double(), empty, Bound()).grid
    assert found is not None
    assert (found.regions, found.rms.shape[0], found.left_out) == ((), 0, 0)
