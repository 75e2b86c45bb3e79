"""What the SM100 kernels share: mbarrier rings, operand views, tensor-memory views. CuTe DSL.

A `Ring` is a plan's ring at work. A place in it (stage and phase) is a `pipeline.PipelineState`, made by
`producing` or `consuming` and advanced with `advance()`; each wait, arrive and commit of a kernel is a method
here, so that a kernel's header can name who signals whom.
"""

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
class Ring:
    """The mbarriers of a plan's ring in shared memory: the full ones first, then the empty ones."""

    spec: plan.Ring
    barriers: cute.Pointer

    @staticmethod
    def allocate(spec: plan.Ring, smem: Any) -> Ring:
        return Ring(spec, smem.allocate_array(cutlass.Int64, 2 * spec.stages))

    def full(self, place: Any) -> Any:
        """The barrier that says that the stage is filled; TMA loads name it."""
        return self.barriers + place.index

    def empty(self, place: Any) -> Any:
        return self.barriers + self.spec.stages + place.index

    def init(self) -> None:
        """By one thread, before `mbarrier_init_fence` and a barrier of the CTA."""
        for stage in range(self.spec.stages):
            cute.arch.mbarrier_init(self.barriers + stage, self.spec.full_count)
            cute.arch.mbarrier_init(self.barriers + self.spec.stages + stage, self.spec.empty_count)

    def producing(self) -> Any:
        """The first place of a producer: its first wait for each stage passes."""
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.spec.stages)

    def consuming(self) -> Any:
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.spec.stages)

    def acquire(self, place: Any) -> None:
        """Producer: wait until the stage may be overwritten."""
        cute.arch.mbarrier_wait(self.empty(place), place.phase)

    def expect(self, place: Any) -> None:
        """Producer, one lane: arrive, and let the phase wait for the plan's bytes from TMA."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full(place), self.spec.bytes)

    def fill_by_warp(self, place: Any) -> None:
        """Producer, a whole warp, which counts as one: the stage is filled as far as this warp goes."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.full(place))

    def fill_after_mma(self, place: Any) -> None:
        """Producer, one lane: the stage is filled when all products issued so far are done."""
        with cute.arch.elect_one():
            tcgen05.commit(self.full(place))

    def wait(self, place: Any) -> None:
        """Consumer: wait until the stage is filled."""
        cute.arch.mbarrier_wait(self.full(place), place.phase)

    def release(self, place: Any) -> None:
        """Consumer, every thread that calls it: this thread has read the stage."""
        cute.arch.mbarrier_arrive(self.empty(place))

    def release_by_warp(self, place: Any) -> None:
        """Consumer, a whole warp, which counts as one: this warp has read the stage."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.empty(place))

    def release_after_mma(self, place: Any) -> None:
        """Consumer, one lane: the stage is read when all products issued so far are done."""
        with cute.arch.elect_one():
            tcgen05.commit(self.empty(place))

    def drain(self, place: Any) -> None:
        """Producer, last: wait until every stage is released, so that no arrival comes after the CTA."""
        for _ in range(self.spec.stages):
            self.acquire(place)
            place.advance()


@dataclass(frozen=True)
class Rings:
    """A plan's rings at work; a kernel's own class has a field for each, in the plan's order."""

    @classmethod
    def allocate(cls, spec: plan.KernelPlan, smem: Any) -> Self:
        return cls(*(Ring.allocate(ring, smem) for ring in spec.rings))

    def init(self) -> None:
        """By one thread, as `Ring.init`."""
        for field in fields(self):
            getattr(self, field.name).init()


@cute.jit
def init_barriers(rings: Rings, mine: cutlass.Boolean) -> None:
    """By all warps, one of which it is `mine` to do; who waits for a barrier afterwards may use them."""
    if mine:
        with cute.arch.elect_one():
            rings.init()
    cute.arch.mbarrier_init_fence()


