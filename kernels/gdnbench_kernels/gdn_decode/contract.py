"""gdn_decode: the gated delta rule for a few tokens of each sequence, on a pool of states updated in place.

Axes: B sequences, S tokens of each, H key heads, Hv value heads, K and V head dims, `slots` states in the
pool. Sequence i reads slot state_indices[i, num_accepted[i] - 1], or read_indices[i] if that is given, and
after its token t writes slot state_indices[i, t]; with S = 1 this is plain decode. A sequence whose slot to
read is -1 is padding: it reads and writes nothing, and its rows of o are undefined. In other sequences a
token whose slot is -1 writes no state. Several sequences may read a slot that none writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
    Call,
    ContractError,
    KernelEntry,
    Laws,
    NamedRows,
    Operation,
    Partition,
    Ranges,
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
    CONVERSIONS,
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
from gdnbench_kernels.gdn_decode import laws, shrink
from gdnbench_kernels.gdn_decode.accesses import accesses
from gdnbench_kernels.gdn_decode.gates import CONVENTIONS, GATE, Gates
from gdnbench_kernels.gdn_decode.leeway import leeway
from gdnbench_kernels.gdn_decode.op_cost import work_of
from gdnbench_kernels.gdn_decode.ranges import ranges as ranges_of
from gdnbench_kernels.gdn_decode.slots import PADDING, SlotPlan, plan_slots
from gdnbench_kernels.gdn_decode.stage_rules import stage_limit
from gdnbench_kernels.gdn_decode.steps import CUTE_STEPS, EXACT_STEPS, TORCH_STEPS
from gdnbench_kernels.gdn_decode.synth import synth
from gdnbench_kernels.validate import (
    element_name,
    first_true,
    resolved_scalars,
)

NAME = "gdn_decode"
RAW_TENSORS = ("A_log", "dt_bias")

DECODE_CONVERSIONS: Mapping[tuple[str, str, str], str] = {
    ("gate", "raw", "log"): "g and beta computed from a, b, A_log and dt_bias, in fp32",
    ("gate", "raw", "linear"): "exp(g) and beta computed from a, b, A_log and dt_bias, in fp32",
    **CONVERSIONS,
}

TENSORS = (
    TensorSpec("q", ("B", "S", "H", "K"), ACTIVATIONS, Role.INPUT, "queries"),
    TensorSpec("k", ("B", "S", "H", "K"), ACTIVATIONS, Role.INPUT, "keys, of q's dtype"),
    TensorSpec(
        "v", ("B", "S", "Hv", "V"), ACTIVATIONS, Role.INPUT, "values, of q's dtype; Hv is a multiple of H"
    ),
    TensorSpec(
        "g",
        ("B", "S", "Hv"),
        STATES,
        Role.INPUT,
        "log-space decay; alpha where linear, a where raw",
        minus_infinity=True,
    ),
    TensorSpec("beta", ("B", "S", "Hv"), STATES, Role.INPUT, "step size, in [0, beta_max]; b where raw"),
    TensorSpec(
        "state",
        ("slots", "Hv", "V", "K"),
        STATES,
        Role.MUTATED,
        "the state pool; its slots may lie further apart than they are long",
        pool_index="state_indices",
        axes_by={("state_layout", "KV"): ("slots", "Hv", "K", "V")},
    ),
    TensorSpec("state_indices", ("B", "S"), OFFSETS, Role.INPUT, "slot of each token's state; -1 is padding"),
    TensorSpec(
        "num_accepted",
        ("B",),
        ("int32",),
        Role.INPUT,
        "which token's slot holds the state to read, counted from 1; 1 if absent",
        optional=True,
    ),
    TensorSpec(
        "read_indices",
        ("B",),
        ("int32",),
        Role.INPUT,
        "slot that each sequence reads, -1 for padding; not together with num_accepted",
        optional=True,
    ),
    TensorSpec("A_log", ("Hv",), ("float32",), Role.INPUT, "log of a head's rate, where raw", optional=True),
    TensorSpec(
        "dt_bias",
        ("Hv",),
        ("float32", "bfloat16"),
        Role.INPUT,
        "added to a before the softplus, where raw",
        optional=True,
    ),
    TensorSpec("o", ("B", "S", "Hv", "V"), ACTIVATIONS, Role.OUTPUT, "outputs, of v's dtype"),
)

SCALARS = (
    ScalarSpec("scale", float, None, "factor of the output; K ** -0.5 unless given"),
    ScalarSpec("beta_max", float, 1.0, "upper end of beta's range, 1 or 2"),
)


def _stage(name: str, axes: tuple[str, ...], meaning: str, formula: str) -> Stage:
    """A stage of decode, which kernels keep in registers as fp32."""
    return Stage(TensorSpec(name, axes, ("float32",), Role.OUTPUT, meaning), formula, "float32")


STAGES = (
    _stage("alpha_t", ("B", "S", "Hv"), "factor of the state", "exp(g)"),
    _stage("beta_t", ("B", "S", "Hv"), "step size", "beta, or beta_max sigmoid(b)"),
    _stage("q_t", ("B", "S", "H", "K"), "queries", "q, or q (sum q^2 + 1e-6)^-1/2"),
    _stage("k_t", ("B", "S", "H", "K"), "keys", "k, or k (sum k^2 + 1e-6)^-1/2"),
    _stage("delta_t", ("B", "S", "Hv", "V"), "update", "beta_t (v - alpha_t S k_t)"),
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
    _check_slots(call, sizes)
    check_gates(NAME, call, resolved_scalars(SCALARS, call)["beta_max"])


def _check_raw(call: Call) -> None:
    """Raw gates need A_log and dt_bias; other gates must not have them."""
    form = call.conventions.get(GATE.name, GATE.values[0])
    for name in RAW_TENSORS:
        if form == "raw" and name not in call.tensors:
            raise ContractError(f"{NAME}: tensor {name} is missing; with gate raw its axes are [Hv]")
        if form != "raw" and name in call.tensors:
            raise ContractError(f"{NAME}: tensor {name} belongs to gate raw, not to {form}; leave it out")


def _check_slots(call: Call, sizes: Mapping[str, int]) -> None:
    if "read_indices" in call.tensors and "num_accepted" in call.tensors:
        raise ContractError(
            f"{NAME}: read_indices and num_accepted are both given; each says which slot is read, give one"
        )
    for name in ("state_indices", "read_indices"):
        if name in call.tensors:
            _check_in_pool(name, call.tensors[name], sizes["slots"])
    indices, accepted = call.tensors["state_indices"].cpu(), call.tensors.get("num_accepted")
    if accepted is not None:
        counts = accepted.cpu()
        wrong = first_true(((counts < 1) | (counts > sizes["S"])) & (indices != PADDING).any(1))
        if wrong is not None:
            raise ContractError(
                f"{NAME}: {element_name('num_accepted', wrong)} is {int(counts[wrong])};"
                f" it must lie in [1, S = {sizes['S']}]"
            )
    _check_races(slots_of(call))


def _check_in_pool(name: str, tensor: Tensor, slots: int) -> None:
    indices = tensor.cpu().long()
    outside = first_true((indices < PADDING) | (indices >= slots))
    if outside is not None:
        raise ContractError(
            f"{NAME}: {element_name(name, outside)} is {int(indices[outside])};"
            f" it must be a slot in [0, {slots - 1}], or -1 for padding"
        )


def _check_races(plan: SlotPlan) -> None:
    """Raises ContractError for a slot that two sequences write, or that one sequence reads and another
    writes."""
    tokens = plan.write.shape[1]
    slots = plan.write.flatten()
    order = slots.argsort(stable=True)  # stable: by sequence within a slot
    slots, owners = slots[order], order // tokens

    def place(ordered: int) -> str:
        token = int(order[ordered])
        return element_name("state_indices", (int(plan.active[token // tokens]), token % tokens))

    raced = first_true((slots[1:] == slots[:-1]) & (owners[1:] != owners[:-1]) & (slots[1:] != PADDING))
    if raced is not None:
        raise ContractError(
            f"{NAME}: {place(raced[0] + 1)} is {int(slots[raced])}, as is {place(raced[0])};"
            " two sequences would race for that slot"
        )
    # Each slot now has at most one writer. Without read_indices a sequence reads its own slot.
    found = torch.searchsorted(slots, plan.read).clamp(max=max(0, len(slots) - 1))
    theirs = (slots[found] == plan.read) & (owners[found] != torch.arange(len(plan.read)))
    if (stolen := first_true(theirs)) is not None:
        raise ContractError(
            f"{NAME}: {element_name('read_indices', (int(plan.active[stolen]),))} is {int(plan.read[stolen])}"
            f", as is {place(int(found[stolen]))}; one sequence would read what another writes"
        )


def _one_accepted(call: Call) -> Tensor:
    return torch.ones(len(call.tensors["q"]), dtype=torch.int32, device=call.tensors["q"].device)


def slots_of(call: Call) -> SlotPlan:
    """The slots of a call, on the host."""
    named = (call.tensors.get(name) for name in ("state_indices", "num_accepted", "read_indices"))
    indices, accepted, read = (None if tensor is None else tensor.cpu() for tensor in named)
    if indices is None:
        raise KeyError("state_indices")
    return plan_slots(indices, accepted, read)


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


def touched(call: Call) -> dict[str, Tensor]:
    """The slots that active sequences read or write: sorted, unique, int64 on the host."""
    return {"state": slots_of(call).touched}


def named_rows(call: Call) -> dict[str, Tensor]:
    """Every slot in an index tensor, whether its sequence is active or not."""
    named = (call.tensors.get(name) for name in ("state_indices", "read_indices"))
    return {"state": torch.cat([indices.flatten() for indices in named if indices is not None])}


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices and read_indices for a pool with only the slots `stored`. Slots of padding sequences,
    which are never accessed, become -1. Raises ContractError for another slot that is not stored."""
    if "state" not in stored:
        return {}
    slots = torch.tensor(stored["state"], dtype=torch.int64)
    idle = torch.ones(len(call.tensors["state_indices"]), dtype=torch.bool)
    idle[slots_of(call).active] = False
    found = {}
    for name in ("state_indices", "read_indices"):
        if name in call.tensors:
            indices = call.tensors[name]
            unused = idle if indices.ndim == 1 else idle.unsqueeze(1)
            found[name] = _places(name, indices.long().masked_fill(unused, PADDING), slots).to(indices.dtype)
    return found


