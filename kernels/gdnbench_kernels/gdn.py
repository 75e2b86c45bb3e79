"""Shared by the two Gated DeltaNet operations: conventions, their conversion, ranges, and the recurrence.

Shapes use the contract's symbols: H key heads, Hv value heads, K and V head dims. A state is [..., Hv, V, K].
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError, Convention, Scalar, ScalarSpec, TensorSpec
from gdnbench_kernels.validate import (
    check_conventions,
    check_one_dtype,
    check_range,
    check_scalars,
    check_tensors,
    dtype_name,
    resolved_conventions,
)

ACTIVATIONS = ("bfloat16", "float16", "float32")
STATES = ("float32", "bfloat16", "float16")
OFFSETS = ("int32", "int64")
NORM_EPS = 1e-6  # added to the sum of squares, as in every published implementation

GATE = Convention(
    "gate",
    ("log", "linear"),
    "g holds the log-space decay (<= 0), or alpha = exp(g) in [0, 1] where linear",
    rounds=True,
)
STATE_LAYOUT = Convention(
    "state_layout",
    ("VK", "KV"),
    "the last two axes of a state: value dim then key dim, or the other way round",
)
QK = Convention(
    "qk",
    ("normalised", "raw"),
    "q and k come L2-normalised per head, or the operation does it: x / sqrt(sum x^2 + 1e-6) in fp32",
    rounds=True,
)
OFFSETS_DTYPE = Convention(
    "offsets",
    ("any", *OFFSETS),
    "dtype of offsets, slots and chunk indices: whichever they have, or that one alone",
)
CONVENTIONS = (GATE, STATE_LAYOUT, QK, OFFSETS_DTYPE)

CONVERSIONS: Mapping[tuple[str, str, str], str] = {
    ("gate", "log", "linear"): "g -> exp(g), in fp32",
    ("gate", "linear", "log"): "g -> log(g), in fp32; 0 becomes -inf",
    ("state_layout", "VK", "KV"): "states transposed to [K, V], copied",
    ("state_layout", "KV", "VK"): "states transposed to [V, K], copied",
    ("qk", "raw", "normalised"): "q, k L2-normalised in fp32 (eps 1e-6), rounded to their dtype",
    ("offsets", "any", "int32"): "index tensors as int32",
    ("offsets", "any", "int64"): "index tensors as int64",
    ("offsets", "int32", "int64"): "index tensors as int64",
    ("offsets", "int64", "int32"): "index tensors as int32",
    ("offsets", "int32", "any"): "nothing: they stay int32",
    ("offsets", "int64", "any"): "nothing: they stay int64",
}


def l2_normalise(x: Tensor, compute: torch.dtype) -> Tensor:
    """`x` [..., K] divided by its norm over the last axis, computed and returned in `compute`."""
    wide = x.to(compute)
    return wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + NORM_EPS)


def normalised(x: Tensor, qk: str, compute: torch.dtype) -> Tensor:
    """q or k as the recurrence uses it, in `compute`, for the caller's convention `qk`."""
    return l2_normalise(x, compute) if qk == "raw" else x.to(compute)


def decay(g: Tensor, gate: str, compute: torch.dtype) -> Tensor:
    """alpha, the factor of the state, in `compute`, from a gate `g` in convention `gate`."""
    wide = g.to(compute)
    return wide if gate == "linear" else wide.exp()


def log_decay(g: Tensor, gate: str, compute: torch.dtype) -> Tensor:
    """The log-space gate in `compute`; alpha = 0 gives -inf."""
    wide = g.to(compute)
    return wide.log() if gate == "linear" else wide


def in_vk(state: Tensor, layout: str) -> Tensor:
    """A view of a state of layout `layout` as [..., V, K]; its own inverse."""
    return state.transpose(-1, -2) if layout == "KV" else state


