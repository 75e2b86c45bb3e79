"""Building blocks of the SM100 kernels: mbarrier pipelines, operand views, tensor-memory copies. CuTe DSL.

    state = pipelines.k.producer_state()
    pipelines.k.producer_acquire(state)          # wait until consumers have released the stage
    pipelines.k.arrive_and_expect_tx(state)      # announce the bytes that TMA will write
    tma.k.load(pipelines.k, state, shared.k, row, head)
    state.advance()                              # next stage; the phase flips after the last one

The `producer_` and `consumer_` methods are those of CUTLASS's pipelines, with one arrival per warp. CUTLASS's
`PipelineTmaUmma` and `PipelineUmmaAsync` hide arrive_and_expect_tx, umma_commit and umma_release inside them.
`plan.Pipeline` has the arrival counts. A state is a `cutlass.pipeline.PipelineState`: stage and phase.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from math import prod
from typing import Any, Self

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils.blackwell_helpers as sm100
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from gdnbench_kernels import plan

VECTOR = 8
"""Elements of 16 bits in the 16 bytes that one thread stores at once and that a swizzle leaves together."""
LANE = 1 << 16
"""Distance of two lanes of tensor memory, in an address of 32-bit columns."""


@dataclass(frozen=True)
class Pipeline:
    """The mbarriers of a `plan.Pipeline` in shared memory: one full barrier a stage, then one empty barrier a
    stage."""

    spec: plan.Pipeline
    barriers: cute.Pointer

    @staticmethod
    def allocate(spec: plan.Pipeline, smem: Any) -> Pipeline:
        return Pipeline(spec, smem.allocate_array(cutlass.Int64, 2 * spec.stages))

    def full(self, state: Any) -> Any:
        """The stage's full barrier: its phase completes when the producer has filled the stage."""
        return self.barriers + state.index

    def empty(self, state: Any) -> Any:
        """The stage's empty barrier: its phase completes when all consumers have released the stage."""
        return self.barriers + self.spec.stages + state.index

    def init(self) -> None:
        """Initialise the barriers. One thread calls this, before `mbarrier_init_fence` and a CTA barrier."""
        for stage in range(self.spec.stages):
            cute.arch.mbarrier_init(self.barriers + stage, self.spec.full_count)
            cute.arch.mbarrier_init(self.barriers + self.spec.stages + stage, self.spec.empty_count)

    def producer_state(self) -> Any:
        """A producer's first state. Its first `producer_acquire` of each stage passes at once."""
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.spec.stages)

    def consumer_state(self) -> Any:
        """A consumer's first state. Its first `consumer_wait` of each stage waits for the producer."""
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.spec.stages)

    def producer_acquire(self, state: Any) -> None:
        """Producer: wait until all consumers have released the stage."""
        cute.arch.mbarrier_wait(self.empty(state), state.phase)

    def arrive_and_expect_tx(self, state: Any) -> None:
        """Producer, a whole warp: one elected lane arrives and announces the plan's bytes, which TMA will
        write; the phase completes when they have landed."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full(state), self.spec.bytes)

    def producer_commit(self, state: Any) -> None:
        """Producer, a whole warp: one arrival for the warp. All its lanes have written their part."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.full(state))

    def umma_commit(self, state: Any) -> None:
        """Producer, a whole warp: tcgen05.commit by one elected lane. The arrival comes when all MMAs issued
        so far by that lane are complete."""
        with cute.arch.elect_one():
            tcgen05.commit(self.full(state))

    def consumer_wait(self, state: Any) -> None:
        """Consumer: wait until the producer has filled the stage."""
        cute.arch.mbarrier_wait(self.full(state), state.phase)

    def consumer_release_thread(self, state: Any) -> None:
        """Consumer, each thread that calls it: one arrival. This thread has read the stage."""
        cute.arch.mbarrier_arrive(self.empty(state))

    def consumer_release(self, state: Any) -> None:
        """Consumer, a whole warp: one arrival for the warp. All its lanes have read the stage."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.empty(state))

    def umma_release(self, state: Any) -> None:
        """Consumer, a whole warp: tcgen05.commit by one elected lane. The arrival comes when all MMAs issued
        so far by that lane are complete, hence have read their operands."""
        with cute.arch.elect_one():
            tcgen05.commit(self.empty(state))

    def producer_tail(self, state: Any) -> None:
        """Producer, at the end: wait until every stage is released. Otherwise a consumer could arrive at a
        barrier of a CTA that has already exited."""
        for _ in range(self.spec.stages):
            self.producer_acquire(state)
            state.advance()

    def producer_tail_after(self, turns: Any) -> None:
        """`producer_tail` of a producer that has had so many turns."""
        for stage in range(self.spec.stages):
            self.producer_acquire(Turn.producer(turns + stage, self.spec.stages))


@dataclass(frozen=True)
class Turn:
    """The stage and phase of a pipeline that follow from a loop's counter. It takes the place of a pipeline
    state, whose stage and phase would be variables of the loop."""

    index: Any
    phase: Any

    @staticmethod
    def consumer(turn: Any, stages: int = 1) -> Turn:
        """Of a consumer's turn number `turn`, counted from 0; `stages` is a power of two."""
        return Turn(turn % stages, turn // stages % 2)

    @staticmethod
    def producer(turn: Any, stages: int = 1) -> Turn:
        """Of a producer's turn."""
        return Turn(turn % stages, (turn // stages + 1) % 2)


@dataclass(frozen=True)
class Pipelines:
    """All pipelines of a kernel. Each kernel subclasses this with one field per pipeline, in plan order."""

    @classmethod
    def allocate(cls, spec: plan.KernelPlan, smem: Any) -> Self:
        """The barriers of every pipeline of the plan, next in `smem`."""
        return cls(*(Pipeline.allocate(pipe, smem) for pipe in spec.pipelines))

    def init(self) -> None:
        """Initialise all barriers; see `Pipeline.init`."""
        for field in fields(self):
            getattr(self, field.name).init()


@cute.jit
def init_barriers(pipelines: Pipelines, mine: cutlass.Boolean) -> None:
    """Initialise all pipelines. All warps call this; the one whose `mine` is true does the work. The barriers
    may be used after the next CTA barrier."""
    if mine:
        with cute.arch.elect_one():
            pipelines.init()
    cute.arch.mbarrier_init_fence()


@cute.jit
def prefetch(tensors: tuple[Tma, ...], mine: cutlass.Boolean) -> None:
    """Prefetch the TMA descriptors, so that the first copies find them in cache. All warps call this; the one
    whose `mine` is true does the work."""
    if mine:
        for tensor in tensors:
            cpasync.prefetch_descriptor(tensor.atom)


def allocate_tmem(
    spec: plan.KernelPlan, smem: Any, allocator: IntEnum, barrier: IntEnum
) -> tuple[Any, cute.Pointer]:
    """Allocate the plan's tensor memory; returns the allocator and the base address. All warps call this;
    the first warp of role `allocator` allocates. The named barrier that all warps wait at here also makes
    the mbarriers of `init_barriers` usable."""
    together = pipeline.NamedBarrier(barrier_id=barrier, num_threads=spec.threads)
    tmem = cutlass.memory.TmemAllocator(
        smem.allocate(cutlass.Int32), barrier_for_retrieve=together, allocator_warp_id=allocator
    )
    tmem.allocate(spec.tmem_columns)
    # Relinquish at once: until then, the allocation of another CTA on the same SM blocks.
    tmem.relinquish_alloc_permit()
    tmem.wait_for_alloc()
    return tmem, tmem.retrieve_ptr(cutlass.Float32)


def base_of(tmem: Any) -> cute.Pointer:
    """The allocation's address, read again from shared memory: not a register that lives until then."""
    return tmem.retrieve_ptr(cutlass.Float32)


def before_thread_sync() -> None:
    """Orders this thread's earlier tcgen05 operations before its next arrive or barrier."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


def after_thread_sync() -> None:
    """Orders this thread's later tcgen05 operations after its last wait or barrier."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def opaque(value: cutlass.Int32) -> cutlass.Int32:
    """The same value, through an inline `mov` that the compiler cannot see through.

    What is computed from the result is computed at this point. Without it the compiler hoists address
    arithmetic out of loops and keeps every address in a register from turn to turn, or spills it.
    """
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Int32], read_only_args=[value]
    )


def lane_of_turn(turn: cutlass.Int32) -> cutlass.Int32:
    """The lane, computed from a loop's counter, which counts from 0: what is computed from the result is
    computed in each turn. ptxas sees through `opaque` alone, and hoists."""
    return ((opaque(turn) >> 31) + cute.arch.lane_idx()) & (plan.WARP - 1)


def load_layout(dtype: Any, rows: int, columns: int, stages: int) -> cute.ComposedLayout:
    """The layout (rows, columns, stages) that TMA writes: columns contiguous, 128-byte swizzle.

    One tile in this layout serves as a K-major operand (rows = M or N, columns = K) and as an MN-major one
    (rows = K, columns = M or N); see `sm100.make_smem_layout_a` and `_b`.
    """
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, dtype)
    return cute.tile_to_shape(atom, (rows, columns, stages), order=(0, 1, 2))


