# SPDX-License-Identifier: Apache-2.0
"""Numbers that go in by one path and come out by another: TMA -> shared memory -> tcgen05.mma -> TMEM ->
tcgen05.ld of a 16-lane shape -> shared memory -> TMA store, as PTX on both engines.

M, N and K differ, operands are small integers and the buffers lie 128, 256 and 512 bytes past an alignment of
1024: two layout errors would have to cancel in all of it. The expectation is NumPy's product.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from gdnbench.sim.host.encode_tiled import encode
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.run import run_ptx

F32, BF16 = 7, 10  # element types of a TMA descriptor (machine/tensormap.py)
STEP = 16


@dataclass(frozen=True)
class Case:
    """`mn_major`: the operands are stored K x M and K x N. `offsets`: of A, B, D past multiples of 1024."""

    m: int
    n: int
    k: int
    mn_major: bool
    offsets: tuple[int, int, int]

    def box(self, rows: int) -> tuple[int, int, int]:
        """(elements along, across, boxes) of an operand: rows of 128 bytes, the width of the swizzle."""
        return (64, self.k, rows // 64) if self.mn_major else (64, rows, self.k // 64)

    @property
    def a_bytes(self) -> int:
        return 2 * self.m * self.k

    @property
    def b_bytes(self) -> int:
        return 2 * self.n * self.k

    @property
    def places(self) -> tuple[int, int, int]:
        """A, B and D in shared memory."""
        a, b, d = self.offsets
        second = -(-(a + self.a_bytes) // 1024) * 1024
        third = second + -(-(b + self.b_bytes) // 1024) * 1024
        return a, second + b, third + d

    @property
    def strides(self) -> tuple[int, int]:
        """(leading, stride) byte offsets: swizzle atoms of 8 x 128 bytes, box after box."""
        return (128 * self.k, 1024) if self.mn_major else (16, 1024)

    def advance(self, rows: int, step: int) -> int:
        """Bytes from the start to K = 16 step: rows of 128 bytes, or 32 bytes along a row."""
        if self.mn_major:
            return 2048 * step
        boxes, within = divmod(step, 4)
        return 128 * rows * boxes + 32 * within


def loads(case: Case, rows: int, name: str, register: str) -> list[str]:
    along, across, boxes = case.box(rows)
    lines = []
    for box in range(boxes):
        lines += [
            f"add.u32 %r0, {register}, {box * 2 * along * across};",
            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            f"[%r0], [%{name}, {{{along * box}, 0}}], [%bar];",
        ]
    return lines


def products(case: Case) -> list[str]:
    idesc = 1 << 4 | 1 << 7 | 1 << 10 | case.mn_major * 3 << 15 | case.n >> 3 << 17 | case.m >> 4 << 24
    lines = [f"mov.b32 %i, {idesc:#x};"]
    for step in range(case.k // STEP):
        for register, base, rows in (("%da", "%a", case.m), ("%db", "%b", case.n)):
            leading, stride = case.strides
            fixed = leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | 2 << 61
            lines += [
                f"add.u32 %r0, {base}, {case.advance(rows, step)};",
                "shr.u32 %r0, %r0, 4;",
                f"cvt.u64.u32 {register}, %r0;",
                f"or.b64 {register}, {register}, {fixed:#x};",
            ]
        lines += [
            f"setp.ne.u32 %p, {step}, 0;",
            "tcgen05.mma.cta_group::1.kind::f16 [%t], %da, %db, %i, %p;",
        ]
    return lines


def epilogue(case: Case) -> list[str]:
    """16x256b loads of 16 columns, stored row by row into the tile D."""
    halves = 2 if case.m == 128 else 1
    lines = [
        "shr.u32 %warp, %thread, 5;",
        "and.b32 %lane, %thread, 31;",
        "shr.u32 %row, %lane, 2;",
        f"mad.lo.u32 %row, %warp, {16 * halves}, %row;",
        "and.b32 %r1, %lane, 3;",
        f"mul.lo.u32 %at, %row, {4 * case.n};",
        "mad.lo.u32 %at, %r1, 8, %at;",
        "add.u32 %at, %at, %d;",
    ]
    for half in range(halves):
        for first in range(0, case.n, 16):
            lines += [
                "shl.b32 %r2, %warp, 21;",
                f"add.u32 %r2, %r2, {half << 20 | first};",
                "add.u32 %r2, %r2, %t;",
                "tcgen05.ld.sync.aligned.16x256b.x2.b32 {%o0,%o1,%o2,%o3,%o4,%o5,%o6,%o7}, [%r2];",
                "tcgen05.wait::ld.sync.aligned;",
            ]
            for register in range(8):
                row = 16 * half + 8 * (register // 2 % 2)
                column = first + 8 * (register // 4) + register % 2
                lines.append(f"st.shared.b32 [%at+{4 * (row * case.n + column)}], %o{register};")
    return lines


def text(case: Case) -> str:
    a, b, d = case.places
    lines = [
        *(f"cvta.param.u64 %{name}, {name};" for name in ("mapa", "mapb", "mapd")),
        "mov.u32 %smem, room;",
        *(f"add.u32 %{name}, %smem, {at};" for name, at in (("a", a), ("b", b), ("d", d))),
        "mov.u32 %thread, %tid.x;",
        "mov.u32 %bar, bars;",
        "mov.u32 %slot, slot;",
        "setp.eq.u32 %leader, %thread, 0;",
        "setp.lt.u32 %first, %thread, 32;",
        "@!%leader bra ALLOCATE;",
        "mbarrier.init.shared.b64 [%bar], 1;",
        "mbarrier.init.shared.b64 [%bar+8], 1;",
        "fence.mbarrier_init.release.cluster;",
        f"mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {case.a_bytes + case.b_bytes};",
        *loads(case, case.m, "mapa", "%a"),
        *loads(case, case.n, "mapb", "%b"),
        "ALLOCATE:",
        "bar.warp.sync -1;",
        "@!%first bra ALLOCATED;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 128;",
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "ALLOCATED:",
        "tcgen05.fence::before_thread_sync;",
        "bar.sync 0;",
        "tcgen05.fence::after_thread_sync;",
        "ld.shared.b32 %t, [%slot];",
        "@!%leader bra PRODUCTS;",
        "LOADED:",
        "mbarrier.try_wait.parity.shared.b64 %done, [%bar], 0;",
        "@!%done bra LOADED;",
        *products(case),
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar+8];",
        "PRODUCTS:",
        "mbarrier.try_wait.parity.shared.b64 %done, [%bar+8], 0;",
        "@!%done bra PRODUCTS;",
        "bar.warp.sync -1;",
        "tcgen05.fence::after_thread_sync;",
        *epilogue(case),
        "fence.proxy.async.shared::cta;",
        "tcgen05.fence::before_thread_sync;",
        "bar.sync 0;",
        "@!%leader bra STORED;",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%mapd, {0, 0}], [%d];",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.wait_group 0;",
        "STORED:",
        "bar.warp.sync -1;",
        "@!%first bra DONE;",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 128;",
        "DONE:",
        "ret;",
    ]
    params = ", ".join(f".param .align 64 .b8 {name}[128]" for name in ("mapa", "mapb", "mapd"))
    return (
        f".version 8.8\n.target sm_100a\n.address_size 64\n.entry path({params})\n{{\n"
        ".reg .b32 %r<4>, %smem, %a, %b, %d, %thread, %bar, %slot, %t, %i, %warp, %lane, %row, %at, %o<8>;\n"
        ".reg .b64 %da, %db, %mapa, %mapb, %mapd;\n.reg .pred %leader, %first, %done, %p;\n"
        f".shared .align 1024 .b8 room[{d + 4 * case.m * case.n}];\n"
        ".shared .align 8 .b64 bars[2];\n.shared .align 4 .b32 slot;\n" + "\n".join(lines) + "\n}\n"
    )


def operand_map(case: Case, data: np.ndarray, rows: int) -> bytes:
    along, across, _ = case.box(rows)
    dims = (data.shape[1], data.shape[0])
    return encode(BF16, data.ctypes.data, dims, (2 * data.shape[1],), (along, across), (1, 1), 3)


CASES = [
    Case(64, 48, 128, False, (128, 256, 512)),
    Case(128, 80, 64, False, (512, 128, 256)),
    Case(64, 128, 32, True, (256, 512, 128)),
    Case(128, 64, 96, True, (128, 512, 384)),
]


@pytest.mark.parametrize(
    ("engine", "schedule"), [("interpreter", "late"), ("compiled", "late"), ("compiled", "early")]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.m}x{case.n}x{case.k}{'-mn' * case.mn_major}")
def test_through_all_paths(case: Case, engine: str, schedule: str) -> None:
    rng = np.random.default_rng(case.m + case.n)
    a = rng.integers(-3, 4, (case.m, case.k)).astype(np.float32)
    b = rng.integers(-3, 4, (case.n, case.k)).astype(np.float32)
    stored = [np.ascontiguousarray((x.T if case.mn_major else x).astype(ml_dtypes.bfloat16)) for x in (a, b)]
    out = np.full((case.m, case.n), np.nan, np.float32)
    memory = GlobalMemory()
    for array, name in ((stored[0], "A"), (stored[1], "B"), (out, "D")):
        memory.add_array(array.view(np.uint8), name)
    maps = [
        operand_map(case, stored[0], case.m),
        operand_map(case, stored[1], case.n),
        encode(F32, out.ctypes.data, (case.n, case.m), (4 * case.n,), (case.n, case.m), (1, 1), 0),
    ]
    run_ptx(text(case), "path", (1, 1, 1), (128, 1, 1), maps, memory=memory, engine=engine, schedule=schedule)
    np.testing.assert_array_equal(out, a @ b.T)
