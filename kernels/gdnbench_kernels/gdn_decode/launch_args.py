"""Checks the arguments of a call of gdn_decode's compiled kernel, and makes the tensors for its launch.

The checks read shapes, dtypes and addresses, never values, so nothing waits for the device. The errors name
the argument: NotImplementedError for what another kernel could take, ValueError for what no kernel could. The
pool is never copied. g and beta may have any strides; q, k and v are copied unless their rows are contiguous
and aligned to 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.arguments import Output
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM, MAX_BATCH, MAX_TOKENS
from gdnbench_kernels.gdn_decode.sources import (
    ALIGN,
    BIAS_DTYPES,
    GATE_DTYPES,
    STATE_DTYPES,
    Tap,
    source,
)
from gdnbench_kernels.launch_checks import (
    TensorCheck,
    check_apart,
    check_own_elements,
    dtypes_of,
    finite_number,
    memory_span,
)
from gdnbench_kernels.params import by_name
from gdnbench_kernels.programs import SM90, SM100, SM103, compiled
from gdnbench_kernels.state_slots import PADDING
from gdnbench_kernels.validate import dtype_name

INT32, FLOAT32, BFLOAT16 = (torch.int32,), (torch.float32,), (torch.bfloat16,)
GATES, BIASES, STATES = dtypes_of(GATE_DTYPES), dtypes_of(BIAS_DTYPES), dtypes_of(STATE_DTYPES)

_check = TensorCheck("the compiled kernel takes", first="v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(DecodeParams):
    """A call as the program takes it.

    q, k [B, S, H, 128], v [B, S, Hv, 128] bfloat16, rows of 128 contiguous and aligned to 16 bytes. state
    [slots, Hv, 128, 128]. state_indices int32. A_log, dt_bias, num_accepted and read_indices, if given,
    contiguous; at most one of the last two is given.
    """

    scale: float
    _o: Output

    @property
    def batch(self) -> int:
        return self.v.shape[0]

    @property
    def tokens(self) -> int:
        return self.v.shape[1]

    @property
    def value_heads(self) -> int:
        return self.v.shape[2]

    @property
    def device(self) -> torch.device:
        return self.v.device

    @property
    def state_dtype(self) -> str:
        return dtype_name(self.state.dtype)

    @property
    def o(self) -> Tensor:
        """[B, S, Hv, 128] bfloat16, the tensor that the kernel writes."""
        return self._o.buffer

    @property
    def reads(self) -> str:
        """See `sources.Reads`."""
        if self.read_indices is not None:
            return "given"
        return "first" if self.num_accepted is None else "accepted"

    def compiled(self, plan: DecodePlan, arch: str, tap: Tap | None = None) -> Program:
        """The program for this call with that plan."""
        return compiled(
            arch,
            source,
            self.tokens,
            self.value_heads // self.q.shape[2],
            self.state_dtype,
            self.gate,
            self.qk,
            dtype_name(self.g.dtype),
            dtype_name(self.beta.dtype),
            None if self.dt_bias is None else dtype_name(self.dt_bias.dtype),
            self.reads,
            plan,
            *(() if tap is None else (tap,)),
        )

    def tapped(self, alpha_t: Tensor, beta_t: Tensor, delta_t: Tensor) -> tuple[Any, ...]:
        """The arguments of a program with a tap: contiguous float32 [B, S, Hv], [B, S, Hv] and [B, S, Hv,
        128]."""
        *tensors, scale, beta_max = self.given
        return (*tensors, _plain(alpha_t), _plain(beta_t), _plain(delta_t), scale, beta_max)

    @property
    def given(self) -> tuple[Any, ...]:
        """The program's arguments, in order."""
        return (
            self.q,
            self.k,
            self.v,
            self.g,
            self.beta,
            self.A_log,
            self.dt_bias,
            self.state,
            self.state_indices,
            self.num_accepted,
            self.read_indices,
            _plain(self.o),
            self.scale,
            self.beta_max,
        )

    @property
    def idle(self) -> tuple[Any, ...]:
        """Like `given`, with all sequences padding."""
        slots, read = self.state_indices, self.read_indices
        return replace(
            self,
            state_indices=torch.full_like(slots, PADDING),
            read_indices=None if read is None else torch.full_like(read, PADDING),
        ).given

    def finish(self) -> dict[str, Tensor]:
        """Return the filled tensor: the caller's, or a new one."""
        return {"o": self._o.finish()}


