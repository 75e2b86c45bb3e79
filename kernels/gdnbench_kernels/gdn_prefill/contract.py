"""gdn_prefill: the gated delta rule over a packed batch of sequences, from given states to final states.

Axes: T tokens of all sequences, N sequences, H key heads, Hv value heads, K and V head dims, C the chunk
size, UB the upper bound of the number of chunks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
    Call,
    ContractError,
    KernelEntry,
    Laws,
    Operation,
    Partition,
    Region,
    Role,
    ScalarSpec,
    Shaped,
    Shrinking,
    Stage,
    TensorSpec,
    Work,
)
from gdnbench_kernels.gdn import (
    ACTIVATIONS,
    CONVENTIONS,
    CONVERSIONS,
    GATE,
    OFFSETS,
    OFFSETS_DTYPE,
    QK,
    STATE_LAYOUT,
    STATES,
    check_form,
    check_gates,
    convert_call,
    convert_states,
    index_tensors,
)
from gdnbench_kernels.gdn_prefill import laws, shrink
from gdnbench_kernels.gdn_prefill.accesses import accesses
from gdnbench_kernels.gdn_prefill.chunks import ChunkPlan, plan_chunks
from gdnbench_kernels.gdn_prefill.op_cost import work_of
from gdnbench_kernels.gdn_prefill.ranges import ranges
from gdnbench_kernels.gdn_prefill.stage_rules import stage_limit, with_rounded_sums
from gdnbench_kernels.gdn_prefill.stage_sums import stage_leeway
from gdnbench_kernels.gdn_prefill.steps import CUT, EXACT_STEPS, SM100_STEPS, TORCH_STEPS
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.validate import (
    check_integers,
    first_true,
    resolved_scalars,
)

NAME = "gdn_prefill"
STATE_TENSORS = ("initial_state", "final_state")
KV_AXES: Mapping[tuple[str, str], tuple[str, ...]] = {("state_layout", "KV"): ("N", "Hv", "K", "V")}

TENSORS = (
    TensorSpec("q", ("T", "H", "K"), ACTIVATIONS, Role.INPUT, "queries"),
    TensorSpec("k", ("T", "H", "K"), ACTIVATIONS, Role.INPUT, "keys, of q's dtype"),
    TensorSpec("v", ("T", "Hv", "V"), ACTIVATIONS, Role.INPUT, "values, of q's dtype; Hv is a multiple of H"),
    TensorSpec(
        "g",
        ("T", "Hv"),
        STATES,
        Role.INPUT,
        "gate: log-space decay, or alpha where linear",
        minus_infinity=True,
    ),
    TensorSpec("beta", ("T", "Hv"), STATES, Role.INPUT, "step size, in [0, beta_max]"),
    TensorSpec(
        "cu_seqlens", ("N+1",), OFFSETS, Role.INPUT, "sequence n is tokens cu_seqlens[n] .. cu_seqlens[n+1]-1"
    ),
    TensorSpec(
        "initial_state",
        ("N", "Hv", "V", "K"),
        STATES,
        Role.INPUT,
        "state before the first token; zeros if absent",
        optional=True,
        axes_by=KV_AXES,
    ),
    TensorSpec(
        "chunk_indices",
        ("UB", "2"),
        OFFSETS,
        Role.INPUT,
        "(sequence, chunk within it) of every chunk; rows past total_chunks are not read",
        optional=True,
    ),
    TensorSpec("chunk_offsets", ("N+1",), OFFSETS, Role.INPUT, "chunks before each sequence", optional=True),
    TensorSpec("o", ("T", "Hv", "V"), ACTIVATIONS, Role.OUTPUT, "outputs, of v's dtype"),
    TensorSpec(
        "final_state",
        ("N", "Hv", "V", "K"),
        STATES,
        Role.OUTPUT,
        "state after the last token, if output_final_state",
        optional=True,
        axes_by=KV_AXES,
    ),
)

SCALARS = (
    ScalarSpec("scale", float, None, "factor of the output; K ** -0.5 unless given"),
    ScalarSpec("chunk_size", int, 64, "C, tokens of a chunk"),
    ScalarSpec("output_final_state", bool, True, "whether final_state is an output"),
    ScalarSpec(
        "final_state_dtype",
        str,
        None,
        "dtype of final_state; that of initial_state, or float32, unless given",
    ),
    ScalarSpec("beta_max", float, 1.0, "upper end of beta's range, 1 or 2"),
)


def _stage(
    name: str,
    axes: tuple[str, ...],
    meaning: str,
    formula: str,
    rounded_to: str = "v",
    dtypes: tuple[str, ...] = (),
) -> Stage:
    return Stage(TensorSpec(name, axes, dtypes or ACTIVATIONS, Role.OUTPUT, meaning), formula, rounded_to)


_SQUARE = ("UB", "Hv", "C", "C")
STAGES = (
    _stage("g_cu", ("T", "Hv"), "gate summed from the chunk's start", "cumsum(g)", "float32", ("float32",)),
    _stage(
        "A",
        _SQUARE,
        "what a token's update takes from earlier ones",
        "strict_lower(beta_i (K K^T)[i,j] Gamma[i,j])",
    ),
    _stage("Ai", _SQUARE, "unit lower triangular inverse", "(I + A)^-1"),
    _stage("U", ("UB*C", "Hv", "V"), "updates if the state before the chunk were zero", "(Ai beta_j) V"),
    _stage(
        "W", ("UB*C", "Hv", "K"), "keys that read the state before the chunk", "(Ai beta_j exp(g_cu_j)) K"
    ),
    _stage("h", ("UB", "Hv", "V", "K"), "state before the chunk", "S"),
    _stage("V_new", ("UB*C", "Hv", "V"), "updates", "U - W S^T"),
    _stage("P", _SQUARE, "what a token's output takes from updates", "lower(Q K^T Gamma)"),
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
    scalars = resolved_scalars(SCALARS, call)
    if int(scalars["chunk_size"] or 0) < 1:
        raise ContractError(f"{NAME}: scalar chunk_size is {scalars['chunk_size']}; it must be at least 1")
    if scalars["final_state_dtype"] not in (None, *STATES):
        raise ContractError(
            f"{NAME}: scalar final_state_dtype is {scalars['final_state_dtype']!r};"
            f" it must be {' or '.join(STATES)}"
        )
    _check_cu_seqlens(call.tensors["cu_seqlens"], sizes["T"])
    _check_chunks(call)
    check_gates(NAME, call, scalars["beta_max"])


def _check_cu_seqlens(cu_seqlens: Tensor, tokens: int) -> None:
    bounds = cu_seqlens.cpu().long()
    if int(bounds[0]) != 0:
        raise ContractError(f"{NAME}: cu_seqlens[0] is {int(bounds[0])}; offsets must start at 0")
    if (past := first_true(bounds > tokens)) is not None:
        raise ContractError(f"{NAME}: cu_seqlens[{past[0]}] is {int(bounds[past])}, past T = {tokens}")
    if (falls := first_true(bounds.diff() < 0)) is not None:
        i = falls[0] + 1
        raise ContractError(
            f"{NAME}: cu_seqlens[{i}] is {int(bounds[i])}, below cu_seqlens[{i - 1}] = {int(bounds[i - 1])};"
            " offsets must not decrease"
        )
    if int(bounds[-1]) != tokens:
        raise ContractError(
            f"{NAME}: cu_seqlens[{len(bounds) - 1}] is {int(bounds[-1])};"
            f" the last offset must be T = {tokens}"
        )


def _check_chunks(call: Call) -> None:
    """Raises ContractError for chunk tables that do not match cu_seqlens and chunk_size."""
    plan = plan_of(call)
    why = f"chunks of {plan.chunk_size} over cu_seqlens"
    if call.tensors.get("chunk_offsets") is not None:
        check_integers(NAME, call, "chunk_offsets", plan.offsets, why)
    indices = call.tensors.get("chunk_indices")
    if indices is not None:
        if len(indices) < plan.total:
            raise ContractError(
                f"{NAME}: chunk_indices has {len(indices)} rows; {why} makes {plan.total} chunks"
            )
        check_integers(NAME, call, "chunk_indices", torch.stack([plan.sequence, plan.index], dim=1), why)


def plan_of(call: Call) -> ChunkPlan:
    """The chunks of a valid call."""
    chunk_size = resolved_scalars(SCALARS, call)["chunk_size"]
    assert isinstance(chunk_size, int)
    return plan_chunks(call.tensors["cu_seqlens"], chunk_size)


def _zero_state(call: Call) -> Tensor:
    """Zeros, in the layout and dtype of the final states."""
    k, v = call.tensors["k"], call.tensors["v"]
    last = (v.shape[2], k.shape[2])
    if call.conventions.get(STATE_LAYOUT.name) == "KV":
        last = last[::-1]
    dtype = getattr(torch, str(resolved_scalars(SCALARS, call)["final_state_dtype"] or "float32"))
    return torch.zeros(len(call.tensors["cu_seqlens"]) - 1, v.shape[1], *last, dtype=dtype, device=v.device)


def _chunk_indices(call: Call) -> Tensor:
    """[UB, 2]; rows past the chunks hold zeros."""
    plan = plan_of(call)
    found = torch.zeros(plan.bound, 2, dtype=torch.int64)
    found[: plan.total] = torch.stack([plan.sequence, plan.index], dim=1)
    return found.to(call.tensors["cu_seqlens"])


def _chunk_offsets(call: Call) -> Tensor:
    return plan_of(call).offsets.to(call.tensors["cu_seqlens"])


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. Raises ContractError if that is impossible."""
    return convert_call(NAME, call, target, STATE_TENSORS, index_tensors(TENSORS, call))


