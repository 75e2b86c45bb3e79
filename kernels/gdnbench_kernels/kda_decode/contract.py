"""kda_decode: Kimi Delta Attention for a few tokens of each sequence, on a pool of states updated in place.

Axes: B sequences, S tokens of each, H key heads, Hv value heads, K and V head dims, `slots` states in the
pool. Sequence i reads slot state_indices[i, num_accepted[i] - 1], or read_indices[i] if that is given, and
after its token t writes slot state_indices[i, t]; with S = 1 this is plain decode. A sequence whose slot to
read is -1 is padding: it reads and writes nothing, and its rows of o are undefined. In other sequences a
token whose slot is -1 writes no state. Several sequences may read a slot that none writes.

It is gdn_decode with a gate for each key channel; see `kda` for the equations.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gdnbench_kernels import state_pool
from gdnbench_kernels.contract import (
    Call,
    ContractError,
    KernelEntry,
    Laws,
    NamedRows,
    Operation,
    Partition,
    Ranges,
    Shaped,
    Shrinking,
    Work,
)
from gdnbench_kernels.delta_decode import laws, shrink
from gdnbench_kernels.delta_decode.op_cost import work_of
from gdnbench_kernels.delta_decode.tensors import BETA as BETA_STAGE
from gdnbench_kernels.delta_decode.tensors import OUTPUT, POOL, QKV, QUERIES_AND_KEYS, SCALE, stage
from gdnbench_kernels.gdn import OFFSETS_DTYPE, QK, STATE_LAYOUT, check_form, convert_states, index_tensors
from gdnbench_kernels.kda import BETA, CONVENTIONS, GATE
from gdnbench_kernels.kda_contract import (
    CONVERSIONS,
    GATE_SCALARS,
    GATE_TENSORS,
    check_gates,
    convert_call,
    gate_tensors,
)
from gdnbench_kernels.kda_decode.leeway import leeway
from gdnbench_kernels.kda_decode.ranges import ranges as ranges_of
from gdnbench_kernels.kda_decode.stage_rules import stage_limit
from gdnbench_kernels.kda_decode.steps import CUTE_STEPS, EXACT_STEPS, TORCH_STEPS
from gdnbench_kernels.kda_decode.synth import synth
from gdnbench_kernels.state_pool import check_slots, one_accepted, slots_of
from gdnbench_kernels.validate import resolved_scalars

NAME = "kda_decode"

TENSORS = (*QKV, *gate_tensors(("B", "S")), *POOL, *GATE_TENSORS, OUTPUT)

SCALARS = (SCALE, *GATE_SCALARS)

STAGES = (
    stage("alpha_t", ("B", "S", "Hv", "K"), "factor of each column of the state", "exp(g)"),
    BETA_STAGE,
    *QUERIES_AND_KEYS,
    stage("delta_t", ("B", "S", "Hv", "V"), "update", "beta_t (v - S diag(alpha_t) k_t)"),
)
"""The stages of a token: the gates, q and k after conversion from raw ones, and the update."""

_ALL = {convention.name: convention.values for convention in CONVENTIONS}

_FLA = {c.name: c.values for c in (GATE, BETA, STATE_LAYOUT, QK)}

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.kda_decode.reference:reference", _ALL, meaning="the fp64 oracle", fp64=True
    ),
    "reference_staged": KernelEntry(
        "gdnbench_kernels.kda_decode.reference:reference",
        _ALL,
        meaning="the same, step by step",
        fp64=True,
        steps=EXACT_STEPS,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.kda_decode.torch_recurrent:torch_recurrent",
        {GATE.name: GATE.values, BETA.name: BETA.values, QK.name: QK.values},
        meaning="the recurrence in fp32, state and outputs rounded to their dtypes",
        steps=TORCH_STEPS,
    ),
    "cute": KernelEntry(
        "gdnbench_kernels.kda_decode.cute:cute",
        {
            GATE.name: GATE.values,
            BETA.name: BETA.values,
            QK.name: QK.values,
            OFFSETS_DTYPE.name: ("int32",),
        },
        devices=("sim", "cuda"),
        meaning="CuTe DSL for SM90 and SM100: gdn_decode's, with a gate per channel",
        sources="gdnbench_kernels.kda_decode.sources:sources",
        prepare="gdnbench_kernels.kda_decode.cute:prepare",
        steps=CUTE_STEPS,
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.kda_decode.hf:hf",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        meaning="transformers' recurrent_kimi_delta_attention on gathered slots; one token a sequence",
        needs=("transformers",),
    ),
    "fla": KernelEntry(
        "gdnbench_kernels.kda_decode.fla:fla",
        _FLA,
        devices=("cuda", "sim"),
        meaning="flash-linear-attention's fused_recurrent_kda on gathered slots; one token a sequence",
        needs=("flash-linear-attention", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.fla:prepare",
    ),
    "fla_pool": KernelEntry(
        "gdnbench_kernels.kda_decode.fla:fla_pool",
        _FLA,
        devices=("cuda", "sim"),
        meaning="flash-linear-attention's fused_recurrent_kda_fwd, on the pool in place",
        needs=("flash-linear-attention", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.fla:prepare_pool",
    ),
    "flashinfer": KernelEntry(
        "gdnbench_kernels.kda_decode.flashinfer:flashinfer",
        {GATE.name: GATE.values, BETA.name: BETA.values, QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="FlashInfer's recurrent_kda on the pool, bf16 states",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.flashinfer:prepare",
    ),
    "flashinfer_k3": KernelEntry(
        "gdnbench_kernels.kda_decode.flashinfer:flashinfer_k3",
        {GATE.name: ("log", "bounded"), BETA.name: BETA.values, QK.name: ("raw",)},
        devices=("cuda", "sim"),
        meaning="FlashInfer's kernel for one token of Kimi K3's 12 heads, bf16 states",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.flashinfer:prepare_k3",
    ),
    "sglang": KernelEntry(
        "gdnbench_kernels.kda_decode.sglang:sglang",
        {GATE.name: ("raw", "bounded"), BETA.name: ("logit",), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="SGLang's Triton kernels: fused_recurrent_kda_packed_decode, or that of drafts",
        needs=("sglang", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.sglang:prepare",
    ),
    "sglang_cutedsl": KernelEntry(
        "gdnbench_kernels.kda_decode.sglang:sglang_cutedsl",
        {GATE.name: ("raw",), BETA.name: ("logit",), QK.name: ("raw",)},
        devices=("cuda", "sim"),
        meaning="SGLang's cutedsl_fused_sigmoid_gating_kda_update, one token a sequence",
        needs=("sglang",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.sglang:prepare_cutedsl",
    ),
    "vllm": KernelEntry(
        "gdnbench_kernels.kda_decode.vllm:vllm",
        {GATE.name: GATE.values, BETA.name: BETA.values, QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="vLLM's fused_recurrent_kda_fwd, the Triton kernel of Kimi K3",
        needs=("vllm", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_decode.vllm:prepare",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    sizes = check_form(NAME, TENSORS, SCALARS, call, CONVENTIONS)
    if sizes["S"] < 1:
        raise ContractError(f"{NAME}: q has S = 0 on axis 1; a sequence has at least one token")
    check_slots(NAME, call, sizes)
    check_gates(NAME, call, resolved_scalars(SCALARS, call))


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. Raises ContractError if that is impossible."""
    return convert_call(NAME, call, target, ("state",), index_tensors(TENSORS, call))


