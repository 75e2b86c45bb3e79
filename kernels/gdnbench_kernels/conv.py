"""Shared by the two operations of the causal depthwise convolution before a Gated DeltaNet layer.

    a_t = bias + sum_j weight[j] x_{t - (W-1) + j}      j = 0 .. W-1, for each of D channels
    y_t = a_t / (1 + exp(-a_t)), or a_t without an activation

The W-1 inputs before a sequence's first token come from its *window*, a row [D, W-1] of the pool
`conv_state` whose last column is the latest input. Shapes use the contract's symbols: T tokens of all
sequences, N sequences, D channels, W taps, L columns of a row of the pool.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
    Call,
    ContractError,
    Convention,
    Partition,
    Region,
    Role,
    ScalarSpec,
    TensorSpec,
)
from gdnbench_kernels.validate import (
    check_conventions,
    check_one_dtype,
    check_scalars,
    check_tensors,
    dtype_name,
    element_name,
    first_true,
    resolved_scalars,
)

ACTIVATIONS = ("bfloat16", "float16", "float32")
OFFSETS = ("int32", "int64")
FUNCTIONS = ("silu", "none")
"""Values of the scalar `activation`."""
PADDING = -1
BLOCK = 1 << 22
"""Elements of x that are convolved at once."""

OFFSETS_DTYPE = Convention(
    "offsets",
    ("any", *OFFSETS),
    "dtype of offsets and slots: whichever they have, or that one alone",
)
CONVENTIONS = (OFFSETS_DTYPE,)
CONVERSIONS: Mapping[tuple[str, str, str], str] = {
    ("offsets", "any", "int32"): "index tensors as int32",
    ("offsets", "any", "int64"): "index tensors as int64",
    ("offsets", "int32", "int64"): "index tensors as int64",
    ("offsets", "int64", "int32"): "index tensors as int32",
    ("offsets", "int32", "any"): "nothing: they stay int32",
    ("offsets", "int64", "any"): "nothing: they stay int64",
}

X = TensorSpec("x", ("T", "D"), ACTIVATIONS, Role.INPUT, "inputs of all sequences, one after another")
WEIGHT = TensorSpec(
    "weight",
    ("D", "W"),
    ACTIVATIONS,
    Role.INPUT,
    "taps of each channel; the last is that of the token itself",
)
BIAS = TensorSpec("bias", ("D",), ACTIVATIONS, Role.INPUT, "added before the activation", optional=True)
CU_SEQLENS = TensorSpec(
    "cu_seqlens", ("N+1",), OFFSETS, Role.INPUT, "sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1"
)
Y = TensorSpec("y", ("T", "D"), ACTIVATIONS, Role.OUTPUT, "outputs, of x's dtype")
ACTIVATION = ScalarSpec("activation", str, "silu", "silu or none: the function of the sum")


def bounds_of(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    """First token and end of each sequence."""
    offsets: list[int] = cu_seqlens.tolist()
    return list(pairwise(offsets))


def activated(a: Tensor, activation: str) -> Tensor:
    """The scalar `activation` of `a`, in its dtype."""
    return a / (1 + torch.exp(-a)) if activation == "silu" else a


def convolve(
    x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None, activation: str, compute: torch.dtype
) -> Tensor:
    """y [n, D] of one sequence x [n, D] after `window` [D, W-1]; computed and returned in `compute`, which is
    no narrower than the operands. An output depends on its W inputs alone: a NaN reaches no other."""
    taps = weight.shape[1]
    inputs = torch.cat([window.T, x])
    y = torch.empty(x.shape, dtype=compute, device=x.device)
    rows = max(1, BLOCK // max(1, x.shape[1]))
    for start in range(0, len(x), rows):
        stop = min(start + rows, len(x))
        part = inputs[start : stop + taps - 1].to(compute)
        sums = torch.zeros_like(y[start:stop])
        if bias is not None:
            sums += bias.to(compute)
        for tap in range(taps):
            sums += part[tap : tap + stop - start] * weight[:, tap].to(compute)
        y[start:stop] = activated(sums, activation)
    return y


def shifted(window: Tensor, x: Tensor) -> Tensor:
    """The window [D, W-1] after the tokens x [n, D], which have its dtype."""
    columns = window.shape[1]
    return torch.cat([window, x[max(0, len(x) - columns) :].T], dim=1)[:, -columns:]


def check_form(
    op: str, tensors: Sequence[TensorSpec], scalars: Sequence[ScalarSpec], call: Call
) -> dict[str, int]:
    """Check names, kinds, dtypes, shapes and offsets; returns sizes by symbol. Raises ContractError."""
    check_conventions(op, CONVENTIONS, call.conventions)
    check_scalars(op, scalars, call)
    sizes = check_tensors(op, tensors, call)
    if "conv_state" in call.tensors:
        check_one_dtype(op, call, ("x", "conv_state"))
    if sizes["W"] < 2:
        raise ContractError(f"{op}: weight has W = {sizes['W']} taps; it must have 2 or more")
    activation = resolved_scalars(scalars, call)["activation"]
    if activation not in FUNCTIONS:
        raise ContractError(f"{op}: scalar activation is {activation!r}; it must be {' or '.join(FUNCTIONS)}")
    wanted = call.conventions.get(OFFSETS_DTYPE.name, "any")
    for name in index_tensors(tensors, call):
        found = dtype_name(call.tensors[name].dtype)
        if wanted not in ("any", found):
            raise ContractError(f"{op}: {name} is {found}; the convention offsets makes it {wanted}")
    _check_cu_seqlens(op, call.tensors["cu_seqlens"], sizes["T"])
    return sizes


def index_tensors(tensors: Sequence[TensorSpec], call: Call) -> list[str]:
    """Names of the call's tensors that may have either integer dtype."""
    return [spec.name for spec in tensors if spec.dtypes == OFFSETS and spec.name in call.tensors]