def view(tile: cute.Tensor, layout: cute.ComposedLayout) -> cute.Tensor:
    """The same shared memory under another layout with the same swizzle."""
    return cute.make_tensor(tile.iterator, layout.outer)


def reordered(x: cute.Tensor, *modes: int) -> cute.Tensor:
    """The tensor with its modes permuted into this order."""
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=list(modes)))


def by_head(x: cute.Tensor) -> cute.Tensor:
    """(tokens, heads, features) as (tokens, features, heads), so that a tile of one head has two modes."""
    return reordered(x, 0, 2, 1)


def vectors(smem: Any, buffer: plan.Buffer) -> cute.Tensor:
    """Allocate the plan's buffer of f32 vectors: (..., elements, stages), elements contiguous."""
    strides = [prod(buffer.shape[mode + 1 :]) for mode in range(len(buffer.shape))]
    layout = cute.make_layout((*buffer.shape, buffer.stages), stride=(*strides, prod(buffer.shape)))
    return smem.allocate_tensor(cutlass.Float32, layout, buffer.align)


def tiles(smem: Any, buffer: plan.Buffer) -> cute.Tensor:
    """Allocate the plan's buffer of tiles in `load_layout`: (rows, columns, number of tiles)."""
    *often, rows, columns = buffer.shape
    names = {"bfloat16": "BFloat16", "float16": "Float16", "float32": "Float32"}
    dtype = getattr(cutlass, names[buffer.dtype])
    layout = load_layout(dtype, rows, columns, buffer.stages * prod(often))
    return smem.allocate_tensor(dtype, layout.outer, buffer.align, layout.inner)


