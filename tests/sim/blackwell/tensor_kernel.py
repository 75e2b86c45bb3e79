# SPDX-License-Identifier: Apache-2.0
"""The frame of all tcgen05 micro-kernels: 128 threads, shared memory and TMEM filled, one body, TMEM read
back.

Shared memory gets the bytes of `image`, TMEM columns [0, COLUMNS) the words of `fill`. Thread 0 executes the
body, commits and everybody waits; then each warp reads its lanes with 32x32b loads, unless the body is one
for all warps (`per_warp`), which leaves its answer in %o0, %o1, ... Registers for bodies: %smem (shared
address of the image, 1024-aligned), %taddr (TMEM address), %d<n> and %r<n> for scratch, %lane0 (the warp's
first TMEM lane, << 16).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.sim.silicon.microkernel import Buffer, MicroKernel

THREADS = 128
COLUMNS = 32
IMAGE_BYTES = 32 * 1024

Image = npt.NDArray[np.uint8]
Fill = npt.NDArray[np.uint32]

# tcgen05 needs PTX 8.6; 8.7 is what the other micro-kernels use.
_HEADER = ".version 8.7\n.target sm_100a\n.address_size 64\n"


def index_fill() -> Fill:
    """Every cell tells its lane and column; as f32 the values are small and all different."""
    lane, column = np.meshgrid(np.arange(THREADS), np.arange(COLUMNS), indexing="ij")
    return (0x3F80_0000 + (lane << 12) + (column << 4)).astype(np.uint32)


def matrix_descriptor(
    register: str, offset: int, leading: int, stride: int, layout: int, base_offset: int = 0
) -> list[str]:
    """PTX that puts the descriptor (table 40 of PTX ISA 9.7.16.4.1) of image + offset into a 64-bit
    register."""
    fixed = (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | base_offset << 49 | layout << 61
    return [
        f"add.u32 %r0, %smem, {offset};",
        "shr.u32 %r0, %r0, 4;",
        f"cvt.u64.u32 {register}, %r0;",
        f"or.b64 {register}, {register}, 0x{fixed:x};",
    ]


def tensor_kernel(
    name: str,
    body: Sequence[str],
    image: Image,
    fill: Fill,
    *,
    per_warp: int | None = None,
    whole_warp: bool = False,
) -> MicroKernel:
    """`per_warp` is the number of answer registers of a body that all warps execute; None: TMEM is the
    answer. `whole_warp` has all lanes of warp 0 execute the body."""
    assert image.size <= IMAGE_BYTES
    padded = np.zeros(IMAGE_BYTES, np.uint8)
    padded[: image.size] = image
    count = COLUMNS if per_warp is None else per_warp
    answer = Buffer("out", np.zeros((THREADS, count), np.uint32), tuple(f"lane {i}" for i in range(THREADS)))
    buffers = (Buffer("image", padded.view(np.uint32).reshape(THREADS, -1)), Buffer("fill", fill), answer)
    return MicroKernel(name, _text(name, body, per_warp, whole_warp), buffers, 1, THREADS)


def registers(count: int) -> str:
    return ", ".join(f"%o{i}" for i in range(count))


def _text(name: str, body: Sequence[str], per_warp: int | None, whole_warp: bool) -> str:
    lines = [*_setup(), *_fill_tmem()]
    if per_warp is None:
        lines += [
            f"@!%{'first' if whole_warp else 'leader'} bra WAIT;",
            *body,
            "@!%leader bra WAIT;",
            *_commit(),
            "WAIT:",
            *_wait(),
            *_read_tmem(),
        ]
    else:
        lines += [*body, *_write(0, per_warp, per_warp)]
    lines += _teardown()
    text = "\n".join(f"    {line}" if not line.endswith(":") else line for line in lines)
    return (
        f"{_HEADER}\n.visible .entry {name}(.param .b64 image, .param .b64 fill, .param .b64 out)\n{{\n"
        "    .reg .b32 %r<16>, %smem, %taddr, %thread, %lane0, %at, %slot, %bar, %o<128>;\n"
        "    .reg .b64 %d<8>, %image, %fill, %out, %from;\n"
        "    .reg .pred %leader, %first, %more, %done, %p<4>;\n"
        f"    .shared .align 1024 .b8 image_bytes[{IMAGE_BYTES}];\n"
        "    .shared .align 8 .b64 barrier;\n"
        "    .shared .align 16 .b32 slots[8];\n"
        f"{text}\n}}\n"
    )


def _setup() -> list[str]:
    """The image into shared memory, a barrier, all of TMEM."""
    return [
        "ld.param.b64 %image, [image];",
        "ld.param.b64 %fill, [fill];",
        "ld.param.b64 %out, [out];",
        "mov.u32 %thread, %tid.x;",
        "mov.u32 %smem, image_bytes;",
        "mov.u32 %bar, barrier;",
        "mov.u32 %slot, slots;",
        "setp.eq.u32 %leader, %thread, 0;",
        "setp.lt.u32 %first, %thread, 32;",
        "shl.b32 %lane0, %thread, 16;",
        "and.b32 %lane0, %lane0, 0x600000;",
        "shl.b32 %at, %thread, 4;",
        "COPY:",
        "cvt.u64.u32 %from, %at;",
        "add.u64 %from, %from, %image;",
        "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%from];",
        "add.u32 %r4, %at, %smem;",
        "st.shared.v4.b32 [%r4], {%r0, %r1, %r2, %r3};",
        f"add.u32 %at, %at, {16 * THREADS};",
        f"setp.lt.u32 %more, %at, {IMAGE_BYTES};",
        "@%more bra COPY;",
        "fence.proxy.async.shared::cta;",
        "@!%leader bra ALLOCATE;",
        "mbarrier.init.shared.b64 [%bar], 1;",
        "fence.mbarrier_init.release.cluster;",
        "ALLOCATE:",
        "bar.warp.sync -1;",
        "@!%first bra ALLOCATED;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 512;",
        "ALLOCATED:",
        *_barrier(),
        "ld.shared.b32 %taddr, [%slot];",
    ]


def _barrier() -> list[str]:
    return ["tcgen05.fence::before_thread_sync;", "bar.sync 0;", "tcgen05.fence::after_thread_sync;"]


def _fill_tmem() -> list[str]:
    """Row tid of `fill` into lane tid."""
    lines = [
        f"mul.lo.u32 %at, %thread, {4 * COLUMNS};",
        "cvt.u64.u32 %from, %at;",
        "add.u64 %from, %from, %fill;",
    ]
    for column in range(0, COLUMNS, 4):
        lines.append(
            f"ld.global.v4.b32 {{{', '.join(f'%o{column + i}' for i in range(4))}}}, [%from+{4 * column}];"
        )
    lines += [
        "add.u32 %r0, %taddr, %lane0;",
        f"tcgen05.st.sync.aligned.32x32b.x{COLUMNS}.b32 [%r0], {{{registers(COLUMNS)}}};",
        "tcgen05.wait::st.sync.aligned;",
        *_barrier(),
    ]
    return lines


def _commit() -> list[str]:
    return ["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"]


def _wait() -> list[str]:
    return [
        "mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;",
        "@!%done bra WAIT;",
        "bar.warp.sync -1;",
        "tcgen05.fence::after_thread_sync;",
    ]


def _read_tmem() -> list[str]:
    return [
        "add.u32 %r0, %taddr, %lane0;",
        f"tcgen05.ld.sync.aligned.32x32b.x{COLUMNS}.b32 {{{registers(COLUMNS)}}}, [%r0];",
        "tcgen05.wait::ld.sync.aligned;",
        *_write(0, COLUMNS, COLUMNS),
    ]


def _write(first: int, count: int, pitch: int) -> list[str]:
    """%o<first>... into row tid of the answer."""
    lines = [
        f"mul.lo.u32 %at, %thread, {4 * pitch};",
        "cvt.u64.u32 %from, %at;",
        "add.u64 %from, %from, %out;",
    ]
    return [*lines, *(f"st.global.b32 [%from+{4 * i}], %o{first + i};" for i in range(count))]


def _teardown() -> list[str]:
    return [
        *_barrier(),
        "@!%first bra DONE;",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %taddr, 512;",
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "DONE:",
        "ret;",
    ]