def _check_cu_seqlens(op: str, cu_seqlens: Tensor, tokens: int) -> None:
    bounds = cu_seqlens.cpu().long()
    if int(bounds[0]) != 0:
        raise ContractError(f"{op}: cu_seqlens[0] is {int(bounds[0])}; offsets must start at 0")
    if (falls := first_true(bounds.diff() < 0)) is not None:
        i = falls[0] + 1
        raise ContractError(
            f"{op}: cu_seqlens[{i}] is {int(bounds[i])}, below cu_seqlens[{i - 1}] = {int(bounds[i - 1])};"
            " offsets must not decrease"
        )
    if int(bounds[-1]) > tokens:
        raise ContractError(f"{op}: cu_seqlens[{len(bounds) - 1}] is {int(bounds[-1])}, past T = {tokens}")


def check_columns(op: str, columns: int, wanted: int, why: str) -> None:
    """Raises ContractError unless a row of conv_state has `wanted` columns."""
    if columns != wanted:
        raise ContractError(f"{op}: conv_state has L = {columns} on axis 2; {why}, which makes it {wanted}")


def check_in_pool(op: str, name: str, indices: Tensor, slots: int) -> None:
    """Raises ContractError for an index that is no slot and no padding."""
    values = indices.cpu().long()
    outside = first_true((values < PADDING) | (values >= slots))
    if outside is not None:
        raise ContractError(
            f"{op}: {element_name(name, outside)} is {int(values[outside])};"
            f" it must be a slot in [0, {slots - 1}], or -1 for padding"
        )


def convert_offsets(op: str, call: Call, target: Mapping[str, str], tensors: Sequence[TensorSpec]) -> Call:
    """`call` with index tensors of the dtype that `target` asks for. Raises ContractError for an unknown
    convention or value."""
    check_conventions(op, CONVENTIONS, target)
    wanted = {OFFSETS_DTYPE.name: "any", **call.conventions, **target}
    found = dict(call.tensors)
    if wanted[OFFSETS_DTYPE.name] != "any":
        for name in index_tensors(tensors, call):
            found[name] = found[name].to(getattr(torch, wanted[OFFSETS_DTYPE.name]))
    return Call(found, call.scalars, wanted)


def token_regions(bounds: Sequence[tuple[int, int]], active: Sequence[int]) -> Partition:
    """The rows of y of the `active` sequences. Channels are no heads: each has an element a token."""
    regions = tuple(Region(*bounds[n], n, token=0) for n in active if bounds[n][1] > bounds[n][0])
    return Partition(regions, head_axis=None)


