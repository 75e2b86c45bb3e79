# SPDX-License-Identifier: Apache-2.0
"""A block-scaled product as PTX: scales from shared memory to TMEM by tcgen05.cp, then one product of bytes.

One CTA of 128 threads, from the frame of the Blackwell micro-kernels: D and the scales start as that frame
fills them, thread 0 copies the scales over and multiplies.
"""

from __future__ import annotations

import numpy as np

from tests.sim.blackwell.block_scales import A_SCALES, B_SCALES, scale_fill, scaled
from tests.sim.blackwell.tensor_kernel import IMAGE_BYTES, matrix_descriptor
from tests.sim.silicon.microkernel import MicroKernel

# The last 512 bytes of the image are scales of 128 rows, as tcgen05.cp.32x128b takes them.
SCALES_AT = IMAGE_BYTES - 512
_PRODUCT = "add.u32 %r0, %smem, 0;\n"


def block_scaled() -> tuple[MicroKernel, str, list[np.ndarray]]:
    """The kernel without copies, the PTX with them, and the buffers: image, fill, out."""
    kernel = scaled("block_scaled", "mxf8f6f4", "block32", (0, 0), scale_fill(1, 120, 130, 6, 0))
    copies = matrix_descriptor("%d2", SCALES_AT, 16, 128, 0)
    for column in (A_SCALES, B_SCALES):
        copies += [f"add.u32 %r9, %taddr, {column};", "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r9], %d2;"]
    text = kernel.ptx.replace("    ", "")
    assert text.count(_PRODUCT) == 1
    buffers = [np.ascontiguousarray(buffer.data).copy() for buffer in kernel.buffers()]
    image = buffers[0].view(np.uint8).reshape(-1)
    image[SCALES_AT:] = 120 + np.arange(512) % 11
    return kernel, _with_places(text.replace(_PRODUCT, "\n".join(copies) + "\n" + _PRODUCT)), buffers


def _with_places(text: str) -> str:
    """Each instruction with its line as place: `block_scaled.ptx:85` is the product's."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.endswith(";") and not line.startswith((".reg", ".shared")):
            lines.append(f".loc 1 {number} 1")
        lines.append(line)
    return "\n".join(lines) + '\n.file 1 "block_scaled.ptx"\n'
