# SPDX-License-Identifier: Apache-2.0
"""The judge of sets of indices, against a count in NumPy, and each verdict."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.result import TensorResult
from gdnbench.judge.row_source import Memory
from gdnbench.judge.selection import compare_selections, judge_selection
from gdnbench.judge.tensor import Subject
from gdnbench.record import When
from gdnbench_kernels.contract import Partition, Region, Selection
from tests.messages import wording
from tests.subset import quick

NAN, INF = math.nan, math.inf


def subject(rows: int) -> Subject:
    return Subject(
        "indices", When.AFTER, Partition(tuple(Region(i, i + 1, i) for i in range(rows)), None), ()
    )


def judged(values: list[list[float]], indices: list[list[int]], **more: Any) -> TensorResult:
    """`indices` judged as selections of the rows of `values`; `counts`, `first`: candidates and first
    columns."""
    table = torch.tensor(values)
    rows = len(values)
    first = torch.tensor(more.get("first", [0] * rows))
    count = torch.tensor(more.get("counts", [table.shape[1]] * rows))
    chosen = torch.tensor(indices, dtype=torch.int32)
    return judge_selection(subject(rows), chosen, Selection(table, first, count))


def right_by_numpy(values: np.ndarray, chosen: np.ndarray, k: int) -> bool:
    """Whether m = min(n, k) different indices come first, then -1, and no other m are larger anywhere."""
    m = min(len(values), k)
    head, tail = chosen[:m], chosen[m:]
    if (
        not (tail == -1).all()
        or len(set(head.tolist())) < m
        or not ((head >= 0) & (head < len(values))).all()
    ):
        return False
    return bool((np.sort(values)[len(values) - m :] == np.sort(values[head])).all())


@pytest.mark.parametrize("levels", quick([1, 2, 4, 100], 1, 3))
def test_every_selection_of_small_rows(levels: int) -> None:
    """Rows of 0 to 6 candidates of few values, ties among them: 400 random selections and changes of right
    ones. The count of NumPy is another computation: it sorts, and knows no boundary."""
    rng = np.random.default_rng(levels)
    k, verdicts = 4, []
    for _ in range(400):
        n = int(rng.integers(0, 7))
        values = rng.integers(-levels, levels, n).astype(np.float32)
        chosen = np.full(k, -1)
        order = np.argsort(-values, kind="stable")[:k] if rng.random() < 0.6 else rng.permutation(n)[:k]
        chosen[: len(order)] = rng.permutation(order)
        if rng.random() < 0.3:
            chosen[rng.integers(k)] = rng.integers(-2, n + 1)
        table = torch.full((1, 9), NAN)
        table[0, 2 : 2 + n] = torch.from_numpy(values)
        selection = Selection(table, torch.tensor([2]), torch.tensor([n]))
        found = judge_selection(subject(1), torch.from_numpy(chosen[None]), selection)
        assert found.passed == right_by_numpy(values, chosen, k), (values, chosen, found.reasons)
        verdicts.append(found.passed)
    assert 40 < sum(verdicts) < 360  # both verdicts occur


def test_order_and_ties_are_free() -> None:
    plateau = [0.0, 3.0, -0.0, 0.0, 1.0, -1.0]
    for chosen in ([1, 4, 0], [4, 2, 1], [3, 1, 4]):
        found = judged([plateau], [chosen])
        assert found.passed
        assert found.unequal == 0
        assert found.errors is not None
        assert found.errors.max_abs == 0
    assert not judged([plateau], [[1, 0, 2]]).passed


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ([1, 9, 4], wording("judge.set-outside", entry=1, index=9, count=6)),
        ([1, 4, 1], wording("judge.set-repeated", entry=2, index=1, value=3, before=0)),
        ([1, -1, 4], wording("judge.set-absent", entry=1, padding=-1, count=6, need=3)),
        ([1, 4, 5], wording("judge.set-edge", index=5, value=-1, place="entry 2", need=3, edge=0)),
        ([4, 0, 3], wording("judge.set-edge", index=1, value=3, place="not among its entries", count=6)),
    ],
)
def test_a_verdict_names_row_entry_index_value_and_boundary(chosen: list[int], words: str) -> None:
    found = judged([[0.0, 3.0, -0.0, 0.0, 1.0, -1.0]], [chosen])
    text = f"1 of 1 rows .*; first row 0: {words}"
    assert [reason for reason in found.reasons if re.match(text, reason)]
    assert found.worst is not None
    assert found.worst.at.index[0] == 0


def test_an_index_where_padding_belongs() -> None:
    found = judged([[5.0, 1.0, NAN]] * 2, [[1, 0, -1], [0, 1, 1]], counts=[2, 2])
    (reason,) = found.reasons
    assert reason.startswith("1 of 2 rows hold an index where -1 belongs; first row 1: entry 2 is 1;")
    assert judged([[5.0, 1.0, NAN]], [[0, 1, -1]], counts=[2]).passed


def test_ties_at_the_boundary_are_counted() -> None:
    (reason,) = judged([[2.0, 0.0, 0.0, -1.0]], [[0, 3]]).reasons
    assert reason.endswith("the least of the 2 largest of 4, is 0, which 2 candidates have")


def test_nan_may_be_selected_or_not() -> None:
    row = [NAN, 3.0, 2.0, 1.0]
    assert judged([row], [[1, 2]]).passed
    assert judged([row], [[0, 1]]).passed
    assert not judged([row], [[0, 2]]).passed
    assert not judged([row], [[1, 3]]).passed
    assert judged([[NAN, NAN, 1.0]], [[1, 0]]).passed
    # Three candidates for three entries: then NaN must be selected too.
    assert judged([[NAN, NAN, 1.0]], [[1, 0, 2]]).passed
    assert not judged([[NAN, NAN, 1.0]], [[2, 0, -1]]).passed


def test_minus_infinity_is_a_value() -> None:
    row = [-INF, 3.0, -INF, INF]
    assert judged([row], [[3, 1, 0]]).passed
    assert judged([row], [[3, 1, 2]]).passed
    assert not judged([row], [[3, 0, 2]]).passed
    assert not judged([row], [[3, 1, -1]]).passed


def test_figures_are_of_selected_values() -> None:
    """5 and 4 are right; 5 and 1 are 3 off, of sqrt((25 + 16) / 2) in RMS."""
    found = judged([[5.0, 4.0, 1.0]], [[2, 0]])
    assert found.errors is not None
    assert found.errors.max_abs == 3
    assert found.errors.rms_ratio == pytest.approx(3 / math.sqrt(41), rel=1e-6)
    assert found.unequal == 1
    assert found.groups[0].sequence == 0


def test_empty_rows_and_tables() -> None:
    assert judged([[1.0], [2.0]], [[-1, -1], [0, -1]], counts=[0, 1]).passed
    nothing = Selection(torch.zeros(3, 0), torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    assert judge_selection(subject(3), torch.full((3, 2), -1), nothing).passed
    none = Selection(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert judge_selection(subject(0), torch.zeros(0, 2, dtype=torch.int32), none).passed


def test_another_form_is_no_set() -> None:
    selection = Selection(torch.zeros(2, 3), torch.tensor([0, 0]), torch.tensor([3, 3]))
    (reason,) = judge_selection(subject(2), torch.zeros(2, 2), selection).reasons
    assert reason == "dtype float32; a set output is int32 or int64"
    (reason,) = judge_selection(subject(2), torch.zeros(3, 2, dtype=torch.int32), selection).reasons
    assert reason == "shape [3, 2]; a set output of this call has 2 rows of indices"


def test_many_rows_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of a part names the row of the whole, and rows of no sequence do not count."""
    monkeypatch.setattr("gdnbench.judge.selection.ELEMENTS_AT_ONCE", 8)
    table = torch.arange(40.0).view(10, 4)
    chosen = torch.tensor([[3, 2]] * 10, dtype=torch.int32)
    selection = Selection(table, torch.zeros(10, dtype=torch.long), torch.full((10,), 4))
    assert judge_selection(subject(10), chosen, selection).passed
    chosen[7, 1] = 1
    (below,) = judge_selection(subject(10), chosen, selection).reasons
    assert "first row 7: index 1 (29) is entry 1" in below
    few = Subject("indices", When.AFTER, Partition((Region(0, 7, 0),), None), ())
    assert judge_selection(few, chosen, selection).passed


