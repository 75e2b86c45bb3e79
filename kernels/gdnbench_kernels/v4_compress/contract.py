"""v4_compress: the compressor of DeepSeek-V4's attention, one entry for each window of `ratio` tokens.

Axes: T tokens of N sequences, D features of an entry, E = 2 D columns with overlap (CSA: ratio 4, entries of
two windows) or D (HCA: ratio 128), pages of `block_size` states. The token that closes a window, at a
position p with (p + 1) % ratio = 0, makes an entry in its row of `entries`; other rows are not written.
Tokens of earlier calls come from `state`, where each call leaves its own: a partial window. `compress` has
the formulas, which are those of transformers' modules and of vLLM's compressor, before an entry is quantised.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
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
from gdnbench_kernels.ranges import extremes, present_ranges
from gdnbench_kernels.v4_compress import laws, shrink
from gdnbench_kernels.v4_compress.params import CSA_RATIO, EPS, CompressParams
from gdnbench_kernels.v4_compress.synth import synth
from gdnbench_kernels.v4_compress.windows import NOT_KEPT, Windows, pages_of, windows_of
from gdnbench_kernels.validate import (
    check_conventions,
    check_one_dtype,
    check_scalars,
    check_tensors,
    element_name,
    first_true,
)

NAME = "v4_compress"
FLOATS = ("bfloat16", "float32", "float16")

TENSORS = (
    TensorSpec("kv", ("T", "E"), FLOATS, Role.INPUT, "what windows are the weighted means of"),
    TensorSpec("score", ("T", "E"), FLOATS, Role.INPUT, "learned scores, of kv's dtype"),
    TensorSpec(
        "ape",
        ("M", "E"),
        ("float32",),
        Role.INPUT,
        "added to scores by the place in a window; M is the ratio",
    ),
    TensorSpec(
        "cu_seqlens",
        ("N+1",),
        ("int32",),
        Role.INPUT,
        "sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1",
    ),
    TensorSpec("starts", ("N",), ("int32",), Role.INPUT, "tokens of a sequence before this call"),
    TensorSpec(
        "state",
        ("blocks", "block_size", "2E"),
        ("float32",),
        Role.MUTATED,
        "kv, then score + ape, of single tokens",
        pool_index="block_table",
    ),
    TensorSpec(
        "block_table",
        ("N", "P"),
        ("int32",),
        Role.INPUT,
        "page of the states of positions p, at p // block_size; -1 keeps none",
    ),
    TensorSpec(
        "norm_weight",
        ("D",),
        ("float32", "bfloat16"),
        Role.INPUT,
        "entries are normalised by their root mean square, times this",
        optional=True,
    ),
    TensorSpec(
        "rope",
        ("positions", "R"),
        ("float32",),
        Role.INPUT,
        "cosines, then sines, of R / 2 pairs; rotates the last R features",
        optional=True,
    ),
    TensorSpec(
        "entries",
        ("T", "D"),
        FLOATS,
        Role.OUTPUT,
        "the entry of the window that a token closes; other rows are not written",
    ),
)
SCALARS = (
    ScalarSpec("ratio", int, CSA_RATIO, "tokens of a window"),
    ScalarSpec("overlap", bool, True, "whether an entry is made of two windows"),
    ScalarSpec("eps", float, EPS, "added to the mean square"),
    ScalarSpec("entries_dtype", str, "bfloat16", "dtype of entries"),
)
KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.v4_compress.reference:reference", {}, meaning="the fp64 oracle", fp64=True
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.v4_compress.torch_compress:torch_compress",
        {},
        meaning="in fp32, rounded at the end",
    ),
}


def params_of(call: Call) -> CompressParams:
    """The call as one object."""
    given: dict[str, Any] = {**call.tensors, **call.scalars}
    return CompressParams(**given)


def plan_of(call: Call) -> Windows:
    """The windows that a call closes, from its index tensors."""
    params = params_of(call)
    return windows_of(params.cu_seqlens.cpu(), params.starts.cpu(), params.ratio, params.overlap)


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    check_conventions(NAME, (), call.conventions)
    check_scalars(NAME, SCALARS, call)
    sizes = check_tensors(NAME, TENSORS, call)
    check_one_dtype(NAME, call, ("kv", "score"))
    _check_sizes(call, sizes)
    _check_offsets(call, sizes)
    _check_pages(call)


def _check_sizes(call: Call, sizes: Mapping[str, int]) -> None:
    columns, width = sizes["E"], sizes["2E"]
    if width != 2 * columns:
        raise ContractError(
            f"{NAME}: state has {width} columns and kv has {columns}; it must have twice as many, kv and"
            " score"
        )
    if not sizes["block_size"]:
        raise ContractError(f"{NAME}: state has pages of 0 tokens")
    params = params_of(call)
    if params.ratio != sizes["M"]:
        raise ContractError(
            f"{NAME}: ratio is {params.ratio} and ape has {sizes['M']} rows; they must be equal"
        )
    if params.ratio < 1 or not columns or (params.overlap and columns % 2):
        raise ContractError(
            f"{NAME}: kv has {columns} columns and the ratio is {params.ratio}; both must be at least 1, and"
            " the columns even with overlap"
        )
    if sizes.get("D", params.features) != params.features:
        raise ContractError(
            f"{NAME}: norm_weight has {sizes['D']} elements; entries have {params.features} features"
        )
    rotated = sizes.get("R", 0)
    if rotated > params.features or rotated % 2:
        raise ContractError(
            f"{NAME}: rope has {rotated} columns; they must be even, and at most {params.features}, the"
            " features"
        )
    if params.entries_dtype not in FLOATS:
        raise ContractError(
            f"{NAME}: scalar entries_dtype is {params.entries_dtype!r}; it must be {' or '.join(FLOATS)}"
        )


def _check_offsets(call: Call, sizes: Mapping[str, int]) -> None:
    offsets, starts = call.tensors["cu_seqlens"].cpu().long(), call.tensors["starts"].cpu().long()
    falls = first_true(offsets.diff() < 0)
    if int(offsets[0]) or falls is not None or int(offsets[-1]) != sizes["T"]:
        raise ContractError(
            f"{NAME}: cu_seqlens is {offsets.tolist()}; it must start at 0, not decrease, and end at"
            f" {sizes['T']}, the tokens"
        )
    wrong = first_true(starts < 0)
    if wrong is not None:
        raise ContractError(
            f"{NAME}: {element_name('starts', wrong)} is {int(starts[wrong])}; it must not be negative"
        )
    rope = call.tensors.get("rope")
    windows = plan_of(call)
    if rope is not None and len(windows.position) and int(windows.position.max()) >= len(rope):
        raise ContractError(
            f"{NAME}: rope has {len(rope)} positions; a window of the call begins at position"
            f" {int(windows.position.max())}"
        )


def _check_pages(call: Call) -> None:
    windows, table = plan_of(call), call.tensors["block_table"].cpu().long()
    blocks, size = call.tensors["state"].shape[:2]
    earlier = windows.earlier
    sequence = windows.sequence.unsqueeze(1).expand_as(earlier)[earlier]
    position = windows.source[earlier]
    read = pages_of(table, sequence, position, size)
    lost = first_true((read < 0) | (read >= blocks))
    if lost is not None:
        raise ContractError(
            f"{NAME}: position {int(position[lost])} of sequence {int(sequence[lost])} has the page"
            f" {int(read[lost])}; it must be a page in [0, {blocks - 1}], because a window of the call needs"
            " its state"
        )
    written = pages_of(table, windows.of_token, windows.at, size)
    lost = first_true((written < NOT_KEPT) | (written >= blocks))
    if lost is not None:
        raise ContractError(
            f"{NAME}: position {int(windows.at[lost])} of sequence {int(windows.of_token[lost])} has the page"
            f" {int(written[lost])}; it must be a page in [0, {blocks - 1}], or -1 to keep no state"
        )
    owner: dict[int, int] = {}
    pairs = [*zip(written.tolist(), windows.of_token.tolist(), strict=True)]
    for page, n in pairs:
        if page >= 0 and owner.setdefault(page, n) != n:
            raise ContractError(f"{NAME}: sequences {owner[page]} and {n} both write page {page} of state")
    for page, n in zip(read.tolist(), sequence.tolist(), strict=True):
        if owner.get(page, n) != n:
            raise ContractError(
                f"{NAME}: sequence {n} reads page {page} of state, which sequence {owner[page]} writes"
            )


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of entries."""
    params = params_of(call)
    dtype: torch.dtype = getattr(torch, params.entries_dtype)
    return {"entries": ((len(params.kv), params.features), dtype)}


