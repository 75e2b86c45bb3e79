"""indexer_topk: the indices of the largest logits of each row, as an indexer of sparse attention selects
them.

Axes: R rows (one query each), N columns, K entries. Row r has lens[r] candidates from column row_starts[r].
Its entries are the indices, from that column, of the min(lens[r], K) largest candidates, then -1. A row of
indices is a set: their order is free, and so is the choice between equal logits. NaN logits may be selected
or not. The other columns are stale: they may have any value. SGLang's and vLLM's kernels, and FlashInfer's
ragged one, have this contract.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

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
    Selection,
    Shaped,
    Shrinking,
    TensorSpec,
    Work,
)
from gdnbench_kernels.indexer_topk import laws, shrink
from gdnbench_kernels.indexer_topk.synth import synth
from gdnbench_kernels.ranges import extremes, present_ranges
from gdnbench_kernels.validate import (
    check_conventions,
    check_scalars,
    check_tensors,
    element_name,
    first_true,
)

NAME = "indexer_topk"
TOP_K = 512
"""K of DeepSeek-V4; 2048 in V3.2."""

TENSORS = (
    TensorSpec(
        "logits",
        ("R", "N"),
        ("float32", "bfloat16", "float16"),
        Role.INPUT,
        "scores of the candidates; other columns may hold anything",
        minus_infinity=True,
    ),
    TensorSpec("lens", ("R",), ("int32",), Role.INPUT, "how many candidates a row has"),
    TensorSpec(
        "row_starts",
        ("R",),
        ("int32",),
        Role.INPUT,
        "column of a row's first candidate; 0 if absent",
        optional=True,
    ),
    TensorSpec(
        "indices",
        ("R", "K"),
        ("int32",),
        Role.OUTPUT,
        "a set: indices from the row's first candidate, in any order; -1 past min(lens, K)",
    ),
)
SCALARS = (ScalarSpec("top_k", int, TOP_K, "K, how many indices a row selects"),)

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.indexer_topk.reference:reference", {}, meaning="a stable sort", fp64=True
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.indexer_topk.torch_topk:torch_topk", {}, meaning="torch.topk of masked rows"
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    check_conventions(NAME, (), call.conventions)
    check_scalars(NAME, SCALARS, call)
    sizes = check_tensors(NAME, TENSORS, call)
    if top_k_of(call) < 1:
        raise ContractError(f"{NAME}: top_k is {top_k_of(call)}; it must be at least 1")
    columns, lens = sizes["N"], call.tensors["lens"].cpu().long()
    starts = starts_of(call)
    wrong = first_true((starts < 0) | (starts > columns))
    if wrong is not None:
        raise ContractError(
            f"{NAME}: {element_name('row_starts', wrong)} is {int(starts[wrong])}; it must lie in"
            f" [0, {columns}], the columns"
        )
    wrong = first_true((lens < 0) | (starts + lens > columns))
    if wrong is not None:
        raise ContractError(
            f"{NAME}: {element_name('lens', wrong)} is {int(lens[wrong])}; it must lie in"
            f" [0, {columns - int(starts[wrong])}], the columns from the row's start"
        )


def top_k_of(call: Call) -> int:
    value = call.scalars.get("top_k", TOP_K)
    assert isinstance(value, int)
    return value


def starts_of(call: Call) -> Tensor:
    """The column of each row's first candidate, int64 [R] on the host."""
    lens = call.tensors["lens"].cpu()
    return call.tensors.get("row_starts", torch.zeros_like(lens)).cpu().long()


def selection(call: Call) -> Selection:
    """What the rows of a valid call select from."""
    return Selection(call.tensors["logits"], starts_of(call), call.tensors["lens"].cpu().long())


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of indices."""
    return {"indices": ((len(call.tensors["lens"]), top_k_of(call)), torch.int32)}


def partition(call: Call, name: str) -> Partition:
    """Every row of indices is a sequence's own. Raises KeyError for other names."""
    if name != "indices":
        raise KeyError(name)
    rows = len(call.tensors["lens"])
    return Partition(tuple(Region(i, i + 1, i) for i in range(rows)), head_axis=None)


def work(call: Call) -> Work:
    """Candidates are read once, and one comparison is made of each; indices are written whole."""
    lens = call.tensors["lens"].cpu()
    candidates = int(lens.sum())
    read = candidates * call.tensors["logits"].element_size() + lens.numel() * lens.element_size()
    if "row_starts" in call.tensors:
        read += lens.numel() * lens.element_size()
    return Work(read, len(lens) * top_k_of(call) * torch.int32.itemsize, flop=candidates)


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call: lengths, and how many candidates are equal to a row's boundary."""
    chosen, lens, k = selection(call), call.tensors["lens"].cpu(), top_k_of(call)
    ties, above = [], []
    for row, (start, length) in enumerate(zip(chosen.first.tolist(), lens.tolist(), strict=True)):
        if length <= k:
            continue
        candidates = chosen.values[row, start : start + length].float()
        boundary = candidates.nan_to_num(-torch.inf, torch.inf, -torch.inf).topk(k).values[-1]
        ties.append(int((candidates == boundary).sum()))
        above.append(float(boundary))
    return present_ranges(
        (
            extremes("lens", "candidates of a row", lens),
            extremes("boundaries", "smallest selected logits", torch.tensor(above)),
            extremes("ties", "candidates equal to the boundary", torch.tensor(ties)),
        )
    )


def _unchanged(
    found: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    return dict(found)


OPERATION = Operation(
    name=NAME,
    summary="the indices of the largest logits of each row",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=(),
    stages=(),
    kernels=KERNELS,
    validate=validate,
    convert=lambda call, target: call,
    convert_outputs=_unchanged,
    outputs=outputs,
    touched=lambda call: {},
    partition=partition,
    synth=synth,
    selections={"indices": selection},
    work=work,
    laws=Laws(laws.variants),
    ranges=ranges,
    decodes=True,
    counted_apart=True,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level),
)
