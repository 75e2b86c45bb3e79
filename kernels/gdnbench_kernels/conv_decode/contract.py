"""conv_decode: the causal depthwise convolution of the next tokens of each sequence, on a pool of windows.

Axes: T tokens of all sequences, N sequences, D channels, W taps, P slots a sequence, L columns of a slot.

    P     num_accepted   sequence n reads                      it leaves
    1     absent         slot state_indices[n, 0]              the window after its last token, in that slot
    1     given          columns from num_accepted[n] - 1      the windows after all of its tokens, in that
                         of slot state_indices[n, 0]           slot, that after t tokens from column t - 1
    more  optional       slot                                  the window after token t in slot
                         state_indices[n, num_accepted - 1]    state_indices[n, t]

num_accepted is that of the step before, whose windows it chooses from: 1 if all of its drafts were rejected,
or if there were none. If read_indices is given, sequence n reads slot read_indices[n] instead. A sequence
that would read slot -1 is padding: it reads and writes nothing, and its rows of y are undefined, as are rows
past the last sequence. A window of another sequence whose slot is -1 is not written. A sequence without
tokens accesses nothing. Columns of a slot that no window covers stay.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import (
    Accesses,
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
    Shaped,
    Shrinking,
    TensorSpec,
    Work,
)
from gdnbench_kernels.conv import (
    ACTIVATION,
    ACTIVATIONS,
    BIAS,
    CONVENTIONS,
    CONVERSIONS,
    CU_SEQLENS,
    OFFSETS,
    OFFSETS_DTYPE,
    WEIGHT,
    X,
    Y,
    check_columns,
    check_form,
    check_in_pool,
    convert_offsets,
    leeway,
    renumbered,
    token_regions,
)
from gdnbench_kernels.conv_decode import laws, shrink
from gdnbench_kernels.conv_decode.op_cost import work_of
from gdnbench_kernels.conv_decode.ranges import ranges as ranges_of
from gdnbench_kernels.conv_decode.synth import synth
from gdnbench_kernels.conv_decode.windows import DecodePlan, plan_of, windows_before
from gdnbench_kernels.validate import element_name

NAME = "conv_decode"
TENSORS = (
    X,
    WEIGHT,
    BIAS,
    CU_SEQLENS,
    TensorSpec(
        "conv_state",
        ("slots", "D", "L"),
        ACTIVATIONS,
        Role.MUTATED,
        "the pool of windows, of x's dtype, the latest input last, in any strides; L = W - 1, or more where a"
        " slot keeps the windows after all tokens",
        pool_index="state_indices",
    ),
    TensorSpec(
        "state_indices",
        ("N", "P"),
        OFFSETS,
        Role.INPUT,
        "slot of each sequence, or of the window after each token; -1 is padding",
    ),
    TensorSpec(
        "num_accepted",
        ("N",),
        ("int32",),
        Role.INPUT,
        "tokens of the step before that were accepted, counted from 1: which of its windows is read; 1 if"
        " absent",
        optional=True,
    ),
    TensorSpec(
        "read_indices",
        ("N",),
        ("int32",),
        Role.INPUT,
        "slot that each sequence reads, -1 for padding; not together with num_accepted",
        optional=True,
    ),
    Y,
)
SCALARS = (ACTIVATION,)
INDEX_TENSORS = ("state_indices", "read_indices")

_ANY_OFFSETS: Mapping[str, tuple[str, ...]] = {OFFSETS_DTYPE.name: OFFSETS_DTYPE.values}
KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.conv_decode.reference:reference",
        _ANY_OFFSETS,
        meaning="the fp64 oracle",
        fp64=True,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.conv_decode.torch_conv:torch_conv",
        _ANY_OFFSETS,
        meaning="sums in fp32, y rounded to x's dtype",
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.conv_decode.hf:hf",
        _ANY_OFFSETS,
        meaning="transformers' causal_conv1d_update on gathered windows; only the last window of a sequence",
        needs=("transformers",),
    ),
    "vllm": KernelEntry(
        "gdnbench_kernels.conv_decode.peer:vllm",
        _ANY_OFFSETS,
        devices=("cuda", "sim"),
        meaning="vLLM's causal_conv1d_update, in Triton, on the pool in place",
        needs=("vllm", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.conv_decode.peer:prepare_vllm",
    ),
    "sglang": KernelEntry(
        "gdnbench_kernels.conv_decode.peer:sglang",
        _ANY_OFFSETS,
        devices=("cuda", "sim"),
        meaning="SGLang's causal_conv1d_update, in Triton, on the pool in place",
        needs=("sglang", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.conv_decode.peer:prepare_sglang",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    sizes = check_form(NAME, TENSORS, SCALARS, call)
    if sizes["P"] < 1:
        raise ContractError(f"{NAME}: state_indices has P = 0 on axis 1; a sequence has at least one slot")
    if "read_indices" in call.tensors and "num_accepted" in call.tensors:
        raise ContractError(
            f"{NAME}: read_indices and num_accepted are both given; each says which slot is read, give one"
        )
    for name in INDEX_TENSORS:
        if name in call.tensors:
            check_in_pool(NAME, name, call.tensors[name], sizes["slots"])
    plan = plan_of(call.tensors)
    _check_tokens(call, plan, sizes)
    _check_races(plan)


def _check_tokens(call: Call, plan: DecodePlan, sizes: Mapping[str, int]) -> None:
    """Raises ContractError for a sequence with more tokens than its slots have windows for, a count of
    accepted tokens beyond them, and a pool with other columns."""
    columns, slots = sizes["W"] - 1, sizes["P"]
    most = sizes["L"] - columns + 1 if plan.rolling else slots
    if not plan.rolling:
        check_columns(NAME, sizes["L"], columns, "a window is W - 1 inputs")
    elif sizes["L"] < columns:
        check_columns(NAME, sizes["L"], columns, "a slot holds at least a window of W - 1 inputs")
    for place, n in enumerate(plan.active):
        tokens = plan.length(place)
        if tokens > most and (plan.rolling or slots > 1):
            raise ContractError(
                f"{NAME}: {element_name('cu_seqlens', (n + 1,))} gives sequence {n} {tokens} tokens;"
                f" its slots have windows for {most}"
            )
    accepted = call.tensors.get("num_accepted")
    for n, count in enumerate([] if accepted is None else accepted.tolist()):
        if n in plan.active and not 1 <= count <= most:
            raise ContractError(
                f"{NAME}: {element_name('num_accepted', (n,))} is {count}; it must lie in [1, {most}], the"
                " windows of a step"
            )


def _check_races(plan: DecodePlan) -> None:
    """Raises ContractError for a slot that two sequences write, or that one sequence reads and another
    writes."""
    owner: dict[int, int] = {}
    for n, _, _, _, windows in plan.sequences():
        for slot in {one.slot for one in windows}:
            if (other := owner.setdefault(slot, n)) != n:
                raise ContractError(
                    f"{NAME}: {element_name('state_indices', (n,))} names slot {slot}, as does"
                    f" {element_name('state_indices', (other,))}; two sequences would race for that slot"
                )
    for n, _, slot, _, _ in plan.sequences():
        if (writer := owner.get(slot, n)) != n:
            raise ContractError(
                f"{NAME}: sequence {n} reads slot {slot}, which {element_name('state_indices', (writer,))}"
                " names; one sequence would read what another writes"
            )


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. Raises ContractError if that is impossible."""
    return convert_offsets(NAME, call, target, TENSORS)


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of y; the pool is mutated in place."""
    x = call.tensors["x"]
    return {"y": (tuple(x.shape), x.dtype)}


def touched(call: Call) -> dict[str, Tensor]:
    """The slots that active sequences read or write: sorted, unique, int64 on the host."""
    return {"conv_state": torch.tensor(plan_of(call.tensors).touched, dtype=torch.int64)}


def named_rows(call: Call) -> dict[str, Tensor]:
    """Every slot in an index tensor, whether its sequence is active or not."""
    named = (call.tensors.get(name) for name in INDEX_TENSORS)
    return {"conv_state": torch.cat([indices.flatten() for indices in named if indices is not None])}


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices and read_indices for a pool with only the slots `stored`. Slots of sequences that access
    nothing become -1, and so do those of tokens that a sequence lacks. Raises ContractError for another slot
    that is not stored."""
    if "conv_state" not in stored:
        return {}
    plan = plan_of(call.tensors)
    idle = sorted(set(range(len(plan.bounds))) - set(plan.active))
    tensors = dict(call.tensors)
    indices = tensors["state_indices"].clone()
    known = {int(slot) for slot in stored["conv_state"]}
    for place, n in enumerate(plan.active):
        for token in range(plan.length(place), indices.shape[1]):
            if indices.shape[1] > 1 and int(indices[n, token]) not in known:
                indices[n, token] = -1
    with_tokens = Call({**tensors, "state_indices": indices}, call.scalars, call.conventions)
    return renumbered(with_tokens, INDEX_TENSORS, stored["conv_state"], idle)


