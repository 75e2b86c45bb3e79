"""Calls of v4_decode on a GPU, for the tests of its compiled kernels there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gdnbench.bits import as_integers
from gdnbench_kernels.contract import Call
from gdnbench_kernels.v4_decode.contract import OPERATION
from tests.kernels.v4_calls import POOLS, Outputs


def moved(call: Call) -> dict[str, Any]:
    """The call's arguments on the GPU, caches with the padding between their pages."""
    tensors = {name: tensor.cuda() for name, tensor in call.tensors.items()}
    for names in POOLS.values():
        cache = call.tensors.get(names.cache)
        if cache is not None and cache.stride(0) != cache[0].numel():
            memory = torch.empty(len(cache) * cache.stride(0), dtype=cache.dtype, device="cuda")
            tensors[names.cache] = memory.as_strided(cache.shape, cache.stride()).copy_(cache)
    return {**tensors, **call.scalars, **call.conventions}


def filled(call: Call) -> Outputs:
    """The call's outputs on the GPU, NaN."""
    return {
        name: torch.full(shape, torch.nan, dtype=dtype, device="cuda")
        for name, (shape, dtype) in OPERATION.outputs(call).items()
    }


def on_gpu(kernel: Callable[..., Outputs], call: Call, **options: Any) -> Outputs:
    """What `kernel` makes of the call on the GPU, on the host."""
    outputs = filled(call)
    kernel(**moved(call), **outputs, **options)
    return {name: tensor.cpu() for name, tensor in outputs.items()}


def different_bits(found: Outputs, wanted: Outputs) -> dict[str, int]:
    """How many elements of each output have other bits; {} if none has."""
    counts = {
        name: int((as_integers(found[name]) != as_integers(tensor)).sum()) for name, tensor in wanted.items()
    }
    return {name: count for name, count in counts.items() if count}
