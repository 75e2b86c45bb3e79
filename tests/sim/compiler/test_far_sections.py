# SPDX-License-Identifier: Apache-2.0
"""A kernel's machine code reaches its constants wherever they are mapped."""

from __future__ import annotations

import struct

import pytest

from gdnbench.sim.compiler import native
from gdnbench.sim.compiler.blocks import find_blocks
from gdnbench.sim.compiler.kernel import translate
from gdnbench.sim.compiler.layout import plan_layout
from gdnbench.sim.ptx.parser import parse

PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %d<2>;
  mov.u32 %r1, %tid.x;
  cvt.rn.f32.s32 %f1, %r1;
  fma.rn.f32 %f2, %f1, 0f3F812345, %f1;
  shfl.sync.bfly.b32 %r2, %r1, 3, 31, -1;
  ex2.approx.f32 %f1, %f2;
  ld.param.u64 %d1, [p];
  st.global.f32 [%d1], %f1;
  ret;
}
"""
SECTION, RELA, ENTRY = 64, 4, 24  # bytes of a section header, its type for relocations, bytes of one
R_X86_64_64 = 1


def relocations(elf: bytes) -> set[int]:
    """The types of all relocations, of a 64-bit little-endian object (System V ABI, object files)."""
    start, count = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<H", elf, 60)[0]
    found = set()
    for index in range(count):
        kind = struct.unpack_from("<I", elf, start + index * SECTION + 4)[0]
        offset, size = struct.unpack_from("<QQ", elf, start + index * SECTION + 24)
        if kind == RELA:
            found |= {
                struct.unpack_from("<Q", elf, at + 8)[0] & 0xFFFF_FFFF
                for at in range(offset, offset + size, ENTRY)
            }
    return found


@pytest.mark.parametrize("level", native.Level)
def test_no_address_is_relative(level: native.Level) -> None:
    """Sections are mapped one by one: among tensors of some GB they may lie more than 2 GB apart, where an
    address of 32 bits, relative to the code, made LLVM end the process."""
    module = parse(PTX)
    kernel = module.kernels["k"]
    blocks = find_blocks(kernel)
    text, _ = translate(kernel, blocks, plan_layout(kernel, blocks))
    assert relocations(native.compile_text(text, level)) == {R_X86_64_64}
