# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of every space, width and vector length; what reaches outside or is misaligned faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.run import run_ptx
from tests.sim.instructions.one_instruction import BLOCK, HEADER, apply, check, kernel, one
from tests.sim.instructions.operands import integers

Array = npt.NDArray[Any]


def aligned(like: Array) -> Array:
    """Zeros at a multiple of 32 bytes, the longest vector."""
    room = np.zeros(like.nbytes + 32, np.uint8)
    start = -room.ctypes.data % 32
    return room[start : start + like.nbytes].view(like.dtype)


def copy(engine: str, body: str, source: Array, size: int, **rest: Any) -> Array:
    """`body` copies from [%in] to [%out], which are `size` bytes a thread apart."""
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 in, .param .b64 out)
{{
.reg .b16 %h<8>; .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .b64 %in, %out; .reg .b32 %tid;
mov.u32 %tid, %tid.x;
ld.param.b64 %in, [in]; ld.param.b64 %out, [out];
mad.wide.u32 %in, %tid, {size}, %in;
mad.wide.u32 %out, %tid, {size}, %out;
{body}
ret;
}}"""
    data, out = aligned(source), aligned(source)
    data[:] = source
    run_ptx(ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [data, out], engine=engine, threads=1, **rest)
    return out


def regs(kind: str, count: int) -> str:
    return "{" + ", ".join(f"%{kind}{i}" for i in range(count)) + "}" if count > 1 else f"%{kind}0"


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("vector", "width"),
    [
        (1, 8),
        (1, 16),
        (1, 32),
        (1, 64),
        (2, 8),
        (2, 16),
        (2, 32),
        (2, 64),
        (4, 8),
        (4, 16),
        (4, 32),
        (8, 32),
        (4, 64),
    ],
)
@pytest.mark.parametrize("hint", ["", ".nc", ".L1::no_allocate", ".relaxed.gpu", ".volatile"])
def test_global(engine: str, vector: int, width: int, hint: str) -> None:
    kind = {8: "h", 16: "h", 32: "r", 64: "d"}[width]
    suffix = f".v{vector}" if vector > 1 else ""
    source = np.random.default_rng(1).integers(0, 256, BLOCK * vector * width // 8).astype(np.uint8)
    store_hint = "" if hint in (".nc",) else hint
    order = "" if hint.startswith((".relaxed", ".volatile")) else ".global"
    load = f"ld{hint}.global{suffix}.b{width}" if order == "" else f"ld.global{hint}{suffix}.b{width}"
    store = (
        f"st{store_hint}.global{suffix}.b{width}"
        if order == ""
        else f"st.global{store_hint}{suffix}.b{width}"
    )
    names = regs(kind, vector)
    out = copy(engine, f"{load} {names}, [%in]; {store} [%out], {names};", source, vector * width // 8)
    check(out, source)


@pytest.mark.parametrize("space", ["shared", "local"])
@pytest.mark.parametrize("generic", [False, True])
def test_through_own_memory(engine: str, space: str, generic: bool) -> None:
    """Global to shared or local memory and back, by the space's own address or by a generic one."""
    source = integers(np.uint64, 2)[:BLOCK]
    stride = 8 if space == "shared" else 0
    address = f"""mov.u64 %d1, room; mad.wide.u32 %d1, %tid, {stride}, %d1;"""
    name = f".{space}"
    if generic:
        address += f"cvta.{space}.u64 %d1, %d1;"
        name = ""
    body = f""".{space} .align 8 .b8 room[{8 * BLOCK if space == "shared" else 16}];
    ld.global.b64 %d0, [%in]; {address}
    st{name}.b64 [%d1], %d0; ld{name}.b64 %d2, [%d1]; st.b64 [%out], %d2;"""
    check(copy(engine, body, source, 8), source)


def test_narrow_loads_extend(engine: str) -> None:
    """The register gets the sign, or zeros (9.4.1)."""
    a = integers(np.uint32, 3)
    text = """.shared .align 4 .b8 room[512];
    .reg .b32 %at, %tid; mov.u32 %tid, %tid.x; mov.u32 %at, room; mad.lo.s32 %at, %tid, 4, %at;
    st.shared.b32 [%at], %s0;
    ld.shared.s8 %d0, [%at]; ld.shared.u8 %d1, [%at]; ld.shared.s16 %d2, [%at+2]; ld.shared.s32 %d3, [%at];"""
    results = apply(engine, text, [a], [np.int32, np.uint32, np.int64, np.int64])
    expected = [
        a.view(np.int8)[::4].astype(np.int32),
        a.view(np.uint8)[::4].astype(np.uint32),
        a.view(np.int16)[1::2].astype(np.int64),
        a.view(np.int32).astype(np.int64),
    ]
    for actual, want in zip(results, expected, strict=True):
        check(actual, want, a)


