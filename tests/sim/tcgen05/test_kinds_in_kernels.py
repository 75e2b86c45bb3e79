# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma.kind::i8 and .ws as PTX programs in both engines; the sums are NumPy's, of integers.

The frame is that of the micro-kernels for a Blackwell GPU: bytes of shared memory and words of TMEM before,
words of TMEM after. Matrices lie K-major without a swizzle: 16 bytes of a row side by side, the next 16 of
all rows 4,096 bytes on (PTX ISA 9.7.16.3.1, canonical layouts).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.sim.blackwell.answers import simulate
from tests.sim.blackwell.cases import B_AT, NONE, instruction, k_major
from tests.sim.blackwell.tensor_kernel import COLUMNS, IMAGE_BYTES, THREADS, tensor_kernel
from tests.sim.clusters.cluster_kernels import ENGINES
from tests.sim.tcgen05.products import codes
from tests.sim.tcgen05.test_integers import LIMIT, descriptor, draw
from tests.subset import quick

CHUNK = 4096
ROWS = [*k_major(0, NONE, "%d0"), *k_major(B_AT, NONE, "%d1")]


def image(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A and B in shared memory; both have 32 bytes a row."""
    data = np.zeros(IMAGE_BYTES, np.uint8)
    for rows, at in ((a, 0), (b, B_AT)):
        halves = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), 2, 16)
        for half in (0, 1):
            start = at + CHUNK * half
            data[start : start + 16 * len(rows)] = halves[:, half].ravel()
    return data


@pytest.mark.parametrize(
    ("a", "b", "saturate", "engine"),
    quick(product(("u8", "s8"), ("u8", "s8"), (False, True), ENGINES), 6, 9),
)
def test_integers(a: str, b: str, saturate: bool, engine: str) -> None:
    """D + A B, of 128 rows and 16 columns, wraps or saturates at 32 bits."""
    rng = np.random.default_rng(11)
    left, right = draw(rng, a, 128, 32), draw(rng, b, 16, 32)
    fill = rng.choice([-LIMIT, LIMIT - 1, -LIMIT + 9000, LIMIT - 9000, 0], (THREADS, COLUMNS))
    body = [
        *ROWS,
        f"mov.b32 %r2, {descriptor(a, b, 128, 16, saturate=saturate):#x};",
        "setp.eq.u32 %p0, 0, 0;",
        "tcgen05.mma.cta_group::1.kind::i8 [%taddr], %d0, %d1, %r2, %p0;",
    ]
    data = image(left.astype(np.uint8), right.astype(np.uint8))
    kernel = tensor_kernel("integers", body, data, fill.astype(np.int32).view(np.uint32))
    found = simulate(kernel, engine).view(np.int32)
    exact = fill[:, :16] + left @ right.T
    want = np.clip(exact, -LIMIT, LIMIT - 1) if saturate else (exact + LIMIT) % (2 * LIMIT) - LIMIT
    np.testing.assert_array_equal(found[:, :16], want)
    np.testing.assert_array_equal(found[:, 16:], fill[:, 16:])


@pytest.mark.parametrize(("m", "engine"), quick(product((32, 64), ENGINES), 0, 3))
def test_weight_stationary(m: int, engine: str) -> None:
    """D [m, 64] of .ws: 64 m / 128 columns of each bank of m lanes."""
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-3, 4, (rows, 16)).astype(np.float32) for rows in (m, 64))
    fill = rng.integers(-9, 10, (THREADS, COLUMNS)).astype(np.float32)
    body = [
        *ROWS,
        f"mov.b32 %r2, {instruction('bf16', 'bf16', m, 64):#x};",
        "setp.eq.u32 %p0, 0, 0;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%taddr], %d0, %d1, %r2, %p0;",
    ]
    kernel = tensor_kernel(
        "stationary", body, image(codes("bf16", a), codes("bf16", b)), fill.view(np.uint32)
    )
    found = simulate(kernel, engine).view(np.float32)
    width = 64 * m // 128
    banks = (a @ b.T).reshape(m, 128 // m, width).transpose(1, 0, 2).reshape(THREADS, width)
    np.testing.assert_array_equal(found[:, :width], fill[:, :width] + banks)
    np.testing.assert_array_equal(found[:, width:], fill[:, width:])
