# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for gdn_decode."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.inputs import Options, apart, drawn_tensors
from gdnbench_kernels.gdn import STATES, convert_call
from gdnbench_kernels.gdn_decode.gates import CONVENTIONS
from gdnbench_kernels.gdn_inputs import (
    Span,
    inverse_softplus,
    made_conventions,
    made_nan,
    named_dtype,
    random_gates,
)


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
    options = Options(
        batch=batch,
        steps=steps,
        slots=slots,
        heads=heads,
        head_dim=head_dim,
        key_correlation=key_correlation,
        query_correlation=query_correlation,
        beta=beta,
        speculative=speculative,
        read_indices=read_indices,
        padding=padding,
        holes=holes,
        slot_gap=slot_gap,
        state_scale=state_scale,
        state_dtype=state_dtype,
        dtype=dtype,
        offsets_dtype=offsets_dtype,
        qk=qk,
        seed=seed,
    )
    conventions = made_conventions("gdn_decode", gate, state_layout, qk, CONVENTIONS)
    of_gates = named_dtype("gate_dtype", gate_dtype or (dtype if gate == "raw" else "float32"), STATES)

    def form(by_token: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
        raw = gate == "raw"
        more = _made_raw(by_token, options.beta_max, dt_bias_dtype, generator) if raw else {}
        for name in ("g", "beta"):
            by_token[name] = by_token[name].to(of_gates)
        return more

    tensors = drawn_tensors(options, lambda shape, drawn: random_gates(shape, gate_span, drawn), form)
    made_nan("gdn_decode", tensors, nan_at, "sequence")
    made_as = {"gate": "raw" if gate == "raw" else "log", "state_layout": "VK", "qk": qk}
    call = Call(tensors, {"scale": scale, "beta_max": options.beta_max}, made_as)
    call = convert_call("gdn_decode", call, conventions, ("state",), conventions=CONVENTIONS)
    return replace(call, tensors={**call.tensors, "state": apart(call.tensors["state"], slot_gap)})


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
    dt_bias = inverse_softplus(10 ** (-3 + 2 * torch.rand(heads, generator=generator))).to(bias)
    by_token["g"] = inverse_softplus(-by_token["g"] / A_log.exp()) - dt_bias.float()
    by_token["beta"] = torch.logit(by_token["beta"] / beta_max)
    return {"A_log": A_log, "dt_bias": dt_bias}
