# SPDX-License-Identifier: Apache-2.0
"""The order of slots that a warp of gdn_decode finds, in the simulator, against Python's `sorted`."""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.plan import WARP
from tests.kernels.slot_order_kernel import Order

PER_LANE = 2
LARGEST = 2**31 - 1


@cache
def compiled() -> Any:
    vector = make_fake_tensor(cutlass.Int32, (cute.sym_int(),), (1,), assumed_align=4)
    return sim.compile(Order(PER_LANE), vector, vector, make_fake_stream(), arch="sm_90a")


def order_of(slots: list[int], engine: str) -> list[int]:
    padded = torch.tensor(slots + [-1] * (PER_LANE * WARP - len(slots)), dtype=torch.int32)
    order: Tensor = torch.full((len(slots),), -7, dtype=torch.int32)
    report = sim.launch(compiled(), padded, order, engine=engine)
    assert not report.findings, report
    found: list[int] = order.tolist()
    return found


SLOTS = {
    "drawn": torch.randperm(300, generator=torch.Generator().manual_seed(1))[:41].tolist(),
    "extremes and padding": [5, -1, 0, LARGEST, -1, LARGEST - 1, 1 << 30, 3],
    "padding alone": [-1, -1, -1],
    "equal slots": [7, 3, 7, 0, 3, 7, -1, 0] * 5,
    "slot 0 alone": [0],
}


@pytest.mark.parametrize(
    ("name", "engine"), [*((name, "compiled") for name in SLOTS), ("extremes and padding", "interpreter")]
)
def test_slots_ascend_and_padding_is_last(name: str, engine: str) -> None:
    """Equal slots keep the order of their sequences, as `sorted` does."""
    slots = SLOTS[name]
    expected = sorted(range(len(slots)), key=lambda number: (slots[number] < 0, slots[number]))
    assert order_of(slots, engine) == expected
