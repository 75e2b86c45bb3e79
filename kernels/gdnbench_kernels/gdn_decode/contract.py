"""gdn_decode: the gated delta rule for a few tokens of each sequence, on a pool of states updated in place.

Axes: B sequences, S tokens of each, H key heads, Hv value heads, K and V head dims, `slots` states in the
pool. Sequence i reads slot state_indices[i, num_accepted[i] - 1], or read_indices[i] if that is given, and
after its token t writes slot state_indices[i, t]; with S = 1 this is plain decode. A sequence whose slot to
read is -1 is padding: it reads and writes nothing, and its rows of o are undefined. In other sequences a
token whose slot is -1 writes no state. Several sequences may read a slot that none writes.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

import torch
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
    Role,
    ScalarSpec,
    Shaped,
    Shrinking,
    TensorSpec,
    Work,
)
from gdnbench_kernels.delta_decode import laws, shrink
from gdnbench_kernels.delta_decode.op_cost import work_of
from gdnbench_kernels.delta_decode.tensors import BETA, OUTPUT, POOL, QKV, QUERIES_AND_KEYS, SCALE, stage
from gdnbench_kernels.gdn import (
    CONVERSIONS,
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
from gdnbench_kernels.gdn_decode.gates import CONVENTIONS, GATE, Gates
from gdnbench_kernels.gdn_decode.leeway import leeway
from gdnbench_kernels.gdn_decode.ranges import ranges as ranges_of
from gdnbench_kernels.gdn_decode.stage_rules import stage_limit
from gdnbench_kernels.gdn_decode.steps import CUTE_STEPS, EXACT_STEPS, TORCH_STEPS
from gdnbench_kernels.gdn_decode.synth import synth
from gdnbench_kernels.state_pool import check_slots, one_accepted, slots_of
from gdnbench_kernels.validate import resolved_scalars

NAME = "gdn_decode"
RAW_TENSORS = ("A_log", "dt_bias")

DECODE_CONVERSIONS: Mapping[tuple[str, str, str], str] = {
    ("gate", "raw", "log"): "g and beta computed from a, b, A_log and dt_bias, in fp32",
    ("gate", "raw", "linear"): "exp(g) and beta computed from a, b, A_log and dt_bias, in fp32",
    **CONVERSIONS,
}

TENSORS = (
    *QKV,
    TensorSpec(
        "g",
        ("B", "S", "Hv"),
        STATES,
        Role.INPUT,
        "log-space decay; alpha where linear, a where raw",
        minus_infinity=True,
    ),
    TensorSpec("beta", ("B", "S", "Hv"), STATES, Role.INPUT, "step size, in [0, beta_max]; b where raw"),
    *POOL,
    TensorSpec("A_log", ("Hv",), ("float32",), Role.INPUT, "log of a head's rate, where raw", optional=True),
    TensorSpec(
        "dt_bias",
        ("Hv",),
        ("float32", "bfloat16"),
        Role.INPUT,
        "added to a before the softplus, where raw",
        optional=True,
    ),
    OUTPUT,
)

SCALARS = (SCALE, ScalarSpec("beta_max", float, 1.0, "upper end of beta's range, 1 or 2"))

STAGES = (
    stage("alpha_t", ("B", "S", "Hv"), "factor of the state", "exp(g)"),
    BETA,
    *QUERIES_AND_KEYS,
    stage("delta_t", ("B", "S", "Hv", "V"), "update", "beta_t (v - alpha_t S k_t)"),
)
"""The stages of a token: the gates, q and k after conversion from raw ones, and the update."""

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.gdn_decode.reference:reference",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the fp64 oracle",
        fp64=True,
    ),
    "reference_staged": KernelEntry(
        "gdnbench_kernels.gdn_decode.reference:reference",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the same, step by step",
        fp64=True,
        steps=EXACT_STEPS,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.gdn_decode.torch_recurrent:torch_recurrent",
        {GATE.name: GATE.values, QK.name: QK.values},
        meaning="the recurrence in fp32, state and outputs rounded to their dtypes",
        steps=TORCH_STEPS,
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.gdn_decode.hf:hf",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        meaning="transformers' torch_recurrent_gated_delta_rule on gathered slots; one token a sequence",
        needs=("transformers",),
    ),
    "cute": KernelEntry(
        "gdnbench_kernels.gdn_decode.cute:cute",
        {GATE.name: ("log", "raw"), QK.name: QK.values, OFFSETS_DTYPE.name: ("int32",)},
        devices=("sim", "cuda"),
        meaning="CuTe DSL for SM90 and SM100: one pass over each state, in place",
        sources="gdnbench_kernels.gdn_decode.sources:sources",
        prepare="gdnbench_kernels.gdn_decode.cute:prepare",
        steps=CUTE_STEPS,
    ),
    "fla": KernelEntry(
        "gdnbench_kernels.gdn_decode.fla:fla",
        {GATE.name: ("log", "raw"), STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="flash-linear-attention's fused_recurrent_gated_delta_rule on gathered slots; one token",
        needs=("flash-linear-attention", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_decode.fla:prepare",
    ),
    "flashinfer": KernelEntry(
        "gdnbench_kernels.gdn_decode.flashinfer:flashinfer",
        {GATE.name: ("raw",), QK.name: QK.values, OFFSETS_DTYPE.name: ("int32",)},
        devices=("cuda", "sim"),
        meaning="FlashInfer's decode kernels on the pool, which make the gates themselves",
        needs=("flashinfer-python",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_decode.flashinfer:prepare",
    ),
    "vllm": KernelEntry(
        "gdnbench_kernels.gdn_decode.vllm:vllm",
        {GATE.name: ("log", "raw"), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="vLLM's Triton kernels on the pool in place, packed where it has raw gates and one token",
        needs=("vllm", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_decode.vllm:prepare",
    ),
    "sglang": KernelEntry(
        "gdnbench_kernels.gdn_decode.sglang:sglang",
        {GATE.name: ("log", "raw"), QK.name: QK.values},
        devices=("cuda", "sim"),
        meaning="SGLang's Triton kernels: packed for raw gates and one token, else those that verify drafts",
        needs=("sglang", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_decode.sglang:prepare",
    ),
    "sglang_cutedsl": KernelEntry(
        "gdnbench_kernels.gdn_decode.sglang:sglang_cutedsl",
        {GATE.name: ("raw",), QK.name: ("raw",)},
        devices=("cuda", "sim"),
        meaning="SGLang's CuTe DSL kernel on the pool in place; one token",
        needs=("sglang",),
        cuda_tensors=True,
        prepare="gdnbench_kernels.gdn_decode.sglang:prepare_cutedsl",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    sizes = check_form(NAME, TENSORS, SCALARS, call, CONVENTIONS)
    if sizes["S"] < 1:
        raise ContractError(f"{NAME}: q has S = 0 on axis 1; a sequence has at least one token")
    _check_raw(call)
    check_slots(NAME, call, sizes)
    check_gates(NAME, call, resolved_scalars(SCALARS, call)["beta_max"])


def _check_raw(call: Call) -> None:
    """Raw gates need A_log and dt_bias; other gates must not have them."""
    form = call.conventions.get(GATE.name, GATE.values[0])
    for name in RAW_TENSORS:
        if form == "raw" and name not in call.tensors:
            raise ContractError(f"{NAME}: tensor {name} is missing; with gate raw its axes are [Hv]")
        if form != "raw" and name in call.tensors:
            raise ContractError(f"{NAME}: tensor {name} belongs to gate raw, not to {form}; leave it out")


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `DECODE_CONVERSIONS`. Raises ContractError if that is impossible."""
    wanted = target.get(GATE.name, "raw")
    if call.conventions.get(GATE.name) == "raw" and wanted in ("log", "linear"):
        call = _with_log_gates(call)
    return convert_call(NAME, call, target, ("state",), index_tensors(TENSORS, call), CONVENTIONS)


def _with_log_gates(call: Call) -> Call:
    tensors = {name: tensor for name, tensor in call.tensors.items() if name not in RAW_TENSORS}
    beta_max = resolved_scalars(SCALARS, call)["beta_max"]
    assert isinstance(beta_max, int | float)
    gates = Gates("raw", call.tensors["A_log"], call.tensors["dt_bias"], beta_max)
    tensors["g"] = gates.log_decay(tensors["g"].contiguous(), torch.float32)
    tensors["beta"] = gates.beta(tensors["beta"].contiguous(), torch.float32)
    return Call(tensors, call.scalars, {**call.conventions, GATE.name: "log"})


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
    summary="gated delta rule for the next tokens of each sequence, on a pool of states",
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
    conversions=DECODE_CONVERSIONS,
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
