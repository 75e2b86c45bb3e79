"""swa_decode: sliding-window attention of one query token a request over a paged cache of latent rows.

Axes: T requests (one query token each), H heads, W entries of a window, `blocks` pages of `block_size`
tokens. Keys and values are the same 512-wide rows, shared by all heads. Request t attends to the slots
swa_indices[t, j] for j < swa_lens[t], except those that are -1. Entries past its length are stale: they may
have any value and must not be dereferenced. A request that attends to nothing has o = 0 and lse = -inf.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
    Call,
    ContractError,
    Convention,
    KernelEntry,
    Laws,
    Operation,
    Partition,
    Ranges,
    Region,
    Role,
    ScalarSpec,
    Shaped,
    Shrinking,
    TensorSpec,
    Tolerance,
    Work,
)
from gdnbench_kernels.latent_pool import (
    CODES,
    WINDOW,
    check_block_size,
    check_cache,
    renumbered_entries,
    slots_of_pages,
)
from gdnbench_kernels.swa_decode import laws, shrink
from gdnbench_kernels.swa_decode.accesses import accesses
from gdnbench_kernels.swa_decode.layouts import SERVED as SERVED_LAYOUTS
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.op_cost import work_of
from gdnbench_kernels.swa_decode.ranges import ranges as ranges_of
from gdnbench_kernels.swa_decode.reference import leeway
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, MAX_HEADS, MAX_WINDOW
from gdnbench_kernels.swa_decode.synth import synth
from gdnbench_kernels.swa_decode.window import (
    INDEX_SHAPES,
    attended,
    flat_indices,
    shaped_indices,
)
from gdnbench_kernels.validate import (
    check_conventions,
    check_scalars,
    check_tensors,
    element_name,
    first_true,
)

NAME = "swa_decode"

CACHE_LAYOUT = Convention(
    "cache_layout",
    tuple(CacheLayout),
    "how a page holds its rows: e4m3 and a scale a token, vLLM's fp8_ds_mla pages, or bfloat16",
)
INDEX_SHAPE = Convention("index_shape", tuple(INDEX_SHAPES), "the axes of swa_indices")
CONVENTIONS = (CACHE_LAYOUT, INDEX_SHAPE)

TENSORS = (
    TensorSpec("q", ("T", "H", "512"), ("bfloat16",), Role.INPUT, "queries, rope applied"),
    TensorSpec(
        "cache",
        ("blocks", "block_size", "512"),
        (*CODES, "bfloat16"),
        Role.INPUT,
        "the pages; fp8_ds_mla pages may lie further apart than they are long",
        pool_index="swa_indices",
        axes_by={("cache_layout", CacheLayout.FP8_DS_MLA): ("blocks", "block_size", "584")},
    ),
    TensorSpec(
        "inv_scale",
        ("slots",),
        ("float32", "bfloat16"),
        Role.INPUT,
        "what a slot's e4m3 values are multiplied by; of per_token_scale alone",
        optional=True,
        pool_index="swa_indices",
    ),
    TensorSpec(
        "swa_indices",
        ("T", "W"),
        ("int32",),
        Role.INPUT,
        "slots attended to, block * block_size + offset; -1 is padding",
        axes_by={("index_shape", shape): axes for shape, axes in INDEX_SHAPES.items()},
    ),
    TensorSpec("swa_lens", ("T",), ("int32",), Role.INPUT, "how many entries of swa_indices count"),
    TensorSpec(
        "attn_sink",
        ("H",),
        ("float32",),
        Role.INPUT,
        "a logit in the softmax's denominator alone; -inf if absent",
        optional=True,
        minus_infinity=True,
    ),
    TensorSpec("o", ("T", "H", "512"), ("bfloat16",), Role.OUTPUT, "outputs, of q's dtype"),
    TensorSpec(
        "lse",
        ("T", "H"),
        ("float32",),
        Role.OUTPUT,
        "natural log of the sum without the sink",
        optional=True,
        minus_infinity=True,
    ),
)

SCALARS = (
    ScalarSpec("scale", float, None, "factor of the scores; 512 ** -0.5 unless given"),
    ScalarSpec("output_lse", bool, False, "whether lse is an output"),
)

LSE = Tolerance(absolute=1e-3, relative=2.0**-16)
"""The tolerance of lse. It replaces a multiple of torch's error, which in fp32 may be zero. The absolute part
is what a merge of two parts can notice in bfloat16 (half of 2^-8 of a weight is 2e-3). The relative part
covers large scores: 32 partial sums of 16 products, each truncated to 24 bits, lose up to 32 * 2^-23 = 2^-18
of the largest of them, which may be four times the score."""

SERVED: dict[str, tuple[str, ...]] = {
    "cache_layout": SERVED_LAYOUTS,
    "index_shape": INDEX_SHAPE.values,
}
ALL = {convention.name: convention.values for convention in CONVENTIONS}

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.swa_decode.reference:reference", ALL, meaning="the fp64 oracle", fp64=True
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.swa_decode.torch_paged:torch_paged",
        ALL,
        meaning="rows gathered and dequantised to bfloat16, then SDPA",
    ),
    "portable": KernelEntry(
        "gdnbench_kernels.swa_decode.portable:portable",
        SERVED,
        devices=("sim", "cuda"),
        meaning="one mma.sync kernel for SM90 and SM100 in CuTe DSL, products straight from the codes",
        sources="gdnbench_kernels.swa_decode.sources:portable_sources",
    ),
    "wgmma": KernelEntry(
        "gdnbench_kernels.swa_decode.wgmma:wgmma",
        SERVED,
        devices=("sim", "cuda"),
        meaning="a wgmma kernel for SM90 in CuTe DSL, persistent CTAs",
        sources="gdnbench_kernels.swa_decode.sm90_sources:wgmma_sources",
        archs=("sm_90a",),
    ),
    "sm100": KernelEntry(
        "gdnbench_kernels.swa_decode.sm100:sm100",
        SERVED,
        devices=("sim", "cuda"),
        meaning="CuTe DSL for SM100, tcgen05; compiled, or in the simulator",
        sources="gdnbench_kernels.swa_decode.sources:sm100_sources",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    check_conventions(NAME, CONVENTIONS, call.conventions)
    check_scalars(NAME, SCALARS, call)
    sizes = check_tensors(NAME, TENSORS, call)
    _check_sizes(call, sizes)
    check_cache(NAME, WINDOW, layout_of(call), call.tensors)
    _check_window(call, sizes)


def _check_sizes(call: Call, sizes: Mapping[str, int]) -> None:
    if not 1 <= sizes["H"] <= MAX_HEADS:
        raise ContractError(f"{NAME}: q has {sizes['H']} heads; it must have 1 to {MAX_HEADS}")
    if not 1 <= sizes["W"] <= MAX_WINDOW:
        raise ContractError(f"{NAME}: swa_indices has a window of {sizes['W']}; it must be 1 to {MAX_WINDOW}")
    check_block_size(NAME, WINDOW, call.tensors["cache"], BLOCK_SIZES)


def _check_window(call: Call, sizes: Mapping[str, int]) -> None:
    # In int64: an int32 would be compared with a number of slots above 2^31 as if that had wrapped.
    lens, indices = call.tensors["swa_lens"].cpu(), flat_of(call).cpu().long()
    wrong = first_true((lens < 0) | (lens > sizes["W"]))
    if wrong is not None:
        raise ContractError(
            f"{NAME}: {element_name('swa_lens', wrong)} is {int(lens[wrong])}; it must lie in"
            f" [0, {sizes['W']}], the window"
        )
    slots = sizes["blocks"] * sizes["block_size"]
    outside = first_true(attended(indices, lens) & ((indices < 0) | (indices >= slots)))
    if outside is not None:
        raise ContractError(
            f"{NAME}: {element_name('swa_indices', outside)} is {int(indices[outside])}; it must be a slot in"
            f" [0, {slots - 1}], or -1 for padding"
        )


def layout_of(call: Call) -> CacheLayout:
    return CacheLayout(call.conventions.get("cache_layout", CACHE_LAYOUT.values[0]))


def flat_of(call: Call) -> Tensor:
    """swa_indices as [T, W]."""
    shape = call.conventions.get("index_shape", INDEX_SHAPE.values[0])
    return flat_indices(call.tensors["swa_indices"], shape)


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call with swa_indices in another shape. Raises ContractError for another cache layout: packing
    rounds."""
    conventions = {name: call.conventions.get(name, ALL[name][0]) for name in ALL}
    check_conventions(NAME, CONVENTIONS, target)
    layout = target.get("cache_layout", conventions["cache_layout"])
    if layout != conventions["cache_layout"]:
        raise ContractError(
            f"{NAME}: a cache in {conventions['cache_layout']} does not become {layout} without rounding;"
            " capture it in that layout"
        )
    shape = target.get("index_shape", conventions["index_shape"])
    tensors = {**call.tensors, "swa_indices": shaped_indices(flat_of(call), shape)}
    return Call(tensors, call.scalars, {**conventions, "index_shape": shape})


