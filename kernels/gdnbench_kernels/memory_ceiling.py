"""Moves bytes as fast as memory allows: the baseline for kernels that move as many. CuTe DSL.

    target[i] = source[i] xor key        for 32-bit words i; in place where source and target are one tensor

    tensor  shape   dtype  layout
    source  words   int32  contiguous, 16-byte aligned
    target  words   int32  contiguous, 16-byte aligned

CTA b processes tiles b, b + grid, b + 2 grid, ... of `threads` x `unroll` vectors of 16 bytes. A thread loads
`unroll` vectors, `threads` apart, and then stores them, so all loads of a tile are in flight before the first
is used. The last tile is processed vector by vector. With `no_allocate` loads and stores do not allocate in
L1. words is a multiple of 4 and less than 2^31.

`gdnbench.timing.ceiling` makes the sources, whose target is `build`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

I32, I64 = cutlass.Int32, cutlass.Int64

VECTOR = 16
"""Bytes of a vector."""
WORDS = 4
"""Words of a vector."""


@dataclass(frozen=True)
class Move:
    """target = source xor key; the module explains it."""

    threads: int
    unroll: int
    no_allocate: bool

    @cute.jit
    def __call__(
        self,
        source: cute.Tensor,
        target: cute.Tensor,
        key: cutlass.Int32,
        ctas: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(source, target, key, ctas).launch(
            grid=(ctas, 1, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self, source: cute.Tensor, target: cute.Tensor, key: cutlass.Int32, ctas: cutlass.Int32
    ) -> None:
        vectors = cute.size(source) // WORDS
        tile = self.threads * self.unroll
        thread, first = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        whole = vectors // tile
        for number in cutlass.range(first, whole, ctas, unroll=1):
            self.move_tile(source, target, key, number * tile + thread)
        if first == whole % ctas:
            for at in cutlass.range(whole * tile + thread, vectors, self.threads, unroll=1):
                self.move(source, target, key, at, 1)

    @cute.jit
    def move_tile(
        self, source: cute.Tensor, target: cute.Tensor, key: cutlass.Int32, at: cutlass.Int32
    ) -> None:
        self.move(source, target, key, at, self.unroll)

    def move(
        self, source: cute.Tensor, target: cute.Tensor, key: cutlass.Int32, at: cutlass.Int32, count: int
    ) -> None:
        """Process `count` vectors: `at`, `at` + threads, ..."""
        begin = I64(at) * VECTOR
        step = self.threads * VECTOR
        loaded = [self.load(source.iterator.toint() + begin + place * step) for place in range(count)]
        for place, words in enumerate(loaded):
            self.store(target.iterator.toint() + begin + place * step, *(word ^ key for word in words))

    def load(self, address: Any) -> Any:
        hint = ".L1::no_allocate" if self.no_allocate else ""
        return cute.arch.inline_ptx(
            f"ld.global{hint}.v4.b32 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}];",
            write_only_types=[I32] * WORDS,
            read_only_args=[address],
        )

    def store(self, address: Any, *words: Any) -> None:
        hint = ".L1::no_allocate" if self.no_allocate else ""
        cute.arch.inline_ptx(
            f"st.global{hint}.v4.b32 [{{$r0}}], {{{{$r1}}, {{$r2}}, {{$r3}}, {{$r4}}}};",
            read_only_args=[address, *words],
        )


def build(threads: int, unroll: int, no_allocate: bool) -> tuple[Any, tuple[Any, ...]]:
    """The object to compile, and examples of its arguments."""
    make: Any = make_fake_tensor
    words = cute.sym_int()
    vector = make(cutlass.Int32, (words,), (1,), assumed_align=VECTOR)
    return Move(threads, unroll, no_allocate), (vector, vector, I32(1), I32(1), make_fake_stream())
