"""The driver of the chunked form, shared by gdn_prefill and kda_prefill: one step for each stage over all
chunks of a call, and the two stages that do not depend on the shape of the gate.

    g_cu = cumsum(g) inside the chunk         Ai = (I + A)^-1

What depends on the gate, one for each token and head or one for each key channel, is in `ChunkMath`;
`gdn_prefill.chunked` and `kda_prefill.chunked` have the formulas. The inverse is a triangular solve in fp64
of the stored A, then rounded. So the error of a kernel's inversion is compared with the error of storage
alone.

Shapes: c chunks of C tokens; q, k [c, H, C, K], v [c, Hv, C, V], g_cu [c, Hv, C] or [c, Hv, C, K], beta
[c, Hv, C], states [.., Hv, V, K].
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gdnbench_kernels.chunks import ChunkPlan, gather_chunks, plan_chunks, scatter_chunks
from gdnbench_kernels.gdn import default_scale, in_vk, normalised
from gdnbench_kernels.rounding import EXACT, Arithmetic

# Independent chunks processed at once. With 32 heads an fp32 intermediate of 64 chunks takes 32 MiB if it is
# [64, 64], as with a gate for each head, and 16 MiB if it is [16, 128], as with a gate for each channel.
CHUNKS_AT_ONCE = 64

# exp(-128) is 0 in fp32, like exp(-inf), and negligible beside any other term in fp64; but -128 - -128 is 0,
# while -inf - -inf is NaN.
CLOSED_GATE = -128.0

# Lower finite gates are replaced by this. exp of either is 0, in fp64 too. A sum that holds a larger number
# absorbs the gates of later tokens, whose decays are differences of sums: of fp64 sums of 4096 of these the
# spacing is 2^-26, of fp32 sums behind one of these 2^-9, less than bf16's of a decay.
LEAST_GATE = -(2.0**14)


class Gates(Protocol):
    """How the g and beta of a call become a decay and a step size."""

    def log_decay(self, g: Tensor, compute: torch.dtype) -> Tensor:
        """The log-space decay in `compute`."""

    def alpha(self, g: Tensor, compute: torch.dtype) -> Tensor:
        """The factor of the state in `compute`."""

    def step_size(self, beta: Tensor, compute: torch.dtype) -> Tensor:
        """The step size in `compute`."""


@dataclass(frozen=True, slots=True)
class ChunkMath:
    """The formulas of a chunk for one shape of gate. All stages are rounded to the stored dtype of the
    arithmetic."""

    form_a: Callable[[Tensor, Tensor, Tensor, Arithmetic], Tensor]
    """k, g_cu, beta -> A [c, Hv, C, C]."""
    form_uw: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Arithmetic], tuple[Tensor, Tensor]]
    """k, v, g_cu, beta, Ai -> U [c, Hv, C, V], W [c, Hv, C, K]."""
    form_p: Callable[[Tensor, Tensor, Tensor, Arithmetic], Tensor]
    """q, k, g_cu -> P [c, Hv, C, C]."""
    advance_state: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Arithmetic], tuple[Tensor, Tensor, Tensor]
    ]
    """state, k, U, W, g_cu of one chunk of each sequence -> h, V_new and the next state, which is not
    rounded."""
    read_out: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, Arithmetic], Tensor]
    """q, g_cu, P, h, V_new, scale -> o [c, Hv, C, V]."""


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """The tensors of a prefill call in the caller's conventions, and the formulas of its operation."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor  # [T, Hv] or [T, Hv, K]
    beta: Tensor
    initial_state: Tensor | None  # [N, Hv, V, K]: a view if the caller's layout is KV
    plan: ChunkPlan
    scale: float
    gates: Gates
    math: ChunkMath
    qk: str = "normalised"


class PrefillTensors(Protocol):
    """The parameters that all prefill operations have; see `gdn_prefill.params`."""

    @property
    def q(self) -> Tensor: ...
    @property
    def k(self) -> Tensor: ...
    @property
    def v(self) -> Tensor: ...
    @property
    def g(self) -> Tensor: ...
    @property
    def beta(self) -> Tensor: ...
    @property
    def cu_seqlens(self) -> Tensor: ...
    @property
    def initial_state(self) -> Tensor | None: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def beta_max(self) -> float: ...
    @property
    def output_final_state(self) -> bool: ...
    @property
    def final_state_dtype(self) -> str | None: ...
    @property
    def state_layout(self) -> str: ...
    @property
    def qk(self) -> str: ...


def prefill_inputs(params: PrefillTensors, gates: Gates, math: ChunkMath) -> PrefillInputs:
    """The tensors of a call. Waits for the device, to read cu_seqlens."""
    first = params.initial_state
    return PrefillInputs(
        params.q,
        params.k,
        params.v,
        params.g,
        params.beta,
        None if first is None else in_vk(first, params.state_layout),
        plan_chunks(params.cu_seqlens, params.chunk_size),
        default_scale(params.scale, params.k.shape[2]),
        gates,
        math,
        params.qk,
    )


