"""The sources of v4_decode's compiled kernels: the host objects and the types of their arguments.

The numbers of requests, queries, entries, pages and splits are run-time values. The `build_` function of a
source imports CuTe DSL when the kernel is compiled.
"""

from __future__ import annotations

from typing import Any

from gdnbench_kernels.source import Source
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.sources import ALIGN, Build
from gdnbench_kernels.v4_decode.lse_forms import LseForm


def merge_source(sink: bool, lse: bool, lse_base: str, lse_sink: str, lse_empty: str) -> Source:
    """`MergeSplits`. sink: whether there is an attn_sink. lse: whether it is an output, in that form."""
    LseForm(lse_base, lse_sink, lse_empty)
    return Source.create(
        "v4_decode.merge_splits",
        f"{__name__}:build_merge",
        sink=sink,
        lse=lse,
        lse_base=lse_base,
        lse_sink=lse_sink,
        lse_empty=lse_empty,
    )


def build_merge(sink: bool, lse: bool, lse_base: str, lse_sink: str, lse_empty: str) -> Build:
    """The arguments are those of `kernel_merge`, in the order of its table."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    from gdnbench_kernels.v4_decode.kernel_merge import MergeSplits

    make: Any = make_fake_tensor
    splits, rows = cute.sym_int(), cute.sym_int()
    part_stride = cute.sym_int64(divisibility=HEAD_DIM)
    return MergeSplits(LseForm(lse_base, lse_sink, lse_empty)), (
        make(cutlass.Float32, (splits, rows, HEAD_DIM), (part_stride, HEAD_DIM, 1), assumed_align=ALIGN),
        make(cutlass.Float32, (splits, rows), (cute.sym_int64(), 1), assumed_align=4),
        make(cutlass.Float32, (cute.sym_int(),), (1,), assumed_align=4) if sink else None,
        make(cutlass.BFloat16, (rows, HEAD_DIM), (HEAD_DIM, 1), assumed_align=ALIGN),
        make(cutlass.Float32, (rows,), (1,), assumed_align=4) if lse else None,
        make_fake_stream(),
    )
