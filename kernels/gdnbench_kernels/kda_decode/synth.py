# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for kda_decode."""

from __future__ import annotations

from dataclasses import replace

from torch import Generator, Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.delta_decode.inputs import Options, apart, drawn_tensors
from gdnbench_kernels.gdn import STATES
from gdnbench_kernels.gdn_inputs import Span, made_nan, named_dtype
from gdnbench_kernels.kda_contract import convert_call
from gdnbench_kernels.kda_inputs import gate_inputs, made_forms, random_channel_gates


def synth(
    *,
    batch: int = 4,
    steps: int = 1,
    slots: int = 0,
    heads: tuple[int, int] = (4, 4),
    head_dim: tuple[int, int] = (128, 128),
    key_correlation: float = 0.0,
    query_correlation: float = 0.0,
    gate_span: Span = (0.1, 100.0),
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
    beta_dtype: str = "",
    dt_bias_dtype: str = "float32",
    gate: str = "log",
    lower_bound: float = -5.0,
    beta_form: str = "value",
    state_layout: str = "VK",
    qk: str = "normalised",
    nan_at: tuple[int, ...] = (),
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `gate_span`: a channel's expected sum of |g| over 64 tokens; a range gives each channel of each head its
    own. At the -5 a token that served models allow it is 320. `gate` and `beta_form`: inputs that give g and
    beta as the other options say, but for their rounding. `lower_bound`: of a bounded gate, which no g goes
    below. `gate_dtype` and `beta_dtype`: of g and beta; if empty, `dtype` where they hold inputs, else
    float32. The other options are those of gdn_decode.
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
    conventions, made_as = made_forms("kda_decode", gate, beta_form, state_layout, qk)
    of_beta = beta_dtype or ("float32" if beta_form == "value" else dtype)
    dtypes = {
        "g": named_dtype("gate_dtype", gate_dtype or ("float32" if gate == "log" else dtype), STATES),
        "beta": named_dtype("beta_dtype", of_beta, STATES),
    }

    def form(by_token: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
        more = gate_inputs(
            by_token,
            conventions,
            beta_max=options.beta_max,
            lower_bound=lower_bound,
            dt_bias_dtype=dt_bias_dtype,
            generator=generator,
        )
        by_token |= {name: by_token[name].to(dtype) for name, dtype in dtypes.items()}
        return more

    def gates(shape: tuple[int, int], generator: Generator) -> Tensor:
        return random_channel_gates((*shape, head_dim[0]), gate_span, generator)

    tensors = drawn_tensors(options, gates, form)
    made_nan("kda_decode", tensors, nan_at, "sequence")
    bound = {"lower_bound": lower_bound} if gate == "bounded" else {}
    call = Call(tensors, {"scale": scale, "beta_max": options.beta_max, **bound}, made_as)
    call = convert_call("kda_decode", call, conventions, ("state",))
    return replace(call, tensors={**call.tensors, "state": apart(call.tensors["state"], slot_gap)})
