# SPDX-License-Identifier: Apache-2.0
"""Calls of v4_decode on a GPU, and what each of its compiled kernels has to do with them there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gdnbench.bits import as_integers
from gdnbench_kernels.contract import Call
from gdnbench_kernels.v4_decode.contract import OPERATION
from tests.kernels.swa_calls import DS_MLA, same_outputs
from tests.kernels.v4_calls import POOLS, Outputs, assert_passes, made
from tests.kernels.v4_wgmma_calls import of_layout, requests_of

Kernel = Callable[..., Outputs]


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


def on_gpu(kernel: Kernel, call: Call, **options: Any) -> Outputs:
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


def assert_takes_the_most_entries(
    kernel: Kernel, queries: int, form: str, splits: Sequence[int | None]
) -> None:
    """A whole window and 2,048 positions; None for the splits that the kernel chooses."""
    call = made(
        **of_layout(DS_MLA),
        heads=64,
        queries=queries,
        lens=(128, 5),
        extra_lens=(2048, 1999),
        topk=2048,
        extra_index_form=form,
    )
    for number in splits:
        assert_passes(call, on_gpu(kernel, call, **({} if number is None else {"splits": number})))


def assert_a_row_is_the_same_alone(
    kernel: Kernel, layout: str, heads: int, splits: int, tunings: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Of more items than the GPU holds at once; and all rows are the same under any of `tunings`."""
    call = made(
        **of_layout(layout),
        heads=heads,
        lens=(128, 31, 0, 128, 1) * 30,
        extra_lens=(0, 200, 0, 512, 129) * 30,
        topk=512,
    )
    whole = on_gpu(kernel, call, splits=splits)
    assert_passes(call, whole)
    for tuning in tunings:
        assert same_outputs(on_gpu(kernel, call, splits=splits, **tuning), whole)
    for row in (0, 1, 2, 76, 149):
        alone = on_gpu(kernel, requests_of(call, row + 1, row), splits=splits)
        assert same_outputs(alone, {name: x[row : row + 1] for name, x in whole.items()})


def assert_the_same_again(kernel: Kernel, layout: str, splits: int) -> None:
    """A race would show in some of many launches."""
    call = made(
        **of_layout(layout), heads=64, lens=(128, 17, 0, 128) * 40, extra_lens=(512, 0, 0, 129) * 40, topk=512
    )
    given, outputs = moved(call), filled(call)
    kernel(**given, **outputs, splits=splits)
    first = {name: tensor.clone() for name, tensor in outputs.items()}
    for _ in range(50):
        for tensor in outputs.values():
            tensor.fill_(torch.nan)
        kernel(**given, **outputs, splits=splits)
        assert same_outputs(outputs, first)


def assert_runs_from_a_graph(kernel: Kernel, layout: str, splits: int) -> None:
    """A replay reads the inputs and lengths that lie there by then."""
    call = made(**of_layout(layout), heads=64, lens=(128, 17, 0), extra_lens=(300, 0, 9), topk=300)
    given, outputs = moved(call), filled(call)
    kernel(**given, **outputs, splits=splits)  # loads the programs, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(**given, **outputs, splits=splits)
    given["q"].mul_(-1)
    given["swa_lens"].copy_(torch.tensor([99, 0, 0]).view(3, 1))
    given["extra_lens"].copy_(torch.tensor([128, 0, 0]).view(3, 1))
    for tensor in outputs.values():
        tensor.fill_(torch.nan)
    graph.replay()
    replayed = {name: x.clone() for name, x in outputs.items()}
    kernel(**given, **outputs, splits=splits)
    assert same_outputs(replayed, outputs)
    assert not replayed["o"].isnan().any()