def convert_outputs(
    outputs: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    """The outputs unchanged: no convention applies to them."""
    return dict(outputs)


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of o, and of lse if requested."""
    q = call.tensors["q"]
    found: dict[str, Shaped] = {"o": (tuple(q.shape), q.dtype)}
    if call.scalars.get("output_lse", False):
        found["lse"] = (tuple(q.shape[:2]), torch.float32)
    return found


def touched(call: Call) -> dict[str, Tensor]:
    """The pages that requests attend to, and the slots of those pages: sorted, unique, int64 on the host."""
    indices, lens = flat_of(call).cpu(), call.tensors["swa_lens"].cpu()
    block_size = call.tensors["cache"].shape[1]
    blocks = torch.unique(indices[attended(indices, lens)].long() // block_size)
    found = {"cache": blocks}
    if "inv_scale" in call.tensors:
        found["inv_scale"] = slots_of_pages(blocks, block_size)
    return found


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """swa_indices for pools with only the rows `stored`. Stale entries become -1. Raises ContractError if an
    entry's page is not stored, or if inv_scale is not the scales of the stored pages."""
    if not stored:
        return {}
    indices = flat_of(call)
    counts = attended(indices, call.tensors["swa_lens"])
    found = renumbered_entries(NAME, WINDOW, call.tensors, stored, indices, counts)
    shape = call.conventions.get("index_shape", INDEX_SHAPE.values[0])
    return {"swa_indices": shaped_indices(found, shape)}


def partition(call: Call, name: str) -> Partition:
    """Every request owns its row of o and lse, even if it attends to nothing. Raises KeyError for other
    names."""
    if name not in ("o", "lse"):
        raise KeyError(name)
    rows = len(call.tensors["swa_lens"])
    return Partition(tuple(Region(i, i + 1, i) for i in range(rows)), head_axis=1)


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call, flat_of(call), layout_of(call), outputs(call))


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call's inputs."""
    return ranges_of(call, flat_of(call), layout_of(call))


OPERATION = Operation(
    name=NAME,
    summary="sliding-window attention of one token a request over a paged cache of latent rows",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=CONVENTIONS,
    stages=(),
    kernels=KERNELS,
    validate=validate,
    convert=convert,
    convert_outputs=convert_outputs,
    outputs=outputs,
    touched=touched,
    partition=partition,
    synth=synth,
    conversions={
        ("index_shape", one, other): f"swa_indices viewed as [{', '.join(INDEX_SHAPES[other])}]"
        for one in INDEX_SHAPES
        for other in INDEX_SHAPES
        if one != other
    },
    renumber=renumber,
    accesses=accesses,
    work=work,
    tolerances={"lse": LSE},
    leeway=leeway,
    cut_operands=2,  # rows and weights, the operands of the second product; those of the first make scores
    # Where one entry has nearly all the weight: 1 in torch, which divides last, a rounded p in a kernel that
    # divides first.
    line_factors=1,
    laws=Laws(laws.variants),
    ranges=ranges,
    decodes=True,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level, shrink.placed),
)