def _places(name: str, indices: Tensor, slots: Tensor) -> Tensor:
    """The position of each index among `slots`, ascending."""
    place = torch.searchsorted(slots, indices)
    there = torch.zeros_like(indices, dtype=torch.bool)
    if len(slots):
        there = slots[place.clamp(max=len(slots) - 1)] == indices
    if (lost := first_true((indices != PADDING) & ~there)) is not None:
        raise ContractError(f"{name} names slot {int(indices[lost])} of state, which was not captured")
    return torch.where(indices == PADDING, PADDING, place)


def partition(call: Call, name: str) -> Partition:
    """Active sequences own rows of o and of stages, and slots of the pool. A slot that is only read belongs
    to its first reader and must not change. Raises KeyError for any other name."""
    plan = slots_of(call)
    if name == "o" or any(stage.tensor.name == name for stage in STAGES):
        return Partition(tuple(Region(i, i + 1, i) for i in plan.active.tolist()), head_axis=2, token_axis=1)
    if name == "state":
        owner_of: dict[int, tuple[int, int | None]] = {}
        for sequence, slot in zip(plan.active.tolist(), plan.read.tolist(), strict=True):
            owner_of.setdefault(slot, (sequence, None))
        # In order of tokens: a slot that a sequence writes twice belongs to the later token.
        for sequence, slots in zip(plan.active.tolist(), plan.write.tolist(), strict=True):
            owner_of |= {slot: (sequence, token) for token, slot in enumerate(slots) if slot != PADDING}
        regions = (
            Region(slot, slot + 1, sequence, token=token)
            for slot, (sequence, token) in sorted(owner_of.items())
        )
        return Partition(tuple(regions), head_axis=1)
    raise KeyError(name)


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
    touched=touched,
    partition=partition,
    synth=synth,
    absent={"num_accepted": _one_accepted},
    stage_limit=stage_limit,
    leeway=leeway,
    conversions=DECODE_CONVERSIONS,
    renumber=renumber,
    named_rows=NamedRows(("state_indices", "read_indices"), named_rows),
    accesses=accesses,
    work=work,
    carries=("state", "state"),
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    decodes=True,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level, shrink.placed),
)
