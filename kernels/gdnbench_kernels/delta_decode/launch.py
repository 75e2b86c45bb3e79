"""Launches of the compiled decode kernels of gdn_decode and kda_decode: the checks of a call that both make,
and the calls of a program.

The checks read shapes, dtypes and addresses, never values, so nothing waits for the device. The errors name
the argument: NotImplementedError for what another kernel could take, ValueError for what no kernel could. The
pool is never copied; q, k and v are copied unless their rows are contiguous and aligned to 16 bytes.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.arguments import Output
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.contract import Launch
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_decode.sizes import ALIGN, HEAD_DIM, MAX_BATCH, MAX_TOKENS
from gdnbench_kernels.gdn_decode.sources import GATE_DTYPES, STATE_DTYPES, Tap
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.launch_checks import (
    TensorCheck,
    check_apart,
    check_own_elements,
    dtypes_of,
    finite_number,
    memory_span,
)
from gdnbench_kernels.params import by_name
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.programs import SM90, SM100, SM103
from gdnbench_kernels.state_slots import PADDING
from gdnbench_kernels.validate import dtype_name

Params = DecodeParams | KdaDecodeParams

INT32, BFLOAT16 = (torch.int32,), (torch.bfloat16,)
GATES, STATES = dtypes_of(GATE_DTYPES), dtypes_of(STATE_DTYPES)

check_tensor = TensorCheck("the compiled kernel takes", first="v")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArguments:
    """A call as the programs for it take it."""

    tensors: Mapping[str, Tensor | None]
    """q, k, v, g, beta, A_log, dt_bias, state, state_indices, num_accepted, read_indices: the program's first
    arguments, in order. q, k [B, S, H, 128], v [B, S, Hv, 128] bfloat16, their rows contiguous and aligned to
    16 bytes; state_indices int32; A_log, dt_bias, num_accepted and read_indices, if given, contiguous."""
    scalars: tuple[float, ...]
    """The program's last arguments."""
    without_taps: tuple[None, ...]
    """What a program without taps takes in place of theirs."""
    alpha_shape: tuple[int, ...]
    """Shape of alpha_t."""
    compiled: Callable[..., Program]
    """The program for a plan, a target and, optionally, a tap."""
    default_plan: Callable[[int], DecodePlan]
    """The default plan on a GPU with so many multiprocessors."""
    output: Output

    @property
    def v(self) -> Tensor:
        v = self.tensors["v"]
        assert v is not None
        return v

    @property
    def o(self) -> Tensor:
        """[B, S, Hv, 128] bfloat16, the tensor that the kernel writes."""
        return self.output.buffer

    @property
    def given(self) -> tuple[Any, ...]:
        """The arguments of a program without a tap."""
        return self._arguments(self.without_taps)

    def tapped(self, alpha_t: Tensor, beta_t: Tensor, delta_t: Tensor) -> tuple[Any, ...]:
        """The arguments of a program with a tap, from contiguous float32 tensors like those of
        `stage_tensors`."""
        return self._arguments((_plain(alpha_t), _plain(beta_t), _plain(delta_t)))

    @property
    def idle(self) -> tuple[Any, ...]:
        """Like `given`, with all sequences padding."""
        padding = {
            name: torch.full_like(tensor, PADDING)
            for name in ("state_indices", "read_indices")
            if (tensor := self.tensors[name]) is not None
        }
        return replace(self, tensors={**self.tensors, **padding}).given

    def stage_tensors(self) -> dict[str, Tensor]:
        """Tensors for the stages, filled with NaN."""
        v = self.v
        shapes = {"alpha_t": self.alpha_shape, "beta_t": v.shape[:3], "delta_t": v.shape}
        return {
            name: torch.full(shape, torch.nan, dtype=torch.float32, device=v.device)
            for name, shape in shapes.items()
        }

    def finish(self) -> dict[str, Tensor]:
        """Return the filled tensor: the caller's, or a new one."""
        return {"o": self.output.finish()}

    def _arguments(self, taps: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*self.tensors.values(), _plain(self.o), *taps, *self.scalars)


def launch(given: LaunchArguments, plan: DecodePlan | None, arch: str | None) -> None:
    """Run the call; None takes the default plan, and the device's target."""
    if len(given.v):
        _program(given, plan, arch)(*given.given)


def launch_tapped(
    given: LaunchArguments,
    tap: Tap,
    stages: dict[str, Tensor],
    plan: DecodePlan | None = None,
    arch: str | None = None,
) -> dict[str, Tensor]:
    """Run the call by a build with a tap, which writes to or reads from the tensors `stages`."""
    if len(given.v):
        _program(given, plan, arch, tap)(*given.tapped(**stages))
    return stages


