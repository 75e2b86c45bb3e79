# SPDX-License-Identifier: Apache-2.0
"""The loads and stores that engines report to a checker, compared with lists worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread
from typing import Any

import numpy as np
import pytest

from gdnbench.sim.compiler.access_log import CAPACITY, _room
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import SHARED_BASE, SHARED_WINDOW
from gdnbench.sim.run import ENGINES, run_ptx
from tests.sim.access_recording import Event, Recording

S = SHARED_BASE  # where the kernels' only shared variable lies


HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 g)
{
.reg .pred %p, %q;
.reg .b16 %h<4>;
.reg .b32 %t, %s, %i, %r<8>;
.reg .b64 %g, %a, %d<4>;
.shared .align 1024 .b8 buffer[1024];
ld.param.u64 %g, [g];
mov.u32 %t, %tid.x;
shl.b32 %r0, %t, 2;
mov.u32 %s, buffer;
add.s32 %s, %s, %r0;
mad.wide.u32 %g, %t, 4, %g;
"""


def events(body: str, memory: np.ndarray, engine: str, threads: int = 32) -> tuple[list[Event], Any]:
    """What the kernel tells, and the fault that it ends with. %t is the thread, %s and %g its word of the
    shared buffer and of `memory`. A comment at the end of a line is its letter."""
    text = f"{HEADER}{body}\nret;\n}}\n"
    lines = {number: line.partition("//")[2].strip() for number, line in enumerate(text.splitlines(), 1)}
    checkers: list[Recording] = []

    def checker(_: Cta) -> Recording:
        checkers.append(Recording({number: letter for number, letter in lines.items() if letter}))
        return checkers[-1]

    grid, block, fault = (1, 1, 1), (threads, 1, 1), None
    try:
        run_ptx(text, "k", grid, block, [memory], engine=engine, threads=1, checker=checker)
    except KernelFault as error:
        fault = error
    return checkers[0].events, fault


def accesses(body: str, memory: np.ndarray, engine: str, threads: int = 32) -> list[Event]:
    """Those of a kernel without machine instructions and faults."""
    found, fault = events(body, memory, engine, threads)
    assert fault is None
    return [event for event in found if event[1] != "exited"]


def access(letter: str, lanes: Iterable[int], start: int, stride: int, warp: int = 0) -> Event:
    """Lane l of `lanes` at start + stride l."""
    return warp, letter, {lane: start + stride * lane for lane in lanes}


def words(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype=np.uint32)


def first(memory: np.ndarray) -> int:
    return int(memory.ctypes.data)


ALL = range(32)
engines = pytest.mark.parametrize("engine", ENGINES)


@engines
def test_guards_and_divergence(engine: str) -> None:
    body = """
        setp.lt.u32 %p, %t, 5;
        setp.gt.u32 %q, %t, 99;
        st.shared.b32 [%s], %t; // a
        @%p ld.shared.b32 %r1, [%s+4]; // b
        @%q ld.shared.b32 %r1, [%s+4]; // none
        @%p bra LOW;
        ld.shared.b32 %r1, [%s+-8]; // c
        @%p st.shared.b32 [%s], %r1; // none
        bra JOIN;
        LOW:
        ld.global.b32 %r1, [%g+128]; // d
        JOIN:
        st.global.b32 [%g], %r1; // e
    """
    memory = words()
    at = first(memory)
    assert accesses(body, memory, engine) == [
        access("a", ALL, S, 4),
        access("b", range(5), S + 4, 4),
        access("c", range(5, 32), S - 8, 4),
        access("d", range(5), at + 128, 4),
        access("e", ALL, at, 4),
    ]


@engines
def test_a_warp_that_is_not_full(engine: str) -> None:
    memory = words()
    at = first(memory)
    assert accesses("st.global.b32 [%g], %t; // a", memory, engine, threads=40) == [
        access("a", ALL, at, 4),
        access("a", range(8), at + 128, 4, warp=1),
    ]


@engines
def test_loops(engine: str) -> None:
    """Lane l goes round 1 + l % 2 times."""
    body = """
        and.b32 %i, %t, 1;
        LOOP:
        st.shared.b32 [%s], %t; // a
        add.s32 %s, %s, 128;
        add.s32 %i, %i, -1;
        setp.ge.s32 %p, %i, 0;
        @%p bra LOOP;
        ld.global.b32 %r1, [%g]; // b
    """
    memory = words()
    assert accesses(body, memory, engine) == [
        access("a", ALL, S, 4),
        access("a", range(1, 32, 2), S + 128, 4),
        access("b", ALL, first(memory), 4),
    ]


