"""Rewrites the slots that a decode call names, and computes nothing: the limit of kernels that update a pool
in place. CuTe DSL, sm_90a.

    state[slot(y)] = state[slot(y)] xor key         as 32-bit words, for every sequence y

    tensor         shape              dtype         layout
    state          slots, Hv, V, K    f32 or bf16   slots any multiple of 16 bytes apart
    state_indices  B, 1               int32         any strides; -1 writes nothing

CTA (x, y) rewrites bytes x `threads` `vectors` 16 .. of the slot of sequence y: a thread loads `vectors`
vectors of 16 bytes, `threads` apart, and then stores them. slot(y) is state_indices[y], or with `lookup` off
y itself, so that no load waits for another one. `pdl` is that of `DecodePlan`.

`scripts/benchmarks/bench_pool_rewrite.py` times it beside decode kernels.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import ptx
from gdnbench_kernels.gdn_decode.decode_plan import STATE_BYTES
from gdnbench_kernels.gdn_decode.example_tensors import ExampleTensors, stream
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM

I32, I64 = cutlass.Int32, cutlass.Int64

VECTOR = 16
"""Bytes of a vector."""


@dataclass(frozen=True)
class Rewrite:
    """The kernel for a state dtype; the module explains the options."""

    state_dtype: str
    threads: int
    vectors: int
    lookup: bool
    pdl: bool

    @property
    def tile_bytes(self) -> int:
        """Bytes that a CTA rewrites."""
        return self.threads * self.vectors * VECTOR

    @cute.jit
    def __call__(
        self,
        state: cute.Tensor,
        state_indices: cute.Tensor,
        key: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        slot_bytes = cute.size(state, mode=[1]) * (HEAD_DIM * HEAD_DIM * STATE_BYTES[self.state_dtype])
        self.kernel(state, state_indices, key).launch(
            grid=(slot_bytes // self.tile_bytes, cute.size(state_indices, mode=[0]), 1),
            block=(self.threads, 1, 1),
            stream=stream,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(self, state: cute.Tensor, state_indices: cute.Tensor, key: cutlass.Int32) -> None:
        tile, sequence, _ = cute.arch.block_idx()
        begin = I64(tile * self.tile_bytes + cute.arch.thread_idx()[0] * VECTOR)
        if cutlass.const_expr(self.pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        slot = sequence
        if cutlass.const_expr(self.lookup):
            index = I64(sequence) * I64(state_indices.stride[0]) * 4
            slot = ptx.load_index(state_indices.iterator.toint() + index)
        at = (
            state.iterator.toint()
            + I64(slot) * (I64(state.stride[0]) * STATE_BYTES[self.state_dtype])
            + begin
        )
        step = self.threads * VECTOR
        loaded = [ptx.load_if(slot, at, place * step, "none", I32) for place in range(self.vectors)]
        if slot >= 0:
            for place, words in enumerate(loaded):
                ptx.store(at, place * step, [word ^ key for word in words], "none")


def build(
    state_dtype: str, threads: int, vectors: int, lookup: bool, pdl: bool
) -> tuple[Any, tuple[Any, ...]]:
    """The object to compile, and examples of its arguments. Raises ValueError unless a state is a whole
    number of tiles."""
    made = Rewrite(state_dtype, threads, vectors, lookup, pdl)
    if HEAD_DIM * HEAD_DIM * STATE_BYTES[state_dtype] % made.tile_bytes:
        raise ValueError(
            f"{threads} threads x {vectors} vectors do not divide a {state_dtype} state; take 256 x 1"
        )
    state, indices, _, _ = ExampleTensors(1).pool(state_dtype, "first")
    return made, (state, indices, I32(1), stream())
