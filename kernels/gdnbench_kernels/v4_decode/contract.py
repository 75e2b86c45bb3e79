"""v4_decode: decode attention of DeepSeek-V4, one softmax over a window and an optional extra segment of
compressed rows in a second cache.

Axes: B requests of S query tokens each, H heads, W entries of a window, `blocks` pages of `block_size` rows;
E entries of the extra segment, `extra_blocks` pages of `extra_block_size` rows; T = B S query rows. Keys and
values are the same 512-wide rows, shared by all heads. A query attends to the entries of both tables below
their lengths, except those that are -1; a slot that occurs twice counts twice. Entries past a length are
stale and must not be followed, except where a kernel needs legal ones (`masked_indices`). swa_decode is the
case of no extra segment and S = 1.
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
    Work,
)
from gdnbench_kernels.latent_pool import CODES, renumbered_entries
from gdnbench_kernels.swa_decode.contract import LSE
from gdnbench_kernels.swa_decode.layouts import SERVED as SERVED_LAYOUTS
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.v4_decode import checks, laws, lse_forms, shrink
from gdnbench_kernels.v4_decode.accesses import accesses
from gdnbench_kernels.v4_decode.op_cost import work_of
from gdnbench_kernels.v4_decode.ranges import ranges as ranges_of
from gdnbench_kernels.v4_decode.reference import leeway
from gdnbench_kernels.v4_decode.segments import (
    EXTRA,
    INDEX_SHAPES,
    LENS_SHAPES,
    POOLS,
    IndexForm,
    MaskedIndices,
    segments_of,
    shaped_rows,
)
from gdnbench_kernels.v4_decode.synth import synth
from gdnbench_kernels.validate import check_conventions, check_scalars, check_tensors

NAME = "v4_decode"

CONVENTIONS = (
    Convention(
        "cache_layout",
        tuple(CacheLayout),
        "how a page of the window's cache holds its rows: e4m3 and a scale a token, fp8_ds_mla pages, or"
        " bfloat16",
    ),
    Convention("extra_layout", tuple(CacheLayout), "the same, of the extra cache"),
    Convention(
        "extra_index_form",
        tuple(IndexForm),
        "extra_indices holds slots, or pages in order of position, of which all positions below the length"
        " count",
    ),
    Convention("index_shape", tuple(INDEX_SHAPES), "the axes of swa_indices and extra_indices"),
    Convention("lens_shape", tuple(LENS_SHAPES), "the axes of swa_lens and extra_lens"),
    Convention(
        "masked_indices",
        tuple(MaskedIndices),
        "entries that are masked may be of any value, or are legal slots and pages, for a kernel that gathers"
        " before it masks",
    ),
    Convention("lse_base", tuple(lse_forms.BASES), "the base of the logarithm"),
    Convention("lse_sink", (lse_forms.WITHOUT, lse_forms.WITH), "whether lse includes attn_sink"),
    Convention("lse_empty", (lse_forms.MINUS, lse_forms.PLUS), "lse of a sum over nothing"),
)

_INDEX_AXES = {("index_shape", shape): axes for shape, axes in INDEX_SHAPES.items()}
_EXTRA_AXES = {key: (*axes[:-1], "E") for key, axes in _INDEX_AXES.items()}
_LENS_AXES = {("lens_shape", shape): axes for shape, axes in LENS_SHAPES.items()}

TENSORS = (
    TensorSpec("q", ("B", "S", "H", "512"), ("bfloat16",), Role.INPUT, "queries, rope applied"),
    TensorSpec(
        "cache",
        ("blocks", "block_size", "512"),
        (*CODES, "bfloat16"),
        Role.INPUT,
        "the window's pages, which may lie further apart than they are long",
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
        ("B", "S", "W"),
        ("int32",),
        Role.INPUT,
        "slots of the window, block * block_size + offset; -1 is padding",
        axes_by=_INDEX_AXES,
    ),
    TensorSpec(
        "swa_lens",
        ("B", "S"),
        ("int32",),
        Role.INPUT,
        "how many entries of swa_indices count",
        axes_by=_LENS_AXES,
    ),
    TensorSpec(
        "extra_cache",
        ("extra_blocks", "extra_block_size", "512"),
        (*CODES, "bfloat16"),
        Role.INPUT,
        "the pages of compressed rows; without it there is no extra segment",
        optional=True,
        pool_index="extra_indices",
        axes_by={("extra_layout", CacheLayout.FP8_DS_MLA): ("extra_blocks", "extra_block_size", "584")},
    ),
    TensorSpec(
        "extra_inv_scale",
        ("extra_slots",),
        ("float32", "bfloat16"),
        Role.INPUT,
        "as inv_scale, of the extra cache",
        optional=True,
        pool_index="extra_indices",
    ),
    TensorSpec(
        "extra_indices",
        ("B", "S", "E"),
        ("int32",),
        Role.INPUT,
        "slots of the extra cache, -1 is padding; or its pages in order of position",
        optional=True,
        axes_by=_EXTRA_AXES,
    ),
    TensorSpec(
        "extra_lens",
        ("B", "S"),
        ("int32",),
        Role.INPUT,
        "how many entries of extra_indices count, or positions of its pages",
        optional=True,
        axes_by=_LENS_AXES,
    ),
    TensorSpec(
        "attn_sink",
        ("H",),
        ("float32",),
        Role.INPUT,
        "a logit in the softmax's denominator alone; -inf if absent",
        optional=True,
        minus_infinity=True,
    ),
    TensorSpec("o", ("B", "S", "H", "512"), ("bfloat16",), Role.OUTPUT, "outputs, of q's dtype"),
    TensorSpec(
        "lse",
        ("B", "S", "H"),
        ("float32",),
        Role.OUTPUT,
        "log of the sum of both segments, in the form of lse_base, lse_sink and lse_empty",
        optional=True,
        minus_infinity=True,
    ),
)

SCALARS = (
    ScalarSpec("scale", float, None, "factor of the scores; 512 ** -0.5 unless given"),
    ScalarSpec("output_lse", bool, False, "whether lse is an output"),
)

ALL = {convention.name: convention.values for convention in CONVENTIONS}
SERVED: dict[str, tuple[str, ...]] = {
    **ALL,
    "cache_layout": SERVED_LAYOUTS,
    "extra_layout": SERVED_LAYOUTS,
}
"""What the compiled kernels take."""

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.v4_decode.reference:reference", ALL, meaning="the fp64 oracle", fp64=True
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.v4_decode.torch_paged:torch_paged",
        ALL,
        meaning="rows of both segments gathered and dequantised to bfloat16, then SDPA",
    ),
    "portable": KernelEntry(
        "gdnbench_kernels.v4_decode.portable:portable",
        SERVED,
        devices=("sim", "cuda"),
        meaning="an mma.sync kernel for SM90 and SM100 in CuTe DSL over tiles of both segments, and one that"
        " merges splits",
        sources="gdnbench_kernels.v4_decode.sources:portable_sources",
    ),
    "wgmma": KernelEntry(
        "gdnbench_kernels.v4_decode.wgmma:wgmma",
        SERVED,
        devices=("sim", "cuda"),
        meaning="a wgmma kernel for SM90 in CuTe DSL, persistent CTAs, and one that merges splits",
        sources="gdnbench_kernels.v4_decode.sm90_sources:wgmma_sources",
        archs=("sm_90a",),
    ),
    "sm100": KernelEntry(
        "gdnbench_kernels.v4_decode.sm100:sm100",
        SERVED,
        devices=("sim", "cuda"),
        meaning="CuTe DSL for SM100, tcgen05; compiled, or in the simulator",
        sources="gdnbench_kernels.v4_decode.sm100_sources:sm100_sources",
    ),
}

VIEWED = {
    (name, one, other): f"{what} viewed as [{', '.join(shapes[other])}]"
    for name, what, shapes in (
        ("index_shape", "index tensors", INDEX_SHAPES),
        ("lens_shape", "lengths", LENS_SHAPES),
    )
    for one in shapes
    for other in shapes
    if one != other and "B" not in ((one, other) if name == "lens_shape" else ())
}
CONVERSIONS = {
    **VIEWED,
    ("lens_shape", "B", "BS"): "lengths repeated for each query",
    ("lens_shape", "B", "T"): "lengths repeated for each query",
    ("lens_shape", "BS", "B"): "lengths of the first query; those of the others are equal",
    ("lens_shape", "T", "B"): "lengths of the first query; those of the others are equal",
    ("extra_index_form", "block_table", "indices"): "the slots of the pages, stale ones -1",
    ("masked_indices", "legal", "any"): "nothing",
    ("masked_indices", "any", "legal"): "nothing: masked entries are legal already",
    ("lse_base", "e", "2"): "lse times log2(e)",
    ("lse_base", "2", "e"): "lse times ln(2)",
    ("lse_empty", "minus_inf", "plus_inf"): "lse of -inf becomes +inf",
    ("lse_empty", "plus_inf", "minus_inf"): "lse of +inf becomes -inf where o is a number",
    ("lse_sink", "without", "with"): "nothing: there is no sink, or no lse",
    ("lse_sink", "with", "without"): "nothing: there is no sink, or no lse",
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    checks.check_layout_names(call.conventions)
    check_conventions(NAME, CONVENTIONS, call.conventions)
    check_scalars(NAME, SCALARS, call)
    checks.check_rows(call.tensors)
    sizes = check_tensors(NAME, TENSORS, call)
    checks.check_segments_given(call.tensors)
    checks.check_sizes(call, sizes)
    checks.check_pools(call)


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions. Raises ContractError where that would compute other numbers: another
    layout; pages from slots; an lse that includes the sink from one that does not; or masked entries that
    are not legal."""
    check_conventions(NAME, CONVENTIONS, target)
    now = {name: call.conventions.get(name, values[0]) for name, values in ALL.items()}
    new = now | dict(target)
    _check_fixed(call, now, new)
    tensors = dict(call.tensors)
    requests, queries = tensors["q"].shape[:2]
    for segment in segments_of(call.tensors, now):
        table, names = segment.table, segment.names
        if segment.of_pages and new["extra_index_form"] == IndexForm.INDICES:
            table = checks.tables_expanded(segment)
        if table is not segment.table or now["index_shape"] != new["index_shape"]:
            tensors[names.indices] = shaped_rows(table, new["index_shape"], requests, queries)
        if now["lens_shape"] != new["lens_shape"]:
            tensors[names.lens] = checks.lens_in(
                tensors[names.lens], now["lens_shape"], new["lens_shape"], requests, queries
            )
    found = Call(tensors, call.scalars, new)
    if new["masked_indices"] == MaskedIndices.LEGAL != now["masked_indices"]:
        checks.check_pools(found)
    return found


