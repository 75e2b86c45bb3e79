"""indexer_logits: the scores by which an indexer of sparse attention selects keys.

Axes: T queries, H heads, D features, B requests with P pages each, `blocks` pages of `block_size` keys, N
packed keys. A query scores lens[t] keys: the first of its request's pages, or the rows of k from
row_starts[t]. Column j of logits is the query's j-th key, or row j of k. Other columns are stale, or -inf
with clean_logits. Keys in pages are e4m3 with an fp32 scale each, as DeepGEMM's `fp8_paged_mqa_logits`, vLLM
and SGLang hold them; packed keys are those of `fp8_mqa_logits`, or not quantised, as in transformers.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
    PADDING,
    Call,
    ContractError,
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
from gdnbench_kernels.indexer_logits import laws, shrink
from gdnbench_kernels.indexer_logits.keys import SCALE_BYTES, key_columns, page_parts, width_of
from gdnbench_kernels.indexer_logits.params import LogitsParams
from gdnbench_kernels.indexer_logits.reference import leeway
from gdnbench_kernels.indexer_logits.synth import synth
from gdnbench_kernels.ranges import extremes, present_ranges
from gdnbench_kernels.validate import (
    check_conventions,
    check_one_dtype,
    check_scalars,
    check_tensors,
    element_name,
    first_true,
)

NAME = "indexer_logits"
LOGITS = ("float32", "bfloat16")

TENSORS = (
    TensorSpec(
        "q",
        ("T", "H", "D"),
        ("float8_e4m3fn", "bfloat16", "float32"),
        Role.INPUT,
        "queries; a scale of q is part of the weights",
    ),
    TensorSpec("weights", ("T", "H"), ("float32", "bfloat16"), Role.INPUT, "what heads are weighted by"),
    TensorSpec("lens", ("T",), ("int32",), Role.INPUT, "how many keys a query scores"),
    TensorSpec(
        "cache",
        ("blocks", "block_size", f"D+{SCALE_BYTES}"),
        ("uint8",),
        Role.INPUT,
        "pages: the e4m3 codes of all keys of a page, then their fp32 scales",
        optional=True,
        pool_index="block_table",
    ),
    TensorSpec(
        "block_table",
        ("B", "P"),
        ("int32",),
        Role.INPUT,
        "pages of a request's keys; query t is of request t // (T / B)",
        optional=True,
    ),
    TensorSpec(
        "k",
        ("N", "D"),
        ("float8_e4m3fn", "bfloat16", "float32"),
        Role.INPUT,
        "packed keys, in place of pages; of q's dtype",
        optional=True,
    ),
    TensorSpec(
        "k_scale",
        ("N",),
        ("float32",),
        Role.INPUT,
        "factor of each row of k, 0 or more; 1 if absent",
        optional=True,
    ),
    TensorSpec(
        "row_starts",
        ("T",),
        ("int32",),
        Role.INPUT,
        "a query's first row of k; 0 if absent",
        optional=True,
    ),
    TensorSpec(
        "logits",
        ("T", "C"),
        LOGITS,
        Role.OUTPUT,
        "scores; columns of no key are stale, or -inf with clean_logits",
        minus_infinity=True,
    ),
)
SCALARS = (
    ScalarSpec("columns", int, None, "columns of logits; P * block_size, or N, unless given"),
    ScalarSpec("compressed", bool, False, "whether column 0 is a query's first key, not row 0 of k"),
    ScalarSpec("clean_logits", bool, False, "whether columns of no key are -inf"),
    ScalarSpec("logits_dtype", str, "float32", "dtype of logits, float32 or bfloat16"),
)
KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.indexer_logits.reference:reference", {}, meaning="the fp64 oracle", fp64=True
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.indexer_logits.torch_logits:torch_logits", {}, meaning="keys dequantised to fp32"
    ),
}


def params_of(call: Call) -> LogitsParams:
    """The call as one object."""
    given: dict[str, Any] = {**call.tensors, **call.scalars}
    return LogitsParams(**given)


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    check_conventions(NAME, (), call.conventions)
    check_scalars(NAME, SCALARS, call)
    sizes = check_tensors(NAME, TENSORS, call)
    _check_form(call)
    if call.scalars.get("logits_dtype", "float32") not in LOGITS:
        raise ContractError(
            f"{NAME}: scalar logits_dtype is {call.scalars['logits_dtype']!r}; it must be"
            f" {' or '.join(LOGITS)}"
        )
    if "cache" in call.tensors:
        _check_pages(call, sizes)
    _check_lens(call)


def _check_form(call: Call) -> None:
    """Keys are in pages or packed, with what belongs to either."""
    there = call.tensors
    if ("cache" in there) == ("k" in there) or ("cache" in there) != ("block_table" in there):
        raise ContractError(
            f"{NAME}: the keys are cache with block_table, or k; the call has"
            f" {', '.join(name for name in ('cache', 'block_table', 'k') if name in there) or 'none'}"
        )
    if "cache" in there:
        for name in ("k_scale", "row_starts"):
            if name in there:
                raise ContractError(f"{NAME}: {name} belongs to packed keys, and the keys are in pages")
        if call.scalars.get("compressed", False):
            raise ContractError(f"{NAME}: compressed belongs to packed keys, and the keys are in pages")
        return
    check_one_dtype(NAME, call, ("q", "k"))


def _check_pages(call: Call, sizes: Mapping[str, int]) -> None:
    cache, tables = call.tensors["cache"], call.tensors["block_table"].cpu().long()
    row, size = cache.shape[2], sizes["block_size"]
    if size < 1:
        raise ContractError(f"{NAME}: cache has pages of 0 keys")
    page = row * size
    stride = cache.stride(0)
    if cache.stride()[1:] != (row, 1) or (sizes["blocks"] > 1 and (stride < page or stride % SCALE_BYTES)):
        raise ContractError(
            f"{NAME}: cache has strides {tuple(cache.stride())}; a page must be contiguous and pages a"
            f" multiple of {SCALE_BYTES} bytes apart, hence [{page} or more, {row}, 1]"
        )
    if not sizes["B"] or sizes["T"] % sizes["B"]:
        if sizes["T"] or sizes["B"]:
            raise ContractError(
                f"{NAME}: there are {sizes['T']} queries of {sizes['B']} requests; each request must have as"
                " many as the others"
            )
        return
    needed = needed_pages(call)
    outside = first_true(needed & ((tables < 0) | (tables >= sizes["blocks"])))
    if outside is not None:
        raise ContractError(
            f"{NAME}: {element_name('block_table', outside)} is {int(tables[outside])}; it must be a page in"
            f" [0, {sizes['blocks'] - 1}], because the request has keys there"
        )


def _check_lens(call: Call) -> None:
    params = params_of(call)
    lens, width = call.tensors["lens"].cpu().long(), width_of(params)
    starts = call.tensors.get("row_starts", torch.zeros_like(call.tensors["lens"])).cpu().long()
    most = torch.full_like(lens, width)
    if params.k is not None:
        if not params.compressed:
            most -= starts
        most = torch.minimum(most, len(params.k) - starts)
        wrong = first_true((starts < 0) | (starts > len(params.k)))
        if wrong is not None:
            raise ContractError(
                f"{NAME}: {element_name('row_starts', wrong)} is {int(starts[wrong])}; it must lie in"
                f" [0, {len(params.k)}], the rows of k"
            )
    else:
        assert params.cache is not None
        assert params.block_table is not None
        most = most.clamp(max=params.block_table.shape[1] * params.cache.shape[1])
    wrong = first_true((lens < 0) | (lens > most))
    if wrong is not None:
        raise ContractError(
            f"{NAME}: {element_name('lens', wrong)} is {int(lens[wrong])}; it must lie in"
            f" [0, {int(most[wrong])}], the keys and columns that there are"
        )


def needed_pages(call: Call) -> Tensor:
    """bool [B, P] on the host: which entries of block_table are pages that have keys of a query."""
    tables, lens = call.tensors["block_table"], call.tensors["lens"].cpu().long()
    if not len(tables) or not len(lens):
        return torch.zeros(tables.shape, dtype=torch.bool)
    longest = lens.view(len(tables), -1).amax(1, keepdim=True)
    first = torch.arange(tables.shape[1]) * call.tensors["cache"].shape[1]
    return first < longest


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of logits."""
    params = params_of(call)
    return {"logits": ((len(params.lens), width_of(params)), getattr(torch, params.logits_dtype))}