@engines
def test_widths_and_vectors(engine: str) -> None:
    """An execution is one access, however wide."""
    body = """
        mad.wide.u32 %a, %t, 28, %g;
        cvt.u16.u32 %h0, %t;
        st.global.b8 [%g+1], %h0; // a
        ld.global.u8 %h1, [%g+3]; // b
        st.global.b16 [%g+2], %h0; // c
        ld.global.b64 %d0, [%a+8]; // d
        ld.global.v2.b32 {%r1, %r2}, [%a]; // e
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%a+16]; // f
        st.global.v2.b64 [%a], {%d0, %d0}; // g
        ld.global.v4.u8 {%h0, %h1, %h2, %h3}, [%a+4]; // h
        ldu.global.b32 %r1, [%g]; // i
    """
    room = words(272 + 4)
    skip = -room.ctypes.data % 16 // 4
    memory = room[skip : skip + 272]
    at = first(memory)
    assert accesses(body, memory, engine) == [
        access("a", ALL, at + 1, 4),
        access("b", ALL, at + 3, 4),
        access("c", ALL, at + 2, 4),
        access("d", ALL, at + 8, 32),
        access("e", ALL, at, 32),
        access("f", ALL, at + 16, 32),
        access("g", ALL, at, 32),
        access("h", ALL, at + 4, 32),
        access("i", ALL, at, 4),
    ]


GENERIC = """
    .local .align 8 .b8 own[8];
    mov.u64 %d0, buffer;
    cvta.shared.u64 %d0, %d0;
    mad.wide.u32 %d0, %t, 4, %d0;
    setp.lt.u32 %p, %t, 8;
    selp.b64 %d1, %d0, %g, %p;
"""


@engines
def test_generic_addresses_stay_generic(engine: str) -> None:
    """Lanes 0 to 7 into shared memory, the others into global memory, by one instruction."""
    body = f"""{GENERIC}
        st.b32 [%d1], %t; // a
        st.shared.b32 [%s], %t; // b
        ld.b32 %r1, [%d0+64]; // c
        atom.add.u32 %r1, [%d1], 1; // d
    """
    memory = words()
    at = first(memory)
    mixed = access("", range(8), SHARED_WINDOW + S, 4)[2] | access("", range(8, 32), at, 4)[2]
    low = "setp.lt.u32 %q, %t, 16;\n@!%q bra OUT;\n"
    found = accesses(body.replace("ld.b32", low + "ld.b32") + "\nOUT:", memory, engine)
    assert found == [
        (0, "a", mixed),
        access("b", ALL, S, 4),
        access("c", range(16), SHARED_WINDOW + S + 64, 4),
        (0, "d", {lane: address for lane, address in mixed.items() if lane < 16}),
    ]


@engines
def test_parameters_and_local_memory_are_not_told(engine: str) -> None:
    body = """
        .local .align 8 .b8 own[8];
        st.local.b32 [own], %t; // none
        ld.local.b32 %r1, [own]; // none
        ld.param.b32 %r1, [g]; // none
    """
    assert accesses(body, words(), engine) == []


@engines
def test_atomics(engine: str) -> None:
    body = """
        mov.u32 %r1, buffer;
        st.shared.b32 [%s], %t; // a
        setp.ge.u32 %p, %t, 30;
        atom.shared.add.u32 %r2, [%r1+4], 1; // b
        @%p red.shared.max.u32 [%r1+8], %t; // c
        atom.global.cas.b32 %r2, [%g], %t, 7; // d
        red.global.add.u32 [%g+4], 1; // e
        mad.wide.u32 %a, %t, 4, %g;
        atom.global.exch.b64 %d0, [%a], %a; // f
        mov.u32 %r3, 0;
        atom.global.v2.f32.add {%r2, %r3}, [%a], {%r2, %r3}; // g
    """
    memory = np.zeros(80, np.uint64).view(np.uint32)
    at = first(memory)
    assert accesses(body, memory, engine) == [
        access("a", ALL, S, 4),
        access("b", ALL, S + 4, 0),
        access("c", (30, 31), S + 8, 0),
        access("d", ALL, at, 4),
        access("e", ALL, at + 4, 4),
        access("f", ALL, at, 8),
        access("g", ALL, at, 8),
    ]