def per_value_head(x: Tensor, value_heads: int, axis: int) -> Tensor:
    """q or k with each of its H heads repeated Hv // H times: value head hv uses key head hv // (Hv // H)."""
    heads = x.shape[axis]
    return x if heads == value_heads else x.repeat_interleave(value_heads // heads, dim=axis)


def default_scale(scale: float | None, key_dim: int) -> float:
    """The factor of the output: `scale`, or K ** -0.5 if that is None."""
    return key_dim**-0.5 if scale is None else scale


def recur(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of B sequences: advances `state` [B, Hv, V, K] in place, returns S q, unscaled, and u, both
    [B, Hv, V].

        S' = S diag(alpha);   u = beta (v - S' k);   S = S' + u k^T

    q, k are [B, Hv, K], v [B, Hv, V], beta [B, Hv], and alpha is [B, Hv], or [B, Hv, K] with a factor for
    each key channel; all have the state's dtype, and the state is contiguous. Every (sequence, head) is a
    product of its own, so a NaN reaches no other.
    """
    state.mul_(alpha[..., None, None] if alpha.dim() == 2 else alpha.unsqueeze(-2))
    update = beta.unsqueeze(-1) * (v - (state @ k.unsqueeze(-1)).squeeze(-1))
    per_head = state.view(-1, *state.shape[-2:])
    per_head.baddbmm_(update.flatten(0, 1).unsqueeze(-1), k.flatten(0, 1).unsqueeze(-2))
    return (state @ q.unsqueeze(-1)).squeeze(-1), update


def check_form(
    op: str,
    tensors: Sequence[TensorSpec],
    scalars: Sequence[ScalarSpec],
    call: Call,
    conventions: Sequence[Convention] = CONVENTIONS,
) -> dict[str, int]:
    """Check names, kinds, dtypes and shapes, without reading values; returns sizes by symbol. Raises
    ContractError."""
    check_conventions(op, conventions, call.conventions)
    check_scalars(op, scalars, call)
    sizes = check_tensors(op, tensors, call)
    check_one_dtype(op, call, ("q", "k", "v"))
    check_heads(op, sizes)
    if sizes["K"] < 1:
        raise ContractError(f"{op}: q has K = 0 on its last axis; a key has at least one element")
    wanted = call.conventions.get(OFFSETS_DTYPE.name, "any")
    for name in index_tensors(tensors, call):
        found = dtype_name(call.tensors[name].dtype)
        if wanted not in ("any", found):
            raise ContractError(f"{op}: {name} is {found}; the convention offsets makes it {wanted}")
    return sizes


def index_tensors(tensors: Sequence[TensorSpec], call: Call) -> list[str]:
    """Names of the call's tensors that may have either integer dtype."""
    return [spec.name for spec in tensors if spec.dtypes == OFFSETS and spec.name in call.tensors]


def check_heads(op: str, sizes: Mapping[str, int]) -> None:
    """Raises ContractError if the number of value heads is no multiple of the number of key heads."""
    heads, value_heads = sizes["H"], sizes["Hv"]
    if heads < 1 or value_heads % heads:
        raise ContractError(
            f"{op}: v has Hv = {value_heads} heads and q has H = {heads}; Hv must be a multiple of H"
        )


def check_gates(op: str, call: Call, beta_max: Scalar) -> None:
    """Raises ContractError for finite g and beta outside their ranges, and for a beta_max other than 1 and 2.
    The inputs of raw gates may have any value."""
    if beta_max not in (1, 2):
        raise ContractError(f"{op}: scalar beta_max is {beta_max}; it must be 1 or 2")
    if call.conventions.get("gate") == "raw":
        return
    low, high = (0.0, 1.0) if call.conventions.get("gate") == "linear" else (-torch.inf, 0.0)
    check_range(op, call, "g", low, high)
    check_range(op, call, "beta", 0.0, float(beta_max))


IMPOSSIBLE: Mapping[str, str] = {
    "gate": "what a gate was made of cannot be had from it",
    "beta_form": "what a step size was made of cannot be had from it",
    "qk": "normalising them again would change their bits",
}
"""Why a conversion cannot be inverted."""


def convert_call(
    op: str,
    call: Call,
    target: Mapping[str, str],
    states: Sequence[str],
    indices: Sequence[str] = (),
    conventions: Sequence[Convention] = CONVENTIONS,
) -> Call:
    """`call` in the `target` values of `conventions`; conventions that `target` leaves out stay. Raises
    ContractError if that is impossible, or for an unknown convention or value.

    `states` names the tensors that are states, `indices` those that the convention offsets applies to.
    Tensors that no conversion changes are not copied. A conversion that rounds works on contiguous copies, so
    that its bits do not depend on the strides of its input.
    """
    check_conventions(op, conventions, target)
    current = resolved_conventions(conventions, call.conventions)
    wanted = {**current, **target}
    tensors = dict(call.tensors)
    for name, value in wanted.items():
        if value != current[name] and (name, current[name], value) not in CONVERSIONS:
            raise ContractError(
                f"{op}: convention {name} cannot go from {current[name]} to {value}: {IMPOSSIBLE[name]};"
                f" choose a kernel that takes {current[name]}"
            )
    if wanted["offsets"] != "any":
        for name in indices:
            tensors[name] = tensors[name].to(getattr(torch, wanted["offsets"]))
    if wanted["gate"] != current["gate"]:
        convert = decay if wanted["gate"] == "linear" else log_decay
        tensors["g"] = convert(tensors["g"].contiguous(), current["gate"], torch.float32)
    if wanted["qk"] != current["qk"]:
        for name in ("q", "k"):
            tensors[name] = l2_normalise(tensors[name].contiguous(), torch.float32).to(tensors[name].dtype)
    return Call(convert_states(tensors, current, wanted, states), call.scalars, wanted)


def convert_states(
    tensors: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str], states: Sequence[str]
) -> dict[str, Tensor]:
    """`tensors` with those in `states` transposed, as contiguous copies, if the two layouts differ."""
    default = STATE_LAYOUT.values[0]
    if source.get("state_layout", default) == target.get("state_layout", default):
        return dict(tensors)
    return {
        name: tensor.transpose(-1, -2).contiguous() if name in states else tensor
        for name, tensor in tensors.items()
    }
