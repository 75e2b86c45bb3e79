# SPDX-License-Identifier: Apache-2.0
"""indexer_topk: the oracle and torch against NumPy, refusals, laws and smaller calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge.record import judge_call
from gdnbench.judge.rule import Bound
from gdnbench.prove.laws import Exact, differences
from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.indexer_topk.contract import OPERATION
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

CALLS: dict[str, dict[str, Any]] = {
    "lengths about K": {"lens": (0, 1, 7, 8, 9, 40), "top_k": 8},
    "rows that start apart": {"lens": (30, 5, 0, 12), "top_k": 6, "starts": True, "stale": "live"},
    "half is zero": {"lens": (64, 20), "top_k": 40, "zeros": 0.5, "negative_zeros": 0.5, "stale": "inf"},
    "all are equal": {"lens": (64, 3), "top_k": 16, "levels": 1},
    "few values, bfloat16": {"lens": (64, 9), "top_k": 16, "levels": 5, "dtype": "bfloat16"},
    "close values": {"lens": (300,), "top_k": 100, "base": 1e4, "spread": 1e-2},
    "more entries than columns": {"lens": (3, 5), "top_k": 9},
    "no rows": {"lens": (), "top_k": 4},
    "NaN": {"lens": (20, 4), "top_k": 8, "nan_at": (0, 1)},
}


def rows_of(call: Call) -> list[np.ndarray]:
    starts = call.tensors.get("row_starts", torch.zeros_like(call.tensors["lens"])).tolist()
    spans = zip(call.tensors["logits"].double().numpy(), starts, call.tensors["lens"].tolist(), strict=True)
    return [row[start : start + length] for row, start, length in spans]


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("name", CALLS)
def test_both_kernels_select_what_numpy_sorts_last(name: str, kernel: str) -> None:
    call = OPERATION.synth(**CALLS[name])
    OPERATION.validate(call)
    found = run_kernel(OPERATION, kernel, call)["indices"].long().numpy()
    k = int(call.scalars["top_k"] or 0)
    assert found.shape == (len(call.tensors["lens"]), k)
    for candidates, chosen in zip(rows_of(call), found, strict=True):
        m = min(len(candidates), k)
        assert (chosen[m:] == -1).all()
        assert len(set(chosen[:m].tolist())) == m
        selected = candidates[chosen[:m]]
        numbers = np.sort(candidates[~np.isnan(candidates)])
        of_numbers = np.sort(selected[~np.isnan(selected)])
        assert (of_numbers == numbers[len(numbers) - len(of_numbers) :]).all()
    (result,) = judge_call(OPERATION, call, {"indices": torch.from_numpy(found)}, Bound(), {})
    assert result.passed


def refused(tensors: dict[str, Tensor], **scalars: Any) -> str:
    with pytest.raises(ContractError) as error:
        OPERATION.validate(Call(tensors, scalars, {}))
    return str(error.value)


def test_refusals() -> None:
    logits, lens = torch.zeros(2, 5), torch.tensor([5, 3], dtype=torch.int32)
    # vLLM's graph padding had a length of -1, which a kernel read as 2^32 - 1.
    negative = refused({"logits": logits, "lens": torch.tensor([5, -1], dtype=torch.int32)})
    assert re.search(wording("kernels.topk-lens", place="lens[1]", given=-1, most=5), negative)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    past = refused({"logits": logits, "lens": lens, "row_starts": starts})
    assert re.search(wording("kernels.topk-lens", place="lens[1]", given=3, most=1), past)
    outside = refused({"logits": logits, "lens": lens, "row_starts": torch.tensor([0, 6], dtype=torch.int32)})
    assert re.search(wording("kernels.topk-starts", place="row_starts[1]", given=6, most=5), outside)
    assert re.search(wording("kernels.topk-k", given=0), refused({"logits": logits, "lens": lens}, top_k=0))


def held_by(kernel: Any, call: Call) -> list[str]:
    """The laws that `kernel`, a function of a call, breaks."""
    assert OPERATION.laws is not None
    exact, whole = Exact(OPERATION, call, {}), kernel(call)
    return [
        one.law
        for one in OPERATION.laws.variants(OPERATION, call)
        if any(
            found.wrong for found in differences(one.pieces, whole, kernel(one.call), exact, bits=one.exact)
        )
    ]


def ties_by_place(call: Call) -> dict[str, Tensor]:
    """Right, with other ties from call to call: the last equal candidates, and entries in another order."""
    found = run_kernel(OPERATION, "torch", call)
    return {"indices": found["indices"].clone()}


def reads_stale(call: Call) -> dict[str, Tensor]:
    logits, k = call.tensors["logits"].nan_to_num(-1.0), int(call.scalars["top_k"] or 0)
    return {"indices": logits.topk(k, dim=1).indices.to(torch.int32)}


def first_row_for_all(call: Call) -> dict[str, Tensor]:
    found = run_kernel(OPERATION, "torch", call)["indices"]
    return {"indices": found[:1].expand_as(found).clone()}


def by_magnitude(call: Call) -> dict[str, Tensor]:
    tensors = {**call.tensors, "logits": torch.sin(call.tensors["logits"] * 2)}
    return run_kernel(OPERATION, "torch", Call(tensors, call.scalars, {}))


def test_laws_hold_and_find_wrong_kernels() -> None:
    call = OPERATION.synth(lens=(60, 45, 50), top_k=20, zeros=0.3, stale="nan")
    assert held_by(ties_by_place, call) == []
    assert held_by(lambda one: run_kernel(OPERATION, "reference", one), call) == []
    assert "unread columns" in held_by(reads_stale, call)
    assert "order" in held_by(first_row_for_all, call)
    assert "scale" in held_by(by_magnitude, call)


def test_smaller_calls_select_alike() -> None:
    """Without a row's lesser candidates the same values are selected, and indices count what is left."""
    call = OPERATION.synth(lens=(12, 9), top_k=4, starts=True)
    shrinking = OPERATION.shrinking
    assert shrinking is not None
    axes = {axis.name: axis for axis in shrinking.axes(OPERATION, call)}
    assert {name: axis.units for name, axis in axes.items()} == {
        "rows": 2,
        "columns": call.tensors["logits"].shape[1],
        "selected entries": 4,
    }
    one = axes["rows"].keep([1])
    OPERATION.validate(one)
    assert one.tensors["lens"].tolist() == [9]
    chosen = run_kernel(OPERATION, "torch", call)["indices"].long()
    starts = call.tensors["row_starts"].long()
    columns = sorted({*(chosen[0] + starts[0]).tolist(), *(chosen[1] + starts[1]).tolist()})
    few = axes["columns"].keep(columns)
    OPERATION.validate(few)
    again = run_kernel(OPERATION, "torch", few)["indices"].long()
    for row in range(2):
        first = few.tensors["logits"][row, again[row] + few.tensors["row_starts"][row].long()]
        assert torch.equal(first, call.tensors["logits"][row, chosen[row] + starts[row]])
    assert axes["selected entries"].keep([0, 1]).scalars["top_k"] == 2


def test_work_and_ranges() -> None:
    call = OPERATION.synth(lens=(10, 4), top_k=2, levels=1, starts=True)
    assert OPERATION.work is not None
    assert OPERATION.ranges is not None
    work = OPERATION.work(call)
    assert (work.read, work.written, work.flop) == (14 * 4 + 2 * 4 + 2 * 4, 2 * 2 * 4, 14)
    found = {one.name: dict(one.values) for one in OPERATION.ranges(call)}
    assert found == {
        "lens": {"min": 4, "max": 10},
        "boundaries": {"min": 0, "max": 0},
        "ties": {"min": 4, "max": 10},
    }
