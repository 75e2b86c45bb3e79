"""What is compiled for the kernel `cute`: a `StateUpdate`, which launches it, and the types of its arguments.

It takes q, k, v, g, beta, A_log, dt_bias, state, state_indices, num_accepted, read_indices, o, scale,
beta_max, as in `launch_args.Arguments`, and with a tap alpha_t, beta_t and delta_t after o. The numbers of
sequences, heads and slots, and the strides are run-time values. The number of tokens, value heads per key
head, dtypes, conventions, the presence of optional tensors, and the plan are compiled in. `build` imports
CuTe DSL when the kernel is compiled.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, Literal, get_args

from gdnbench_kernels.gdn_decode.decode_plan import Advice, DecodePlan, Transport, default_plans
from gdnbench_kernels.gdn_decode.sizes import MAX_TOKENS
from gdnbench_kernels.source import Source

StateDtype = Literal["float32", "bfloat16"]
GateDtype = Literal["float32", "bfloat16", "float16"]
BiasDtype = Literal["float32", "bfloat16"]
Gate = Literal["log", "raw"]
Norm = Literal["normalised", "raw"]
Reads = Literal["first", "accepted", "given"]
"""The slot that is read: the first token's, the last accepted token's, or one of read_indices."""
Tap = Literal["dump", "inject"]
"""Builds with a tap (kernel_sm90_taps.py): they write their stages; `inject` reads its gates instead."""

STATE_DTYPES: tuple[str, ...] = get_args(StateDtype)
GATE_DTYPES: tuple[str, ...] = get_args(GateDtype)
BIAS_DTYPES: tuple[str, ...] = get_args(BiasDtype)

Build = tuple[Any, tuple[Any, ...]]
"""The object to compile, and examples of its arguments."""


def sources(
    tokens: int = 1,
    group: int = 2,
    state_dtype: StateDtype = "float32",
    gate: Gate = "raw",
    qk: Norm = "raw",
    g_dtype: GateDtype = "bfloat16",
    beta_dtype: GateDtype = "bfloat16",
    bias_dtype: BiasDtype = "float32",
    reads: Reads = "first",
) -> list[Source]:
    """The kernel named `cute`, with each plan that `default_plan` may return.

    tokens: per sequence, 1 to 8. group: value heads per key head. state_dtype: dtype of the pool. gate, qk:
    conventions of the call. g_dtype, beta_dtype: dtypes of g and beta, with raw gates of a and b.
    bias_dtype: dtype of dt_bias, with raw gates only. reads: the slot that a sequence reads: the first
    token's (first), the last accepted token's (accepted), or one of read_indices (given).
    """
    return [
        source(tokens, group, state_dtype, gate, qk, g_dtype, beta_dtype, bias_dtype, reads, plan)
        for plan in dict.fromkeys(default_plans(state_dtype, tokens))
    ]


def source(
    tokens: int,
    group: int,
    state_dtype: str,
    gate: str,
    qk: str,
    g_dtype: str,
    beta_dtype: str,
    bias_dtype: str | None,
    reads: str,
    plan: DecodePlan,
    tap: Tap | None = None,
) -> Source:
    """`StateUpdate` with a plan. Raises ValueError for options that no kernel supports."""
    check_options(
        tokens,
        group,
        state_dtype=(state_dtype, STATE_DTYPES),
        gate=(gate, get_args(Gate)),
        qk=(qk, get_args(Norm)),
        g_dtype=(g_dtype, GATE_DTYPES),
        beta_dtype=(beta_dtype, GATE_DTYPES),
        reads=(reads, get_args(Reads)),
    )
    if gate == "raw":
        check_options(tokens, group, bias_dtype=(bias_dtype, BIAS_DTYPES))
    return Source.create(
        f"gdn_decode.state_update_{plan.rows}x{plan.warps}",
        f"{__name__}:build",
        tokens=tokens,
        group=group,
        state_dtype=state_dtype,
        gate=gate,
        qk=qk,
        g_dtype=g_dtype,
        beta_dtype=beta_dtype,
        bias_dtype=bias_dtype if gate == "raw" else None,
        reads=reads,
        **plan.options,
        **({} if tap is None else {"tap": tap}),
    )


def check_options(tokens: int, group: int, **options: tuple[object, tuple[str, ...]]) -> None:
    """Raises ValueError for numbers, or an option (value, supported values), that no kernel supports."""
    if not 1 <= tokens <= MAX_TOKENS:
        raise ValueError(f"tokens is 1 to {MAX_TOKENS}, not {tokens}")
    if group < 1:
        raise ValueError(f"group is {group}; a key head has at least one value head")
    for name, (value, taken) in options.items():
        if value not in taken:
            raise ValueError(f"{name} is {' or '.join(taken)}, not {value!r}")


def build(
    tokens: int,
    group: int,
    state_dtype: str,
    gate: str,
    qk: str,
    g_dtype: str,
    beta_dtype: str,
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
    plan = DecodePlan(
        rows, warps, transport, load, store, ctas_per_sm, pdl, passes, resident, spread, ranked, started
    )
    shown = examples(tokens, state_dtype, g_dtype, beta_dtype, bias_dtype, reads, tap)
    if tap is not None:
        from gdnbench_kernels.gdn_decode.kernel_sm90_taps import Tapped, TappedBulkLoads, TappedBulkUpdate

        tapped = {"registers": Tapped, "bulk_in": TappedBulkLoads, "bulk": TappedBulkUpdate}[transport]
        return tapped(tokens, group, state_dtype, gate, qk, plan, tap), shown
    from gdnbench_kernels.gdn_decode.kernel_sm90 import StateUpdate
    from gdnbench_kernels.gdn_decode.kernel_sm90_bulk import BulkLoads, BulkUpdate

    made: dict[str, type[StateUpdate]] = {
        "registers": StateUpdate,
        "bulk_in": BulkLoads,
        "bulk": BulkUpdate,
    }
    return made[transport](tokens, group, state_dtype, gate, qk, plan), shown


def examples(
    tokens: int,
    state_dtype: str,
    g_dtype: str,
    beta_dtype: str,
    bias_dtype: str | None,
    reads: str,
    tap: Tap | None,
) -> tuple[Any, ...]:
    """Examples of the arguments; they have only types."""
    from gdnbench_kernels.gdn_decode.example_tensors import ExampleTensors, number, stream

    tensors = ExampleTensors(tokens)
    return (
        *tensors.operands(),
        tensors.by_head(g_dtype),
        tensors.by_head(beta_dtype),
        None if bias_dtype is None else tensors.per_head("float32"),
        None if bias_dtype is None else tensors.per_head(bias_dtype),
        *tensors.pool(state_dtype, reads),
        tensors.values("bfloat16"),
        *(() if tap is None else (tensors.by_head("float32"), tensors.by_head("float32"))),
        *(() if tap is None else (tensors.values("float32"),)),
        number(),
        number(),
        stream(),
    )
