# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for kda_prefill."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.delta_prefill.inputs import Options, drawn_tensors
from gdnbench_kernels.gdn import STATES
from gdnbench_kernels.gdn_inputs import Span, named_dtype, random_gates
from gdnbench_kernels.kda_contract import convert_call
from gdnbench_kernels.kda_inputs import gate_inputs, made_forms, random_channel_gates
from gdnbench_kernels.kda_prefill.sizes import CHUNK

SPANS_OF = ("channel", "head")


def synth(
    *,
    seqlens: tuple[int, ...] = (1, 15, 16, 17, 63, 65, 200),
    heads: tuple[int, int] = (2, 2),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    query_correlation: float = 0.0,
    gate_span: Span = (0.1, 100.0),
    gate_span_of: str = "channel",
    gate_spike: float = 0.0,
    closed_gates: float = 0.0,
    beta: Span = (0.0, 1.0),
    initial_state: bool = False,
    state_dtype: str = "float32",
    dtype: str = "bfloat16",
    offsets_dtype: str = "int32",
    gate_dtype: str = "",
    beta_dtype: str = "",
    dt_bias_dtype: str = "float32",
    gate: str = "log",
    lower_bound: float = -5.0,
    beta_form: str = "value",
    state_layout: str = "VK",
    qk: str = "normalised",
    nan_at: tuple[int, ...] = (),
    chunk_tables: bool = False,
    final_state_dtype: str = "",
    scale: float | None = None,
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `gate_span`: expected sum of |g| of a channel over 64 tokens; at the -5 a token that served models allow
    it is 320. A range gives each channel of each head its own span, or each head where `gate_span_of` is
    head. `gate_spike`: by how much |g| of one drawn token in every 64, another one for each channel, is
    larger. `closed_gates`: share of the gates that are -inf, drawn. `gate` and `beta_form`: inputs that give
    g and beta as the other options say, but for their rounding; with gate bounded no g goes below
    `lower_bound`. `gate_dtype` and `beta_dtype`: of g and beta; if empty, `dtype` where they hold inputs,
    else float32. The other options are those of gdn_prefill.
    """
    options = Options(
        seqlens=seqlens,
        heads=heads,
        head_dim=head_dim,
        key_correlation=key_correlation,
        query_correlation=query_correlation,
        gate_spike=gate_spike,
        beta=beta,
        initial_state=initial_state,
        state_dtype=state_dtype,
        dtype=dtype,
        offsets_dtype=offsets_dtype,
        qk=qk,
        nan_at=nan_at,
        chunk_tables=chunk_tables,
        final_state_dtype=final_state_dtype,
        scale=scale,
        seed=seed,
    )
    conventions, made_as = made_forms("kda_prefill", gate, beta_form, state_layout, qk)
    of_beta = beta_dtype or ("float32" if beta_form == "value" else dtype)
    dtypes = {
        "g": named_dtype("gate_dtype", gate_dtype or ("float32" if gate == "log" else dtype), STATES),
        "beta": named_dtype("beta_dtype", of_beta, STATES),
    }
    if gate_span_of not in SPANS_OF:
        raise ContractError(f"gate_span_of is {gate_span_of!r}; it must be {' or '.join(SPANS_OF)}")
    if not 0 <= closed_gates <= 1:
        raise ContractError(f"closed_gates is {closed_gates:g}; it is a share, in [0, 1]")

    def gates(shape: tuple[int, int], generator: Generator) -> Tensor:
        (tokens, value_heads), channels = shape, head_dim[0]
        if gate_span_of == "channel":
            return random_channel_gates((tokens, value_heads, channels), gate_span, generator)
        # Channels of a head draw their gates like its tokens.
        rows = random_gates((tokens * channels, value_heads), gate_span, generator)
        return rows.view(tokens, channels, value_heads).mT.contiguous()

    def form(tensors: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
        closed = torch.rand(tensors["g"].shape, generator=generator) < closed_gates
        tensors["g"].masked_fill_(closed, -torch.inf)
        more = gate_inputs(
            tensors,
            conventions,
            beta_max=options.beta_max,
            lower_bound=lower_bound,
            dt_bias_dtype=dt_bias_dtype,
            generator=generator,
        )
        tensors |= {name: tensors[name].to(dtype) for name, dtype in dtypes.items()}
        return more

    tensors = drawn_tensors("kda_prefill", options, CHUNK, gates, form)
    scalars = options.scalars() | ({"lower_bound": lower_bound} if gate == "bounded" else {})
    call = Call(tensors, scalars, made_as)
    return convert_call("kda_prefill", call, conventions, ("initial_state",))
