# SPDX-License-Identifier: Apache-2.0
"""Matrix fragments (PTX ISA 9.7.14.5): `ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync`.

Every fragment is spread over the warp alike: lane = 4 * group + t. A register that holds e elements of a
row has elements e*t .. e*t+e-1 of row `group`."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.interpreter.double import fused_product
from gdnbench.sim.interpreter.memory import address_of, count, legal, places, space_of, tell
from gdnbench.sim.interpreter.operation import (
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
from gdnbench.sim.ptx.ir import Instruction, Vector
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product

_GROUP, _T = np.arange(LANES) // 4, np.arange(LANES) % 4
_ROW_BYTES = 16  # eight halves


def _shared_rows(thread: Thread, space: str, addresses: Values, lanes: Lanes) -> Values:
    """The rows' addresses in shared memory."""
    for name, here, local in places(space, addresses, lanes):
        if not name.startswith("shared"):
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, f"a matrix row in {name} memory, not in shared memory")
        if here is lanes or (here == lanes).all():
            return local
    raise KernelFault(FaultKind.OUT_OF_BOUNDS, "matrix rows in several memories")


def operand_parts(operand: object) -> tuple[object, ...]:
    """The registers of a matrix operand."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def matrix_shape(ins: Instruction) -> tuple[int, bool, str]:
    """(matrices, transposed, state space) of ldmatrix and stmatrix: 8x8 matrices of 16-bit elements."""
    return int(ins.choice("x1", "x2", "x4")[1:]), ins.has("trans"), space_of(ins)


def _to_registers(matrices: Array, transposed: bool) -> Array:
    """uint16[n, 8, 8] -> uint32[n, 32]."""
    tiles = matrices.swapaxes(1, 2) if transposed else matrices
    pairs = tiles[:, _GROUP[:, None], 2 * _T[:, None] + np.arange(2)]
    return np.ascontiguousarray(pairs).view(np.uint32)[..., 0]


def _to_matrices(registers: Array, transposed: bool) -> Array:
    """uint32[n, 32] -> uint16[n, 8, 8]."""
    tiles = np.ascontiguousarray(registers).view(np.uint16).reshape(-1, 8, 8)
    return tiles.swapaxes(1, 2) if transposed else tiles


def ldmatrix(ins: Instruction) -> Step:
    """Lane i gives the address of row i % 8 of matrix i / 8."""
    matrices, transposed, space = matrix_shape(ins)
    address = address_of(ins)
    locate, used = fetch_address(ins, address), read_registers(ins.sources)
    puts = tuple(write(ins, dest, "u32") for dest in ins.written())
    if len(puts) != matrices:
        refuse(ins)
    givers = np.arange(LANES) < 8 * matrices

    def step(thread: Thread, lanes: Lanes) -> None:
        rows = lanes & givers
        require(thread, used, rows)
        addresses = locate(thread)
        inside = _shared_rows(thread, space, addresses, rows)
        rows = legal(thread, ins, "shared", inside, rows, _ROW_BYTES)
        data = thread.cta.shared.load(inside, rows, _ROW_BYTES)
        count(thread, "shared", rows, _ROW_BYTES, load=True)
        tell(thread, ins, space, addresses, rows)
        tiles = data[: 8 * matrices].view(np.uint16).reshape(matrices, 8, 8)
        for put, value in zip(puts, _to_registers(tiles, transposed), strict=True):
            put(thread, lanes, value)

    return step


def stmatrix(ins: Instruction) -> Step:
    matrices, transposed, space = matrix_shape(ins)
    address, parts = address_of(ins), operand_parts(ins.sources[1])
    if len(parts) != matrices:
        refuse(ins)
    locate, used, stored = fetch_address(ins, address), read_registers([address]), read_registers(parts)
    gets = tuple(fetch(ins, part, "u32") for part in parts)
    givers = np.arange(LANES) < 8 * matrices

    def step(thread: Thread, lanes: Lanes) -> None:
        rows = lanes & givers
        require(thread, used, rows)
        require(thread, stored, lanes)
        addresses = locate(thread)
        inside = _shared_rows(thread, space, addresses, rows)
        tiles = _to_matrices(np.stack([get(thread) for get in gets]), transposed)
        data = np.zeros((LANES, _ROW_BYTES), np.uint8)
        data[: 8 * matrices] = np.ascontiguousarray(tiles).view(np.uint8).reshape(-1, _ROW_BYTES)
        rows = legal(thread, ins, "shared", inside, rows, _ROW_BYTES)
        thread.cta.shared.store(inside, rows, data)
        count(thread, "shared", rows, _ROW_BYTES, load=False)
        tell(thread, ins, space, addresses, rows)

    return step


def movmatrix(ins: Instruction) -> Step:
    """An 8x8 matrix of halves, transposed across the warp."""
    get, used = fetch(ins, ins.sources[0], "u32"), read_registers(ins.sources)
    put = write(ins, next(ins.written()), "u32")

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        put(thread, lanes, _to_registers(_to_matrices(get(thread)[None], False), True)[0])

    return step


def _fragment(registers: Array, storage: np.dtype[np.unsignedinteger], row_blocks: int) -> Array:
    """Registers uint32[n, 32] of an operand -> [rows, k] in `storage`. Register r holds the rows of block
    r % row_blocks (8 each) and the columns of block r / row_blocks."""
    per = 4 // storage.itemsize
    blocks = registers.shape[0] // row_blocks
    whole = np.ascontiguousarray(registers).view(storage).reshape(blocks, row_blocks, 8, 4 * per)
    return np.ascontiguousarray(whole.transpose(1, 2, 0, 3)).reshape(8 * row_blocks, blocks * 4 * per)


def _accumulator(registers: Array, halves: bool) -> Array:
    """C of 16 x 8: two f32 registers, or one of two halves, for each block of eight rows."""
    if halves:
        return np.ascontiguousarray(registers).view(np.uint16).reshape(16, 8)
    pairs = registers.reshape(2, 2, 8, 4).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pairs).reshape(16, 8)


def _results(d: Array, halves: bool) -> Array:
    """The inverse of `_accumulator`."""
    if halves:
        return np.ascontiguousarray(d).view(np.uint32).reshape(2, LANES)
    return np.ascontiguousarray(d.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)).reshape(4, LANES)


_DOUBLE_SHAPES = {"m8n8k4": (8, 4), "m16n8k4": (16, 4), "m16n8k8": (16, 8), "m16n8k16": (16, 16)}


def double_mma(ins: Instruction) -> Step:
    """Each element is a chain of fused products in the order of k: the PTX ISA leaves the order open, an H100
    has this one. A register of A has four columns of eight rows, one of B four rows of eight columns; C is as
    that of f32."""
    rows, k = _DOUBLE_SHAPES[ins.choice(*_DOUBLE_SHAPES)]
    blocks = rows // 8
    parts = [operand_parts(source) for source in ins.sources]
    counts = (blocks * k // 4, k // 4, 2 * blocks)
    if tuple(len(part) for part in parts) != counts or len(tuple(ins.written())) != counts[2]:
        refuse(ins)
    gets = [[fetch(ins, element, "f64") for element in part] for part in parts]
    puts = tuple(write(ins, dest, "f64") for dest in ins.written())
    used = read_registers(ins.sources)
    fused = fused_product(ins)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        a, b, c = (np.stack([get(thread) for get in row]) for row in gets)
        left = a.reshape(k // 4, blocks, 8, 4).transpose(1, 2, 0, 3).reshape(rows, k)
        right = b.reshape(k // 4, 8, 4).transpose(1, 0, 2).reshape(8, k)
        total = c.reshape(blocks, 2, 8, 4).transpose(0, 2, 3, 1).reshape(rows * 8)
        for each in range(k):
            total = fused(np.repeat(left[:, each], 8), np.tile(right[:, each], rows), total)
        if thread.cta.config.profile:
            thread.cta.counters.mma_macs += rows * 8 * k
        d = total.reshape(blocks, 8, 4, 2).transpose(0, 3, 1, 2).reshape(2 * blocks, LANES)
        for put, value in zip(puts, d, strict=True):
            put(thread, lanes, value)

    return step


_INTEGER_SHAPES = {"m8n8k16": (8, 16), "m16n8k16": (16, 16), "m16n8k32": (16, 32)}


def _integer_mma(ins: Instruction) -> Step:
    """D = A B + C of bytes in 32-bit sums, which wrap, or stay at the nearest bound with `.satfinite`."""
    rows, k = _INTEGER_SHAPES[ins.choice(*_INTEGER_SHAPES)]
    blocks = rows // 8
    parts = [operand_parts(source) for source in ins.sources]
    counts = (blocks * k // 16, k // 16, 2 * blocks)
    if tuple(len(part) for part in parts) != counts or len(tuple(ins.written())) != counts[2]:
        refuse(ins)
    gets = [[fetch(ins, element, "u32") for element in part] for part in parts]
    puts = tuple(write(ins, dest, "u32") for dest in ins.written())
    used = read_registers(ins.sources)
    kinds = [np.dtype(np.int8 if kind == "s8" else np.uint8) for kind in ins.types[1:3]]
    saturates = ins.has("satfinite")

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        a, b, c = (np.stack([get(thread) for get in row]) for row in gets)
        byte = np.dtype(np.uint8)
        left = _fragment(a, byte, blocks).view(kinds[0]).astype(np.int64)
        right = _fragment(b, byte, 1).view(kinds[1]).astype(np.int64)
        start = np.ascontiguousarray(c).view(np.int32).reshape(blocks, 2, 8, 4).transpose(0, 2, 3, 1)
        total = left @ right.T + start.reshape(rows, 8)
        if saturates:
            total = total.clip(-(1 << 31), (1 << 31) - 1)
        if thread.cta.config.profile:
            thread.cta.counters.mma_macs += rows * 8 * k
        bits = total.astype(np.int32, casting="unsafe").view(np.uint32)
        d = bits.reshape(blocks, 8, 4, 2).transpose(0, 3, 1, 2).reshape(2 * blocks, LANES)
        for put, value in zip(puts, d, strict=True):
            put(thread, lanes, value)

    return step


def mma(ins: Instruction) -> Step:
    """D = A B + C for 16 x 8 x K of floating-point operands, by the tensor core's model; f64 by fused
    products; integers exactly."""
    if ins.types[0] == "f64":
        return double_mma(ins)
    if ins.types[0] == "s32":
        return _integer_mma(ins)
    shape = ins.choice("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32")
    d_type, a_type, b_type, _ = ins.types
    a_format, b_format = FORMATS[a_type], FORMATS[b_type]
    k = int(shape.removeprefix("m16n8k"))
    product = Product(a_format, b_format, "f32" if d_type == "f32" else "f16", k, "mma.sync")
    halves = d_type == "f16"
    per = 4 // a_format.storage.itemsize
    counts = (2 * k // (4 * per), k // (4 * per), 2 if halves else 4)
    parts = [operand_parts(source) for source in ins.sources]
    if tuple(len(part) for part in parts) != counts or len(tuple(ins.written())) != counts[2]:
        refuse(ins)
    gets = [[fetch(ins, element, "u32") for element in part] for part in parts]
    puts = tuple(write(ins, dest, "u32") for dest in ins.written())
    used = read_registers(ins.sources)

    def step(thread: Thread, lanes: Lanes) -> None:
        require(thread, used, lanes)
        cta = thread.cta
        a, b, c = (np.stack([get(thread) for get in row]) for row in gets)
        multiply = cta.config.multiply
        assert multiply is not None
        d = multiply(
            product,
            cta.config.mma,
            _fragment(a, a_format.storage, 2),
            _fragment(b, b_format.storage, 1),
            _accumulator(c, halves),
        )
        if cta.config.profile:
            cta.counters.mma_macs += 16 * 8 * k
        for put, value in zip(puts, _results(d, halves), strict=True):
            put(thread, lanes, value)

    return step
