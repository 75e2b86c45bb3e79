# SPDX-License-Identifier: Apache-2.0
"""Block-scaled products of a pair of CTAs: scales of each CTA's own rows of A, and of all columns of B.

Values are those of `test_block_scales`, whose sums are exact. The layouts are CuTe's: tiles of 128 scales, of
which tcgen05.cp gives each CTA its own, and where D is. With M = 128 a copy `64x128b.warpx2::01_23` puts the
scales of either half of the columns into either half of the lanes (CUTLASS `2cta_mma_blockscale_m128.py`).
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import KernelFault
from tests.messages import wording
from tests.sim.tcgen05.cute_layouts import accumulator_layout
from tests.sim.tcgen05.products import image, matrix_descriptor
from tests.sim.tcgen05.tensor_machine import ONE, Pair
from tests.sim.tcgen05.test_block_scales import (
    A_AT,
    A_COLUMN,
    B_AT,
    BYTES,
    D_COLUMN,
    KINDS,
    NVFP4,
    SFA_AT,
    SFA_COLUMN,
    SFB_AT,
    SFB_COLUMN,
    Kind,
    Setup,
    chunk_layout,
    codes,
    descriptor,
    numbers,
    scales,
)
from tests.subset import quick


class PairSetup(Setup):
    """Two CTAs; `machine.of` says whose memory is filled."""

    def __init__(self, kind: Kind, schedule: str) -> None:
        self.kind = kind
        self.machine = Pair(schedule=schedule, track=False)
        self.machine.alloc_both(512)

    def put_tile(self, base: int, rows: np.ndarray) -> None:
        """A tile of up to 128 scales into both CTAs' or one's shared memory."""
        tile = np.full((128, 4), 0x5A, np.uint8)
        tile[: len(rows)] = codes(self.kind.scale, rows)
        data = np.zeros(512, np.uint8)
        data[chunk_layout(self.kind.block)] = tile
        self.machine.write(self.machine.cta.shared.origin + base, data)

    def copy(self, shape: str, base: int, column: int) -> None:
        source = matrix_descriptor(base, 16, 128, 0)
        self.machine.of(0).issue(f"tcgen05.cp.cta_group::2.{shape} [%r], %d;", lanes=ONE, r=column, d=source)

    def multiply(self, a: int, b: int, idesc: int, accumulate: bool, in_tmem: bool) -> None:
        vector = "." * bool(self.kind.suffix) + self.kind.suffix
        source, operand = ("[%a]", {"a": a}) if in_tmem else ("%da", {"da": a})
        self.machine.of(0).issue(
            f"tcgen05.mma.cta_group::2.kind::{self.kind.name}.block_scale{vector}"
            f" [%r], {source}, %db, %i, [%s], [%t], %p;",
            lanes=ONE, r=D_COLUMN, db=b, i=idesc, s=SFA_COLUMN, t=SFB_COLUMN, p=int(accumulate), **operand,
        )  # fmt: skip


def multiply(
    kind: Kind, m: int, n: int, *, in_tmem: bool = False, schedule: str = "late"
) -> tuple[np.ndarray, np.ndarray]:
    """(D of the machine, D of NumPy)."""
    rng = np.random.default_rng([m, n, in_tmem])
    a, b = numbers(rng, kind.a, m, kind.depth), numbers(rng, kind.b, n, kind.depth)
    scale_a, scale_b = scales(rng, kind, m), scales(rng, kind, n)
    setup = PairSetup(kind, schedule)
    tiles = np.array_split(scale_b, 2) if m == 128 else np.array_split(scale_b, range(128, n, 128))
    for rank in range(2):
        setup.machine.of(rank)
        rows = slice(rank * m // 2, (rank + 1) * m // 2)
        right = setup.put_shared(
            setup.machine.cta.shared.origin + B_AT, kind.b, b[rank * n // 2 : (rank + 1) * n // 2], "SW32"
        )
        if in_tmem:
            setup.put_tmem(np.tile(a[rows], (256 // m, 1)))
        else:
            left = setup.put_shared(setup.machine.cta.shared.origin + A_AT, kind.a, a[rows], "SW32")
        setup.put_tile(SFA_AT, scale_a[rows])
        for number, tile in enumerate(tiles):
            setup.put_tile(SFB_AT + 512 * number, tile)
    setup.copy("32x128b.warpx4", SFA_AT, SFA_COLUMN)
    if m == 128:
        setup.copy("64x128b.warpx2::01_23", SFB_AT, SFB_COLUMN)
    else:
        for number in range(len(tiles)):
            setup.copy("32x128b.warpx4", SFB_AT + 512 * number, SFB_COLUMN + 4 * number)
    for index in range(kind.depth // kind.step):
        byte = index * kind.step // kind.block
        idesc = descriptor(kind, n, byte, byte) + (m - 128 >> 7 << 27)
        setup.multiply(
            A_COLUMN + 8 * index if in_tmem else left(index), right(index), idesc, index > 0, in_tmem
        )
    setup.machine.finish(ctas=2)
    address = accumulator_layout(m, n, ctas=2)
    width = -(-n // (2 if m == 128 else 1) // 8) * 8
    got = [
        image(setup.machine.of(rank), D_COLUMN, width)[address >> 16, address & 0xFFFF] for rank in range(2)
    ]
    scaled = [x * np.repeat(y, kind.block, axis=1) for x, y in ((a, scale_a), (b, scale_b))]
    return np.concatenate(got).view(np.float32), scaled[0] @ scaled[1].T


CASES = [(kind, m, n) for kind in KINDS for m in (128, 256) for n in (32, 176, 256)]


@pytest.mark.parametrize(
    ("kind", "m", "n"), quick(CASES, 5, len(CASES) - 5, ids=[f"{k}-{m}-{n}" for k, m, n in CASES])
)
def test_products(kind: Kind, m: int, n: int) -> None:
    np.testing.assert_array_equal(*multiply(kind, m, n))


@pytest.mark.parametrize(("kind", "m"), quick([(BYTES, 128), (NVFP4, 256), (NVFP4, 128), (KINDS[4], 128)]))
def test_a_in_tensor_memory(kind: Kind, m: int) -> None:
    np.testing.assert_array_equal(*multiply(kind, m, 32, in_tmem=True, schedule="early"))


def test_illegal_columns() -> None:
    setup = PairSetup(BYTES, "late")
    with pytest.raises(KernelFault, match=wording("sim.machine.columns-step", n=24, step=16)):
        setup.multiply(0, 0, descriptor(BYTES, 24), False, False)