def partition(call: Call, name: str) -> Partition:
    """Active sequences own rows of y and slots of the pool. A slot that is only read belongs to its first
    reader and must not change. Raises KeyError for any other name."""
    plan = plan_of(call.tensors)
    if name == "y":
        return token_regions(plan.bounds, plan.active)
    if name == "conv_state":
        owner_of: dict[int, tuple[int, int | None]] = {}
        for n, _, slot, _, _ in plan.sequences():
            owner_of.setdefault(slot, (n, None))
        for n, _, _, _, windows in plan.sequences():
            owner_of |= {one.slot: (n, one.tokens - 1) for one in windows}
        regions = (Region(slot, slot + 1, n, token=token) for slot, (n, token) in sorted(owner_of.items()))
        return Partition(tuple(regions), head_axis=None)
    raise KeyError(name)


def accesses(call: Call) -> tuple[Accesses, ...]:
    """Active sequences read one window and write those after their tokens. In a slot that keeps them all, a
    window is some of its columns."""
    plan = plan_of(call.tensors)
    rows = list(plan.sequences())
    reads = [(n, slot, 0) for n, _, slot, _, _ in rows]
    writes = [(n, one.slot, one.tokens) for n, _, _, _, windows in rows for one in windows]
    of_windows: dict[str, Tensor | int] = {}
    if plan.rolling:
        of_windows = {
            "columns": call.tensors["weight"].shape[1] - 1,
            "read_columns": torch.tensor(plan.column, dtype=torch.int64),
            "write_columns": torch.tensor(
                [one.column for windows in plan.write for one in windows], dtype=torch.int64
            ),
        }
    return (
        Accesses(
            chain="conv_state",
            before="conv_state",
            after="conv_state",
            reads=torch.tensor(reads, dtype=torch.int64).view(-1, 3),
            writes=torch.tensor(writes, dtype=torch.int64).view(-1, 3),
            tokens=call.tensors["cu_seqlens"].cpu().long().diff().clamp(min=0),
            pooled=True,
            recent=True,
            **of_windows,  # type: ignore[arg-type]
        ),
    )


def _leeway(call: Call, output: str) -> Tensor | None:
    if output != "y":
        return None
    tensors = call.tensors
    before = windows_before(plan_of(tensors), tensors["x"], tensors["weight"], tensors["conv_state"])
    return leeway(call, before)


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call's inputs."""
    return ranges_of(call)


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call)


OPERATION = Operation(
    name=NAME,
    summary="causal depthwise convolution of the next tokens of each sequence, on a pool of windows",
    tensors=TENSORS,
    scalars=SCALARS,
    conventions=CONVENTIONS,
    stages=(),
    kernels=KERNELS,
    validate=validate,
    convert=convert,
    convert_outputs=lambda outputs, source, target: dict(outputs),
    outputs=outputs,
    touched=touched,
    partition=partition,
    synth=synth,
    conversions=CONVERSIONS,
    renumber=renumber,
    named_rows=NamedRows(INDEX_TENSORS, named_rows),
    work=work,
    leeway=_leeway,
    carries=("conv_state", "conv_state"),
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    decodes=True,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level, shrink.placed),
    accesses=accesses,
    columns=lambda shapes: {"conv_state": shapes["weight"][1] - 1},
    counted_apart=True,
)
