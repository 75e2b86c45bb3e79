# SPDX-License-Identifier: Apache-2.0
"""What a call of gdn_decode costs: sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gdnbench_kernels.contract import Work
from gdnbench_kernels.gdn_decode.contract import OPERATION

STATE = 4 * 128 * 128  # elements of a slot, four value heads
Q = K = 2 * 128
V = 4 * 128


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Three states read and written; q, k, v in bf16, g and beta in fp32, an int32 slot each.
        (
            {"batch": 3},
            Work(3 * (STATE * 4 + (Q + K + V) * 2 + 2 * 4 * 4 + 4), 3 * (STATE * 4 + V * 2), 3 * 7 * STATE),
        ),
        # Two of four run: four tokens each, one state read and four written; indices of all come.
        (
            {"batch": 4, "padding": 0.5, "steps": 4, "speculative": True, "state_dtype": "bfloat16"},
            Work(
                2 * (STATE * 2 + 4 * ((Q + K + V) * 2 + 2 * 4 * 4)) + 4 * (4 * 4 + 4),
                2 * 4 * (STATE * 2 + V * 2),
                2 * 4 * 7 * STATE,
            ),
        ),
        # One state for all, nothing kept of it but o; a and b in bf16, A_log and dt_bias once in fp32.
        (
            {"batch": 3, "read_indices": "shared", "holes": 1.0, "gate": "raw"},
            Work(
                STATE * 4 + 3 * ((Q + K + V) * 2 + 2 * 4 * 2 + 4 + 4) + 2 * 4 * 4,
                3 * V * 2,
                3 * 7 * STATE,
            ),
        ),
        ({"batch": 0}, Work(0, 0, 0)),
    ],
)
def test_work_by_hand(options: dict[str, Any], expected: Work) -> None:
    call = OPERATION.synth(**options)
    OPERATION.validate(call)
    assert OPERATION.work is not None
    assert OPERATION.work(call) == expected


def test_the_state_is_most_of_it_where_it_is_large() -> None:
    """128 KiB a head in fp32, in and out: 4.3 TB/s take 63 us for 64 sequences of 32 heads, as published
    measurements of copies of the same bytes on an H200 have it (65.5 us at 4.27 TB/s with what is beside)."""
    call = OPERATION.synth(batch=4, heads=(16, 32))
    assert OPERATION.work is not None
    work = OPERATION.work(call)
    assert work.bytes * 16 == pytest.approx(64 * 32 * 2 * 128 * 128 * 4, rel=0.02)
