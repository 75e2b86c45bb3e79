"""Checks the arguments of a call of the compiled prefill kernels, and makes the tensors for its launches.

The errors name the argument: NotImplementedError for what another kernel could take, ValueError for what no
kernel could. Inputs and outputs whose memory layout the kernels cannot use are copied.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels import arguments, programs
from gdnbench_kernels.arguments import Output
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.delta_prefill.chunked import PrefillTensors, final_dtype
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import ALIGN, BETA_MAX, STATE_DTYPES, check_heads
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.launch_checks import (
    TensorCheck,
    check_apart,
    check_own_elements,
    dtypes_of,
    finite_number,
    memory_span,
)
from gdnbench_kernels.source import Source
from gdnbench_kernels.validate import dtype_name

MAX_COUNTED = 2**31
COUNTED = ("g", "beta", "g_cu", "a", "ai", "initial_state", "final_state")
"""Tensors whose elements the kernels index with 32 bits. Of the others they index rows: TMA addresses have 64
bits."""

INPUTS = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state")
INT32, FLOAT32, BFLOAT16 = torch.int32, torch.float32, torch.bfloat16
GATES = (FLOAT32, BFLOAT16, torch.float16)
STATES = dtypes_of(STATE_DTYPES)

_check = TensorCheck("the compiled kernels take", first="others")


def compiled(device: torch.device, source: Callable[..., Source], *options: Any) -> Program:
    """The program of a source for that device, or for an SM100 without a GPU. Raises NotImplementedError for
    another GPU."""
    arch = programs.arch_of(device, programs.BLACKWELL, "this kernel of gdn_prefill")
    return programs.compiled(arch, source, *options)


def ctas_of(items: int, device: torch.device) -> int:
    """CTAs of a persistent launch: one per SM, at most one per item."""
    return min(multiprocessors(device), items)


def output_of(
    name: str, given: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Output:
    """The caller's tensor, checked, or a new one."""
    check_count(name, shape)
    if given is not None:
        check_form(name, given, shape, dtype, device)
        check_own_elements(name, given)
    return Output.allocate(given, shape, dtype, device, ALIGN)


@dataclass(frozen=True, slots=True)
class Outputs:
    """A call's outputs: o [T, Hv, V] bfloat16, and final_state [N, Hv, V, K] if requested."""

    _o: Output
    _final_state: Output | None

    @classmethod
    def allocate(
        cls, params: PrefillTensors, o: Tensor | None = None, final_state: Tensor | None = None
    ) -> Outputs:
        """Use the given tensors, or allocate new ones. Raises ValueError for a final state that is not
        requested, and for an output in the memory of another tensor, unless it is final_state in the whole
        place of initial_state."""
        v = params.v
        if final_state is not None and not params.output_final_state:
            raise ValueError("final_state is given, which output_final_state = False says not to fill")
        out = output_of("o", o, v.shape, BFLOAT16, v.device)
        if not params.output_final_state:
            return cls(out, None)._checked(params)
        wanted = params.final_state_dtype or (None if final_state is None else dtype_name(final_state.dtype))
        if wanted not in (None, *STATE_DTYPES):
            raise NotImplementedError(
                f"the compiled kernels take final_state as {' or '.join(STATE_DTYPES)}, not as {wanted}"
            )
        dtype = final_dtype(params.initial_state, wanted)
        _check.dtype("final_state", dtype, STATES)
        states = (len(params.cu_seqlens) - 1, v.shape[1], HEAD_DIM, HEAD_DIM)
        return cls(out, output_of("final_state", final_state, states, dtype, v.device))._checked(params)

    def _checked(self, params: PrefillTensors) -> Outputs:
        """These outputs. What is not contiguous and aligned is copied, so only tensors that a kernel reads or
        writes in place can overlap."""
        both = {"o": self._o, "final_state": self._final_state}
        own = {name: one.buffer for name, one in both.items() if one is not None and one.buffer is one.given}
        inputs = {name: getattr(params, name) for name in INPUTS}
        read = {
            name: tensor
            for name, tensor in inputs.items()
            if tensor is not None and arguments.is_contiguous_aligned(tensor, ALIGN)
        }
        if _same_memory(own.get("final_state"), read.get("initial_state")):
            del read["initial_state"]
        if own:
            check_apart(list(own), {name: memory_span(name, tensor) for name, tensor in (read | own).items()})
        return self

    @property
    def o(self) -> Tensor:
        """The tensor that the kernels write."""
        return self._o.buffer

    @property
    def final_state(self) -> Tensor | None:
        """The tensor that the kernels write; None if not requested."""
        return None if self._final_state is None else self._final_state.buffer

    def leave_states(self, initial_state: Tensor | None) -> None:
        """Copy the initial states to the final ones, for sequences without tokens."""
        if (final := self.final_state) is not None:
            final.zero_() if initial_state is None else final.copy_(initial_state)

    def finish(self) -> dict[str, Tensor]:
        """Return the filled tensors: the caller's, or new ones."""
        found = {"o": self._o.finish()}
        if self._final_state is not None:
            found["final_state"] = self._final_state.finish()
        return found


