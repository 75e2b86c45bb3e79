"""Synthetic inputs for gdn_decode."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.gdn import STATES, convert_call
from gdnbench_kernels.gdn_decode.gates import CONVENTIONS
from gdnbench_kernels.gdn_decode.slots import PADDING
from gdnbench_kernels.gdn_inputs import (
    Span,
    made_conventions,
    made_nan,
    named_dtype,
    named_dtypes,
    queries_and_keys,
    random_betas,
    random_gates,
    span_bounds,
)

READS = ("none", "own", "first", "last", "shared")


def synth(
    *,
    batch: int = 4,
    steps: int = 1,
    slots: int = 0,
    heads: tuple[int, int] = (2, 4),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    query_correlation: float = 0.0,
    gate_span: Span = 1.0,
    beta: Span = (0.0, 1.0),
    speculative: bool = False,
    read_indices: str = "none",
    scale: float | None = None,
    padding: float = 0.0,
    holes: float = 0.0,
    slot_gap: int = 0,
    state_scale: float = 1.0,
    state_dtype: str = "float32",
    dtype: str = "bfloat16",
    offsets_dtype: str = "int32",
    gate_dtype: str = "",
    dt_bias_dtype: str = "float32",
    gate: str = "log",
    state_layout: str = "VK",
    qk: str = "normalised",
    nan_at: tuple[int, ...] = (),
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `batch`: B sequences; `steps`: S tokens of each. `slots`: size of the pool, as many as are needed and one
    if 0; slots are dealt at random. `speculative`: num_accepted is given, random in 1 .. S. `read_indices`
    gives them: `own` slots that no one writes, the `first` or `last` slot that the sequence itself writes, or
    one slot `shared` by all. `padding`: share of the sequences that are padding (-1), rounded down. `holes`:
    share of the other tokens that write no slot, drawn; never the slot that a sequence reads. `slot_gap`:
    elements between one slot and the next. `state_scale`: factor of the states, whose rows have norms near
    1. `nan_at`: sequences whose q, k, v, g and beta are NaN. `gate_dtype`: of g and beta; float32, or `dtype`
    where the gate is raw, if empty. Raw gates are made to give g and beta as `gate_span` and `beta` say, but
    for the rounding of a and b. `key_correlation` and `query_correlation` count over all tokens of the batch;
    the other options are those of gdn_prefill.
    """
    _check_slots(padding, holes, slot_gap)
    (key_heads, value_heads), (key_dim, value_dim) = heads, head_dim
    generator = torch.Generator().manual_seed(seed)
    dtypes = named_dtypes(dtype, state_dtype, offsets_dtype)
    conventions = made_conventions("gdn_decode", gate, state_layout, qk, CONVENTIONS)
    tokens, per_head = batch * steps, (batch * steps, value_heads)
    q, k = queries_and_keys(
        (tokens, key_heads, key_dim),
        key_correlation,
        dtypes.activations,
        qk == "raw",
        generator,
        query_correlation,
    )
    by_token = {
        "q": q,
        "k": k,
        "v": torch.randn(tokens, value_heads, value_dim, generator=generator).to(dtypes.activations),
        "g": random_gates(per_head, gate_span, generator),
        "beta": random_betas(per_head, beta, generator),
    }
    added = {"own": batch - int(padding * batch), "shared": 1}.get(read_indices, 0)
    pool = torch.randn(slots or tokens + 1 + added, value_heads, value_dim, key_dim, generator=generator)
    indices, read = _deal(batch, steps, len(pool), int(padding * batch), read_indices, generator)
    more = {} if read is None else {"read_indices": read.to(torch.int32)}
    if speculative:
        more["num_accepted"] = torch.randint(1, steps + 1, (batch,), generator=generator, dtype=torch.int32)
    beta_max = 2.0 if span_bounds(beta)[1] > 1 else 1.0
    if gate == "raw":
        more |= _made_raw(by_token, beta_max, dt_bias_dtype, generator)
    of_gates = named_dtype("gate_dtype", gate_dtype or (dtype if gate == "raw" else "float32"), STATES)
    for name in ("g", "beta"):
        by_token[name] = by_token[name].to(of_gates)
    if holes:
        indices = _with_holes(indices, holes, read is None, more.get("num_accepted"), generator)
    tensors = {name: x.view(batch, steps, *x.shape[1:]) for name, x in by_token.items()}
    tensors |= {"state_indices": indices.to(dtypes.offsets), **more}
    tensors["state"] = (pool * (state_scale * key_dim**-0.5)).to(dtypes.states)
    made_nan("gdn_decode", tensors, nan_at, "sequence")
    made_as = {"gate": "raw" if gate == "raw" else "log", "state_layout": "VK", "qk": qk}
    call = Call(tensors, {"scale": scale, "beta_max": beta_max}, made_as)
    call = convert_call("gdn_decode", call, conventions, ("state",), conventions=CONVENTIONS)
    return replace(call, tensors={**call.tensors, "state": _apart(call.tensors["state"], slot_gap)})


