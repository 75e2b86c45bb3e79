# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements between shared memory and the warp. mma of
f64.

In the warp element (row, column) is in lane 4 * row + column / 2, two columns per register. In memory row i
of a matrix starts at the address of lane 8 * matrix + i (PTX ISA, "ldmatrix"). Rows are copied to a table of
512 bytes, 16 per address; registers are then selected from the table.
"""

from __future__ import annotations

from gdnbench.sim.compiler import lanes
from gdnbench.sim.compiler.access_log import log_access
from gdnbench.sim.compiler.emit import F64, I32, Value, const, lane_constants
from gdnbench.sim.compiler.exits import FaultCode
from gdnbench.sim.compiler.floating import mode_of, operate
from gdnbench.sim.compiler.formats import finish_result
from gdnbench.sim.compiler.memory import locate, space_of
from gdnbench.sim.compiler.runtime_calls import enter_service
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import WINDOW_SIZE, WINDOWS
from gdnbench.sim.ptx.ir import Instruction, Vector

_ROW_BYTES = 16
_HALVES = "<256 x i16>"  # up to four matrices: halves in order of the lanes with row addresses


def _shape(ins: Instruction) -> tuple[int, bool]:
    """(matrices, transposed)."""
    return int(ins.choice("x1", "x2", "x4")[1:]), ins.has("trans")


def _rows(t: Translator, ins: Instruction, matrices: int) -> Value:
    """The host addresses of the rows; sets `t.active` to the lanes with row addresses."""
    code = t.code
    givers = lane_constants("i1", [int(lane < 8 * matrices) for lane in range(32)])
    t.active = code.op("and", t.active, givers)
    address = inside = t.address(ins, ins.sources[0])
    if space_of(ins) == "generic":
        shift = WINDOW_SIZE.bit_length() - 1
        outside = code.comparei("icmp ne", code.opi("lshr", address, shift), WINDOWS["shared"] >> shift)
        t.fault(code.op("and", outside, t.active), FaultCode.MATRIX, ins, address)
        inside = code.opi("sub", address, WINDOWS["shared"])
    hosts = locate(t, ins, "shared", inside, _ROW_BYTES)
    log_access(t, ins, address)
    return hosts


def _order(matrices: int, transposed: bool) -> list[list[int]]:
    """For each matrix, lane and half: the element's position in the table of rows."""
    orders = []
    for matrix in range(matrices):
        order = []
        for lane in range(32):
            row, column = lane // 4, 2 * (lane % 4)
            for half in (0, 1):
                place = (column + half, row) if transposed else (row, column + half)
                order.append(64 * matrix + 8 * place[0] + place[1])
        orders.append(order)
    return orders


def load_matrix(t: Translator, ins: Instruction) -> None:
    matrices, transposed = _shape(ins)
    dests = tuple(ins.written())
    if len(dests) != matrices:
        raise UnsupportedError(ins.name)
    code = t.code
    t.gather(ins, const("i32", -1))
    everyone = t.active
    hosts = _rows(t, ins, matrices)
    table = t.scratch(512)
    if t.program.keep_going:  # rows out of bounds are zero
        code.store(const("<256 x i16>", 0), table, 64)
    code.call_void(lanes.collect(code.library, _ROW_BYTES), hosts, code.mask_bits(t.active), table)
    halves = code.load(_HALVES, table, 64)
    t.count_traffic("shared to registers", _ROW_BYTES)
    t.active = everyone
    for dest, order in zip(dests, _order(matrices, transposed), strict=True):
        t.write(dest, code.bits(code.shuffle(halves, order), I32))