def make_tiled_mma(b_major: OperandMajorMode, rows: int, columns: int) -> cute.TiledMma:
    """One-CTA tcgen05.mma of M x N = rows x columns: bf16 operands, f32 accumulator, A K-major."""
    dtype, one = cutlass.BFloat16, tcgen05.CtaGroup.ONE
    return sm100.make_trivial_tiled_mma(
        dtype, dtype, OperandMajorMode.K, b_major, cutlass.Float32, one, (rows, columns)
    )


def operands(
    tiled_mma: cute.TiledMma, s_a: cute.Tensor, s_b: cute.Tensor, shape: tuple[int, int, int]
) -> tuple[cute.Tensor, cute.Tensor]:
    """Operand fragments (MMA, M or N, K, stages) of two staged buffers of tiles, for MMAs of `shape`
    (M, N, K)."""
    a = sm100.make_smem_layout_a(tiled_mma, shape, s_a.element_type, cute.size(s_a, mode=[2]))
    b = sm100.make_smem_layout_b(tiled_mma, shape, s_b.element_type, cute.size(s_b, mode=[2]))
    return tiled_mma.make_fragment_A(view(s_a, a)), tiled_mma.make_fragment_B(view(s_b, b))


def accumulator(
    tiled_mma: cute.TiledMma, base: cute.Pointer, part: plan.Accumulator, stage: Any = 0
) -> cute.Tensor:
    """The plan's accumulator `part` in the tensor memory at `base`, as (MMA, MMA_M, MMA_N)."""
    layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(part.shape)).layout
    return cute.make_tensor(base + part.offset + stage * part.columns, layout)