def final_dtype(initial_state: Tensor | None, asked: str | None) -> torch.dtype:
    """The dtype of final_state: `asked`, else the initial state's, else float32."""
    if asked is not None:
        dtype: torch.dtype = getattr(torch, asked)
        return dtype
    return torch.float32 if initial_state is None else initial_state.dtype


def chunk_cumsum(g: Tensor) -> Tensor:
    """g_cu [c, Hv, C, ...] of log-space gates of that shape. A gate of -inf (alpha = 0) is replaced by
    `CLOSED_GATE`, a finite one below `LEAST_GATE` by that, and +inf, which is no decay, by NaN."""
    counted = g.clamp(min=LEAST_GATE).masked_fill(g.isneginf(), CLOSED_GATE)
    return counted.masked_fill(g.isposinf(), torch.nan).cumsum(2)


def invert(a: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Ai = (I + A)^-1 [c, Hv, C, C], rounded to the stored dtype; otherwise exact."""
    a = a.double()
    identity = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device).expand(a.shape)
    inverse = torch.linalg.solve_triangular(a, identity, upper=False, unitriangular=True)
    spoilt = ~a.isfinite().flatten(-2).all(-1)
    if bool(spoilt.any()):
        inverse[spoilt] = _substitute(a[spoilt])
    return arithmetic.store(inverse.tril(-1) + identity)


def _substitute(a: Tensor) -> Tensor:
    """(I + A)^-1 [n, C, C] of matrices that are not all finite. Element (i, j) uses only rows j .. i and
    columns j .. i of A; a solver would add 0 * NaN of the columns before j."""
    size = a.shape[-1]
    inverse = torch.eye(size, dtype=a.dtype, device=a.device).repeat(len(a), 1, 1)
    for i in range(1, size):
        terms = (a[:, i, :i, None] * inverse[:, :i, :i]).tril()  # [n, m, j]: zero for m < j
        inverse[:, i, :i] = -terms.sum(1)
    return inverse


class ChunkedPrefill:
    """The steps over a whole call. Each step reads `stages`, to which the earlier steps have added theirs;
    every stage is stored by chunk, [c, Hv, ...]."""

    def __init__(self, inputs: PrefillInputs, arithmetic: Arithmetic) -> None:
        self.inputs = inputs
        self.arithmetic = arithmetic
        self.plan = inputs.plan
        self.sequences = len(inputs.plan.offsets) - 1
        heads, key_dim = inputs.k.shape[1:]
        self.value_heads, self.value_dim = inputs.v.shape[1:]
        size, stored = inputs.plan.chunk_size, arithmetic.stored
        rows = (self.plan.total, self.value_heads)
        per_gate = inputs.g.shape[2:]
        self.k = self._empty((self.plan.total, heads, size, key_dim), stored)
        for block in self._blocks():
            self.k[block] = self._rows(inputs.k, block)
        self.stages: dict[str, Tensor] = {
            "g_cu": self._empty((*rows, size, *per_gate), arithmetic.compute),
            "A": self._empty((*rows, size, size), stored),
            "Ai": self._empty((*rows, size, size), stored),
            "U": self._empty((*rows, size, self.value_dim), stored),
            "W": self._empty((*rows, size, key_dim), stored),
            "h": self._empty((*rows, self.value_dim, key_dim), stored),
            "V_new": self._empty((*rows, size, self.value_dim), stored),
            "P": self._empty((*rows, size, size), stored),
        }
        self.state = self._first_state(key_dim)

    def run_steps(self) -> Tensor:
        """Run all steps and return o [T, Hv, V]; afterwards `stages` and `state` (the final state, unrounded)
        are set."""
        self.sum_gates()
        self.form_a()
        self.invert()
        self.form_uw()
        self.scan()
        self.form_p()
        return self.read_out()

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.inputs.v.device)

    def _first_state(self, key_dim: int) -> Tensor:
        given = self.inputs.initial_state
        if given is None:
            shape = (self.sequences, self.value_heads, self.value_dim, key_dim)
            return torch.zeros(shape, dtype=self.arithmetic.compute, device=self.inputs.v.device)
        return given.to(self.arithmetic.compute, copy=True).contiguous()

    def _blocks(self) -> list[slice]:
        return [
            slice(i, min(i + CHUNKS_AT_ONCE, self.plan.total))
            for i in range(0, self.plan.total, CHUNKS_AT_ONCE)
        ]

    def sum_gates(self) -> None:
        gates = self.inputs.gates.log_decay(self.inputs.g, self.arithmetic.compute)
        for block in self._blocks():
            rows = self.plan.part(block.start, block.stop)
            self.stages["g_cu"][block] = chunk_cumsum(gather_chunks(gates, *rows))

    def form_a(self) -> None:
        for block in self._blocks():
            given = self.k[block], self.stages["g_cu"][block], self._beta(block)
            self.stages["A"][block] = self.inputs.math.form_a(*given, self.arithmetic)

    def invert(self) -> None:
        for block in self._blocks():
            self.stages["Ai"][block] = invert(self.stages["A"][block], self.arithmetic)

    def form_uw(self) -> None:
        stages = self.stages
        for block in self._blocks():
            v = gather_chunks(self.inputs.v, *self.plan.part(block.start, block.stop))
            given = (self.k[block], v, stages["g_cu"][block], self._beta(block), stages["Ai"][block])
            stages["U"][block], stages["W"][block] = self.inputs.math.form_uw(*given, self.arithmetic)

    def _beta(self, block: slice) -> Tensor:
        step_size = self.inputs.gates.step_size(self.inputs.beta, self.arithmetic.compute)
        return gather_chunks(step_size, *self.plan.part(block.start, block.stop))

    def _rows(self, x: Tensor, block: slice) -> Tensor:
        """q or k of a block of chunks, rounded to the stored dtype."""
        rows = gather_chunks(x, *self.plan.part(block.start, block.stop))
        return self.arithmetic.store(normalised(rows, self.inputs.qk, self.arithmetic.compute))

    def scan(self) -> None:
        """Process chunk after chunk; each step processes one chunk of every sequence that still has one."""
        stages = self.stages
        counts = self.plan.offsets.diff()
        for step in range(int(counts.max()) if len(counts) else 0):
            sequences = torch.nonzero(counts > step).flatten()
            chunks = (self.plan.offsets[sequences] + step).to(self.k.device)
            sequences = sequences.to(self.k.device)
            h, v_new, self.state[sequences] = self.inputs.math.advance_state(
                self.state[sequences],
                self.k[chunks],
                stages["U"][chunks],
                stages["W"][chunks],
                stages["g_cu"][chunks],
                self.arithmetic,
            )
            stages["h"][chunks], stages["V_new"][chunks] = h, v_new

    def form_p(self) -> None:
        for block in self._blocks():
            q, g_cu = self._rows(self.inputs.q, block), self.stages["g_cu"][block]
            self.stages["P"][block] = self.inputs.math.form_p(q, self.k[block], g_cu, self.arithmetic)

    def read_out(self) -> Tensor:
        """o [T, Hv, V]."""
        o = self._empty((self.plan.tokens, self.value_heads, self.value_dim), self.arithmetic.stored)
        for block in self._blocks():
            q = self._rows(self.inputs.q, block)
            g_cu, p, h, v_new = (self.stages[name][block] for name in ("g_cu", "P", "h", "V_new"))
            given = (q, g_cu, p, h, v_new, self.inputs.scale)
            chunks = self.inputs.math.read_out(*given, self.arithmetic)
            scatter_chunks(o, chunks, *self.plan.part(block.start, block.stop))
        return o


def run_chunked(
    inputs: PrefillInputs,
    arithmetic: Arithmetic,
    params: PrefillTensors,
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """o and, if `params` asks for it, final_state of a call in the arithmetic, by the chunked form; fills
    `stages` if given. The oracle's final states stay in fp64."""
    run = ChunkedPrefill(inputs, arithmetic)
    outputs = {"o": run.run_steps()}
    if params.output_final_state:
        outputs["final_state"] = final_state(run, params)
    if stages is not None:
        stages.update(published_stages(run))
    return outputs


def final_state(run: ChunkedPrefill, params: PrefillTensors) -> Tensor:
    """The state after all chunks, in the call's layout and, but for the oracle, its dtype."""
    state = in_vk(run.state, params.state_layout).contiguous()
    if run.arithmetic is EXACT:
        return state
    return state.to(final_dtype(params.initial_state, params.final_state_dtype))


BY_ROW = ("U", "W", "V_new")
"""Stages with C rows for each chunk."""


def published_stages(run: ChunkedPrefill, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """The stages, or those in `names`, in the contract's shapes; elements that belong to no token are NaN.

    g_cu is [T, Hv] or [T, Hv, K]; U, W, V_new are [UB * C, Hv, *]; A, Ai, P, h are [UB, Hv, *, *].
    """
    plan = run.plan
    published = {}
    for name in run.stages if names is None else names:
        chunks = run.stages[name]
        if name == "g_cu":
            published[name] = chunks.new_full((plan.tokens, run.value_heads, *chunks.shape[3:]), torch.nan)
            scatter_chunks(published[name], chunks, *plan.part(0, plan.total))
            continue
        by_row = chunks.movedim(1, 2) if name in BY_ROW else chunks
        padded = by_row.new_full((plan.bound, *by_row.shape[1:]), torch.nan)
        padded[: plan.total] = by_row
        published[name] = padded.flatten(0, 1) if name in BY_ROW else padded
    return published


def put_stage(run: ChunkedPrefill, name: str, published: Tensor) -> None:
    """Set stage `name` from `published`, which has the contract's shape, in its own dtype: the inverse of
    `published_stages`."""
    plan, size = run.plan, run.plan.chunk_size
    if name == "g_cu":
        # Past the end of a sequence the sum is its last token's.
        last = plan.length[:, None] - 1
        tokens = plan.start[:, None] + torch.arange(size).minimum(last)
        run.stages[name] = published[tokens.to(published.device)].movedim(2, 1)
    elif name in BY_ROW:
        by_row = published[: plan.total * size].reshape(plan.total, size, *published.shape[1:])
        run.stages[name] = by_row.movedim(2, 1)
    else:
        run.stages[name] = published[: plan.total]
