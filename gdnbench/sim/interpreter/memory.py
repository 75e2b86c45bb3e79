# SPDX-License-Identifier: Apache-2.0
"""Loads and stores (PTX ISA 9.7.9.8 to 9.7.9.11) in every state space and in the generic one.

Order, scope and cache operators change nothing here: a warp's accesses happen at once and in program order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.interpreter.operation import (
    Step,
    Thread,
    bits_kind,
    fetch,
    fetch_address,
    read_registers,
    refuse,
    require,
    write,
)
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values
from gdnbench.sim.machine.memory import ParameterMemory, legal_lanes, resolve_lanes
from gdnbench.sim.machine.shared_memory import SharedMemory
from gdnbench.sim.ptx.forms import Access
from gdnbench.sim.ptx.ir import Address, Instruction, Register, Vector

if TYPE_CHECKING:
    from gdnbench.sim.machine.memory import Memory

SPACES = {
    "global": "global",
    # Constant memory is laid out as global memory.
    "const": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared::cluster",
    "local": "local",
    "param": "param",
    "param::entry": "param",
}


def memory_of(thread: Thread, space: str) -> Memory:
    """The memory behind a state space."""
    cta = thread.cta
    if space == "shared":
        return cta.shared
    if space == "shared::cluster":
        return cta.cluster_shared
    if space == "local":
        return cta.local[thread.warp.index]
    if space == "param":
        return ParameterMemory(cta.param)
    return cta.memory


def space_of(ins: Instruction) -> str:
    """The state space that an instruction names, "" for the generic one."""
    return SPACES.get(ins.choice(*SPACES), "")


def places(space: str, addresses: Values, lanes: Lanes) -> Iterator[tuple[str, Lanes, Values]]:
    """(state space, lanes, addresses in it): one for a named space, several for generic addresses. The shared
    window of generic addresses is that of the whole cluster."""
    if space:
        yield space, lanes, addresses
        return
    for name, here, local in resolve_lanes(addresses, lanes):
        yield "shared::cluster" if name == "shared" else name, here, local


def count(thread: Thread, space: str, lanes: Lanes, width: int, *, load: bool) -> None:
    """Add to the traffic of a profiled launch."""
    cta = thread.cta
    if cta.config.profile:
        space = "shared" if space == "shared::cluster" else space
        path = f"{space} to registers" if load else f"registers to {space}"
        cta.counters.traffic[path] += int(lanes.sum()) * width


def tell(thread: Thread, ins: Instruction, space: str, addresses: Values, lanes: Lanes) -> None:
    """Tell the checker, if there is one, of an access that was legal and made: `addresses` as `ins` computed
    them, in `space` or, if that is "", generic ones."""
    checker = thread.cta.checker
    if checker is not None and space not in ("local", "param") and lanes.any():
        checker.on_accesses(thread.warp, ins, lanes[None], addresses[None])


def legal(thread: Thread, ins: Instruction, space: str, addresses: Values, lanes: Lanes, width: int) -> Lanes:
    """The lanes whose access can be made: all of them, unless the launch goes on after faults. Raises
    KernelFault for a misaligned access."""
    cta = thread.cta
    if not cta.config.keep_going:
        return lanes
    cta.execute(thread.warp, ins, lanes)
    found = np.zeros(LANES, np.bool_)
    for name, here, local in places(space, addresses, lanes):
        memory = memory_of(thread, name)
        if name == "param" and ins.form.access is not Access.READ:
            thread.skip(KernelFault(FaultKind.OUT_OF_BOUNDS, "a store to the kernel's parameters"))
            continue
        found |= legal_lanes(memory, local, here, width, thread.skip)
    return found


def load_bytes(thread: Thread, space: str, addresses: Values, lanes: Lanes, width: int) -> Array:
    """uint8[32, width]."""
    data = np.zeros((LANES, width), np.uint8)
    for name, here, local in places(space, addresses, lanes):
        got = memory_of(thread, name).load(local, here, width)
        data = got if here is lanes else np.where(here[:, None], got, data)
        count(thread, name, here, width, load=True)
    return data


def store_bytes(thread: Thread, space: str, addresses: Values, lanes: Lanes, data: Array) -> None:
    """Store uint8[32, width]."""
    for name, here, local in places(space, addresses, lanes):
        memory_of(thread, name).store(local, here, data)
        count(thread, name, here, data.shape[1], load=False)


def elements(data: Array, size: int) -> list[Array]:
    """uint8[32, n * size] as n arrays of unsigned integers."""
    whole = np.ascontiguousarray(data).view(np.dtype(f"u{size}"))
    return [whole[:, i] for i in range(whole.shape[1])]


def element_type(ins: Instruction) -> tuple[str, int]:
    """(kind of one element, its bytes). Signed types extend their sign into wider registers."""
    name = ins.types[0]
    kind = name if name[0] == "s" else bits_kind(name)
    return kind, int(kind[1:]) // 8


def address_of(ins: Instruction) -> Address:
    """The memory operand."""
    address = ins.sources[0]
    assert isinstance(address, Address)
    return address


def ld(ins: Instruction) -> Step:
    space = space_of(ins)
    kind, size = element_type(ins)
    address = address_of(ins)
    locate, used = fetch_address(ins, address), read_registers([address])
    puts = tuple(write(ins, dest, kind) for dest in ins.written())
    if len(puts) != ins.vec:
        refuse(ins)
    width = size * ins.vec
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{size}")

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        addresses = locate(thread)
        made = legal(thread, ins, space, addresses, lanes, width)
        data = load_bytes(thread, space, addresses, made, width)
        tell(thread, ins, space, addresses, made)
        for put, value in zip(puts, elements(data, size), strict=True):
            put(thread, lanes, value.view(dtype))

    return step


def st(ins: Instruction) -> Step:
    """A register that was never written may be stored to shared memory: the bytes stay unwritten there. Not
    so one that was computed from such a register, or that tcgen05.ld has yet to deliver."""
    space = space_of(ins)
    kind, size = element_type(ins)
    kind = bits_kind(f"b{8 * size}")
    address = address_of(ins)
    value = ins.sources[1]
    parts = value.elements if isinstance(value, Vector) else (value,)
    if len(parts) != ins.vec or space == "param":
        refuse(ins)
    locate, used = fetch_address(ins, address), read_registers([address])
    gets = tuple(fetch(ins, part, kind) for part in parts)
    stored = read_registers(parts)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        addresses = locate(thread)
        lanes = legal(thread, ins, space, addresses, lanes, size * ins.vec)
        partly = space.startswith("shared") and not all(thread.registers.clean[i] for i in stored)
        if partly:
            for index in stored:
                thread.registers.require_delivered(index, lanes)
                thread.registers.require_no_computed(index, lanes)
        else:
            require(thread, stored, lanes)
        data = np.stack([get(thread) for get in gets], axis=1).view(np.uint8)
        store_bytes(thread, space, addresses, lanes, data)
        tell(thread, ins, space, addresses, lanes)
        if partly:
            there = np.concatenate([_written(thread, part, size) for part in parts], axis=1)
            _mark(thread.cta.shared, addresses, lanes, there)

    return step


def _written(thread: Thread, part: object, size: int) -> Array:
    """Which bytes of a stored element are there or, as has been said, in flight: bool[32, size]."""
    if not isinstance(part, Register):
        return np.ones((LANES, size), np.bool_)
    marks = thread.registers.moved(part)
    marks = marks | marks >> np.uint32(8)
    there: Array = np.not_equal(marks[:, None] >> np.arange(size, dtype=np.uint32) & np.uint32(1), 0)
    return there


def _mark(shared: SharedMemory, addresses: Values, lanes: Lanes, there: Array) -> None:
    """Bytes of shared memory that a store left unwritten."""
    if shared.track:
        where = addresses[lanes].astype(np.intp)[:, None] + np.arange(there.shape[1])
        shared.valid[where] = there[lanes]
