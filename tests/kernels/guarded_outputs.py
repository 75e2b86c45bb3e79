# SPDX-License-Identifier: Apache-2.0
"""Outputs in guarded memory, for a kernel that runs on the simulator; and bits compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Session, Settings, active
from gdnbench_kernels.contract import Call, Operation

GUARD = 64
"""Elements before and after an output that nobody may write; a multiple of the alignment in any dtype."""

Outputs = dict[str, Tensor]


@contextmanager
def guarded(operation: Operation, call: Call, **settings: Any) -> Iterator[tuple[Outputs, Session]]:
    """The outputs of a call, filled with NaN, for the block to write; programs run on the simulator with the
    `settings`. After the block no finding was reported, the call's tensors have their bits, and the elements
    around the outputs are still NaN."""
    whole, outputs = {}, {}
    for name, (shape, dtype) in operation.outputs(call).items():
        count = torch.Size(shape).numel()
        whole[name] = torch.full((count + 2 * GUARD,), torch.nan, dtype=dtype)
        outputs[name] = whole[name][GUARD : GUARD + count].view(shape)
    before = {name: tensor.clone() for name, tensor in call.tensors.items()}
    with active(Settings(**settings)) as session, programs_simulated():
        yield outputs, session
    assert [finding.message for report in session.reports for finding in report.findings] == []
    for name, tensor in call.tensors.items():
        assert same(tensor, before[name]), f"{name} was written to"
    for name, tensor in whole.items():
        assert tensor[:GUARD].isnan().all(), f"{name} was written ahead of its start"
        assert tensor[-GUARD:].isnan().all(), f"{name} was written behind its end"


def same(x: Tensor, y: Tensor) -> bool:
    """Whether dtypes, shapes and bits are equal."""
    return x.dtype == y.dtype and x.shape == y.shape and bool((as_integers(x) == as_integers(y)).all())


def same_outputs(x: Outputs, y: Outputs) -> bool:
    return x.keys() == y.keys() and all(same(x[name], y[name]) for name in x)