def store_matrix(t: Translator, ins: Instruction) -> None:
    matrices, transposed = _shape(ins)
    source = ins.sources[1]
    parts = source.elements if isinstance(source, Vector) else (source,)
    if len(parts) != matrices:
        raise UnsupportedError(ins.name)
    code = t.code
    t.gather(ins, const("i32", -1))
    registers = [t.read(part, 32) for part in parts]
    hosts = _rows(t, ins, matrices)
    table = t.scratch(512)
    for matrix, (register, order) in enumerate(zip(registers, _order(matrices, transposed), strict=True)):
        # The inverse of a load's order.
        inverse = [0] * 64
        for position, place in enumerate(order):
            inverse[place - 64 * matrix] = position
        rows = code.shuffle(code.bits(register, "<64 x i16>"), inverse)
        code.store(rows, code.offset(table, 128 * matrix), 64)
    code.call_void(lanes.spread(code.library, _ROW_BYTES), hosts, code.mask_bits(t.active), table)
    t.count_traffic("registers to shared", _ROW_BYTES)


def move_matrix(t: Translator, ins: Instruction) -> None:
    """Transposes a matrix across the warp."""
    code = t.code
    t.gather(ins, const("i32", -1))
    whole = code.bits(t.read(ins.sources[0], 32), "<64 x i16>")
    t.write(ins.dests[0], code.bits(code.shuffle(whole, _order(1, True)[0]), I32))


DOUBLE_SHAPES = {"m8n8k4": (8, 4), "m16n8k4": (16, 4), "m16n8k8": (16, 8), "m16n8k16": (16, 16)}
"""Rows and depth of the shapes of f64; all have 8 columns."""


def double_macs(ins: Instruction) -> int:
    """The products that an `mma` of f64 adds up; 0 for any other instruction."""
    if ins.form.cls != "mma.sync" or ins.types[0] != "f64":
        return 0
    rows, depth = DOUBLE_SHAPES[ins.choice(*DOUBLE_SHAPES)]
    return rows * 8 * depth


def multiply(t: Translator, ins: Instruction) -> None:
    """`mma`: of f64 here, else by Python."""
    if ins.types[0] == "f64":
        multiply_doubles(t, ins)
    else:
        enter_service(t, ins)


def multiply_doubles(t: Translator, ins: Instruction) -> None:
    """D = A B + C of f64 by fused products in the order of k, as an H100 has it; the PTX ISA leaves it
    open.

    In lane 4 * group + i, register r of A has row `group`, 8 more if r is odd and there are 16 rows, and
    column i + 4 * (r / (rows / 8)). Register r of B has row i + 4 * r and column `group`. Registers 2 * q and
    2 * q + 1 of C and D have row `group` + 8 * q and columns 2 * i and 2 * i + 1.
    """
    rows, depth = DOUBLE_SHAPES[ins.choice(*DOUBLE_SHAPES)]
    blocks = rows // 8
    parts = [source.elements if isinstance(source, Vector) else (source,) for source in ins.sources]
    dests = tuple(ins.written())
    counts = (blocks * depth // 4, depth // 4, 2 * blocks)
    if tuple(len(part) for part in parts) != counts or len(dests) != counts[2]:
        raise UnsupportedError(ins.name)
    code, mode = t.code, mode_of(ins)
    t.gather(ins, const("i32", -1))
    a, b, c = ([t.read(element, 64) for element in part] for part in parts)
    results = []
    for number, value in enumerate(c):
        block, odd = divmod(number, 2)
        total = code.bits(value, F64)
        for k in range(depth):
            left = code.shuffle(a[block + blocks * (k // 4)], [lane // 4 * 4 + k % 4 for lane in range(32)])
            right = code.shuffle(b[k // 4], [(lane % 4 * 2 + odd) * 4 + k % 4 for lane in range(32)])
            total = operate(t, "fma", mode, [code.bits(left, F64), code.bits(right, F64), total])
        results.append(finish_result(t, "f64", total))
    for dest, result in zip(dests, results, strict=True):
        t.write(dest, result)


TABLE: dict[str, Translate] = {
    "ldmatrix": load_matrix,
    "stmatrix": store_matrix,
    "movmatrix": move_matrix,
    "mma": multiply,
}
