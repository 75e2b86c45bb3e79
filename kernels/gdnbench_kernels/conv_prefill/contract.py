"""conv_prefill: the causal depthwise convolution over packed sequences, on a pool of windows.

Axes: T tokens of all sequences, N sequences, D channels, W taps, `slots` windows in the pool. With a pool,
sequence n starts from the window in slot state_indices[n] if has_initial_state[n], else from zeros, and
leaves there the window after its last token. A sequence whose slot is -1 is padding: it reads and writes
nothing, and its rows of y are undefined, as are rows past the last sequence. A sequence without tokens
accesses nothing. Without a pool every sequence starts from zeros.
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
from gdnbench_kernels.conv_prefill import laws, shrink
from gdnbench_kernels.conv_prefill.op_cost import work_of
from gdnbench_kernels.conv_prefill.ranges import ranges as ranges_of
from gdnbench_kernels.conv_prefill.synth import synth
from gdnbench_kernels.conv_prefill.windows import plan_of, windows_before
from gdnbench_kernels.validate import element_name

NAME = "conv_prefill"
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
        "the pool of windows, of x's dtype, the latest input last; L = W - 1, in any strides",
        optional=True,
        pool_index="state_indices",
    ),
    TensorSpec(
        "state_indices", ("N",), OFFSETS, Role.INPUT, "slot of each sequence; -1 is padding", optional=True
    ),
    TensorSpec(
        "has_initial_state",
        ("N",),
        ("bool",),
        Role.INPUT,
        "whether the slot holds the window before the sequence; no if absent",
        optional=True,
    ),
    Y,
)
SCALARS = (ACTIVATION,)

_ANY_OFFSETS: Mapping[str, tuple[str, ...]] = {OFFSETS_DTYPE.name: OFFSETS_DTYPE.values}
KERNELS = {
    "reference": KernelEntry(
        "gdnbench_kernels.conv_prefill.reference:reference",
        _ANY_OFFSETS,
        meaning="the fp64 oracle",
        fp64=True,
    ),
    "torch": KernelEntry(
        "gdnbench_kernels.conv_prefill.torch_conv:torch_conv",
        _ANY_OFFSETS,
        meaning="sums in fp32, y rounded to x's dtype",
    ),
    "hf": KernelEntry(
        "gdnbench_kernels.conv_prefill.hf:hf",
        _ANY_OFFSETS,
        meaning="transformers' causal_conv1d_fn, sequence by sequence, windows before it as further inputs",
        needs=("transformers",),
    ),
    "vllm": KernelEntry(
        "gdnbench_kernels.conv_prefill.peer:vllm",
        _ANY_OFFSETS,
        devices=("cuda", "sim"),
        meaning="vLLM's causal_conv1d_fn, in Triton, on the pool in place",
        needs=("vllm", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.conv_prefill.peer:prepare_vllm",
    ),
    "sglang": KernelEntry(
        "gdnbench_kernels.conv_prefill.peer:sglang",
        _ANY_OFFSETS,
        devices=("cuda", "sim"),
        meaning="SGLang's causal_conv1d_fn, in Triton, on the pool in place",
        needs=("sglang", "triton"),
        cuda_tensors=True,
        prepare="gdnbench_kernels.conv_prefill.peer:prepare_sglang",
    ),
}


def validate(call: Call) -> None:
    """Raises ContractError, with tensor, position and value, for a call that breaks the contract."""
    sizes = check_form(NAME, TENSORS, SCALARS, call)
    pool = call.tensors.get("conv_state")
    for name in ("state_indices", "has_initial_state"):
        if pool is None and name in call.tensors:
            raise ContractError(
                f"{NAME}: tensor {name} belongs to conv_state; give that too, or leave it out"
            )
    if pool is None:
        return
    if "state_indices" not in call.tensors:
        raise ContractError(f"{NAME}: tensor state_indices is missing; with conv_state its axes are [N]")
    check_columns(NAME, sizes["L"], sizes["W"] - 1, "a window is W - 1 inputs")
    check_in_pool(NAME, "state_indices", call.tensors["state_indices"], sizes["slots"])
    plan = plan_of(call.tensors)
    owner: dict[int, int] = {}
    for n, slot in zip(plan.active, plan.slots, strict=True):
        if (other := owner.setdefault(slot, n)) != n:
            raise ContractError(
                f"{NAME}: {element_name('state_indices', (n,))} is {slot}, as is"
                f" {element_name('state_indices', (other,))}; two sequences would race for that slot"
            )


def convert(call: Call, target: Mapping[str, str]) -> Call:
    """The call in other conventions; see `CONVERSIONS`. Raises ContractError if that is impossible."""
    return convert_offsets(NAME, call, target, TENSORS)


def outputs(call: Call) -> dict[str, Shaped]:
    """Shape and dtype of y; the pool is mutated in place."""
    x = call.tensors["x"]
    return {"y": (tuple(x.shape), x.dtype)}


def touched(call: Call) -> dict[str, Tensor]:
    """The slots of active sequences: sorted, unique, int64 on the host."""
    if "conv_state" not in call.tensors:
        return {}
    return {"conv_state": torch.tensor(sorted(plan_of(call.tensors).slots), dtype=torch.int64)}


def named_rows(call: Call) -> dict[str, Tensor]:
    """Every slot of the index tensor, whether its sequence is active or not."""
    return {"conv_state": call.tensors["state_indices"]} if "conv_state" in call.tensors else {}


def renumber(call: Call, stored: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """state_indices for a pool with only the slots `stored`. Raises ContractError for another one."""
    if "conv_state" not in stored:
        return {}
    plan = plan_of(call.tensors)
    idle = sorted(set(range(len(plan.bounds))) - set(plan.active))
    return renumbered(call, ("state_indices",), stored["conv_state"], idle)


def partition(call: Call, name: str) -> Partition:
    """Active sequences own rows of y and slots of the pool. Raises KeyError for any other name."""
    plan = plan_of(call.tensors)
    if name == "y":
        return token_regions(plan.bounds, plan.active)
    if name == "conv_state":
        owned = sorted(zip(plan.slots, plan.active, strict=True))
        return Partition(tuple(Region(slot, slot + 1, n) for slot, n in owned), head_axis=None)
    raise KeyError(name)


def accesses(call: Call) -> tuple[Accesses, ...]:
    """Active sequences with an initial state read their slot, and all of them write it; none without a
    pool."""
    if "state_indices" not in call.tensors:
        return ()
    plan = plan_of(call.tensors)
    rows = list(zip(plan.active, plan.slots, plan.reads, strict=True))
    reads = [(n, slot, 0) for n, slot, reads in rows if reads]
    writes = [(n, slot, plan.bounds[n][1] - plan.bounds[n][0]) for n, slot, _ in rows]
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
        ),
    )


def _leeway(call: Call, output: str) -> Tensor | None:
    if output != "y":
        return None
    tensors = call.tensors
    before = windows_before(plan_of(tensors), tensors["x"], tensors["weight"], tensors.get("conv_state"))
    return leeway(call, before)


def _no_initial_states(call: Call) -> Tensor:
    cu_seqlens = call.tensors["cu_seqlens"]
    return torch.zeros(len(cu_seqlens) - 1, dtype=torch.bool, device=cu_seqlens.device)


def ranges(call: Call) -> tuple[Ranges, ...]:
    """Ranges of a valid call's inputs."""
    return ranges_of(call)


def work(call: Call) -> Work:
    """The bytes and FLOP of a valid call."""
    return work_of(call)


OPERATION = Operation(
    name=NAME,
    summary="causal depthwise convolution over packed sequences, on a pool of windows",
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
    absent={"has_initial_state": _no_initial_states},
    conversions=CONVERSIONS,
    renumber=renumber,
    named_rows=NamedRows(("state_indices",), named_rows),
    work=work,
    leeway=_leeway,
    carries=("conv_state", "conv_state"),
    laws=Laws(laws.variants, laws.splits),
    ranges=ranges,
    shrinking=Shrinking(shrink.axes, shrink.extent, shrink.level, shrink.placed),
    accesses=accesses,
    counted_apart=True,
)
