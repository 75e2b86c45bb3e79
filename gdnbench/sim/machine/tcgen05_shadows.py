# SPDX-License-Identifier: Apache-2.0
"""Products of tcgen05.mma in double precision, from the shadows of their operands (`shadow_cells`).

An operand without a shadow is the number that its bits are: of tf32 the whole f32, since the tensor core's
cut of the low bits is a rounding. Products are summed in double in the order of NumPy's matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.shadow_cells import (
    F16,
    F32,
    SHAPES,
    Bytes,
    Cells,
    Doubles,
    make_cells,
    read_elements,
)
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.machine.tcgen05_plan import A_COLUMNS, Matrix, Plan, Rows
from gdnbench.sim.machine.tmem import SHADOW_TYPE
from gdnbench.sim.ptx.ir import Instruction

Enabled = npt.NDArray[np.bool_]


class Product(Protocol):
    """A product of `tcgen05_mma`, of the CTAs of `group`."""

    @property
    def group(self) -> Sequence[Cta]: ...

    @property
    def ins(self) -> Instruction: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def accumulate(self) -> bool: ...

    @property
    def scale(self) -> int: ...


def chunk_cells(cta: Cta, gather: Gather) -> Cells:
    """The cells of the chunks of a matrix in shared memory: one row for each of the table."""
    shadows = cta.shared.shadows
    assert shadows is not None
    first = (cta.shared.origin + gather.origin) // CHUNK
    cells = shadows.reshape(-1, CHUNK)[gather.table + first]
    return cells.reshape(len(gather.table), -1)


def _in_shared(cta: Cta, matrix: Matrix) -> Doubles:
    """[rows, k] of a matrix in shared memory."""
    assert matrix.gather is not None
    origin = cta.shared.origin + matrix.gather.origin
    data = cta.shared.bytes[origin:].view(np.complex128).take(matrix.gather.table).view(np.uint8)
    values, _ = read_elements(chunk_cells(cta, matrix.gather), data, SHAPES[matrix.format.name])
    values = values.T if matrix.mn_major else values
    return -values if matrix.negate else values


def _columns(cta: Cta, rows: Rows, first: int, last: int, columns: int) -> tuple[Cells, Bytes]:
    """The cells and bytes [rows, `columns` * 4] of these TMEM columns, banks one after another."""
    tmem = cta.tmem
    assert tmem.shadows is not None
    cells = np.ascontiguousarray(rows.view(tmem.shadows, first, last)).reshape(rows.m, columns)
    words = np.ascontiguousarray(rows.view(tmem.cells, first, last)).reshape(rows.m, columns)
    return cells.view(np.complex128), words.view(np.uint8)


def _a_in_tmem(mma: Product, cta: Cta) -> Doubles:
    """A in TMEM, [banks, m, k]."""
    matrix, rows = mma.plan.a, mma.plan.rows
    columns = rows.banks * A_COLUMNS
    found = _columns(cta, rows, matrix.column, matrix.column + A_COLUMNS, columns)
    values, _ = read_elements(*found, SHAPES[matrix.format.name])
    values = values.reshape(rows.m, rows.banks, -1).swapaxes(0, 1)
    return -values if matrix.negate else values


def product(mma: Product, cta: Cta) -> Doubles | None:
    """D[m, n] of one CTA, before the product is computed; None, counted as lost, if a format of it has no
    shadows."""
    work = mma.plan
    names = (work.a.format.name, work.b.format.name)
    m, n = work.rows.m, work.descriptor.n
    if work.product.d == "s32":
        return None
    if not all(name in SHAPES for name in names):
        cta.launch.lost_shadows[mma.ins.pc] += m * n
        return None
    b = np.concatenate([_in_shared(member, work.b) for member in mma.group])[work.b.shift :][:n]
    if work.zeros is not None:
        b = np.where(work.zeros[:, None], 0.0, b)
    if work.a.gather is not None:
        total: Doubles = _in_shared(cta, work.a) @ b.T
    else:
        banks = _a_in_tmem(mma, cta)
        width = n // len(banks)
        parts = [a @ b[i * width : (i + 1) * width].T for i, a in enumerate(banks)]
        total = np.concatenate(parts, axis=1)
    if mma.accumulate:
        total = total + np.ldexp(_accumulator(mma, cta), -mma.scale)
    return total


def _accumulator(mma: Product, cta: Cta) -> Doubles:
    work = mma.plan
    cells, data = _columns(cta, work.rows, work.first, work.last, work.descriptor.n)
    if work.product.d == "f16":
        low = np.arange(data.shape[1]) % 4 < 2
        return read_elements(np.ascontiguousarray(cells[:, low]), data[:, low], F16)[0]
    return read_elements(cells, data, F32)[0]


def write(mma: Product, cta: Cta, enabled: Enabled | None, values: Doubles) -> None:
    """Write the shadows of D, whose bits have just been computed."""
    work, tmem = mma.plan, cta.tmem
    assert tmem.shadows is not None
    _, data = _columns(cta, work.rows, work.first, work.last, work.descriptor.n)
    if work.product.d == "f16":
        low = np.arange(data.shape[1]) % 4 < 2
        cells = np.zeros(data.shape, np.complex128)
        cells[:, low] = make_cells(values, data[:, low], F16)
    else:
        cells = make_cells(values, data, F32)
    to = work.rows.view(tmem.shadows, work.first, work.last)
    made = cells.view(SHADOW_TYPE).reshape(to.shape)
    if enabled is None:
        to[...] = made
    else:
        rows = work.rows.view(enabled[:, None], 0, 1)[..., 0]
        to[rows] = made[rows]
