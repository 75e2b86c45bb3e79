"""ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements between shared memory and the warp.

In the warp element (row, column) is in lane 4 * row + column / 2, two columns per register. In memory row i
of a matrix starts at the address of lane 8 * matrix + i (PTX ISA, "ldmatrix"). Rows are copied to a table of
512 bytes, 16 per address; registers are then selected from the table.
"""

from __future__ import annotations

from gdnbench.sim.compiler import lanes
from gdnbench.sim.compiler.access_log import log_access
from gdnbench.sim.compiler.emit import I32, Value, const, lane_constants
from gdnbench.sim.compiler.memory import locate, space_of
from gdnbench.sim.compiler.translator import FaultCode, Translate, Translator
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


TABLE: dict[str, Translate] = {"ldmatrix": load_matrix, "stmatrix": store_matrix, "movmatrix": move_matrix}
