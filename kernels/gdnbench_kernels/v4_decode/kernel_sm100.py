"""Decode attention over a window and an extra segment of FP8 pages. CuTe DSL, sm_100a."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode.kernel_sm100 import Tcgen05Decode, by_quarter
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm100_gather import Gather
from gdnbench_kernels.swa_decode.sm100_output import Output
from gdnbench_kernels.swa_decode.sm100_plan import FEATURES, HEADS, PLAN, TileScheduler
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.sm100_segments import (
    PartialOutput,
    Segments,
    SegmentScheduler,
    SplitSoftmax,
    softmax_in,
)


class Tcgen05Segments(Tcgen05Decode):
    """The kernel for `heads` heads, a window in one layout, and an extra segment in another one, or none. It
    writes o, and lse in `form` if it is an output; or, with `split`, what `splits` says of each split."""

    def __init__(
        self,
        heads: int,
        window: CacheLayout,
        extra: CacheLayout | None,
        split: bool,
        form: LseForm,
    ) -> None:
        super().__init__(heads, window)
        self.extra_mla = extra is CacheLayout.FP8_DS_MLA
        self.tiled = extra is not None
        self.form = form
        self.split = split

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor | None,
        entries: cute.Tensor,
        lens: cute.Tensor,
        extra_pages: cute.Tensor | None,
        extra_inv_scale: cute.Tensor | None,
        extra_entries: cute.Tensor | None,
        extra_lens: cute.Tensor | None,
        attn_sink: cute.Tensor | None,
        o: cute.Tensor,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        extra_block_shift: cutlass.Int32,
        extra_entry_shift: cutlass.Int32,
        splits: cutlass.Int32,
        parts: cutlass.Int32,
        workers: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `launch_args.V4Arguments`, or o_part and lse_part for o and lse. Grid:
        `parts` (1, 2 or 4) x `workers` x `splits` CTAs."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_q = blackwell.Tma.create(load, by_quarter(q), (HEADS, FEATURES))
        target: Any = o
        if cutlass.const_expr(not self.split):
            target = blackwell.Tma.create(store, by_quarter(o), (HEADS, FEATURES))
        self.kernel(
            tma_q,
            target,
            pages,
            inv_scale,
            entries,
            lens,
            extra_pages,
            extra_inv_scale,
            extra_entries,
            extra_lens,
            attn_sink,
            lse,
            scale,
            block_shift,
            extra_block_shift,
            extra_entry_shift,
        ).launch(
            grid=(parts, workers, splits),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma_q: blackwell.Tma,
        target: Any,
        pages: cute.Tensor,
        inv_scale: cute.Tensor | None,
        entries: cute.Tensor,
        lens: cute.Tensor,
        extra_pages: cute.Tensor | None,
        extra_inv_scale: cute.Tensor | None,
        extra_entries: cute.Tensor | None,
        extra_lens: cute.Tensor | None,
        attn_sink: cute.Tensor | None,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        extra_block_shift: cutlass.Int32,
        extra_entry_shift: cutlass.Int32,
    ) -> None:
        window = Gather(self.mla, pages, inv_scale, entries, lens, block_shift)
        extra = Gather(
            self.extra_mla,
            extra_pages,
            extra_inv_scale,
            extra_entries,
            extra_lens,
            extra_block_shift,
            extra_entry_shift,
        )
        softmax = SplitSoftmax if self.split else softmax_in(self.form)
        scaled = not self.mla or (self.tiled and not self.extra_mla)
        self.dispatch(
            tma_q,
            Segments(window, extra) if self.tiled else window,
            softmax(self.heads, scaled, self.tiled, attn_sink, lse, scale),
            PartialOutput(self.tiled, None, target, self.heads) if self.split else Output(self.tiled, target),
            lambda: (
                SegmentScheduler.of(lens.shape[0], self.heads, window, extra)
                if self.tiled
                else TileScheduler.create(lens.shape[0], self.heads)
            ),
        )