def _check_slots(padding: float, holes: float, slot_gap: int) -> None:
    """Raises ContractError unless shares are in [0, 1] and the gap is 0 or more."""
    for name, share in (("padding", padding), ("holes", holes)):
        if not 0 <= share <= 1:
            raise ContractError(f"{name} is {share:g}; it is a share, in [0, 1]")
    if slot_gap < 0:
        raise ContractError(f"slot_gap is {slot_gap}; slots lie 0 or more elements apart")


def _deal(
    batch: int, steps: int, slots: int, padded: int, reads: str, generator: Generator
) -> tuple[Tensor, Tensor | None]:
    """[B, S] distinct slots, with `padded` sequences of -1 at random positions, and with `reads` also [B]
    slots to read."""
    if reads not in READS:
        raise ContractError(f"read_indices is {reads!r}; it must be {' or '.join(READS)}")
    active = batch - padded
    extra = {"own": active, "shared": min(1, active)}.get(reads, 0)
    needed = active * steps + extra
    if slots < needed:
        raise ContractError(f"a pool of {slots} slots is too small: {active} sequences need {needed}")
    indices, read = torch.full((batch, steps), PADDING), torch.full((batch,), PADDING)
    running = torch.randperm(batch, generator=generator)[padded:]
    drawn = torch.randperm(slots, generator=generator)[:needed]
    indices[running] = drawn[: active * steps].view(-1, steps)
    if reads == "none":
        return indices, None
    read[running] = drawn[active * steps :] if extra else indices[running, 0 if reads == "first" else -1]
    return indices, read


def _with_holes(
    indices: Tensor, share: float, reads_own: bool, num_accepted: Tensor | None, generator: Generator
) -> Tensor:
    """Slots [B, S], of which a `share` is -1. Sequences that read their own slots keep those: without them
    they would be padding."""
    dropped = torch.rand(indices.shape, generator=generator) < share
    if reads_own:
        rows = torch.arange(len(indices))
        dropped[rows, 0 if num_accepted is None else num_accepted.long() - 1] = False
    return indices.masked_fill(dropped, PADDING)


def _made_raw(
    by_token: dict[str, Tensor], beta_max: float, dt_bias_dtype: str, generator: Generator
) -> dict[str, Tensor]:
    """Replace g and beta [T, Hv] by the a and b that give them, and return A_log and dt_bias.

    Rates are in [1, 16) and time steps in [0.001, 0.1), as in the models' initialisation. A gate of 0 makes a
    = -inf, and a beta at an end of its range makes b infinite.
    """
    bias = named_dtype("dt_bias_dtype", dt_bias_dtype, ("float32", "bfloat16"))
    heads = by_token["g"].shape[1]
    A_log = torch.log(1 + 15 * torch.rand(heads, generator=generator))
    dt_bias = _inverse_softplus(10 ** (-3 + 2 * torch.rand(heads, generator=generator))).to(bias)
    by_token["g"] = _inverse_softplus(-by_token["g"] / A_log.exp()) - dt_bias.float()
    by_token["beta"] = torch.logit(by_token["beta"] / beta_max)
    return {"A_log": A_log, "dt_bias": dt_bias}


def _inverse_softplus(y: Tensor) -> Tensor:
    """x such that log(1 + exp(x)) = y, for y >= 0."""
    return y + torch.log(-torch.expm1(-y))


def _apart(pool: Tensor, gap: int) -> Tensor:
    """`pool` with `gap` elements of NaN after each slot, or itself without one."""
    if not gap:
        return pool
    length = pool[0].numel() if len(pool) else 0
    whole = torch.full((len(pool), length + gap), torch.nan, dtype=pool.dtype)
    whole[:, :length] = pool.flatten(1)
    return whole[:, :length].view(pool.shape)