def test_parameters(engine: str) -> None:
    """Scalars, vectors and the generic address of the parameter block."""
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 out, .param .align 16 .b8 block[32], .param .b32 x)
{{
.reg .b32 %r<8>; .reg .b16 %h<4>; .reg .b64 %d<4>;
ld.param.b64 %d0, [out];
ld.param.v4.b32 {{%r0, %r1, %r2, %r3}}, [block+16];
ld.param.b32 %r4, [x];
ld.param.v2.b8 {{%h0, %h1}}, [block+2];
cvt.u32.u16 %r5, %h1;
mov.b64 %d1, block;
cvta.param.u64 %d2, %d1;
ld.b32 %r6, [%d2+4];
st.global.v4.b32 [%d0], {{%r0, %r1, %r2, %r3}};
st.global.v2.b32 [%d0+16], {{%r4, %r5}};
st.global.b32 [%d0+24], %r6;
ret;
}}"""
    block = np.random.default_rng(4).integers(0, 256, 32).astype(np.uint8)
    out = np.zeros(7, np.uint32)
    run_ptx(ptx, "k", (1, 1, 1), (1, 1, 1), [out, block.tobytes(), 0xDEADBEEF], engine=engine, threads=1)
    words = block.view(np.uint32)
    assert out.tolist() == [*words[4:8].tolist(), 0xDEADBEEF, int(block[3]), int(words[1])]


def test_module_variables(engine: str) -> None:
    """Constant memory is initialised; global memory keeps what is stored."""
    ptx = f"""{HEADER}
.const .align 4 .u32 table[4] = {{7, 11, 13, 17}};
.global .align 8 .u64 counter;
.visible .entry k(.param .b64 out)
{{
.reg .b32 %r<4>; .reg .b64 %d<4>;
ld.param.b64 %d0, [out];
ld.const.b32 %r0, [table+8];
mov.u64 %d1, table;
ld.const.v2.b32 {{%r1, %r2}}, [%d1];
mov.u64 %d2, 99;
st.global.u64 [counter], %d2;
ld.global.u64 %d3, [counter];
cvt.u32.u64 %r3, %d3;
st.global.v4.b32 [%d0], {{%r0, %r1, %r2, %r3}};
ret;
}}"""
    out = np.zeros(4, np.uint32)
    run_ptx(ptx, "k", (1, 1, 1), (1, 1, 1), [out], engine=engine, threads=1)
    assert out.tolist() == [13, 7, 11, 99]


@pytest.mark.parametrize("check", [False, True])
def test_a_variable_without_its_state_space(engine: str, check: bool) -> None:
    """ptxas (CUDA 13.0, sm_100a) makes the same code of these as with `.shared` and `.local`."""
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 out, .param .b32 given)
{{
.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %out; .reg .b32 %tid;
.shared .align 16 .b8 padding[64];
.shared .align 16 .b8 shared_word[16];
.shared .align 8 .b64 barrier;
.local .align 4 .b8 local_word[8];
mov.u32 %tid, %tid.x;
ld.param.b64 %out, [out];
mad.wide.u32 %out, %tid, 24, %out;
st.b32 [local_word+4], %tid;
ld.b32 %r0, [local_word+4];
setp.eq.u32 %p, %tid, 0;
@%p st.shared.b32 [padding], 5;
@%p st.v4.b32 [shared_word], {{70, 70, 70, 70}};
@%p mbarrier.init.b64 [barrier], 1;
bar.sync 0;
@%p atom.add.u32 %r7, [shared_word+4], 7;
@%p mbarrier.arrive.b64 _, [barrier];
bar.sync 0;
ld.shared.b32 %r1, [shared_word+4];
ld.b32 %r2, [shared_word+4];
ld.b32 %r3, [given];
mbarrier.test_wait.parity.b64 %p, [barrier], 0;
selp.b32 %r4, 1, 0, %p;
st.global.b32 [%out], %r0;
st.global.b32 [%out+4], %r1;
st.global.b32 [%out+8], %r2;
st.global.b32 [%out+12], %r3;
st.global.b32 [%out+16], %r4;
ldmatrix.sync.aligned.m8n8.x1.b16 {{%r5}}, [shared_word];
st.global.b32 [%out+20], %r5;
ret;
}}"""
    out = np.zeros((BLOCK, 6), np.uint32)
    ran = run_ptx(ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [out, 9], engine=engine, threads=1, check=check)
    assert np.array_equal(out[:, 0], np.arange(BLOCK))
    assert (out[:, 1:5] == [77, 77, 9, 1]).all()
    assert np.array_equal(out[:, 5], np.where(np.arange(BLOCK) % 4 == 1, 77, 70))  # four words a row
    assert not ran.found


def test_only_lanes_that_take_part_access_memory(engine: str) -> None:
    a = integers(np.uint32, 5)[:BLOCK]
    keep = np.random.default_rng(6).integers(0, 2, BLOCK).astype(np.bool_)
    # The other lanes' address is not valid.
    text = """.reg .b64 %at; mov.b64 %at, 16; @%s1 mov.b64 %at, %s2; mov.b32 %d0, 5;
    @%s1 ld.global.b32 %d0, [%at];"""
    places = np.uint64(a.ctypes.data) + np.uint64(4) * np.arange(BLOCK, dtype=np.uint64)
    memory = GlobalMemory()
    memory.add_array(a, "a")
    out = np.zeros(BLOCK, np.uint32)
    ptx = kernel(text, [source.dtype for source in (a, keep, places)], [out.dtype])
    run_ptx(
        ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [a, keep, places, out], engine=engine, threads=1, memory=memory
    )
    check(out, np.where(keep, a, np.uint32(5)))