@cute.jit
def prefetch(tensors: tuple[Tma, ...], mine: cutlass.Boolean) -> None:
    """By all warps, one of which it is `mine` to do: descriptors on their way before the first copy asks for
    them, beside what else comes before it."""
    if mine:
        for tensor in tensors:
            cpasync.prefetch_descriptor(tensor.atom)


def allocate_tmem(
    spec: plan.KernelPlan, smem: Any, allocator: IntEnum, barrier: IntEnum
) -> tuple[Any, cute.Pointer]:
    """The plan's tensor memory, allocated by the first warp of a role, and its start. By all warps: the
    named barrier that they wait at is also what orders their use of mbarriers after `init_barriers`."""
    together = pipeline.NamedBarrier(barrier_id=barrier, num_threads=spec.threads)
    tmem = cutlass.memory.TmemAllocator(
        smem.allocate(cutlass.Int32), barrier_for_retrieve=together, allocator_warp_id=allocator
    )
    tmem.allocate(spec.tmem_columns)
    # At once: another CTA of the SM waits with its allocation until this one will not ask for more.
    tmem.relinquish_alloc_permit()
    tmem.wait_for_alloc()
    return tmem, tmem.retrieve_ptr(cutlass.Float32)


def before_thread_sync() -> None:
    """tcgen05 operations of this thread come before what it does next to tell others: arrive, barrier."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


def after_thread_sync() -> None:
    """tcgen05 operations of this thread come after the wait or barrier before: what it was told holds."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def afresh(value: cutlass.Int32) -> cutlass.Int32:
    """The value, as one that is new in each turn of a loop: what is computed from it is computed there, and
    not before the loop, to be kept in as many registers as it is numbers."""
    return cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Int32], read_only_args=[value]
    )


def load_layout(dtype: Any, rows: int, columns: int, stages: int) -> cute.ComposedLayout:
    """(rows, columns, stages), columns contiguous, 128-byte swizzle: as TMA fills it.

    Its bytes are those of a K-major operand (rows = M or N, columns = K) and of an MN-major one (rows = K,
    columns = M or N), so that one tile serves as both; see `sm100.make_smem_layout_a` and `_b`.
    """
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, dtype)
    return cute.tile_to_shape(atom, (rows, columns, stages), order=(0, 1, 2))


def view(tile: cute.Tensor, layout: cute.ComposedLayout) -> cute.Tensor:
    """The shared memory of `tile`, a swizzled tensor, under another layout with the same swizzle."""
    return cute.make_tensor(tile.iterator, layout.outer)


def reordered(x: cute.Tensor, *modes: int) -> cute.Tensor:
    """The tensor with its modes in this order."""
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=list(modes)))


def by_head(x: cute.Tensor) -> cute.Tensor:
    """(tokens, features, heads) of a tensor (tokens, heads, features): a tile of one head has two modes."""
    return reordered(x, 0, 2, 1)


def vectors(smem: Any, buffer: plan.Buffer) -> cute.Tensor:
    """The plan's buffer of f32 vectors, (..., elements, stages), elements contiguous, the next in `smem`."""
    strides = [prod(buffer.shape[mode + 1 :]) for mode in range(len(buffer.shape))]
    layout = cute.make_layout((*buffer.shape, buffer.stages), stride=(*strides, prod(buffer.shape)))
    return smem.allocate_tensor(cutlass.Float32, layout, buffer.align)


def tiles(smem: Any, buffer: plan.Buffer) -> cute.Tensor:
    """The plan's buffer of tiles as `load_layout` has them, (rows, columns, how many), the next in `smem`."""
    *often, rows, columns = buffer.shape
    dtype = getattr(cutlass, {"bfloat16": "BFloat16", "float16": "Float16"}[buffer.dtype])
    layout = load_layout(dtype, rows, columns, buffer.stages * prod(often))
    return smem.allocate_tensor(dtype, layout.outer, buffer.align, layout.inner)


