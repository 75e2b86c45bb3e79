# SPDX-License-Identifier: Apache-2.0
"""`wmma.load`, `wmma.store` and `wmma.mma`: matrices of a warp whose place in registers the PTX ISA leaves
open. It is that of `mma.sync` (`ptx.wmma`)."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.interpreter.matrix import double_mma, operand_parts
from gdnbench.sim.interpreter.memory import address_of, legal, load_bytes, space_of, store_bytes, tell
from gdnbench.sim.interpreter.operation import (
    Fetch,
    Step,
    Thread,
    fetch,
    fetch_address,
    read_registers,
    refuse,
    require,
    write,
)
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Values
from gdnbench.sim.ptx import wmma
from gdnbench.sim.ptx.ir import Instruction
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product


def _operand_elements(outer: int, k: int, per: int, left: bool) -> Array:
    """[registers, 32, per]: which element of [outer, k] each register holds. The left operand of `mma.sync`
    has blocks of 16 rows, the right one of eight."""
    halves = 2 if left and outer >= 16 else 1
    blocks = np.arange(outer * k).reshape(outer // (8 * halves), halves, 8, k // (4 * per), 4, per)
    return np.ascontiguousarray(blocks.transpose(0, 3, 1, 2, 4, 5)).reshape(-1, LANES, per)


def _result_elements(rows: int, columns: int, per: int) -> Array:
    """The same of C and D: [rows, columns] of the left and the right operand."""
    halves = 2 if rows >= 16 else 1
    blocks = np.arange(rows * columns).reshape(rows // (8 * halves), halves, 8, columns // 8, 4, 2)
    order = (0, 3, 1, 2, 4, 5) if per == 2 else (0, 3, 1, 5, 2, 4)
    return np.ascontiguousarray(blocks.transpose(order)).reshape(-1, LANES, per)


def _elements(operand: str, shape: tuple[int, int, int], type_name: str) -> Array:
    """[registers, 32, elements of a register] of A as [M, K], of B as [N, K], and of C and D as [M, N], or
    [N, M] where the transposes are multiplied."""
    m, n, k = shape
    per, turned = wmma.per_register(type_name), wmma.is_transposed(shape)
    if operand == "c":
        return _result_elements(*((n, m) if turned else (m, n)), per)
    return _operand_elements(m if operand == "a" else n, k, per, (operand == "a") != turned)


def _offsets(ins: Instruction) -> tuple[Array, Array]:
    """What each element's offset in memory is made of, uint64[registers, 32, elements]: steps of the stride,
    and elements."""
    shape, operand = wmma.shape_of(ins), wmma.operand_of(ins)
    m, n, k = shape
    turned = operand == "b" or (operand == "c" and wmma.is_transposed(shape))
    inner = k if operand != "c" else m if turned else n
    first, second = np.divmod(_elements(operand, shape, ins.types[0]), inner)
    row, column = (second, first) if turned else (first, second)
    major, minor = (row, column) if ins.has("row") else (column, row)
    return major.astype(np.uint64), minor.astype(np.uint64)


class _Access:
    """The memory operand of a load or a store: the address of each element, and which lie together."""

    def __init__(self, ins: Instruction, stride: object | None) -> None:
        address = address_of(ins)
        self.locate = fetch_address(ins, address)
        self.used = read_registers([address] if stride is None else [address, stride])
        self.get_stride: Fetch | None = None if stride is None else fetch(ins, stride, "u32")
        self.default = wmma.default_stride(ins)
        self.major, self.minor = _offsets(ins)
        self.size, self.step = wmma.element_bytes(ins.types[0]), wmma.together(ins)

    def addresses(self, thread: Thread) -> list[list[Values]]:
        """By register, the addresses of its units."""
        stride = np.full(LANES, self.default, np.uint64)
        if self.get_stride is not None:
            stride = self.get_stride(thread).astype(np.uint64)
        base = self.locate(thread)
        offsets = (self.major * stride[:, None] + self.minor) * np.uint64(self.size)
        return [[base + each[:, at] for at in range(0, each.shape[1], self.step)] for each in offsets]


def load(ins: Instruction) -> Step:
    operand, kind = wmma.operand_of(ins), ins.types[0]
    access = _Access(ins, ins.sources[1] if len(ins.sources) > 1 else None)
    space, unit = space_of(ins), wmma.unit_bytes(ins)
    bits = "u64" if kind == "f64" else "u32"
    puts = tuple(write(ins, dest, bits) for dest in ins.written())
    if len(puts) != wmma.registers(operand, wmma.shape_of(ins), kind):
        refuse(ins)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, access.used, lanes)
        loaded = []
        for units in access.addresses(thread):
            parts = []
            for addresses in units:
                made = legal(thread, ins, space, addresses, lanes, unit)
                parts.append(load_bytes(thread, space, addresses, made, unit))
                tell(thread, ins, space, addresses, made)
            whole = np.ascontiguousarray(np.concatenate(parts, axis=1))
            loaded.append(whole.view(np.dtype(np.uint64 if bits == "u64" else np.uint32))[:, 0])
        for index, put in enumerate(puts):
            put(thread, lanes, loaded[index % len(loaded)])

    return step


def store(ins: Instruction) -> Step:
    kind = ins.types[0]
    access = _Access(ins, ins.sources[2] if len(ins.sources) > 2 else None)
    space, unit = space_of(ins), wmma.unit_bytes(ins)
    bits = "u64" if kind == "f64" else "u32"
    parts = operand_parts(ins.sources[1])
    gets, stored = tuple(fetch(ins, part, bits) for part in parts), read_registers(parts)
    if len(parts) != wmma.registers("c", wmma.shape_of(ins), kind):
        refuse(ins)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, access.used, lanes)
        require(thread, stored, lanes)
        for units, get in zip(access.addresses(thread), gets, strict=True):
            data = np.ascontiguousarray(get(thread)).view(np.uint8).reshape(LANES, -1)
            for at, addresses in enumerate(units):
                made = legal(thread, ins, space, addresses, lanes, unit)
                store_bytes(thread, space, addresses, made, data[:, at * unit : (at + 1) * unit])
                tell(thread, ins, space, addresses, made)

    return step


def _types(ins: Instruction) -> tuple[str, str, str]:
    """The types of D, of A and B, and of C; f16 operands are not named."""
    if len(ins.types) == 2:
        return ins.types[0], "f16", ins.types[1]
    return ins.types[0], ins.types[1], ins.types[3]


def _floats(ins: Instruction, thread: Thread, left: Array, right: Array, c: Array) -> Array:
    """D of floating-point operands, as its bits. An H100 multiplies tf32 in two steps of four, and rounds
    the f32 sum to f16 at the end if only C is f32."""
    d_type, kind, c_type = _types(ins)
    format_, depth = FORMATS[kind], 4 if kind == "tf32" else left.shape[1]
    wide = "f32" in (d_type, c_type)
    product = Product(format_, format_, "f32" if wide else "f16", depth, "mma.sync")
    total = c
    if wide and c_type == "f16":
        total = c.view(np.float16).astype(np.float32).view(np.uint32)
    multiply = thread.cta.config.multiply
    assert multiply is not None
    for start in range(0, left.shape[1], depth):
        a, b = (np.ascontiguousarray(each[:, start : start + depth]) for each in (left, right))
        total = multiply(product, thread.cta.config.mma, a, b, np.ascontiguousarray(total))
    if wide and d_type == "f16":
        return total.view(np.float32).astype(np.float16).view(np.uint16)
    return total


def mma(ins: Instruction) -> Step:
    """D = A B + C."""
    d_type, kind, c_type = _types(ins)
    if d_type == "f64":
        return double_mma(ins)
    shape = m, n, k = wmma.shape_of(ins)
    turned = wmma.is_transposed(shape)
    signed = {"s8": np.int8, "u8": np.uint8}.get(kind)
    storage = np.dtype(signed) if signed is not None else FORMATS[kind].storage
    accumulators = [np.dtype(np.uint16 if each == "f16" else np.uint32) for each in (c_type, d_type)]
    parts = [operand_parts(source) for source in ins.sources]
    wanted = [
        wmma.registers(*each) for each in (("a", shape, kind), ("b", shape, kind), ("c", shape, c_type))
    ]
    results = _elements("c", shape, d_type)
    if [len(part) for part in parts] != wanted or len(tuple(ins.written())) != len(results):
        refuse(ins)
    gets = [[fetch(ins, element, "u32") for element in part] for part in parts]
    puts = tuple(write(ins, dest, "u32") for dest in ins.written())
    used = read_registers(ins.sources)

    def matrix(
        thread: Thread, place: int, operand: str, dtype: np.dtype[np.generic], type_name: str
    ) -> Array:
        """An operand, as `_elements` says."""
        elements = _elements(operand, shape, type_name)
        words = np.stack([get(thread) for get in gets[place][: len(elements)]])
        flat = np.empty(elements.size, dtype)
        flat[elements] = words.view(dtype).reshape(elements.shape)
        outer = {"a": m, "b": n, "c": n if turned else m}[operand]
        return flat.reshape(outer, -1)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        a, b = matrix(thread, 0, "a", storage, kind), matrix(thread, 1, "b", storage, kind)
        c = matrix(thread, 2, "c", accumulators[0], c_type)
        left, right = (b, a) if turned else (a, b)
        if signed is not None:
            total = left.astype(np.int64) @ right.astype(np.int64).T + c.view(np.int32)
            if ins.has("satfinite"):
                total = total.clip(-(1 << 31), (1 << 31) - 1)
            d = total.astype(np.int32, casting="unsafe").view(np.uint32)
        else:
            d = _floats(ins, thread, left, right, c)
        if thread.cta.config.profile:
            thread.cta.counters.mma_macs += m * n * k
        words = np.ascontiguousarray(d.reshape(-1)[results]).view(np.uint32)
        for put, value in zip(puts, words.reshape(len(results), LANES), strict=True):
            put(thread, lanes, value)

    return step