@engines
def test_matrices(engine: str) -> None:
    """Lanes that give a row: 8 a matrix."""
    body = f"""{GENERIC}
        mov.u32 %r1, buffer;
        mad.lo.u32 %r1, %t, 16, %r1;
        mov.u64 %d2, buffer;
        cvta.shared.u64 %d2, %d2;
        mad.wide.u32 %d2, %t, 16, %d2;
        st.shared.v4.b32 [%r1], {{%t, %t, %t, %t}}; // a
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r2}}, [%r1]; // b
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%r2, %r3}}, [%r1+128]; // c
        ldmatrix.sync.aligned.m8n8.x4.b16 {{%r2, %r3, %r4, %r5}}, [%d2]; // d
        stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {{%r2, %r3}}; // e
        stmatrix.sync.aligned.m8n8.x1.b16 [%d2+16], {{%r2}}; // f
    """
    assert accesses(body, words(), engine) == [
        access("a", ALL, S, 16),
        access("b", range(8), S, 16),
        access("c", range(16), S + 128, 16),
        access("d", ALL, SHARED_WINDOW + S, 16),
        access("e", range(16), S, 16),
        access("f", range(8), SHARED_WINDOW + S + 16, 16),
    ]


@engines
def test_more_accesses_than_the_log_holds(engine: str) -> None:
    """A log that is full in a loop of three blocks, in one of which lanes are apart, is emptied and goes on:
    every round's accesses come once, in their order."""
    body = """
        mov.u32 %r1, buffer;
        mad.lo.u32 %r1, %t, 16, %r1;
        st.shared.v4.b32 [%r1], {%t, %t, %t, %t}; // a
        mov.u32 %i, 0;
        and.b32 %r2, %t, 1;
        setp.eq.u32 %q, %r2, 0;
        LOOP:
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1]; // b
        @%q bra EVEN;
        ld.shared.b32 %r2, [%s]; // c
        EVEN:
        st.shared.b32 [%s], %i; // d
        ld.shared.b32 %r3, [%s]; // e
        add.u32 %i, %i, 1;
        setp.lt.u32 %p, %i, ROUNDS;
        @%p bra LOOP;
    """
    rounds = CAPACITY // 2
    one = [
        access("b", range(8), S, 16),
        access("c", range(1, 32, 2), S, 4),
        access("d", ALL, S, 4),
        access("e", ALL, S, 4),
    ]
    found = accesses(body.replace("ROUNDS", str(rounds)), words(), engine)
    assert found == [access("a", ALL, S, 16), *one * rounds]
    assert len(found) > CAPACITY


def test_threads_have_logs_of_their_own() -> None:
    """Compiled code holds no lock: it writes while another thread's log is read."""
    rooms = [_room.entries]
    other = Thread(target=lambda: rooms.append(_room.entries))
    other.start()
    other.join()
    assert not np.shares_memory(*rooms)


@engines
def test_a_fault_in_the_middle(engine: str) -> None:
    """What was done before a fault is told; the access that is illegal was never made."""
    body = """
        st.shared.b32 [%s], %t; // a
        st.global.b32 [%g], %t; // b
        ld.global.b32 %r1, [%g+120]; // c
        ld.global.b32 %r1, [%g+124]; // d
        ld.global.b32 %r1, [%g+128]; // e
        ld.global.b32 %r1, [%g+132]; // f
        st.shared.b32 [%s], %t; // g
    """
    memory = words(64)
    at = first(memory)
    found, fault = events(body, memory, engine)
    assert fault is not None
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert found == [
        access("a", ALL, S, 4),
        access("b", ALL, at, 4),
        access("c", ALL, at + 120, 4),
        access("d", ALL, at + 124, 4),
        access("e", ALL, at + 128, 4),
    ]


@engines
def test_order_among_machine_instructions(engine: str) -> None:
    """An access is told before what the machine is handed next, and before the warp's turn ends."""
    body = """
        st.shared.b32 [%s], %t; // a
        fence.proxy.async;
        fence.proxy.async;
        st.shared.b32 [%s], %t; // b
        bar.sync 0;
        ld.shared.b32 %r1, [%s]; // c
    """
    found, _ = events(body, words(), engine, threads=64)
    fence = [(0, "fence.proxy.async", {}), (0, "fence.proxy.async ends", {})]
    upper = S + 128
    for warp, base in ((0, S), (1, upper)):
        own = [(0, *event[1:]) for event in found if event[0] == warp]
        assert own == [
            access("a", ALL, base, 4),
            *fence,
            *fence,
            access("b", ALL, base, 4),
            (0, "bar.sync", {}),
            (0, "bar.sync ends", {}),
            access("c", ALL, base, 4),
            (0, "exited", {}),
        ]
    arrived = found.index((1, "bar.sync", {}))
    assert found.index(access("c", ALL, S, 4)) > arrived
    assert found.index(access("b", ALL, S, 4)) < arrived