def product(b_major: OperandMajorMode, rows: int, columns: int) -> cute.TiledMma:
    """One CTA's product of bf16 operands in f32, rows x columns; A is K-major."""
    dtype, one = cutlass.BFloat16, tcgen05.CtaGroup.ONE
    return sm100.make_trivial_tiled_mma(
        dtype, dtype, OperandMajorMode.K, b_major, cutlass.Float32, one, (rows, columns)
    )


def operands(
    mma: cute.TiledMma, s_a: cute.Tensor, s_b: cute.Tensor, shape: tuple[int, int, int]
) -> tuple[cute.Tensor, cute.Tensor]:
    """Fragments (MMA, M or N, K, stages) of two rings of tiles, for products of `shape` (M, N, K)."""
    a = sm100.make_smem_layout_a(mma, shape, s_a.element_type, cute.size(s_a, mode=[2]))
    b = sm100.make_smem_layout_b(mma, shape, s_b.element_type, cute.size(s_b, mode=[2]))
    return mma.make_fragment_A(view(s_a, a)), mma.make_fragment_B(view(s_b, b))


def accumulator(
    mma: cute.TiledMma, base: cute.Pointer, part: plan.Accumulator, stage: Any = 0
) -> cute.Tensor:
    """The plan's accumulator in the tensor memory at `base`, as (MMA, MMA_M, MMA_N) of `mma`."""
    layout = mma.make_fragment_C(mma.partition_shape_C(part.shape)).layout
    return cute.make_tensor(base + part.offset + stage * part.columns, layout)


def multiply(
    mma: cute.TiledMma, t_acc: cute.Tensor, r_a: cute.Tensor, r_b: cute.Tensor, add: Any = False
) -> None:
    """t_acc = A B over all of K, or t_acc += A B to `add`, by one warp; the operands are fragments (MMA, M or
    N, K) of one stage."""
    # A copy: a flag set on the caller's object within a loop would escape from the loop.
    mma = mma.__new_from_mlir_values__(mma.__extract_mlir_values__())
    for block in range(cute.size(r_a, mode=[2])):
        mma.set(tcgen05.Field.ACCUMULATE, True if block else add)
        cute.gemm(mma, t_acc, r_a[None, None, block], r_b[None, None, block], t_acc)


@cute.jit
def zero_rows(s_tile: cute.Tensor, first: cutlass.Int32) -> None:
    """Rows `first` .. of a tile (rows, columns) of 16 bits in shared memory become zeros, by one warp. Who it
    tells afterwards may read them by MMA or TMA."""
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
    """A tensor in global memory that TMA copies by tiles of rows and columns, its first modes, from or to
    shared memory as `load_layout` has it."""

    atom: cute.CopyAtom
    tensor: cute.Tensor

    @staticmethod
    def of(operation: Any, x: cute.Tensor, box: tuple[int, int]) -> Tma:
        layout = cute.select(load_layout(x.element_type, *box, 1), mode=[0, 1])
        return Tma(*cpasync.make_tiled_tma_atom(operation, x, layout, box))

    def load(
        self, ring: Ring, place: Any, s_ring: cute.Tensor, first: Any, *others: Any, stage: Any = None
    ) -> None:
        """The tile whose first row is `first`, in the other modes at `others`, into the stage at `place`, or
        into `stage` of another ring's buffer."""
        s_side, g_side = tma_slices(self.atom, s_ring, self._tile(s_ring, first, others))
        s_side = s_side[None, place.index if stage is None else stage]
        cute.copy(self.atom, g_side, s_side, tma_bar_ptr=ring.full(place))

    def store(self, s_tile: cute.Tensor, first: Any, *others: Any) -> None:
        """By one lane, which also commits."""
        s_side, g_side = tma_slices(self.atom, s_tile, self._tile(s_tile, first, others))
        cute.copy(self.atom, s_side, g_side)

    def _tile(self, like: cute.Tensor, first: Any, others: tuple[Any, ...]) -> cute.Tensor:
        shape = (cute.size(like, mode=[0]), cute.size(like, mode=[1]))
        origin = (first, *(0 for _ in range(cute.rank(self.tensor) - 1)))
        return cute.local_tile(cute.domain_offset(origin, self.tensor), shape, (0, 0, *others))