def renumbered(
    call: Call, names: Sequence[str], stored: Sequence[int], idle: Sequence[int]
) -> dict[str, Tensor]:
    """The index tensors `names`, whose axis 0 is sequences, for a pool with only the slots `stored`. Those of
    the `idle` sequences, which access nothing, become -1. Raises ContractError for another slot that is not
    stored."""
    slots = torch.tensor(list(stored), dtype=torch.int64)
    found = {}
    for name in names:
        if name not in call.tensors:
            continue
        given = call.tensors[name].long().clone()
        given[list(idle)] = PADDING
        place = torch.searchsorted(slots, given)
        there = torch.zeros_like(given, dtype=torch.bool)
        if len(slots):
            there = slots[place.clamp(max=len(slots) - 1)] == given
        if (lost := first_true((given != PADDING) & ~there)) is not None:
            raise ContractError(f"{name} names slot {int(given[lost])} of conv_state, which was not captured")
        found[name] = torch.where(given == PADDING, PADDING, place).to(call.tensors[name].dtype)
    return found


def placed_slots(call: Call, names: Sequence[str], rows: Sequence[int]) -> dict[str, Tensor]:
    """The index tensors `names` for a pool in which the call's slots are at `rows`."""
    slots = torch.tensor([*rows, PADDING], dtype=torch.long)  # -1 counts from the end
    there = [name for name in names if name in call.tensors]
    return {name: slots[call.tensors[name].long()].to(call.tensors[name].dtype) for name in there}


def convolutions(
    call: Call, active: Sequence[tuple[int, Tensor]], compute: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """The tokens and y, in `compute`, of each of the `active` sequences, which come with their window."""
    bounds = bounds_of(call.tensors["cu_seqlens"])
    x, weight, bias = call.tensors["x"], call.tensors["weight"], call.tensors.get("bias")
    activation = str(call.scalars.get("activation", "silu"))
    for n, window in active:
        tokens = slice(*bounds[n])
        yield tokens, convolve(x[tokens], window, weight, bias, activation, compute)


UNIT = 2.0**-24
"""Half an ulp of fp32, relative."""
APPROXIMATE = 2.0**-22
"""Relative error of ex2.approx and of div.full (PTX ISA, "ex2" and "div": 2 ulp each)."""
SILU_SLOPE = 1.1
"""More than the largest slope of SiLU, 1.0999 at 2.4."""


def leeway(call: Call, active: Sequence[tuple[int, Tensor]]) -> Tensor:
    """By how much each element of y may be off in a kernel that computes in fp32, besides its bound: fp64
    [T, D], zero outside the `active` sequences.

    torch's kernel may happen to be exact where another is right. With u = 2^-24, errors to first order:

        sum      (W + 1) u (|bias| + sum |weight x|)   W products and W additions in any order, fused or not:
                                                       a term passes its product and at most W additions
        silu     1.1 of the sum's error                its slope
                 (2^-22 + 2 u |a|) (1 - sigma)         exp(-a) = ex2.approx(-a log2 e): the product and the
                                                       constant round; d log y / d log exp(-a) = sigma - 1
                 u + 2^-22                             1 + exp(-a) rounds; the quotient, div.full
    """
    moved = torch.zeros(call.tensors["x"].shape, dtype=torch.float64)
    taps, silu = call.tensors["weight"].shape[1], call.scalars.get("activation", "silu") == "silu"
    plain = Call(call.tensors, {**call.scalars, "activation": "none"}, call.conventions)
    magnitudes = {
        name: tensor.abs() for name, tensor in call.tensors.items() if name in ("x", "weight", "bias")
    }
    sizes = Call({**call.tensors, **magnitudes}, plain.scalars, call.conventions)
    sums = convolutions(plain, active, torch.float64)
    largest = convolutions(sizes, [(n, window.abs()) for n, window in active], torch.float64)
    for (tokens, a), (_, size) in zip(sums, largest, strict=True):
        error = (taps + 1) * UNIT * size
        if silu:
            share = torch.sigmoid(a)
            relative = (APPROXIMATE + 2 * UNIT * a.abs()) * (1 - share) + UNIT + APPROXIMATE
            error = SILU_SLOPE * error + relative * (a * share).abs()
        moved[tokens] = error.nan_to_num(0.0, 0.0, 0.0)
    return moved