def compared(x: Tensor, y: Tensor, selection: Selection | None, tol: float | None = None) -> TensorResult:
    tolerance = None if tol is None else Tolerance(tol, 0.0)
    return compare_selections(subject(len(x)), Memory(x), Memory(y), selection, tolerance)


def test_two_sets_are_equal_in_any_order_and_if_their_values_are() -> None:
    table = torch.tensor([[4.0, 2.0, 2.0, 1.0, NAN]])
    selection = Selection(table, torch.tensor([0]), torch.tensor([4]))
    x = torch.tensor([[0, 1, -1]])
    assert compared(x, x.flip(1), None).passed
    tied = torch.tensor([[2, 0, -1]])
    assert not compared(x, tied, None).passed
    short = Selection(table, torch.tensor([0]), torch.tensor([2]))
    assert not compared(x, tied, short).passed  # 2 is no candidate there
    x, tied, other = (torch.tensor([[0, i]]) for i in (1, 2, 3))
    assert compared(x, tied, selection).passed
    found = compared(x, other, selection)
    (reason,) = found.reasons
    words = "only x has 1 (2); only y has 3 (1)"
    assert re.fullmatch(wording("judge.set-unlike", wrong=1, rows=1, row=0, words=words), reason)
    assert found.unequal == 1
    assert compared(x, other, selection, tol=1.0).passed
    assert not compared(x, other, selection, tol=0.5).passed
    assert not compared(torch.tensor([[1, 1]]), torch.tensor([[1, 2]]), selection).passed
