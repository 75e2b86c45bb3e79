"""What the contracts of gdn_prefill and kda_prefill share: packed sequences, chunks, and states before and
after.

Axes: T tokens of all sequences, N sequences, Hv value heads, K and V head dims, C the chunk size, UB the
upper bound of the number of chunks.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.chunks import ChunkPlan, plan_chunks
from gdnbench_kernels.contract import (
    Call,
    ContractError,
    Partition,
    Region,
    Role,
    ScalarSpec,
    Shaped,
    Stage,
    TensorSpec,
)
from gdnbench_kernels.delta_prefill.chunked import BY_ROW, final_dtype
from gdnbench_kernels.gdn import ACTIVATIONS, OFFSETS, STATE_LAYOUT, STATES, convert_states
from gdnbench_kernels.validate import check_integers, first_true, resolved_scalars

STATE_TENSORS = ("initial_state", "final_state")
KV_AXES: Mapping[tuple[str, str], tuple[str, ...]] = {("state_layout", "KV"): ("N", "Hv", "K", "V")}

QKV = (
    TensorSpec("q", ("T", "H", "K"), ACTIVATIONS, Role.INPUT, "queries"),
    TensorSpec("k", ("T", "H", "K"), ACTIVATIONS, Role.INPUT, "keys, of q's dtype"),
    TensorSpec("v", ("T", "Hv", "V"), ACTIVATIONS, Role.INPUT, "values, of q's dtype; Hv is a multiple of H"),
)
SEQUENCES = (
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
)
OUTPUTS = (
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


def prefill_scalars(chunk_size: int) -> tuple[ScalarSpec, ...]:
    """The scalars that both operations have, with that default of chunk_size."""
    return (
        ScalarSpec("scale", float, None, "factor of the output; K ** -0.5 unless given"),
        ScalarSpec("chunk_size", int, chunk_size, "C, tokens of a chunk"),
        ScalarSpec("output_final_state", bool, True, "whether final_state is an output"),
        ScalarSpec(
            "final_state_dtype",
            str,
            None,
            "dtype of final_state; that of initial_state, or float32, unless given",
        ),
    )


def chunk_stage(
    name: str,
    axes: tuple[str, ...],
    meaning: str,
    formula: str,
    rounded_to: str = "v",
    dtypes: tuple[str, ...] = (),
) -> Stage:
    """A stage stored in v's dtype, unless another is given."""
    return Stage(TensorSpec(name, axes, dtypes or ACTIVATIONS, Role.OUTPUT, meaning), formula, rounded_to)


SQUARE = ("UB", "Hv", "C", "C")