def _page_owners(call: Call) -> dict[int, int]:
    """The pages that a call reads or writes, and the first sequence that does."""
    windows, table = plan_of(call), call.tensors["block_table"]
    size, earlier = call.tensors["state"].shape[1], windows.earlier
    sequences = (windows.of_token, windows.sequence.unsqueeze(1).expand_as(earlier)[earlier])
    positions = (windows.at, windows.source[earlier])
    found: dict[int, int] = {}
    for sequence, position in zip(sequences, positions, strict=True):
        pages = pages_of(table, sequence, position, size)
        for page, n in zip(pages.tolist(), sequence.tolist(), strict=True):
            if page >= 0:
                found.setdefault(page, n)
    return found


def touched(call: Call) -> dict[str, Tensor]:
    """The pages of the call's tokens and of earlier ones in its windows: sorted, unique, int64 on the
    host."""
    return {"state": torch.tensor(sorted(_page_owners(call)), dtype=torch.int64)}


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """block_table for a state of the pages `stored`; entries that the call does not need become -1. Raises
    ContractError if a page is not stored."""
    if "state" not in stored:
        return {}
    place = {page: number for number, page in enumerate(stored["state"])}
    needed = set(_page_owners(call))
    lost = sorted(needed - place.keys())
    if lost:
        raise ContractError(f"{NAME}: block_table names page {lost[0]} of state, which was not captured")
    table = call.tensors["block_table"]
    found = [[place[page] if page in needed else NOT_KEPT for page in row] for row in table.tolist()]
    return {"block_table": torch.tensor(found, dtype=table.dtype).view(table.shape)}