def tma_slices(
    atom: cute.CopyAtom, s_ring: cute.Tensor, g_tile: cute.Tensor
) -> tuple[cute.Tensor, cute.Tensor]:
    """(shared, global) sides of TMA copies between the stages (rows, columns, stages) of a ring and a tile
    (rows, columns, ...) in global memory: index both in their last modes."""
    s_side, g_side = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(s_ring, 0, 2), cute.group_modes(g_tile, 0, 2)
    )
    return s_side, g_side


@dataclass(frozen=True)
class Reader:
    """How 128 threads read an accumulator of 64 rows and 8 n columns: thread t of warp w has rows 16 w + t/4
    and + 8, of every 8 columns 2 (t % 4) and + 1. `where` says (row, column) of each of its values.
    """

    mma: cute.TiledMma
    base: cute.Pointer
    copy: cute.TiledCopy
    layout: cute.Layout
    thread: Any
    where: cute.Tensor

    @staticmethod
    def of(mma: cute.TiledMma, shape: tuple[int, int], base: cute.Pointer, thread: Any) -> Reader:
        """`thread` counts from the first of four warps, the first of which is a multiple of 4."""
        layout = mma.make_fragment_C(mma.partition_shape_C(shape)).layout[0]
        atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition(shape[1] // 8)), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, cute.make_tensor(base, layout))
        rows_columns = mma.get_slice(0).partition_C(cute.make_identity_tensor(shape))[(None, None), 0, 0]
        return Reader(mma, base, copy, layout, thread, copy.get_slice(thread).partition_D(rows_columns))

    def read(self, part: plan.Accumulator, stage: Any, column: int, values: cute.Tensor) -> None:
        """From `column` of the plan's accumulator; there after `fence_view_async_tmem_load`."""
        stage_start = cute.assume(stage * part.columns, divby=part.columns)
        t_part = cute.make_tensor(self.base + part.offset + column + stage_start, self.layout)
        cute.copy(self.copy, self.copy.get_slice(self.thread).partition_S(t_part), values)

    def take(self, ring: Ring, place: Any, part: plan.Accumulator, values: cute.Tensor) -> None:
        """A whole stage of the plan's accumulator, waited for, read and released."""
        ring.wait(place)
        after_thread_sync()
        self.read(part, place.index, 0, values)
        cute.arch.fence_view_async_tmem_load()
        before_thread_sync()
        ring.release_by_warp(place)

    def part(self, tile: cute.Tensor) -> cute.Tensor:
        """This thread's values of a tile (rows, columns) anywhere."""
        return self.copy.get_slice(self.thread).partition_D(self._whole(tile))

    def write(self, values: cute.Tensor, s_tile: cute.Tensor, transpose: bool = False) -> None:
        """16-bit values, each to its (row, column) of a tile in shared memory: columns contiguous, or rows
        where `transpose`."""
        atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(transpose, 4), values.element_type)
        store = cute.make_tiled_copy_D(atom, self.copy)
        slice_ = store.get_slice(self.thread)
        cute.copy(store, slice_.retile(values), slice_.partition_D(self._whole(s_tile)))

    def fetch(self, s_tile: cute.Tensor, values: cute.Tensor, transpose: bool = False) -> None:
        """The inverse of `write`."""
        atom = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(transpose, 4), values.element_type)
        load = cute.make_tiled_copy_D(atom, self.copy)
        slice_ = load.get_slice(self.thread)
        cute.copy(load, slice_.partition_S(self._whole(s_tile)), slice_.retile(values))

    def _whole(self, tile: cute.Tensor) -> cute.Tensor:
        return self.mma.get_slice(0).partition_C(tile)[(None, None), 0, 0]
