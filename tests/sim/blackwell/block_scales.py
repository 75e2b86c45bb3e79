# SPDX-License-Identifier: Apache-2.0
"""What the simulator assumes of block-scaled products, as micro-kernels: name, claim and kernels of each
assumption.

D has columns 0..15, the scales of A 16..19 and those of B 20. A, 128 rows, and B, 16, lie in the image
K-major without a swizzle, the second 16 bytes of each row 4096 bytes after the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sim.blackwell.tensor_kernel import (
    COLUMNS,
    IMAGE_BYTES,
    THREADS,
    Fill,
    matrix_descriptor,
    tensor_kernel,
)
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.mma import drawn
from tests.sim.silicon.patterns import below, random_u32

N = 16
B_AT = 16 * 1024
A_SCALES, B_SCALES = 16, 20
UE8M0, UE4M3 = 1, 0


def scale_fill(seed: int, low: int, high: int, spread: int, center: int) -> Fill:
    """Scale codes in low..high - 1 in all four partitions of 32 lanes, accumulators elsewhere."""
    fill = drawn("f32", seed, THREADS * COLUMNS, spread, center).reshape(THREADS, COLUMNS)
    codes = (low + below(seed + 3, 32 * 5 * 4, high - low)).astype(np.uint8)
    words = codes.view(np.uint32).reshape(32, 5)
    fill[:, A_SCALES : B_SCALES + 1] = np.tile(words, (4, 1))
    return fill


def scaled(
    name: str, kind: str, vector: str, types: tuple[int, int], fill: Fill, *, scale: int = UE8M0,
    ids: int = 0, accumulate: bool = True, seed: int = 900, zero_first: bool = False,
) -> MicroKernel:  # fmt: skip
    """`ids` is the first byte of the scales. `zero_first`: the first 16 elements of A are zero."""
    # Bytes without Inf and NaN of e5m2 and e4m3; any bytes are two e2m1.
    image = random_u32(seed, IMAGE_BYTES // 4).view(np.uint8) & np.uint8(0xFF if kind != "mxf8f6f4" else 0xB7)
    if zero_first:
        image[: 128 * 16].reshape(128, 16)[:, :8] = 0
    idesc = (
        ids << 4 | types[0] << 7 | types[1] << 10 | N >> 3 << 17 | scale << 23 | 128 >> 7 << 27 | ids << 29
    )  # fmt: skip
    body = [
        *matrix_descriptor("%d0", 0, 4096, 128, 0),
        *matrix_descriptor("%d1", B_AT, 4096, 128, 0),
        f"mov.b32 %r2, {idesc:#x};",
        f"add.u32 %r3, %taddr, {A_SCALES};",
        f"add.u32 %r4, %taddr, {B_SCALES};",
        f"setp.ne.u32 %p0, {int(accumulate)}, 0;",
        f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale.{vector} "
        "[%taddr], %d0, %d1, %r2, [%r3], [%r4], %p0;",
    ]
    return tensor_kernel(name, body, image, fill)


def block_scales() -> Iterator[tuple[str, str, tuple[MicroKernel, ...]]]:
    bytes_ = (0, 1)  # e4m3 by e5m2
    one = scale_fill(910, 120, 134, 30, 10)
    yield (
        "block-scale-vectors",
        "the scales of row r: column r / 32, lane r % 32 of each partition, from the byte that the id names",
        (
            *(scaled(f"scale_id_{i}", "mxf8f6f4", "scale_vec::1X", bytes_, one, ids=i) for i in range(4)),
            *(scaled(f"scale_half_{i}", "mxf4", "scale_vec::2X", (1, 1), one, ids=i) for i in (0, 2)),
        ),
    )
    yield (
        "block-scale-sum-bytes",
        "mxf8f6f4: one fused sum of K products and C at 25 fraction bits; exponents of scales are added",
        (
            scaled("scaled_bytes_wide", "mxf8f6f4", "scale_vec::1X", bytes_, scale_fill(920, 90, 170, 60, 0)),
            scaled("scaled_bytes_low", "mxf8f6f4", "scale_vec::1X", bytes_, scale_fill(930, 0, 40, 60, -110)),
            scaled("scaled_bytes_no_c", "mxf8f6f4", "scale_vec::1X", bytes_, one, accumulate=False),
        ),
    )
    nv = scale_fill(940, 1, 127, 40, 0)
    yield (
        "block-scale-sum-nibbles",
        "mxf4, mxf4nvf4: exact sums of 16 products are terms with the exponent of their scales, at 35 bits",
        (
            scaled("scaled_nvfp4", "mxf4nvf4", "scale_vec::4X", (1, 1), nv, scale=UE4M3),
            scaled(
                "scaled_nvfp4_no_c", "mxf4nvf4", "scale_vec::4X", (1, 1), nv, scale=UE4M3, accumulate=False
            ),
            scaled("scaled_mx16", "mxf4nvf4", "scale_vec::4X", (1, 1), scale_fill(950, 100, 150, 60, 10)),
            scaled("scaled_mx32", "mxf4nvf4", "scale_vec::2X", (1, 1), scale_fill(960, 100, 150, 60, 10)),
            scaled(
                "scaled_zero_group", "mxf4nvf4", "scale_vec::4X", (1, 1), scale_fill(970, 1, 127, 40, -40),
                scale=UE4M3, zero_first=True,
            ),
        ),
    )  # fmt: skip
    yield (
        "block-scale-specials",
        "a NaN scale gives NaN in its row or column; the sign bit of ue4m3 is ignored",
        (
            scaled("scaled_nan", "mxf8f6f4", "scale_vec::1X", bytes_, scale_fill(980, 250, 256, 20, 100)),
            scaled(
                "scaled_nvfp4_nan", "mxf4nvf4", "scale_vec::4X", (1, 1), scale_fill(990, 100, 256, 20, 0),
                scale=UE4M3,
            ),
        ),
    )  # fmt: skip