def arguments(params: DecodeParams, o: Tensor | None = None) -> Arguments:
    """The arguments of a call, checked. Raises NotImplementedError for a call that the kernel does not
    support, ValueError for an invalid one."""
    q, k, v, state, gate, qk = params.q, params.k, params.v, params.state, params.gate, params.qk
    A_log, dt_bias = params.A_log, params.dt_bias
    num_accepted, read_indices = params.num_accepted, params.read_indices
    batch, tokens, heads, value_heads = _sizes(q, v)
    if gate not in ("log", "raw"):
        raise NotImplementedError(f"gate is {gate!r}; the compiled kernel takes log or raw")
    if qk not in ("normalised", "raw"):
        raise ValueError(f"qk is {qk!r}; it is normalised or raw")
    raw = gate == "raw"
    for name, tensor in (("A_log", A_log), ("dt_bias", dt_bias)):
        if (tensor is not None) != raw:
            what = "missing" if tensor is None else "given"
            raise ValueError(f"{name} is {what} with gate {gate}; it belongs to raw alone")
    if num_accepted is not None and read_indices is not None:
        raise ValueError("num_accepted and read_indices are both given; one of them says what is read")
    device = v.device
    for name, tensor, count in (("q", q, heads), ("k", k, heads), ("v", v, value_heads)):
        _check(name, tensor, (batch, tokens, count, HEAD_DIM), BFLOAT16, device)
    for name, tensor in (("g", params.g), ("beta", params.beta)):
        _check(name, tensor, (batch, tokens, value_heads), GATES, device)
    if A_log is not None and dt_bias is not None:
        _check("A_log", A_log, (value_heads,), FLOAT32, device)
        _check("dt_bias", dt_bias, (value_heads,), BIASES, device)
    _check_pool(state, value_heads, device)
    _check("state_indices", params.state_indices, (batch, tokens), INT32, device)
    for name, given in (("num_accepted", num_accepted), ("read_indices", read_indices)):
        if given is not None:
            _check(name, given, (batch,), INT32, device)
    if o is not None:
        _check("o", o, v.shape, BFLOAT16, device)
        check_own_elements("o", o)
    _check_apart(params, o)
    rows = {"q": _rows(q), "k": _rows(k), "v": _rows(v), "state": _plain(state)}
    optional = {name: getattr(params, name) for name in ("A_log", "dt_bias", "num_accepted", "read_indices")}
    made = {name: None if tensor is None else tensor.contiguous() for name, tensor in optional.items()}
    made["scale"] = HEAD_DIM**-0.5 if params.scale is None else finite_number("scale", params.scale)
    made["beta_max"] = finite_number("beta_max", params.beta_max)
    return Arguments(**{**by_name(params), **rows, **made}, _o=_output(o, v))


def arch_of(device: torch.device) -> str:
    """The target for that device. Raises NotImplementedError for a device that the kernel is not compiled
    for."""
    return programs.arch_of(device, (SM90, SM100, SM103), "this kernel of gdn_decode")


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
    _check("state", state, (slots, value_heads, HEAD_DIM, HEAD_DIM), STATES, device)
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


def _output(o: Tensor | None, v: Tensor) -> Output:
    """The output tensor. If it is a stand-in for the caller's, it starts with the caller's values: padding
    rows keep them."""
    found = Output.allocate(o, v.shape, torch.bfloat16, v.device, ALIGN)
    if o is not None and found.buffer is not o:
        found.buffer.copy_(o)
    return found


def _plain(tensor: Tensor) -> Tensor:
    """The same memory, with a contiguous tensor's stride for each axis of one element: the actual stride is
    never used, but a compiled kernel requires multiples of 16 bytes."""
    strides, step = list(tensor.stride()), 1
    for axis in reversed(range(tensor.dim())):
        strides[axis] = step if tensor.shape[axis] == 1 else strides[axis]
        step *= tensor.shape[axis]
    return tensor if tensor.stride() == tuple(strides) else tensor.as_strided(tensor.shape, strides)


def _rows(tensor: Tensor) -> Tensor:
    """The tensor itself if each row of a head is contiguous and aligned, else a copy."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    size = tensor.element_size()
    aligned = tensor.data_ptr() % ALIGN == 0 and all(step * size % ALIGN == 0 for step in strides[:-1])
    if tensor.stride(-1) == 1 and aligned:
        return _plain(tensor)
    return tensor.clone(memory_format=torch.contiguous_format)


def _check_apart(params: DecodeParams, o: Tensor | None) -> None:
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
