"""gdn_decode: the gated delta rule for a few tokens of each sequence, on a pool of states updated in place.

Axes: B sequences, S tokens of each, H key heads, Hv value heads, K and V head dims, `slots` states in the
pool. Sequence i reads slot state_indices[i, num_accepted[i] - 1] and after its token t writes slot
state_indices[i, t]; with S = 1 that is plain decode. A sequence whose slot to read is -1 is padding: it reads
and writes nothing, and nothing is promised of its rows of o. A token of another sequence whose own slot is -1
writes no state.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.checks import (
    at,
    first_true,
    resolved_scalars,
)
from gdnbench_kernels.contract import (
    Call,
    ContractError,
    KernelEntry,
    Operation,
    Partition,
    Region,
    Role,
    ScalarSpec,
    TensorSpec,
)
from gdnbench_kernels.gdn import (
    ACTIVATIONS,
    CONVENTIONS,
    CONVERSIONS,
    GATE,
    OFFSETS,
    QK,
    STATE_LAYOUT,
    STATES,
    check_form,
    check_gates,
    convert_call,
    convert_states,
    index_tensors,
)
from gdnbench_kernels.gdn_decode.slots import PADDING, SlotPlan, plan_slots
from gdnbench_kernels.gdn_decode.synth import synth

NAME = "gdn_decode"

TENSORS = (
    TensorSpec("q", ("B", "S", "H", "K"), ACTIVATIONS, Role.INPUT, "queries"),
    TensorSpec("k", ("B", "S", "H", "K"), ACTIVATIONS, Role.INPUT, "keys, of q's dtype"),
    TensorSpec(
        "v", ("B", "S", "Hv", "V"), ACTIVATIONS, Role.INPUT, "values, of q's dtype; Hv is a multiple of H"
    ),
    TensorSpec("g", ("B", "S", "Hv"), STATES, Role.INPUT, "gate: log-space decay, or alpha where linear"),
    TensorSpec("beta", ("B", "S", "Hv"), STATES, Role.INPUT, "step size, in [0, beta_max]"),
    TensorSpec(
        "state",
        ("slots", "Hv", "V", "K"),
        STATES,
        Role.MUTATED,
        "the state pool",
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
    TensorSpec("o", ("B", "S", "Hv", "V"), ACTIVATIONS, Role.OUTPUT, "outputs, of v's dtype"),
)

SCALARS = (
    ScalarSpec("scale", float, None, "factor of the output; K ** -0.5 unless given"),
    ScalarSpec("beta_max", float, 1.0, "upper end of beta's range, 1 or 2"),
)

KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.gdn_decode.reference:reference",
        {convention.name: convention.values for convention in CONVENTIONS},
        meaning="the fp64 oracle",
        fp64=True,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.gdn_decode.torch_recurrent:torch_recurrent",
        {GATE.name: GATE.values, QK.name: QK.values},
        meaning="the recurrence in fp32, state and outputs rounded to their dtypes",
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.gdn_decode.hf:hf",
        {STATE_LAYOUT.name: ("KV",), QK.name: QK.values},
        meaning="transformers' torch_recurrent_gated_delta_rule on gathered slots; one token a sequence",
        needs=("transformers",),
    ),
}


def validate(call: Call) -> None:
    """Refuses a call that breaks the contract, with a ContractError that names tensor, position and value."""
    sizes = check_form(NAME, TENSORS, SCALARS, call)
    if sizes["S"] < 1:
        raise ContractError(f"{NAME}: q has S = 0 on axis 1; a sequence has at least one token")
    _check_slots(call, sizes)
    check_gates(NAME, call, resolved_scalars(SCALARS, call)["beta_max"])


def _check_slots(call: Call, sizes: Mapping[str, int]) -> None:
    indices = call.tensors["state_indices"].cpu().long()
    outside = first_true((indices < PADDING) | (indices >= sizes["slots"]))
    if outside is not None:
        raise ContractError(
            f"{NAME}: {at('state_indices', outside)} is {int(indices[outside])};"
            f" it must be a slot in [0, {sizes['slots'] - 1}], or -1 for padding"
        )
    accepted = call.tensors.get("num_accepted")
    if accepted is not None:
        counts = accepted.cpu()
        wrong = first_true(((counts < 1) | (counts > sizes["S"])) & (indices != PADDING).any(1))
        if wrong is not None:
            raise ContractError(
                f"{NAME}: {at('num_accepted', wrong)} is {int(counts[wrong])};"
                f" it must lie in [1, S = {sizes['S']}]"
            )
    _check_races(_slots_of(call))


def _check_races(plan: SlotPlan) -> None:
    """Refuses a slot of two sequences: what a sequence reads it also writes, hence a race."""
    tokens = plan.write.shape[1]
    slots = plan.write.flatten()
    order = slots.argsort(stable=True)  # hence by sequence within a slot
    slots, owners = slots[order], order // tokens
    raced = first_true((slots[1:] == slots[:-1]) & (owners[1:] != owners[:-1]) & (slots[1:] != PADDING))
    if raced is not None:
        first, second = (int(order[raced[0] + i]) for i in (0, 1))
        position = (int(plan.active[second // tokens]), second % tokens)
        other = (int(plan.active[first // tokens]), first % tokens)
        raise ContractError(
            f"{NAME}: {at('state_indices', position)} is {int(slots[raced])}, as is"
            f" {at('state_indices', other)}; two sequences would race for that slot"
        )


def _slots_of(call: Call) -> SlotPlan:
    accepted = call.tensors.get("num_accepted")
    return plan_slots(call.tensors["state_indices"].cpu(), None if accepted is None else accepted.cpu())


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. ContractError where that is impossible."""
    return convert_call(NAME, call, target, ("state",), index_tensors(TENSORS, call))


def convert_outputs(
    outputs: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    """Outputs in the conventions `target`: the pool is transposed where the layouts differ."""
    return convert_states(outputs, source, target, ("state",))


def outputs(call: Call) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of o; the pool is mutated in place."""
    v = call.tensors["v"]
    return {"o": (tuple(v.shape), v.dtype)}


def touched(call: Call) -> dict[str, Tensor]:
    """The slots that active sequences read or write: sorted, unique, int64 on the host."""
    plan = _slots_of(call)
    return {"state": torch.unique(plan.write[plan.write != PADDING])}


def partition(call: Call, name: str) -> Partition:
    """Active sequences own rows of o, and slots of the pool; KeyError for any other name."""
    plan = _slots_of(call)
    if name == "o":
        return Partition(tuple(Region(i, i + 1, i) for i in plan.active.tolist()), head_axis=2, token_axis=1)
    if name == "state":
        # Row by row in order of token: a slot that a sequence writes twice belongs to the later token.
        writer_of = {
            slot: (sequence, token)
            for sequence, slots in zip(plan.active.tolist(), plan.write.tolist(), strict=True)
            for token, slot in enumerate(slots)
            if slot != PADDING
        }
        regions = (
            Region(slot, slot + 1, sequence, token=token)
            for slot, (sequence, token) in sorted(writer_of.items())
        )
        return Partition(tuple(regions), head_axis=1)
    raise KeyError(name)


OPERATION = Operation(
    name=NAME,
    summary="gated delta rule for the next tokens of each sequence, on a pool of states",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=CONVENTIONS,
    stages=(),
    kernels=KERNELS,
    validate=validate,
    convert=convert,
    convert_outputs=convert_outputs,
    outputs=outputs,
    touched=touched,
    partition=partition,
    synth=synth,
    conversions=CONVERSIONS,
)