def partition(call: Call, name: str) -> Partition:
    """Tokens that close a window own their row of entries; pages of state belong to the first sequence that
    uses them. Raises KeyError for other names."""
    if name == "entries":
        windows = plan_of(call)
        closing = zip(windows.row.tolist(), windows.sequence.tolist(), strict=True)
        first = call.tensors["cu_seqlens"].tolist()
        return Partition(
            tuple(Region(row, row + 1, n, token=row - first[n]) for row, n in closing), head_axis=None
        )
    if name == "state":
        pages = sorted(_page_owners(call).items())
        return Partition(tuple(Region(page, page + 1, n) for page, n in pages), head_axis=None)
    raise KeyError(name)


def work(call: Call) -> Work:
    """Tokens are read and their states written; states of earlier tokens are read, entries written. FLOP of a
    slot and feature: 2 to add ape and to subtract the largest, 1 each for exp, the sum and the division, 2
    for the weighted sum."""
    params, windows = params_of(call), plan_of(call)
    columns, size = params.kv.shape[1], params.kv.element_size()
    kept = int((pages_of(params.block_table, windows.of_token, windows.at, params.state.shape[1]) >= 0).sum())
    small = (params.ape, params.cu_seqlens, params.starts, params.norm_weight)
    read = 2 * len(params.kv) * columns * size + int(windows.earlier.sum()) * 2 * params.features * 4
    read += sum(one.numel() * one.element_size() for one in small if one is not None)
    if params.rope is not None:
        read += len(windows.row) * params.rope.shape[1] * 4
    dtype: torch.dtype = getattr(torch, params.entries_dtype)
    written = kept * 2 * columns * 4 + len(windows.row) * params.features * dtype.itemsize
    return Work(read, written, flop=int(windows.there.sum()) * params.features * 7)


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call: kv and scores of its tokens, and entries made of a partial window."""
    windows = plan_of(call)
    carried = windows.earlier.sum(1)
    return present_ranges(
        (
            extremes("kv", "kv", call.tensors["kv"].float()),
            extremes("score", "scores, without ape", call.tensors["score"].float()),
            extremes("carried", "tokens of an entry that are of earlier calls", carried),
        )
    )


def _unchanged(
    found: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    return dict(found)


OPERATION = Operation(
    name=NAME,
    summary="entries of compressed attention from windows of tokens",
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
    renumber=renumber,
    work=work,
    cut_operands=0,  # nothing is multiplied by a tensor core
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    carries=("state", "state"),
    counted_apart=True,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level),
)
