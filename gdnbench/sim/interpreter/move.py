# SPDX-License-Identifier: Apache-2.0
"""Movement of values: `mov` with packing and unpacking, `cvta`, `isspacep`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.interpreter.operation import (
    Operation,
    Step,
    Thread,
    bind,
    bits_kind,
    fetch,
    find_undefined,
    mark_computed,
    read_registers,
    refuse,
    write,
)
from gdnbench.sim.interpreter.registers import WIDTHS, Array, all_marks
from gdnbench.sim.machine.engine_interface import (
    CLUSTER_STRIDE,
    LANES,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WINDOW_SIZE,
    WINDOWS,
    Lanes,
)
from gdnbench.sim.ptx.ir import Instruction, Register, Sink, Vector

_U64 = np.uint64
_RANK_SHIFT = CLUSTER_STRIDE.bit_length() - 1
_RANK_BITS = 0xFF << _RANK_SHIFT
_WINDOWS = {
    **WINDOWS,
    "shared::cta": SHARED_WINDOW,
    "shared::cluster": SHARED_WINDOW,
    "param::entry": PARAM_WINDOW,
}


def mov(ins: Instruction) -> Step:
    """A value as it is, whether or not it is there: compilers move packing above tcgen05.wait::ld."""
    if ins.vec > 1:
        return _vector(ins)
    if isinstance(ins.sources[0], Vector):
        return _pack(ins, ins.sources[0])
    if isinstance(ins.dests[0], Vector):
        return _unpack(ins, ins.dests[0])
    kind = bits_kind(ins.types[0])
    source, dest = ins.sources[0], ins.dests[0]
    get, put = fetch(ins, source, kind), write(ins, dest, kind)

    def step(thread: Thread, lanes: Lanes) -> None:
        put(thread, lanes, get(thread))
        if isinstance(source, Register) and isinstance(dest, Register):
            registers = thread.registers
            if not registers.clean[source.index]:
                registers.mark_moved(dest.index, lanes, registers.moved(source), (source,))

    return step


def _element_width(ins: Instruction, vector: Vector) -> int:
    width, rest = divmod(WIDTHS[bits_kind(ins.types[0])], len(vector.elements))
    if rest or f"u{width}" not in WIDTHS:
        refuse(ins)
    return width


def _vector(ins: Instruction) -> Step:
    """A vector of registers, element by element. All are read before one is written."""
    source, dest = ins.sources[0], ins.dests[0]
    if not isinstance(source, Vector) or not isinstance(dest, Vector):
        refuse(ins)
    if not len(source.elements) == len(dest.elements) == ins.vec:
        refuse(ins)
    kind = bits_kind(ins.types[0])
    gets = tuple(fetch(ins, element, kind) for element in source.elements)
    puts = tuple(write(ins, element, kind) for element in dest.elements)

    def step(thread: Thread, lanes: Lanes) -> None:
        registers = thread.registers
        values = [get(thread).copy() for get in gets]
        marks = [registers.moved(element).copy() for element in source.elements]
        for into, put, value, mark in zip(dest.elements, puts, values, marks, strict=True):
            put(thread, lanes, value)
            if isinstance(into, Register):
                registers.mark_moved(into.index, lanes, mark, source.elements)

    return step


def _pack(ins: Instruction, vector: Vector) -> Step:
    """Elements joined, the first lowest."""
    width = _element_width(ins, vector)
    gets = tuple(fetch(ins, element, f"u{width}") for element in vector.elements)
    dest = ins.dests[0]
    put = write(ins, dest, bits_kind(ins.types[0]))

    def step(thread: Thread, lanes: Lanes) -> None:
        joined = np.zeros(LANES, _U64)
        for place, get in enumerate(gets):
            joined |= get(thread).astype(_U64) << _U64(place * width)
        put(thread, lanes, joined)
        sources = [e for e in vector.elements if isinstance(e, Register)]
        registers = thread.registers
        if isinstance(dest, Register) and not all(registers.clean[e.index] for e in sources):
            marks = np.zeros(LANES, np.uint32)
            own = all_marks((1 << width // 8) - 1)
            for place, element in enumerate(vector.elements):
                marks |= (registers.moved(element) & own) << np.uint32(place * width // 8)
            registers.mark_moved(dest.index, lanes, marks, sources)

    return step


def _unpack(ins: Instruction, vector: Vector) -> Step:
    """A register taken apart, the first element lowest."""
    width = _element_width(ins, vector)
    source = ins.sources[0]
    get = fetch(ins, source, bits_kind(ins.types[0]))
    puts = tuple(write(ins, element, f"u{width}") for element in vector.elements)
    mask = _U64((1 << width) - 1)

    def step(thread: Thread, lanes: Lanes) -> None:
        value = get(thread).astype(_U64)  # a copy: an element may be the source itself
        registers = thread.registers
        marks = None
        if isinstance(source, Register) and not registers.clean[source.index]:
            marks = registers.moved(source).copy()
        for place, (element, put) in enumerate(zip(vector.elements, puts, strict=True)):
            put(thread, lanes, value >> _U64(place * width) & mask)
            if marks is not None and not isinstance(element, Sink):
                assert isinstance(element, Register)
                part = marks >> np.uint32(place * width // 8)
                registers.mark_moved(element.index, lanes, part, (source,))

    return step


def _cvta(ins: Instruction) -> Operation:
    """Between a state space and the generic space: the windows lie at fixed places."""
    to_space = ins.has("to")
    base = _U64(_WINDOWS[ins.choice(*_WINDOWS)])
    return Operation(("u64",), ("u64",), lambda a: a - base if to_space else a + base)


def isspacep(ins: Instruction) -> Step:
    """Whether a generic address is in a window. That of shared::cta is a part of that of shared::cluster;
    they are equal without a cluster (PTX ISA 5.1.8)."""
    step = bind(ins, _isspacep(ins))
    if not ins.has("shared", "shared::cta"):
        return step
    get, (dest,) = fetch(ins, ins.sources[0], "u64"), ins.written()
    put, used = write(ins, dest, "pred"), read_registers(ins.sources)

    def own(thread: Thread, lanes: Lanes) -> None:
        undefined = find_undefined(thread, used, lanes)
        first = _U64(SHARED_WINDOW + thread.cta.shared.origin)
        put(thread, lanes, get(thread) - first < _U64(CLUSTER_STRIDE))
        mark_computed(thread, (dest,), undefined)

    return lambda thread, lanes: (step if thread.cta.cluster is None else own)(thread, lanes)


def _isspacep(ins: Instruction) -> Operation:
    space = ins.choice(*_WINDOWS)
    windows = (SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW)

    def inside(address: Array, base: int) -> Array:
        return (address >= _U64(base)) & (address < _U64(base + WINDOW_SIZE))

    def compute(address: Array) -> Array:
        if _WINDOWS[space]:
            return inside(address, _WINDOWS[space])
        elsewhere: Array = np.logical_or.reduce([inside(address, base) for base in windows])
        return ~elsewhere

    return Operation(("u64",), ("pred",), compute)


def _mapa(ins: Instruction) -> Operation:
    """The address in another CTA of the cluster: the rank replaces that of the address. Generic addresses
    have it in the same bits. An access to a rank that is not in the cluster is a fault."""
    kind = ins.types[0]
    dtype = np.dtype(f"u{int(kind[1:]) // 8}").type
    others = dtype(~_RANK_BITS & (1 << int(kind[1:])) - 1)
    return Operation(
        (kind, "u32"),
        (kind,),
        lambda a, rank: a & others | (rank.astype(dtype) << dtype(_RANK_SHIFT)) & dtype(_RANK_BITS),
    )


def _getctarank(ins: Instruction) -> Operation:
    kind = ins.types[0]
    dtype = np.dtype(f"u{int(kind[1:]) // 8}").type
    return Operation(
        (kind,), ("u32",), lambda a: ((a & dtype(_RANK_BITS)) >> dtype(_RANK_SHIFT)).astype(np.uint32)
    )


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    "cvta": _cvta,
    "mapa": _mapa,
    "getctarank": _getctarank,
}