def stale(call: Call, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """bool [T, columns] on the host: the columns of no key, unless they must be -inf."""
    if name != "logits" or call.scalars.get("clean_logits", False):
        return None
    lens, starts = call.tensors["lens"].cpu(), call.tensors.get("row_starts")
    if starts is None or call.scalars.get("compressed", False):
        starts = torch.zeros_like(lens)
    return ~key_columns(starts.cpu(), lens, shape[1])


def touched(call: Call) -> dict[str, Tensor]:
    """The pages of keys that queries score: sorted, unique, int64 on the host."""
    if "cache" not in call.tensors:
        return {}
    tables = call.tensors["block_table"].cpu().long()
    return {"cache": torch.unique(tables[needed_pages(call)])}


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """block_table for a cache of the pages `stored`; entries of no key become -1. Raises ContractError if a
    page is not stored."""
    if "cache" not in stored:
        return {}
    tables, needed = call.tensors["block_table"], needed_pages(call)
    pages, entries = torch.tensor(list(stored["cache"]), dtype=torch.int64), tables.long()
    place = torch.searchsorted(pages, entries)
    there = torch.zeros_like(needed)
    if len(pages):
        there = pages[place.clamp(max=len(pages) - 1)] == entries
    lost = first_true(needed & ~there)
    if lost is not None:
        raise ContractError(
            f"{NAME}: {element_name('block_table', lost)} is {int(tables[lost])}, a page that was not"
            " captured"
        )
    return {"block_table": place.where(needed, PADDING).to(tables.dtype)}


def partition(call: Call, name: str) -> Partition:
    """Every row of logits is a sequence's own. Raises KeyError for other names."""
    if name != "logits":
        raise KeyError(name)
    rows = len(call.tensors["lens"])
    return Partition(tuple(Region(i, i + 1, i) for i in range(rows)), head_axis=None)


def work(call: Call) -> Work:
    """Keys in pages are read once for each request, packed ones once at most; queries and weights once.
    Logits of keys are written. FLOP: 2 D for the product and 2 for the sum, of every query, head and key."""
    params = params_of(call)
    _, heads, features = params.q.shape
    scored = int(params.lens.sum())
    if params.k is not None:
        key = features * params.k.element_size() + (0 if params.k_scale is None else SCALE_BYTES)
        read = min(len(params.k), scored) * key
    else:
        needed = needed_pages(call)
        tables = max(1, len(needed))
        longest = params.lens.view(tables, -1).amax(1) if len(params.lens) else params.lens
        read = int(longest.sum()) * (features + SCALE_BYTES)
        read += int(needed.sum()) * call.tensors["block_table"].element_size()
    small = (params.q, params.weights, params.lens)
    read += sum(one.numel() * one.element_size() for one in small)
    width = getattr(torch, params.logits_dtype).itemsize
    return Work(read, scored * width, flop=scored * heads * (2 * features + 2))


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call: lengths, weights, and scales of the keys that are scored."""
    params = params_of(call)
    scales = params.k_scale
    if params.cache is not None:
        pages = touched(call)["cache"]
        held = page_parts(params.cache)[1][pages].contiguous().view(torch.float32)
        scales = held[~held.isnan()]  # the rest of a page is stale
    return present_ranges(
        (
            extremes("lens", "keys of a query", params.lens),
            extremes("weights", "weights of heads", params.weights.float()),
            None if scales is None else extremes("scales", "scales of keys", scales),
        )
    )


def _unchanged(
    found: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    return dict(found)


OPERATION = Operation(
    name=NAME,
    summary="scores of keys for the selection of sparse attention",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=(),
    stages=(),
    kernels=KERNELS,
    validate=validate,
    convert=lambda call, target: call,
    convert_outputs=_unchanged,
    outputs=outputs,
    touched=touched,
    partition=partition,
    synth=synth,
    stale=stale,
    renumber=renumber,
    work=work,
    leeway=leeway,
    cut_operands=0,  # FP8 operands are exact, and nothing is multiplied in tf32
    laws=Laws(laws.variants),
    ranges=ranges,
    decodes=True,
    counted_apart=True,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level),
)