def convert_outputs(
    outputs: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    """Outputs in the conventions `target`: the pool is transposed if the layouts differ."""
    return convert_states(outputs, source, target, ("state",))


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of o; the pool is mutated in place."""
    v = call.tensors["v"]
    return {"o": (tuple(v.shape), v.dtype)}


def partition(call: Call, name: str) -> Partition:
    """See `state_pool.partition`."""
    return state_pool.partition(call, name, ("o", *(stage.tensor.name for stage in STAGES)))


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call, slots_of(call), outputs(call))


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call's inputs."""
    return ranges_of(call, slots_of(call))


OPERATION = Operation(
    name=NAME,
    summary="Kimi Delta Attention for the next tokens of each sequence, on a pool of states",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=CONVENTIONS,
    stages=STAGES,
    kernels=KERNELS,
    validate=validate,
    convert=convert,
    convert_outputs=convert_outputs,
    outputs=outputs,
    touched=state_pool.touched,
    partition=partition,
    synth=synth,
    absent={"num_accepted": one_accepted},
    stage_limit=stage_limit,
    leeway=leeway,
    conversions=CONVERSIONS,
    renumber=state_pool.renumber,
    named_rows=NamedRows(state_pool.INDICES, state_pool.named_rows),
    accesses=state_pool.accesses,
    work=work,
    carries=("state", "state"),
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    decodes=True,
    shrinking=Shrinking(
        shrink.axes,
        shrink.extent,
        shrink.level,
        state_pool.placed,
    ),
)
