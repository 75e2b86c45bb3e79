"""gdn_prefill: the gated delta rule over a packed batch of sequences, from given states to final states.

Axes: T tokens of all sequences, N sequences, H key heads, Hv value heads, K and V head dims, C the chunk
size, UB the upper bound of the number of chunks.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

from gdnbench_kernels.contract import (
    Call,
    KernelEntry,
    Laws,
    Operation,
    Role,
    ScalarSpec,
    Shrinking,
    TensorSpec,
    Work,
)
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
from gdnbench_kernels.gdn import (
    CONVENTIONS,
    CONVERSIONS,
    GATE,
    OFFSETS_DTYPE,
    QK,
    STATE_LAYOUT,
    STATES,
    check_form,
    check_gates,
    convert_call,
    index_tensors,
)
from gdnbench_kernels.gdn_prefill.leeway import leeway
from gdnbench_kernels.gdn_prefill.ranges import ranges
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.stage_rules import stage_leeway, stage_limit, with_rounded_sums
from gdnbench_kernels.gdn_prefill.steps import EXACT_STEPS, SM100_STEPS, TORCH_STEPS
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.validate import resolved_scalars

NAME = "gdn_prefill"

TENSORS = (
    *QKV,
    TensorSpec(
        "g",
        ("T", "Hv"),
        STATES,
        Role.INPUT,
        "gate: log-space decay, or alpha where linear",
        minus_infinity=True,
    ),
    TensorSpec("beta", ("T", "Hv"), STATES, Role.INPUT, "step size, in [0, beta_max]"),
    *SEQUENCES,
    *OUTPUTS,
)

SCALARS = (
    *prefill_scalars(CHUNK),
    ScalarSpec("beta_max", float, 1.0, "upper end of beta's range, 1 or 2"),
)
PACKED = PackedPrefill(NAME, SCALARS)

STAGES = (
    chunk_stage(
        "g_cu", ("T", "Hv"), "gate summed from the chunk's start", "cumsum(g)", "float32", ("float32",)
    ),
    chunk_stage(
        "A",
        SQUARE,
        "what a token's update takes from earlier ones",
        "strict_lower(beta_i (K K^T)[i,j] Gamma[i,j])",
    ),
    chunk_stage("Ai", SQUARE, "unit lower triangular inverse", "(I + A)^-1"),
    chunk_stage("U", ("UB*C", "Hv", "V"), "updates if the state before the chunk were zero", "(Ai beta_j) V"),
    chunk_stage(
        "W", ("UB*C", "Hv", "K"), "keys that read the state before the chunk", "(Ai beta_j exp(g_cu_j)) K"
    ),
    chunk_stage("h", ("UB", "Hv", "V", "K"), "state before the chunk", "S"),
    chunk_stage("V_new", ("UB*C", "Hv", "V"), "updates", "U - W S^T"),
    chunk_stage("P", SQUARE, "what a token's output takes from updates", "lower(Q K^T Gamma)"),
)

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.gdn_prefill.reference:reference",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the fp64 oracle, token by token",
        fp64=True,
    ),
    "reference_staged": KernelEntry(
        "gdnbench_kernels.gdn_prefill.reference:reference_staged",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the chunked form in fp64, with every stage",
        fp64=True,
        steps=EXACT_STEPS,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.gdn_prefill.torch_chunked:torch_chunked",
        {},
        meaning="the published three-kernel design in torch, rounding where it rounds",
        steps=TORCH_STEPS,
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.gdn_prefill.hf:hf",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        meaning="transformers' torch_chunk_gated_delta_rule, sequence by sequence",
        needs=("transformers",),
    ),
    "sm100": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sm100:sm100",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="four tcgen05 kernels for SM100 in CuTe DSL; another build where beta_max is 2",
        sources="gdnbench_kernels.gdn_prefill.sources:sources",
        steps=SM100_STEPS,
    ),
    "sm100_fused": KernelEntry(
        "gdnbench_kernels.gdn_prefill.fused:sm100_fused",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="one tcgen05 kernel for SM100 in CuTe DSL, without stages; another build where beta_max is 2",
        sources="gdnbench_kernels.gdn_prefill.sources:fused_sources",
    ),
    "sm100_fused_cp": KernelEntry(
        "gdnbench_kernels.gdn_prefill.fused_cp:sm100_fused_cp",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="the fused kernel over segments of 1024 tokens: for long sequences with few heads",
        sources="gdnbench_kernels.gdn_prefill.segment_sources:cp_sources",
    ),
    "sm100_auto": KernelEntry(
        "gdnbench_kernels.gdn_prefill.auto:sm100_auto",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="sm100, sm100_fused or sm100_fused_cp, by the call's shapes",
    ),
    "sm90": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sm90_cp:sm90",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="sm90_fused or sm90_prepared, whole or by segments, by the call's shapes",
    ),
    "sm90_fused": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sm90_fused:sm90_fused",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="one wgmma kernel for SM90 in CuTe DSL, without stages; another build where beta_max is 2",
        sources="gdnbench_kernels.gdn_prefill.sm90_sources:sm90_sources",
        archs=("sm_90a",),
    ),
    "sm90_fused_cp": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sm90_cp:sm90_fused_cp",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="sm90_fused over segments of 1024 tokens: for long sequences with few heads",
        sources="gdnbench_kernels.gdn_prefill.sm90_segment_sources:sm90_cp_sources",
        archs=("sm_90a",),
    ),
    "sm90_prepared": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sm90_cp:sm90_prepared",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="two wgmma kernels for SM90: inverses of all chunks at once, then the states",
        sources="gdnbench_kernels.gdn_prefill.sm90_prepared_sources:sm90_prepared_sources",
        archs=("sm_90a",),
    ),
    "fla": KernelEntry(
        "gdnbench_kernels.gdn_prefill.fla:fla",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="flash-linear-attention's chunk_gated_delta_rule, dispatch to other backends off",
        needs=("flash-linear-attention", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.fla:prepare",
    ),
    "flashinfer": KernelEntry(
        "gdnbench_kernels.gdn_prefill.flashinfer:flashinfer",
        {GATE.name: ("linear",), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="FlashInfer's chunk_gated_delta_rule for Hopper or Blackwell; context parallel if small",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.flashinfer:prepare",
    ),
    "flashinfer_cp": KernelEntry(
        "gdnbench_kernels.gdn_prefill.flashinfer:flashinfer_cp",
        {GATE.name: ("linear",), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="FlashInfer's chunk_gated_delta_rule, always context parallel: four kernels",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.flashinfer:prepare_cp",
    ),
    "flashinfer_plain": KernelEntry(
        "gdnbench_kernels.gdn_prefill.flashinfer:flashinfer_plain",
        {GATE.name: ("linear",), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="FlashInfer's chunk_gated_delta_rule, never context parallel: one kernel",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.flashinfer:prepare_plain",
    ),
    "flashqla": KernelEntry(
        "gdnbench_kernels.gdn_prefill.flashqla:flashqla",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        devices=("cuda",),
        meaning="FlashQLA's chunk_gated_delta_rule, TileLang kernels; splits long sequences by their gates",
        needs=("flash-qla", "tilelang"),
        prepare="gdnbench_kernels.gdn_prefill.flashqla:prepare",
    ),
    "vllm": KernelEntry(
        "gdnbench_kernels.gdn_prefill.vllm:vllm",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="vLLM's chunk_gated_delta_rule_cutedsl, three CuTe DSL kernels for SM100",
        needs=("vllm", "quack-kernels"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.vllm:prepare",
    ),
    "vllm_triton": KernelEntry(
        "gdnbench_kernels.gdn_prefill.vllm:vllm_triton",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="vLLM's chunk_gated_delta_rule, the Triton kernels of its copy of flash-linear-attention",
        needs=("vllm", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.vllm:prepare_triton",
    ),
    "sglang": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sglang:sglang",
        {QK.name: QK.values, OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="SGLang's chunk_gated_delta_rule, the Triton kernels of its copy of flash-linear-attention",
        needs=("sglang", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.sglang:prepare",
    ),
    "sglang_cutedsl": KernelEntry(
        "gdnbench_kernels.gdn_prefill.sglang:sglang_cutedsl",
        {OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="SGLang's chunk_gated_delta_rule_cutedsl, three CuTe DSL kernels for SM100",
        needs=("sglang", "quack-kernels"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_prefill.sglang:prepare_cutedsl",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    sizes = check_form(NAME, TENSORS, SCALARS, call)
    PACKED.check(call, sizes["T"])
    check_gates(NAME, call, resolved_scalars(SCALARS, call)["beta_max"])


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. Raises ContractError if that is impossible."""
    return convert_call(NAME, call, target, STATE_TENSORS, index_tensors(TENSORS, call))


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call, SCALARS, PACKED.outputs(call))


def level(call: Call) -> dict[str, float]:
    """A decay of 1; q and k of norm 1 if they are normalised."""
    found = {} if call.conventions.get("gate") == "linear" else {"g": 0.0}
    return found | unit_vectors(call)


OPERATION = Operation(
    name=NAME,
    summary="gated delta rule over packed sequences, chunk by chunk",
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