@dataclass(frozen=True, slots=True)
class PackedPrefill:
    """The callables of a contract, for the operation of that name with these scalars."""

    name: str
    scalars: tuple[ScalarSpec, ...]

    @property
    def absent(self) -> dict[str, Callable[[Call], Tensor]]:
        """The values of optional inputs that a call leaves out."""
        return {
            "initial_state": self.zero_state,
            "chunk_indices": self.chunk_indices,
            "chunk_offsets": self.chunk_offsets,
        }

    def check(self, call: Call, tokens: int) -> None:
        """Raises ContractError for a chunk_size, a final_state_dtype, offsets of T = `tokens` tokens, or
        chunk tables that break the contract."""
        scalars = resolved_scalars(self.scalars, call)
        if int(scalars["chunk_size"] or 0) < 1:
            raise ContractError(
                f"{self.name}: scalar chunk_size is {scalars['chunk_size']}; it must be at least 1"
            )
        if scalars["final_state_dtype"] not in (None, *STATES):
            raise ContractError(
                f"{self.name}: scalar final_state_dtype is {scalars['final_state_dtype']!r};"
                f" it must be {' or '.join(STATES)}"
            )
        check_cu_seqlens(self.name, call.tensors["cu_seqlens"], tokens)
        self._check_chunks(call)

    def _check_chunks(self, call: Call) -> None:
        """Raises ContractError for chunk tables that do not match cu_seqlens and chunk_size."""
        plan = self.plan_of(call)
        why = f"chunks of {plan.chunk_size} over cu_seqlens"
        if call.tensors.get("chunk_offsets") is not None:
            check_integers(self.name, call, "chunk_offsets", plan.offsets, why)
        indices = call.tensors.get("chunk_indices")
        if indices is not None:
            if len(indices) < plan.total:
                raise ContractError(
                    f"{self.name}: chunk_indices has {len(indices)} rows; {why} makes {plan.total} chunks"
                )
            check_integers(
                self.name, call, "chunk_indices", torch.stack([plan.sequence, plan.index], dim=1), why
            )

    def plan_of(self, call: Call) -> ChunkPlan:
        """The chunks of a valid call."""
        chunk_size = resolved_scalars(self.scalars, call)["chunk_size"]
        assert isinstance(chunk_size, int)
        return plan_chunks(call.tensors["cu_seqlens"], chunk_size)

    def extent(self, call: Call) -> dict[str, int]:
        """The sizes of a valid call, by singular noun."""
        plan = self.plan_of(call)
        return {
            "token": plan.tokens,
            "sequence": len(plan.offsets) - 1,
            "chunk": plan.total,
            "key head": call.tensors["q"].shape[1],
            "value head": call.tensors["v"].shape[1],
        }

    def zero_state(self, call: Call) -> Tensor:
        """Zeros, in the layout and dtype of the final states."""
        v = call.tensors["v"]
        dtype = getattr(torch, str(resolved_scalars(self.scalars, call)["final_state_dtype"] or "float32"))
        return torch.zeros(_state_shape(call), dtype=dtype, device=v.device)

    def chunk_indices(self, call: Call) -> Tensor:
        """[UB, 2]; rows past the chunks hold zeros."""
        plan = self.plan_of(call)
        found = torch.zeros(plan.bound, 2, dtype=torch.int64)
        found[: plan.total] = torch.stack([plan.sequence, plan.index], dim=1)
        return found.to(call.tensors["cu_seqlens"])

    def chunk_offsets(self, call: Call) -> Tensor:
        """[N+1]: the chunks before each sequence."""
        return self.plan_of(call).offsets.to(call.tensors["cu_seqlens"])

    def outputs(self, call: Call) -> dict[str, Shaped]:
        """Shape and dtype of every output of a valid call, in the call's conventions."""
        v, first = call.tensors["v"], call.tensors.get("initial_state")
        scalars = resolved_scalars(self.scalars, call)
        found: dict[str, Shaped] = {"o": (tuple(v.shape), v.dtype)}
        if scalars["output_final_state"]:
            asked = scalars["final_state_dtype"]
            dtype = final_dtype(first, None if asked is None else str(asked))
            found["final_state"] = (_state_shape(call), dtype)
        return found

    def partition(self, call: Call, name: str) -> Partition:
        """The owners of the rows of an output or stage. Raises KeyError for any other name."""
        plan = self.plan_of(call)
        if name == "final_state":
            return Partition(tuple(Region(n, n + 1, n) for n in range(len(plan.offsets) - 1)), head_axis=1)
        chunks = zip(
            plan.sequence.tolist(),
            plan.index.tolist(),
            plan.start.tolist(),
            plan.length.tolist(),
            strict=True,
        )
        size = plan.chunk_size
        if name in ("o", "g_cu"):
            regions = (Region(start, start + length, n, c, c * size) for n, c, start, length in chunks)
        elif name in BY_ROW:
            regions = (
                Region(i * size, i * size + length, n, c, c * size)
                for i, (n, c, _, length) in enumerate(chunks)
            )
        elif name in ("A", "Ai", "P"):
            regions = (Region(i, i + 1, n, c, tokens=length) for i, (n, c, _, length) in enumerate(chunks))
        elif name == "h":
            regions = (Region(i, i + 1, n, c) for i, (n, c, _, _) in enumerate(chunks))
        else:
            raise KeyError(name)
        return Partition(tuple(regions), head_axis=1)


def check_cu_seqlens(op: str, cu_seqlens: Tensor, tokens: int) -> None:
    """Raises ContractError for offsets that do not cut `tokens` tokens into sequences."""
    bounds = cu_seqlens.cpu().long()
    if int(bounds[0]) != 0:
        raise ContractError(f"{op}: cu_seqlens[0] is {int(bounds[0])}; offsets must start at 0")
    if (past := first_true(bounds > tokens)) is not None:
        raise ContractError(f"{op}: cu_seqlens[{past[0]}] is {int(bounds[past])}, past T = {tokens}")
    if (falls := first_true(bounds.diff() < 0)) is not None:
        i = falls[0] + 1
        raise ContractError(
            f"{op}: cu_seqlens[{i}] is {int(bounds[i])}, below cu_seqlens[{i - 1}] = {int(bounds[i - 1])};"
            " offsets must not decrease"
        )
    if int(bounds[-1]) != tokens:
        raise ContractError(
            f"{op}: cu_seqlens[{len(bounds) - 1}] is {int(bounds[-1])}; the last offset must be T = {tokens}"
        )


def _state_shape(call: Call) -> tuple[int, ...]:
    """The shape of the final states, in the call's layout."""
    k, v = call.tensors["k"], call.tensors["v"]
    last = (v.shape[2], k.shape[2])
    if call.conventions.get(STATE_LAYOUT.name) == "KV":
        last = last[::-1]
    return (len(call.tensors["cu_seqlens"]) - 1, v.shape[1], *last)


def convert_outputs(
    outputs: Mapping[str, Tensor], source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, Tensor]:
    """Outputs in the conventions `target`: final_state is transposed if the layouts differ."""
    return convert_states(outputs, source, target, STATE_TENSORS)


def touched(call: Call) -> dict[str, Tensor]:
    """Empty: the operations have no pools."""
    return {}