def convert_outputs(
    outputs: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    """Outputs in the conventions `target`: final_state is transposed if the layouts differ."""
    return convert_states(outputs, source, target, STATE_TENSORS)


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of every output of a valid call, in the call's conventions."""
    k, v, first = call.tensors["k"], call.tensors["v"], call.tensors.get("initial_state")
    scalars = resolved_scalars(SCALARS, call)
    found = {"o": (tuple(v.shape), v.dtype)}
    if scalars["output_final_state"]:
        sequences = len(call.tensors["cu_seqlens"]) - 1
        value_by_key = (v.shape[2], k.shape[2])
        last = value_by_key[::-1] if call.conventions.get(STATE_LAYOUT.name) == "KV" else value_by_key
        asked = scalars["final_state_dtype"]
        dtype: torch.dtype = (
            getattr(torch, str(asked)) if asked else torch.float32 if first is None else first.dtype
        )
        found["final_state"] = ((sequences, v.shape[1], *last), dtype)
    return found


def touched(call: Call) -> dict[str, Tensor]:
    """Empty: the operation has no pools."""
    return {}


def partition(call: Call, name: str) -> Partition:
    """The owners of the rows of an output or stage. Raises KeyError for any other name."""
    plan = plan_of(call)
    if name == "final_state":
        return Partition(tuple(Region(n, n + 1, n) for n in range(len(plan.offsets) - 1)), head_axis=1)
    chunks = zip(
        plan.sequence.tolist(), plan.index.tolist(), plan.start.tolist(), plan.length.tolist(), strict=True
    )
    size = plan.chunk_size
    if name in ("o", "g_cu"):
        regions = (Region(start, start + length, n, c, c * size) for n, c, start, length in chunks)
    elif name in ("U", "W", "V_new"):
        regions = (
            Region(i * size, i * size + length, n, c, c * size) for i, (n, c, _, length) in enumerate(chunks)
        )
    elif name in ("A", "Ai", "P"):
        regions = (Region(i, i + 1, n, c, tokens=length) for i, (n, c, _, length) in enumerate(chunks))
    elif name == "h":
        regions = (Region(i, i + 1, n, c) for i, (n, c, _, _) in enumerate(chunks))
    else:
        raise KeyError(name)
    return Partition(tuple(regions), head_axis=1)


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call, SCALARS, outputs(call))


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
    outputs=outputs,
    touched=touched,
    partition=partition,
    synth=synth,
    absent={
        "initial_state": _zero_state,
        "chunk_indices": _chunk_indices,
        "chunk_offsets": _chunk_offsets,
    },
    conversions=CONVERSIONS,
    stage_limit=stage_limit,
    stage_leeway=stage_leeway,
    stage_call=with_rounded_sums,
    accesses=accesses,
    work=work,
    carries=STATE_TENSORS,
    cut=CUT,
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level),
)
