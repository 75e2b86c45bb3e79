# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's Blackwell GDN prefill kernel as a kernel for `gdnbench replay`, on the simulated SM100:

    pip install --no-deps flashinfer-python==0.7.2.post1
    gdnbench replay captures/prefill.zarr.zip --kernel scripts/demo_flashinfer.py:gdn_prefill --on sim

`--kernel flashinfer` is the function that its users call. This is the kernel below it, compiled and called as
a file of yours would its own. It takes normalised q and k: records that have raw ones are converted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.flashinfer_stand_in import STAND_INS

# CTAs of a B200; each takes (sequence, head) pairs in turn, and edits its own TMA descriptors.
CTAS = 148
DESCRIPTOR_BYTES = 128
DESCRIPTORS_SIZE = CTAS * 4 * DESCRIPTOR_BYTES
HEAD_DIM = 128


@cache
def _kernel_class() -> Any:
    """Without the CUDA libraries that the package loads when it is imported: the kernel needs none."""
    module = STAND_INS.module("flashinfer.gdn_kernels.blackwell.gated_delta_net_chunked")
    return module.GatedDeltaNetChunkedKernel


@cache
def _compiled(heads: int, value_heads: int, dtype: torch.dtype, resumes: bool, stores: bool) -> Any:
    """The kernel for any number of tokens and sequences; compiled from shapes alone, no GPU needed."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    io = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16}[dtype]
    f32 = cutlass.Float32
    kernel = _kernel_class()(
        io_dtype=io,
        inverse_dtype=io,
        acc_dtype=f32,
        state_dtype=f32,
        mma_tiler_qk=(64, 64, 128),
        mma_tiler_qs=(128, 64, 128),
        mma_tiler_qkv=(128, 64, 64),
        mma_tiler_kv=(128, 128, 64),
        max_active_clusters=CTAS,
        num_sm=CTAS,
        is_GQA=heads >= value_heads,
        use_initial_state=resumes,
        store_final_state=stores,
        enable_checkpoints=False,
        is_persistent=True,
    )

    def fake(numeric: Any, *inner: int, rows: Any = None, align: int = 16) -> Any:
        strides = [1] * (len(inner) + 1)
        for axis in reversed(range(len(inner))):
            strides[axis] = strides[axis + 1] * inner[axis]
        shape = (cute.sym_int() if rows is None else rows, *inner)
        return make_fake_tensor(numeric, shape, tuple(strides), assumed_align=align)

    state = fake(f32, value_heads, HEAD_DIM, HEAD_DIM)
    return cute.compile(
        kernel,
        fake(io, heads, HEAD_DIM),
        fake(io, heads, HEAD_DIM),
        fake(io, value_heads, HEAD_DIM),
        fake(f32, value_heads),
        fake(f32, value_heads),
        fake(io, value_heads, HEAD_DIM),
        fake(cutlass.Int32, align=4),
        state if resumes else None,
        state if stores else None,
        None,  # state slots
        None,  # checkpoints, and where they start
        None,
        0,  # tokens between checkpoints
        1.0,  # scale: like the number before it, an argument of the call
        fake(cutlass.Int8, rows=DESCRIPTORS_SIZE),
        make_fake_stream(),
    )


def gdn_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    o: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
) -> None:
    """The contract's gdn_prefill: fills `o` and `final_state`."""
    if {*q.shape[2:], *v.shape[2:]} != {HEAD_DIM}:
        raise NotImplementedError(f"head dims {q.shape[2]} and {v.shape[2]}; the kernel takes {HEAD_DIM}")
    if {state.dtype for state in (initial_state, final_state) if state is not None} - {torch.float32}:
        raise NotImplementedError("states that are not float32")
    compiled = _compiled(q.shape[1], v.shape[1], q.dtype, initial_state is not None, final_state is not None)
    room = torch.empty(DESCRIPTORS_SIZE + DESCRIPTOR_BYTES, dtype=torch.int8)
    descriptors = room[-room.data_ptr() % DESCRIPTOR_BYTES :][:DESCRIPTORS_SIZE]
    compiled(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        g.float().contiguous(),
        beta.float().contiguous(),
        o,
        cu_seqlens,
        initial_state,
        final_state,
        None,
        None,
        None,
        0,
        HEAD_DIM**-0.5 if scale is None else scale,
        descriptors,
    )


gdn_prefill.conventions = {  # type: ignore[attr-defined]
    "gate": "linear",
    "qk": "normalised",
    "state_layout": "VK",
    "offsets": "int32",
}