def _same_memory(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two contiguous tensors of a shape have the same elements."""
    if one is None or other is None:
        return False
    return one.data_ptr() == other.data_ptr() and one.dtype == other.dtype


def contiguous_aligned(tensor: Tensor) -> Tensor:
    """The tensor itself if the kernels can take it, else a contiguous, aligned copy."""
    return arguments.contiguous_aligned(tensor, ALIGN)


def refuse(params: PrefillParams) -> None:
    """`refuse_sizes`, and other chunks than the kernels have."""
    refuse_sizes(params)
    if params.chunk_size != CHUNK:
        raise NotImplementedError(
            f"the compiled kernels take chunks of {CHUNK} tokens, not of {params.chunk_size}"
        )


def refuse_sizes(params: PrefillTensors) -> None:
    """Raises NotImplementedError for sizes that the kernels do not support, ValueError for invalid ones."""
    k, v, beta_max = params.k, params.v, params.beta_max
    for name, tensor in (("q", params.q), ("k", k), ("v", v)):
        if tensor.dim() != 3:
            raise ValueError(f"{name} has {tensor.dim()} axes; it has three: tokens, heads, features")
    if params.cu_seqlens.dim() != 1:
        raise ValueError(f"cu_seqlens has {params.cu_seqlens.dim()} axes; it has one: offsets")
    if params.scale is not None:
        finite_number("scale", params.scale)
    check_heads(k.shape[1], v.shape[1])
    if k.shape[2] != HEAD_DIM or v.shape[2] != HEAD_DIM:
        raise NotImplementedError(
            f"the compiled kernels take K = V = {HEAD_DIM}, not K = {k.shape[2]} and V = {v.shape[2]}"
        )
    if not beta_max <= BETA_MAX:
        raise NotImplementedError(
            f"the compiled kernels take beta up to {BETA_MAX:g}, beyond which their inverse is not accurate"
            f" enough; beta_max is {beta_max:g}"
        )


def check_inputs(params: PrefillTensors, by_channel: bool = False) -> None:
    """Check before the launch that inputs share a device, have supported dtypes, and have matching shapes.
    `by_channel`: g has a gate for each key channel, and TMA reads it."""
    k, v, cu_seqlens, initial_state = params.k, params.v, params.cu_seqlens, params.initial_state
    tokens, value_heads = v.shape[:2]
    check_form("v", v, (tokens, value_heads, HEAD_DIM), BFLOAT16, v.device)
    for name, tensor in (("q", params.q), ("k", k)):
        check_form(name, tensor, (tokens, k.shape[1], HEAD_DIM), BFLOAT16, v.device)
    check_form("beta", params.beta, (tokens, value_heads), GATES, v.device)
    if by_channel:
        _check("g", params.g, (tokens, value_heads, HEAD_DIM), GATES, v.device)
    else:
        check_form("g", params.g, (tokens, value_heads), GATES, v.device)
    check_form("cu_seqlens", cu_seqlens, (cu_seqlens.numel(),), INT32, v.device)
    if len(cu_seqlens) < (2 if tokens else 1):
        raise ValueError(f"cu_seqlens has {len(cu_seqlens)} elements: no sequence for {tokens} tokens")
    if initial_state is not None:
        states = (len(cu_seqlens) - 1, value_heads, HEAD_DIM, HEAD_DIM)
        check_form("initial_state", initial_state, states, STATES, v.device)


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Raises ValueError unless a kernel can take this tensor, NotImplementedError if another kernel could."""
    check_form(name, tensor, shape, dtypes, device)
    if not arguments.is_contiguous_aligned(tensor, ALIGN):
        raise ValueError(f"{name} must be contiguous and aligned to {ALIGN} bytes")


def check_form(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """`check_tensor` without the memory layout."""
    _check(name, tensor, shape, dtypes if isinstance(dtypes, tuple) else (dtypes,), device)
    check_count(name, shape)


def check_count(name: str, shape: Sequence[int]) -> None:
    if name in COUNTED and prod(shape) >= MAX_COUNTED:
        raise NotImplementedError(
            f"the compiled kernels take {name} of less than 2^31 elements; it has {prod(shape)}"
        )


def check_rows(bound: int, value_heads: int) -> None:
    """The kernels index rows of the workspace, and so items of a launch, with 32 bits."""
    if (rows := bound * CHUNK * value_heads) >= MAX_COUNTED:
        raise NotImplementedError(
            f"the compiled kernels take less than 2^31 rows of chunks and value heads; UB C Hv is {rows}"
        )


def check_ctas(sequences: int, value_heads: int) -> None:
    """The kernel's CTA numbers are 32 bits, one CTA per sequence and value head. States are checked
    separately."""
    if (ctas := sequences * value_heads) >= MAX_COUNTED:
        raise NotImplementedError(
            f"the compiled kernels take less than 2^31 sequences times value heads; N Hv is {ctas}"
        )
