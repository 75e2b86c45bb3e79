# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention and FlashInfer on a GPU: right as kernels, and as launches in a CUDA graph."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_decode.contract import slots_of
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # those of other packages are theirs
]

RAW = {"batch": 4, "heads": (16, 32), "gate": "raw", "qk": "raw"}
CASES: dict[str, tuple[str, Operation, dict[str, Any]]] = {
    "fla, decode": ("fla", DECODE, {**RAW, "heads": (16, 16), "state_layout": "KV"}),
    "fla, prefill": (
        "fla",
        PREFILL,
        {"seqlens": (300, 1, 64), "heads": (4, 8), "initial_state": True, "state_layout": "KV"},
    ),
    "flashinfer, decode, fp32": ("flashinfer", DECODE, RAW),
    "flashinfer, decode, bf16": ("flashinfer", DECODE, {**RAW, "state_dtype": "bfloat16"}),
    "flashinfer, drafted tokens, fp32": ("flashinfer", DECODE, {**RAW, "steps": 4, "speculative": True}),
    "flashinfer, drafted tokens, bf16": (
        "flashinfer",
        DECODE,
        {**RAW, "steps": 4, "speculative": True, "state_dtype": "bfloat16"},
    ),
    "flashinfer, prefill": (
        "flashinfer",
        PREFILL,
        {"seqlens": (300, 1, 64), "heads": (4, 8), "initial_state": True, "gate": "linear"},
    ),
    "flashinfer, prefill, raw q and k": (
        "flashinfer",
        PREFILL,
        {"seqlens": (70, 3), "heads": (4, 8), "gate": "linear", "qk": "raw"},
    ),
}
# Of independent sign: twelve roundings to bf16 on the way in a chunked form (Hopper's kernel rounds its
# inverse too), one of a result, twice its worst; in fp32 sums of 128 terms, at most 4 tokens one after the
# other, and approximate exponentials within 2^-22, whose error counts as often as the exponent is large.
CHUNKED, ONCE, SUMS = 12**0.5 * 2.0**-8, 2.0**-8, 4 * (128 * 2.0**-24 + 16 * 2.0**-22)


def made(name: str) -> tuple[str, Operation, Call]:
    kernel, operation, options = CASES[name]
    package = "fla" if kernel == "fla" else "flashinfer"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'gdnbench[peers]'")
    call = operation.synth(**options)
    operation.validate(call)
    return kernel, operation, call


def on_gpu(call: Call) -> Call:
    return Call({name: x.cuda() for name, x in call.tensors.items()}, call.scalars, call.conventions)


def bound_of(operation: Operation, tensor: Tensor) -> float:
    if operation is PREFILL:
        return CHUNKED
    return SUMS if tensor.dtype == torch.float32 else ONCE + SUMS


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    kernel, operation, call = made(name)
    exact = run_kernel(operation, "reference", call)
    found = run_kernel(operation, kernel, on_gpu(call))
    torch.cuda.synchronize()
    assert set(found) == set(exact)
    for tensor, y in exact.items():
        promised = ~y.isnan()
        x = found[tensor].cpu().double()
        assert (x - y)[promised].norm() <= bound_of(operation, found[tensor]) * y[promised].norm(), tensor
    if "state" in found:
        untouched = torch.ones(len(found["state"]), dtype=torch.bool)
        untouched[slots_of(call).written] = False
        assert torch.equal(found["state"].cpu()[untouched], call.tensors["state"][untouched])


@pytest.mark.parametrize("name", CASES)
def test_launches_of_a_graph(name: str) -> None:
    """Two prepared launches on buffers of their own: what a graph of both leaves is what the kernel does."""
    kernel, operation, call = made(name)
    plain = run_kernel(operation, kernel, on_gpu(call))
    prepare = import_module(f"gdnbench_kernels.{operation.name}.{kernel}").prepare
    given, launches = [], []
    for _ in range(2):
        moved = on_gpu(call)
        outputs = {
            output: torch.full(shape, torch.nan, dtype=dtype, device="cuda")
            for output, (shape, dtype) in operation.outputs(moved).items()
        }
        conventions = {"qk": call.conventions["qk"], "gate": call.conventions["gate"]}
        offered = {**moved.tensors, **outputs, **call.scalars, **conventions}
        takes = prepare.__signature__.parameters
        given.append(offered)
        launches.append(prepare(**{x: value for x, value in offered.items() if x in takes}))
        if "state" in offered:
            assert torch.equal(offered["state"].cpu(), call.tensors["state"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        left = [launch() for launch in launches]
    if "state" in call.tensors:  # capturing runs nothing
        assert torch.equal(given[0]["state"].cpu(), call.tensors["state"])
    graph.replay()
    torch.cuda.synchronize()
    for offered, results in zip(given, left, strict=True):
        found = dict(results)
        for output in operation.outputs(call):
            promised = ~plain[output].isnan()
            assert torch.equal(found[output][promised], plain[output][promised])
        if "state" in offered:
            assert torch.equal(offered["state"], plain["state"])