def prepared_launch(
    given: LaunchArguments, o: Tensor | None, plan: DecodePlan | None, arch: str | None
) -> Launch:
    """A launch of the call. Raises NotImplementedError unless the kernel can write `o` directly."""
    if given.o is not o:
        raise NotImplementedError("a launch writes to o itself: give a contiguous o, aligned to 16 bytes")
    if not len(given.v):
        return launch_nothing
    program = _program(given, plan, arch)
    if given.v.device.type == "cuda":
        # Launch once with padding only, which accesses no state: the first launch loads the program, which a
        # graph cannot capture.
        program(*given.idle)
    return program.prepared(*given.given)


def launch_nothing() -> None:
    """The launch of a call of no sequences."""


def _program(given: LaunchArguments, plan: DecodePlan | None, arch: str | None, *tap: Tap) -> Program:
    device = given.v.device
    target = arch or arch_of(device)
    plan = plan or given.default_plan(multiprocessors(device, target))
    if plan.ranked and len(given.v) > plan.ranked * WARP:
        raise ValueError(
            f"the plan ranks up to {plan.ranked * WARP} sequences, and the call has {len(given.v)}; take"
            " a plan with a larger `ranked`, or 0"
        )
    return given.compiled(plan, target, *tap)


def arch_of(device: torch.device) -> str:
    """The target for that device. Raises NotImplementedError for a device that the kernels are not compiled
    for."""
    return programs.arch_of(device, (SM90, SM100, SM103), "the compiled decode kernel")


def check_call(params: Params, o: Tensor | None) -> None:
    """Check everything but the convention of the gate, g, A_log and dt_bias. Raises NotImplementedError for a
    call that the kernels do not support, ValueError for an invalid one."""
    q, v, device = params.q, params.v, params.v.device
    batch, tokens, heads, value_heads = _sizes(q, v)
    if params.qk not in ("normalised", "raw"):
        raise ValueError(f"qk is {params.qk!r}; it is normalised or raw")
    num_accepted, read_indices = params.num_accepted, params.read_indices
    if num_accepted is not None and read_indices is not None:
        raise ValueError("num_accepted and read_indices are both given; one of them says what is read")
    for name, tensor, count in (("q", q, heads), ("k", params.k, heads), ("v", v, value_heads)):
        check_tensor(name, tensor, (batch, tokens, count, HEAD_DIM), BFLOAT16, device)
    check_tensor("beta", params.beta, (batch, tokens, value_heads), GATES, device)
    _check_pool(params.state, value_heads, device)
    check_tensor("state_indices", params.state_indices, (batch, tokens), INT32, device)
    for name, given in (("num_accepted", num_accepted), ("read_indices", read_indices)):
        if given is not None:
            check_tensor(name, given, (batch,), INT32, device)
    if o is not None:
        check_tensor("o", o, v.shape, BFLOAT16, device)
        check_own_elements("o", o)
    _check_apart(params, o)


def call_tensors(params: Params, **own: Tensor | None) -> dict[str, Tensor | None]:
    """The tensors of a checked call as `LaunchArguments.tensors`; `own` replaces some."""
    rows = {name: contiguous_rows(getattr(params, name)) for name in ("q", "k", "v")}
    rest = {"g": params.g, "beta": params.beta, "A_log": params.A_log, "dt_bias": params.dt_bias}
    for name in ("A_log", "dt_bias"):
        rest[name] = _contiguous(getattr(params, name))
    return {
        **rows,
        **rest,
        "state": _plain(params.state),
        "state_indices": params.state_indices,
        "num_accepted": _contiguous(params.num_accepted),
        "read_indices": _contiguous(params.read_indices),
        **own,
    }


def call_options(params: Params) -> dict[str, Any]:
    """The options of `source` that are equal in both operations."""
    reads = "first" if params.num_accepted is None else "accepted"
    return {
        "tokens": params.v.shape[1],
        "group": params.v.shape[2] // params.q.shape[2],
        "state_dtype": dtype_name(params.state.dtype),
        "gate": params.gate,
        "qk": params.qk,
        "g_dtype": dtype_name(params.g.dtype),
        "beta_dtype": dtype_name(params.beta.dtype),
        "bias_dtype": None if params.dt_bias is None else dtype_name(params.dt_bias.dtype),
        "reads": reads if params.read_indices is None else "given",
    }


def call_scalars(params: Params) -> tuple[float, float]:
    """scale and beta_max."""
    scale = HEAD_DIM**-0.5 if params.scale is None else finite_number("scale", params.scale)
    return scale, finite_number("beta_max", params.beta_max)


