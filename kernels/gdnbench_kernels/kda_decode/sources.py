"""What is compiled for the kernel `cute`: a `ChannelUpdate`, which launches it, and its arguments' types.

It takes q, k, v, g, beta, A_log, dt_bias, state, state_indices, num_accepted, read_indices, o, alpha_t,
beta_t, delta_t, scale, beta_max, lower_bound; alpha_t, beta_t and delta_t are None without a tap. What is
compiled in and what is a run-time value are as in gdn_decode. `build` imports CuTe DSL when the kernel is
compiled.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Literal, get_args

from gdnbench_kernels.gdn_decode.decode_plan import Advice, Transport
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.gdn_decode.sources import (
    BIAS_DTYPES,
    GATE_DTYPES,
    STATE_DTYPES,
    Build,
    GateDtype,
    Norm,
    Reads,
    StateDtype,
    Tap,
    check_options,
)
from gdnbench_kernels.kda_decode.decode_plan import GATE_ELEMENTS, ChannelPlan, default_plans
from gdnbench_kernels.source import Source

Gate = Literal["log", "raw", "bounded"]
BetaForm = Literal["value", "logit"]
BiasDtype = Literal["float32", "bfloat16", "none"]
"""none: the call has no dt_bias."""


def sources(
    tokens: int = 1,
    group: int = 1,
    state_dtype: StateDtype = "float32",
    gate: Gate = "raw",
    beta_form: BetaForm = "logit",
    qk: Norm = "raw",
    g_dtype: GateDtype = "bfloat16",
    beta_dtype: GateDtype = "bfloat16",
    bias_dtype: BiasDtype = "float32",
    rate: bool = True,
    reads: Reads = "first",
) -> list[Source]:
    """The kernel named `cute`, with each plan that `default_plan` may return.

    tokens: per sequence, 1 to 8. group: value heads per key head. state_dtype: dtype of the pool. gate,
    beta_form, qk: conventions of the call. g_dtype, beta_dtype: dtypes of g and beta. bias_dtype: dtype of
    dt_bias, or none; unused with gate log. rate: whether the call has A_log; unused except with gate bounded.
    reads: the slot that a sequence reads: the first token's (first), the last accepted token's (accepted), or
    one of read_indices (given).
    """
    has = {"log": False, "raw": True, "bounded": rate}[gate]
    bias = None if gate == "log" or bias_dtype == "none" else bias_dtype
    return [
        source(tokens, group, state_dtype, gate, beta_form, qk, g_dtype, beta_dtype, has, bias, reads, plan)
        for plan in dict.fromkeys(default_plans(state_dtype, tokens))
    ]


def source(
    tokens: int,
    group: int,
    state_dtype: str,
    gate: str,
    beta_form: str,
    qk: str,
    g_dtype: str,
    beta_dtype: str,
    rate: bool,
    bias_dtype: str | None,
    reads: str,
    plan: ChannelPlan,
    tap: Tap | None = None,
) -> Source:
    """`ChannelUpdate` with a plan. `rate`: whether there is A_log; bias_dtype: None without dt_bias. Raises
    ValueError for options that no kernel supports."""
    check_options(
        tokens,
        group,
        state_dtype=(state_dtype, STATE_DTYPES),
        gate=(gate, get_args(Gate)),
        beta_form=(beta_form, get_args(BetaForm)),
        qk=(qk, get_args(Norm)),
        g_dtype=(g_dtype, GATE_DTYPES),
        beta_dtype=(beta_dtype, GATE_DTYPES),
        reads=(reads, get_args(Reads)),
    )
    if bias_dtype is not None:
        check_options(tokens, group, bias_dtype=(bias_dtype, BIAS_DTYPES))
    return Source.create(
        f"kda_decode.channel_update_{plan.rows}x{plan.warps}",
        f"{__name__}:build",
        tokens=tokens,
        group=group,
        state_dtype=state_dtype,
        gate=gate,
        beta_form=beta_form,
        qk=qk,
        g_dtype=g_dtype,
        beta_dtype=beta_dtype,
        rate=rate,
        bias_dtype=bias_dtype,
        reads=reads,
        **plan.options,
        **({} if tap is None else {"tap": tap}),
    )


def build(
    tokens: int,
    group: int,
    state_dtype: str,
    gate: str,
    beta_form: str,
    qk: str,
    g_dtype: str,
    beta_dtype: str,
    rate: bool,
    bias_dtype: str | None,
    reads: str,
    rows: int,
    warps: int,
    transport: Transport,
    load: Advice,
    store: Advice,
    ctas_per_sm: int,
    pdl: bool,
    passes: int,
    resident: int,
    spread: bool,
    ranked: int,
    started: int,
    tap: Tap | None = None,
) -> Build:
    """The object to compile and examples of its arguments; the options are those of `source`."""
    from gdnbench_kernels.gdn_decode.example_tensors import ExampleTensors, number, stream
    from gdnbench_kernels.kda_decode.kernel_sm90 import ChannelBulkLoads, ChannelBulkUpdate, ChannelUpdate

    plan = ChannelPlan(
        rows, warps, transport, load, store, ctas_per_sm, pdl, passes, resident, spread, ranked, started
    )
    made: dict[str, type[ChannelUpdate]] = {
        "registers": ChannelUpdate,
        "bulk_in": ChannelBulkLoads,
        "bulk": ChannelBulkUpdate,
    }
    tensors = ExampleTensors(tokens)
    taps = (tensors.values("float32"), tensors.by_head("float32"), tensors.values("float32"))
    shown = (
        *tensors.operands(),
        tensors.values(g_dtype, gate_align(g_dtype)),
        tensors.by_head(beta_dtype),
        tensors.per_head("float32") if rate else None,
        None if bias_dtype is None else tensors.per_head(bias_dtype, HEAD_DIM, align=gate_align(bias_dtype)),
        *tensors.pool(state_dtype, reads),
        tensors.values("bfloat16"),
        *((None, None, None) if tap is None else taps),
        number(),
        number(),
        number(),
        stream(),
    )
    return made[transport](tokens, group, state_dtype, gate, beta_form, qk, plan, tap), shown


def gate_align(dtype: str) -> int:
    """Alignment in bytes of rows of g and dt_bias: a lane loads its channels at once."""
    return GATE_ELEMENTS * (4 if dtype == "float32" else 2)