BAD = {
    "past the end": ("ld.global.b32 %r0, [%in+512];", FaultKind.OUT_OF_BOUNDS),
    "before the start": ("st.global.b32 [%out+-512], %tid;", FaultKind.OUT_OF_BOUNDS),
    "null": ("mov.b64 %d0, 0; ld.global.b32 %r0, [%d0];", FaultKind.OUT_OF_BOUNDS),
    "shared": (".shared .b8 room[16]; st.shared.b32 [room+16], %tid;", FaultKind.OUT_OF_BOUNDS),
    "local": (".local .b8 room[16]; mov.b32 %r0, 1; st.local.b32 [room+16], %r0;", FaultKind.OUT_OF_BOUNDS),
    "system shared": ("mov.b32 %r0, 0; st.shared.b32 [%r0], %tid;", FaultKind.OUT_OF_BOUNDS),
    "misaligned": ("ld.global.b32 %r0, [%in+2];", FaultKind.MISALIGNED),
    "misaligned vector": ("ld.global.v2.b32 {%r0, %r1}, [%in];", FaultKind.MISALIGNED),
    "misaligned shared": (
        ".shared .align 8 .b8 room[16]; st.shared.b64 [room+4], %d0;",
        FaultKind.MISALIGNED,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_faults(engine: str, case: str) -> None:
    body, kind = BAD[case]
    source = np.zeros(BLOCK, np.uint32)
    with pytest.raises(KernelFault) as caught:
        copy(engine, "mov.b64 %d0, 0;\n" + body.replace("; ", ";\n"), source, 4)
    assert caught.value.kind is kind
    assert caught.value.place is not None
    assert caught.value.place.text.startswith(("ld", "st"))


def test_the_legal_neighbours_of_the_faults(engine: str) -> None:
    body = """.shared .align 8 .b8 room[16]; .local .align 4 .b8 own[16];
    mov.b64 %d0, 0; st.shared.b64 [room+8], %d0; st.local.b32 [own+12], %tid; ld.local.b32 %r0, [own+12];
    st.global.b32 [%out], %r0;"""
    out = copy(engine, body, np.zeros(BLOCK, np.uint32), 4)
    assert out.tolist() == list(range(BLOCK))


def test_lanes_that_store_to_one_address(engine: str) -> None:
    """PTX leaves open which lane wins; both engines let the highest."""
    text = """.shared .align 4 .b8 room[4]; .reg .b32 %lane; mov.u32 %lane, %laneid;
    st.shared.b32 [room], %lane; ld.shared.b32 %d0, [room];"""
    assert one(engine, text, [np.zeros(32, np.uint32)], np.uint32).tolist() == [31] * 32


@pytest.mark.parametrize(
    ("load", "store"),
    [("ld.global.ca.b32", "st.global.wb.b32"), ("ld.cg.global.f32", "st.global.cg.f32"),
     ("ld.global.cs.b32", "st.global.cs.b32"), ("ld.global.lu.b32", "st.global.wt.b32"),
     ("ld.global.cv.b32", "st.cs.b32"), ("ld.global.cg.nc.L2::128B.b32", "st.wt.global.b32")],
)  # fmt: skip
def test_cache_operators_change_no_value(engine: str, load: str, store: str) -> None:
    a = np.arange(BLOCK, dtype=np.uint32)
    out = np.zeros_like(a)
    ptx = f"""{HEADER}.visible .entry k(.param .b64 a, .param .b64 b) {{ .reg .b64 %a, %b; .reg .b32 %t, %x;
    ld.param.ca.b64 %a, [a]; ld.param.b64 %b, [b]; mov.u32 %t, %tid.x;
    mad.wide.u32 %a, %t, 4, %a; mad.wide.u32 %b, %t, 4, %b;
    {load} %x, [%a]; {store} [%b], %x; ret; }}"""
    run_ptx(ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [a, out], engine=engine, threads=1)
    check(out, a)


def test_initial_values_may_be_negative(engine: str) -> None:
    """A scalar, a vector variable and its alignment."""
    out = np.zeros(4, np.int32)
    ptx = f"""{HEADER}.global .b8 first; .global .u32 one = -125; .const .v2 .b32 pair = {{-1, 7}};
    .visible .entry k(.param .b64 a) {{ .reg .b64 %a, %p; .reg .v4 .b32 %x; .reg .b32 %low;
    ld.param.b64 %a, [a]; ld.global.b32 %x.x, [one]; ld.const.v2.b32 {{%x.y, %x.z}}, [pair];
    mov.b64 %p, pair; cvt.u32.u64 %low, %p; and.b32 %x.w, %low, 7;
    st.global.v4.b32 [%a], %x; ret; }}"""
    run_ptx(ptx, "k", (1, 1, 1), (1, 1, 1), [out], engine=engine, threads=1)
    assert out.tolist() == [-125, -1, 7, 0]