def call_output(params: Params, o: Tensor | None) -> Output:
    """The output tensor. If it is a stand-in for the caller's, it starts with the caller's values: padding
    rows keep them."""
    found = Output.allocate(o, params.v.shape, torch.bfloat16, params.v.device, ALIGN)
    if o is not None and found.buffer is not o:
        found.buffer.copy_(o)
    return found


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _sizes(q: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """(B, S, H, Hv)."""
    for name, tensor in (("q", q), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it has four axes")
        if tensor.shape[3] != HEAD_DIM:
            raise NotImplementedError(
                f"the compiled kernel takes heads of {HEAD_DIM}; {name}'s have {tensor.shape[3]}"
            )
    batch, tokens, heads, _ = q.shape
    value_heads = v.shape[2]
    if heads < 1 or value_heads < 1 or value_heads % heads:
        raise ValueError(f"v has {value_heads} heads and q {heads}; Hv must be a multiple of H")
    if tokens < 1:
        raise ValueError("q has no tokens on axis 1; a sequence has at least one")
    if tokens > MAX_TOKENS:
        raise NotImplementedError(
            f"the compiled kernel takes up to {MAX_TOKENS} tokens a sequence, not {tokens}"
        )
    if batch > MAX_BATCH:
        raise NotImplementedError(f"the compiled kernel takes up to {MAX_BATCH} sequences, not {batch}")
    return batch, tokens, heads, value_heads


def _check_pool(state: Tensor, value_heads: int, device: torch.device) -> None:
    """The kernel uses the pool's memory layout as it is, because the pool is too large to copy."""
    slots = state.shape[0] if state.dim() else 0
    check_tensor("state", state, (slots, value_heads, HEAD_DIM, HEAD_DIM), STATES, device)
    slot = value_heads * HEAD_DIM**2
    # The stride of a single slot, or of a single head, is never used.
    heads = state.stride()[1:] if value_heads > 1 else (HEAD_DIM**2, *state.stride()[2:])
    if heads != (HEAD_DIM**2, HEAD_DIM, 1) or (slots > 1 and state.stride(0) < slot):
        raise NotImplementedError(
            f"the compiled kernel takes slots that are contiguous and apart, strides [{slot} or more,"
            f" {HEAD_DIM**2}, {HEAD_DIM}, 1]; state has {list(state.stride())}"
        )
    size = state.element_size()
    if state.data_ptr() % ALIGN or (slots > 1 and state.stride(0) * size % ALIGN):
        raise NotImplementedError(
            f"the compiled kernel takes slots aligned to {ALIGN} bytes; state starts"
            f" {state.data_ptr() % ALIGN} bytes past such an address, and its slots lie"
            f" {state.stride(0) * size} bytes apart"
        )


def _plain(tensor: Tensor) -> Tensor:
    """The same memory, with a contiguous tensor's stride for each axis of one element: the actual stride is
    never used, but a compiled kernel requires multiples of 16 bytes."""
    strides, step = list(tensor.stride()), 1
    for axis in reversed(range(tensor.dim())):
        strides[axis] = step if tensor.shape[axis] == 1 else strides[axis]
        step *= tensor.shape[axis]
    return tensor if tensor.stride() == tuple(strides) else tensor.as_strided(tensor.shape, strides)


def contiguous_rows(tensor: Tensor, align: int = ALIGN) -> Tensor:
    """The tensor itself if each row of its last axis is contiguous and aligned to `align` bytes, else a
    copy."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    size = tensor.element_size()
    aligned = tensor.data_ptr() % align == 0 and all(step * size % align == 0 for step in strides[:-1])
    if tensor.stride(-1) == 1 and aligned:
        return _plain(tensor)
    return tensor.clone(memory_format=torch.contiguous_format)


def _check_apart(params: Params, o: Tensor | None) -> None:
    """Raises ValueError for an output in the memory of an input, which later CTAs still read. Gaps between
    slots of the pool may contain other tensors."""
    state = params.state
    pool, after = memory_span("state", state)
    tensors = {
        name: tensor for name, tensor in {**by_name(params), "o": o}.items() if isinstance(tensor, Tensor)
    }
    spans = {name: memory_span(name, tensor) for name, tensor in tensors.items() if name != "state"}
    check_apart(("o",), spans)
    size = state.element_size()
    step, slot = state.stride(0) * size, state[:1].numel() * size
    for name, (first, last) in spans.items():
        if pool < last and first < after:
            into = (first - pool) % step if len(state) > 1 else 0
            if first < pool or into < slot or into + last - first > step:
                raise ValueError(f"{name} shares memory with state; give it memory of its own")
