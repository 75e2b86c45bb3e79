# SPDX-License-Identifier: Apache-2.0
"""The references and same-dtype kernels on a GPU: the same results as on the CPU, within their roundings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gdnbench.ops import operation
from gdnbench_kernels.contract import Call
from gdnbench_kernels.run import run_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

MADE: dict[str, dict[str, Any]] = {
    "gdn_prefill": {"seqlens": (70, 0, 300, 1), "heads": (2, 6), "initial_state": True, "state_layout": "KV"},
    "gdn_decode": {"batch": 6, "steps": 3, "speculative": True, "padding": 0.3, "slots": 40, "qk": "raw"},
}
# Against the fp64 oracle on the CPU: the other order of fp64 sums of up to 128 terms over 300 tokens, and the
# eleven roundings to bf16 of the chunked form, which bound decode's one as well.
BOUNDS = {
    "reference": 300 * 128 * 2**-53,
    "reference_staged": 300 * 128 * 2**-53,
    "torch": math.sqrt(11) * 2**-8,
}


@pytest.mark.parametrize("kernel", BOUNDS)
@pytest.mark.parametrize("op", MADE)
def test_kernels_run_on_a_gpu(op: str, kernel: str, relative_error: Any) -> None:
    found = operation(op)
    if kernel not in found.kernels:
        pytest.skip(f"{op} has no stages")
    call = found.synth(**MADE[op])
    moved = Call({name: x.cuda() for name, x in call.tensors.items()}, call.scalars, call.conventions)
    found.validate(moved)
    expected = run_kernel(found, "reference", call)
    results = run_kernel(found, kernel, moved)
    assert set(results) == set(expected)
    for name, exact in expected.items():
        assert results[name].is_cuda
        promised = ~exact.isnan()
        assert relative_error(results[name].cpu()[promised], exact[promised]) < BOUNDS[kernel], name