def _check_fixed(call: Call, now: Mapping[str, str], new: Mapping[str, str]) -> None:
    for names in POOLS:
        if now[names.layout] != new[names.layout] and names.cache in call.tensors:
            raise ContractError(
                f"{NAME}: a cache in {now[names.layout]} does not become {new[names.layout]} without"
                " rounding; capture it in that layout"
            )
    if EXTRA.cache in call.tensors and (now["extra_index_form"], new["extra_index_form"]) == (
        IndexForm.INDICES,
        IndexForm.BLOCK_TABLE,
    ):
        raise ContractError(
            f"{NAME}: extra_indices holds slots, which are not the whole pages of a block_table; choose a"
            " kernel that takes extra_index_form indices"
        )
    counted = call.scalars.get("output_lse", False) and "attn_sink" in call.tensors
    if now["lse_sink"] != new["lse_sink"] and counted:
        raise ContractError(
            f"{NAME}: lse {now['lse_sink']} the sink does not become lse {new['lse_sink']} it once it is"
            f" computed; choose a kernel that takes lse_sink {now['lse_sink']}"
        )


def convert_outputs(
    outputs: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    """lse in the base and with the empty value of `target`; o unchanged."""
    found = dict(outputs)
    if "lse" not in found:
        return found

    def of(conventions: Mapping[str, str], name: str) -> str:
        return conventions.get(name, ALL[name][0])

    lse = lse_forms.rebased(found["lse"], of(source, "lse_base"), of(target, "lse_base"))
    empty = of(source, "lse_empty"), of(target, "lse_empty")
    found["lse"] = lse_forms.with_empty(lse, found.get("o"), *empty)
    return found


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of o, and of lse if requested."""
    q = call.tensors["q"]
    found: dict[str, Shaped] = {"o": (tuple(q.shape), q.dtype)}
    if call.scalars.get("output_lse", False):
        found["lse"] = (tuple(q.shape[:3]), torch.float32)
    return found


def touched(call: Call) -> dict[str, Tensor]:
    """The pages of both caches that a kernel may read, and the slots of those pages: sorted, unique, int64 on
    the host."""
    found: dict[str, Tensor] = {}
    for segment in segments_of(call.tensors, call.conventions):
        found |= segment.pool_rows()
    return found


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The index tensors of pools with only the rows `stored`. Entries that no kernel may follow become 0, or
    -1 if they are negative. Raises ContractError if an entry's page is not stored, or if the scales are not
    those of the stored pages."""
    requests, queries = call.tensors["q"].shape[:2]
    shape = call.conventions.get("index_shape", ALL["index_shape"][0])
    found = {}
    for segment in segments_of(call.tensors, call.conventions):
        names = segment.names
        if names.cache not in stored and names.inv_scale not in stored:
            continue
        table = renumbered_entries(
            NAME,
            names,
            call.tensors,
            stored,
            segment.table,
            segment.followed,
            of_pages=segment.of_pages,
            entry_name=segment.entry_name,
        )
        if len(stored.get(names.cache, segment.cache)):
            # Legal ones stay legal, so that what a kernel was handed converts likewise.
            table = table.masked_fill(~segment.followed & (segment.table >= 0), 0)
        found[names.indices] = shaped_rows(table, shape, requests, queries)
    return found


def partition(call: Call, name: str) -> Partition:
    """Every request owns its rows of o and lse, those of all its queries, even if they attend to nothing.
    Raises KeyError for other names."""
    if name not in ("o", "lse"):
        raise KeyError(name)
    requests = len(call.tensors["q"])
    return Partition(tuple(Region(i, i + 1, i) for i in range(requests)), head_axis=2, token_axis=1)


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call, segments_of(call.tensors, call.conventions), outputs(call))


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call's inputs."""
    return ranges_of(call, segments_of(call.tensors, call.conventions))


OPERATION = Operation(
    name=NAME,
    summary="decode attention of DeepSeek-V4: a window and compressed rows in two paged caches, one softmax",
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
    conversions=CONVERSIONS,
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