def mma(
    tiled_mma: cute.TiledMma,
    t_acc: cute.Tensor,
    r_a: cute.Tensor,
    r_b: cute.Tensor,
    add: Any = False,
    half: int | None = None,
) -> None:
    """t_acc = A B over all of K, or t_acc += A B with `add`. One warp issues it; the operands are fragments
    (MMA, M or N, K) of one stage. With `half` 0 or 1 only this half of the sum over K."""
    # Set the flag on a copy: set on the caller's object inside a loop, it would escape the loop's scope.
    tiled_mma = tiled_mma.__new_from_mlir_values__(tiled_mma.__extract_mlir_values__())
    blocks = cute.size(r_a, mode=[2])
    for block in range(blocks) if half is None else range(blocks // 2 * half, blocks // 2 * (half + 1)):
        tiled_mma.set(tcgen05.Field.ACCUMULATE, True if block else add)
        cute.gemm(tiled_mma, t_acc, r_a[None, None, block], r_b[None, None, block], t_acc)


@cute.jit
def zero_rows(s_tile: cute.Tensor, first: cutlass.Int32) -> None:
    """Write zeros to rows `first` .. of a tile (rows, columns) of 16-bit values in shared memory. One warp
    calls this. The proxy fence lets MMA and TMA read the zeros after the warp's next arrival."""
    rows, columns = cute.size(s_tile, mode=[0]), cute.size(s_tile, mode=[1])
    vectors = columns // VECTOR
    lane = cute.arch.lane_idx()
    zeros = cute.make_rmem_tensor((1, VECTOR), s_tile.element_type)
    zeros.fill(0.0)
    for row in cutlass.range(first + lane // vectors, rows, plan.WARP // vectors, unroll=1):
        cute.autovec_copy(zeros, cute.local_tile(s_tile, (1, VECTOR), (row, lane % vectors)))
    cute.arch.fence_proxy("async.shared", space="cta")


@dataclass(frozen=True)
class Tma:
    """A tensor in global memory and its TMA copy of tiles (rows, columns), the tensor's first two modes. The
    shared-memory side has `load_layout`."""

    atom: cute.CopyAtom
    tensor: cute.Tensor

    @staticmethod
    def create(operation: Any, x: cute.Tensor, box: tuple[int, int]) -> Tma:
        """The copy by `operation` (bulk-tensor load or store) of boxes of (rows, columns)."""
        layout = cute.select(load_layout(x.element_type, *box, 1), mode=[0, 1])
        return Tma(*cpasync.make_tiled_tma_atom(operation, x, layout, box))

    def load(
        self, pipe: Pipeline, state: Any, s_tiles: cute.Tensor, first: Any, *others: Any, stage: Any = None
    ) -> None:
        """Copy the tile at row `first`, and at `others` in the other modes, into the stage of `state`, or
        into `stage` of another buffer. TMA signals the pipeline's full barrier."""
        s_side, g_side = tma_slices(self.atom, s_tiles, self._tile(s_tiles, first, others))
        s_side = s_side[None, state.index if stage is None else stage]
        cute.copy(self.atom, g_side, s_side, tma_bar_ptr=pipe.full(state))

    def store(self, s_tile: cute.Tensor, first: Any, *others: Any) -> None:
        """Copy a tile to row `first`, and `others` in the other modes. One lane calls this and then commits
        the bulk group."""
        s_side, g_side = tma_slices(self.atom, s_tile, self._tile(s_tile, first, others))
        cute.copy(self.atom, s_side, g_side)

    def _tile(self, like: cute.Tensor, first: Any, others: tuple[Any, ...]) -> cute.Tensor:
        shape = (cute.size(like, mode=[0]), cute.size(like, mode=[1]))
        origin = (first, *(0 for _ in range(cute.rank(self.tensor) - 1)))
        return cute.local_tile(cute.domain_offset(origin, self.tensor), shape, (0, 0, *others))


def tma_slices(
    atom: cute.CopyAtom, s_tiles: cute.Tensor, g_tile: cute.Tensor
) -> tuple[cute.Tensor, cute.Tensor]:
    """The (shared, global) sides of TMA copies between staged tiles (rows, columns, stages) and a tile (rows,
    columns, ...) in global memory. Index both in their last modes."""
    s_side, g_side = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(s_tiles, 0, 2), cute.group_modes(g_tile, 0, 2)
    )
    return s_side, g_side


@dataclass(frozen=True)
class TmemCopy:
    """How 128 threads hold an accumulator of 64 rows and 8 n columns in registers.

    tcgen05.ld 16x256b, stmatrix and ldmatrix share this order: thread t of warp w holds rows 16 w + t/4 and
    + 8, and of every 8 columns 2 (t % 4) and + 1. `coords` gives (row, column) of each of its values.
    """

    tiled_mma: cute.TiledMma
    base: cute.Pointer
    copy: cute.TiledCopy
    layout: cute.Layout
    thread: Any
    coords: cute.Tensor

    @staticmethod
    def create(tiled_mma: cute.TiledMma, shape: tuple[int, int], base: cute.Pointer, thread: Any) -> TmemCopy:
        """For an accumulator of `shape`. `thread` counts from the first of four warps, whose index is a
        multiple of 4."""
        layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(shape)).layout[0]
        atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition(shape[1] // 8)), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, cute.make_tensor(base, layout))
        identity = cute.make_identity_tensor(shape)
        rows_columns = tiled_mma.get_slice(0).partition_C(identity)[(None, None), 0, 0]
        coords = copy.get_slice(thread).partition_D(rows_columns)
        return TmemCopy(tiled_mma, base, copy, layout, thread, coords)

    def load(self, part: plan.Accumulator, stage: Any, column: int, values: cute.Tensor) -> None:
        """Start tcgen05.ld of the plan's accumulator from `column` on. The values are in the registers after
        `fence_view_async_tmem_load`."""
        stage_start = cute.assume(stage * part.columns, divby=part.columns)
        t_part = cute.make_tensor(self.base + part.offset + column + stage_start, self.layout)
        cute.copy(self.copy, self.copy.get_slice(self.thread).partition_S(t_part), values)

    def store(self, part: plan.Accumulator, stage: Any, column: int, values: cute.Tensor) -> None:
        """Start tcgen05.st of values in the order of `load`. They are in tensor memory after
        `fence_view_async_tmem_store`."""
        stage_start = cute.assume(stage * part.columns, divby=part.columns)
        t_part = cute.make_tensor(self.base + part.offset + column + stage_start, self.layout)
        columns = cute.size(self.coords.shape) // 4
        atom = cute.make_copy_atom(tcgen05.St16x256bOp(tcgen05.Repetition(columns)), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, t_part)
        cute.copy(copy, values, copy.get_slice(self.thread).partition_D(t_part))

    def load_and_release(
        self, pipe: Pipeline, state: Any, part: plan.Accumulator, values: cute.Tensor
    ) -> None:
        """Wait for a stage of the plan's accumulator, load all of it and release the stage."""
        self.wait_and_load(pipe, state, part, values)
        pipe.consumer_release(state)

    def wait_and_load(self, pipe: Pipeline, state: Any, part: plan.Accumulator, values: cute.Tensor) -> None:
        """Wait for a stage of the plan's accumulator and load all of it. The loads are before the warp's next
        arrival."""
        pipe.consumer_wait(state)
        after_thread_sync()
        self.load(part, state.index, 0, values)
        cute.arch.fence_view_async_tmem_load()
        before_thread_sync()

    def partition(self, tile: cute.Tensor) -> cute.Tensor:
        """This thread's values of a tile (rows, columns) in any memory."""
        return self.copy.get_slice(self.thread).partition_D(self._whole(tile))

    def stmatrix(self, values: cute.Tensor, s_tile: cute.Tensor, transpose: bool = False) -> None:
        """Store 16-bit values to their (row, column) of a tile in shared memory whose columns are contiguous,
        or whose rows are with `transpose`."""
        atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(transpose, 4), values.element_type)
        store = cute.make_tiled_copy_D(atom, self.copy)
        slice_ = store.get_slice(self.thread)
        cute.copy(store, slice_.retile(values), slice_.partition_D(self._whole(s_tile)))

    def ldmatrix(self, s_tile: cute.Tensor, values: cute.Tensor, transpose: bool = False) -> None:
        """The inverse of `stmatrix`."""
        atom = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(transpose, 4), values.element_type)
        load = cute.make_tiled_copy_D(atom, self.copy)
        slice_ = load.get_slice(self.thread)
        cute.copy(load, slice_.partition_S(self._whole(s_tile)), slice_.retile(values))

    def _whole(self, tile: cute.Tensor) -> cute.Tensor:
        return self.tiled_mma.get_slice(0).partition_C(tile)[(None, None), 0, 0]
