"""kda_prefill: Kimi Delta Attention over a packed batch of sequences, from given states to final states.

Axes: T tokens of all sequences, N sequences, H key heads, Hv value heads, K and V head dims, C the chunk
size, UB the upper bound of the number of chunks.

It is gdn_prefill with a gate for each key channel; see `kda` for the equations.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

from gdnbench_kernels.contract import Call, KernelEntry, Laws, Operation, Shrinking, Work
from gdnbench_kernels.delta_prefill import laws
from gdnbench_kernels.delta_prefill.accesses import accesses
from gdnbench_kernels.delta_prefill.op_cost import work_of
from gdnbench_kernels.delta_prefill.packed import (
    OUTPUTS,
    QKV,
    SEQUENCES,
    SQUARE,
    STATE_TENSORS,
    PackedPrefill,
    chunk_stage,
    convert_outputs,
    prefill_scalars,
    touched,
)
from gdnbench_kernels.delta_prefill.shrink import axes, unit_vectors
from gdnbench_kernels.delta_prefill.steps import cut_of
from gdnbench_kernels.gdn import OFFSETS_DTYPE, QK, STATE_LAYOUT, check_form, index_tensors
from gdnbench_kernels.kda import BETA, CONVENTIONS, GATE
from gdnbench_kernels.kda_contract import (
    CONVERSIONS,
    GATE_SCALARS,
    GATE_TENSORS,
    check_gates,
    convert_call,
    gate_tensors,
)
from gdnbench_kernels.kda_prefill.leeway import leeway
from gdnbench_kernels.kda_prefill.ranges import ranges
from gdnbench_kernels.kda_prefill.sizes import CHUNK
from gdnbench_kernels.kda_prefill.stage_rules import stage_leeway, stage_limit, with_rounded_sums
from gdnbench_kernels.kda_prefill.steps import EXACT_STEPS, TORCH_STEPS
from gdnbench_kernels.kda_prefill.synth import synth
from gdnbench_kernels.validate import resolved_scalars

NAME = "kda_prefill"

TENSORS = (*QKV, *gate_tensors(("T",)), *SEQUENCES, *GATE_TENSORS, *OUTPUTS)
SCALARS = (*prefill_scalars(CHUNK), *GATE_SCALARS)
PACKED = PackedPrefill(NAME, SCALARS)

STAGES = (
    chunk_stage(
        "g_cu", ("T", "Hv", "K"), "gate summed from the chunk's start", "cumsum(g)", "float32", ("float32",)
    ),
    chunk_stage(
        "A",
        SQUARE,
        "what a token's update takes from earlier ones",
        "strict_lower(beta_i sum_c k_i[c] k_j[c] exp(g_cu[i,c] - g_cu[j,c]))",
    ),
    chunk_stage("Ai", SQUARE, "unit lower triangular inverse", "(I + A)^-1"),
    chunk_stage("U", ("UB*C", "Hv", "V"), "updates if the state before the chunk were zero", "(Ai beta_j) V"),
    chunk_stage(
        "W",
        ("UB*C", "Hv", "K"),
        "keys that read the state before the chunk",
        "(Ai beta_j) (exp(g_cu_j) o k_j)",
    ),
    chunk_stage("h", ("UB", "Hv", "V", "K"), "state before the chunk", "S"),
    chunk_stage("V_new", ("UB*C", "Hv", "V"), "updates", "U - W S^T"),
    chunk_stage(
        "P",
        SQUARE,
        "what a token's output takes from updates",
        "lower(sum_c q_i[c] k_j[c] exp(g_cu[i,c] - g_cu[j,c]))",
    ),
)

_SERVED = {convention.name: convention.values for convention in (GATE, BETA, QK)}
_FLA = {**_SERVED, STATE_LAYOUT.name: STATE_LAYOUT.values}
_LAYER = {GATE.name: ("bounded",), BETA.name: ("logit",), QK.name: ("raw",)}
"""As Kimi Linear's layers make their inputs."""

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.kda_prefill.reference:reference",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the fp64 oracle, token by token",
        fp64=True,
    ),
    "reference_staged": KernelEntry(
        "gdnbench_kernels.kda_prefill.reference:reference_staged",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the chunked form in fp64, with every stage",
        fp64=True,
        steps=EXACT_STEPS,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.kda_prefill.torch_chunked:torch_chunked",
        {},
        meaning="the chunked form in torch, every operand and every stored value rounded to the served dtype",
        steps=TORCH_STEPS,
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.kda_prefill.hf:hf",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        meaning="transformers' chunk_kimi_delta_attention, sequence by sequence",
        needs=("transformers",),
    ),
    "sm100_fused": KernelEntry(
        "gdnbench_kernels.kda_prefill.fused:sm100_fused",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="one tcgen05 kernel for SM100 in CuTe DSL, without stages; another build where beta_max is 2",
        sources="gdnbench_kernels.kda_prefill.sources:fused_sources",
    ),
    "fla": KernelEntry(
        "gdnbench_kernels.kda_prefill.fla:fla",
        _FLA,
        devices=("cuda", "sim"),
        meaning="flash-linear-attention's chunk_kda, dispatch to other backends off",
        needs=("flash-linear-attention", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.fla:prepare",
    ),
    "fla_safe": KernelEntry(
        "gdnbench_kernels.kda_prefill.fla:fla_safe",
        _FLA,
        devices=("cuda", "sim"),
        meaning="flash-linear-attention's chunk_kda with safe_gate, for gates of -5 a token or more",
        needs=("flash-linear-attention", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.fla:prepare_safe",
    ),
    "flashinfer": KernelEntry(
        "gdnbench_kernels.kda_prefill.flashinfer:flashinfer",
        _LAYER,
        devices=("cuda", "sim"),
        meaning="FlashInfer's recurrent_kda, by the backend that it chooses",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.flashinfer:prepare",
    ),
    "flashinfer_cutedsl": KernelEntry(
        "gdnbench_kernels.kda_prefill.flashinfer:flashinfer_cutedsl",
        _LAYER,
        devices=("cuda", "sim"),
        meaning="FlashInfer's tcgen05 kernels in chunks of 16 tokens",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.flashinfer:prepare_cutedsl",
    ),
    "flashinfer_small_bh": KernelEntry(
        "gdnbench_kernels.kda_prefill.flashinfer:flashinfer_small_bh",
        _LAYER,
        devices=("cuda", "sim"),
        meaning="FlashInfer's two mma.sync kernels for few sequences and heads; bf16 states",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.flashinfer:prepare_small_bh",
    ),
    "flashinfer_persistent": KernelEntry(
        "gdnbench_kernels.kda_prefill.flashinfer:flashinfer_persistent",
        _LAYER,
        devices=("cuda", "sim"),
        meaning="FlashInfer's tcgen05 kernel in chunks of 32 tokens; fp32 states",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.flashinfer:prepare_persistent",
    ),
    "sglang": KernelEntry(
        "gdnbench_kernels.kda_prefill.sglang:sglang",
        {**_SERVED, OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="SGLang's chunk_kda, the Triton kernels of its copy of flash-linear-attention",
        needs=("sglang", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.sglang:prepare",
    ),
    "sglang_cutedsl": KernelEntry(
        "gdnbench_kernels.kda_prefill.sglang:sglang_cutedsl",
        {GATE.name: ("log", "raw"), OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="SGLang's chunk_kda_cutedsl, three CuTe DSL kernels for SM100",
        needs=("sglang", "quack-kernels", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.sglang:prepare_cutedsl",
    ),
    "vllm": KernelEntry(
        "gdnbench_kernels.kda_prefill.vllm:vllm",
        {**_SERVED, OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="vLLM's chunk_kda, the Triton kernels of Kimi K3",
        needs=("vllm", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.kda_prefill.vllm:prepare",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    sizes = check_form(NAME, TENSORS, SCALARS, call, CONVENTIONS)
    PACKED.check(call, sizes["T"])
    check_gates(NAME, call, resolved_scalars(SCALARS, call))


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. Raises ContractError if that is impossible."""
    return convert_call(NAME, call, target, STATE_TENSORS, index_tensors(TENSORS, call))


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call, SCALARS, PACKED.outputs(call))


def level(call: Call) -> dict[str, float]:
    """A decay of 1 where g is the decay; q and k of norm 1 if they are normalised."""
    found = {"g": 0.0} if call.conventions.get("gate", "log") == "log" else {}
    return found | unit_vectors(call)


OPERATION = Operation(
    name=NAME,
    summary="Kimi Delta Attention over packed sequences, chunk by chunk",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=CONVENTIONS,
    stages=STAGES,
    kernels=KERNELS,
    validate=validate,
    convert=convert,
    convert_outputs=convert_outputs,
    outputs=PACKED.outputs,
    touched=touched,
    partition=PACKED.partition,
    synth=synth,
    absent=PACKED.absent,
    conversions=CONVERSIONS,
    stage_limit=stage_limit,
    leeway=leeway,
    stage_leeway=stage_leeway,
    stage_call=with_rounded_sums,
    accesses=accesses,
    work=work,
    carries=STATE_TENSORS,
    cut=cut_of(PACKED.plan_of),
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    shrinking=Shrinking(axes, PACKED.extent, level),
)
