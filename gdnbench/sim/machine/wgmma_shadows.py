# SPDX-License-Identifier: Apache-2.0
"""Products of wgmma in double precision, from the shadows of their operands (`shadow_cells`).

A's registers and the sum's are read with their shadows when a product is issued, shared memory when it lands.
Its result is written to the registers that the result itself is written to, moved tokens included.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import RegisterList, Warp
from gdnbench.sim.machine.shadow_cells import F32, SHAPES, Bytes, Cells, Doubles, Shape, read_elements
from gdnbench.sim.machine.tcgen05_operand import CHUNK, Gather
from gdnbench.sim.machine.wgmma_fragment import ROWS, WARPS, d_rows, d_words
from gdnbench.sim.machine.wgmma_state import Flight, GroupProduct, Share
from gdnbench.sim.ptx.ir import Register


def cells_of(warp: Warp, registers: RegisterList) -> Cells:
    """The cells [registers, 32, 4] of 32-bit registers."""
    assert warp.shadows is not None
    return np.stack([warp.shadows.moved(register)[:, :4] for register in registers.registers])


def _numbers(cells: Cells, words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], shape: Shape) -> Doubles:
    """f64[..., 32, elements] of registers [..., 32]."""
    data: Bytes = np.ascontiguousarray(words)[..., None].view(np.uint8)
    return read_elements(cells, data, shape)[0]


def _in_shared(cta: Cta, gather: Gather, mn_major: bool, shape: Shape) -> Doubles:
    shadows, origin = cta.shared.shadows, cta.shared.origin + gather.origin
    assert shadows is not None
    data = cta.shared.bytes[origin:].view(np.complex128).take(gather.table).view(np.uint8)
    cells = shadows.reshape(-1, CHUNK)[gather.table + origin // CHUNK].reshape(data.shape)
    values, _ = read_elements(cells, data, shape)
    return values.T if mn_major else values


def _a_in_registers(shares: list[Share], shape: Shape) -> Doubles:
    """A[64, k]; the layout is that of `wgmma_fragment.a_matrix`."""
    parts = []
    for share in shares:
        assert share.a is not None
        assert share.a_cells is not None
        parts.append(_numbers(share.a_cells, share.a, shape))
    whole = np.stack(parts)
    per = whole.shape[-1]
    whole = whole.reshape(WARPS, 2, 2, 8, 4 * per)
    return whole.transpose(0, 2, 3, 1, 4).reshape(WARPS * ROWS, 8 * per)


def _sum(share: Share) -> Doubles:
    """The 16 rows that a product adds to."""
    if share.c is None:
        assert share.flight.doubles is not None
        return share.flight.doubles
    assert share.c_cells is not None
    found: Doubles = d_rows(_numbers(share.c_cells, share.c, F32)[..., 0], False)  # type: ignore[arg-type,assignment]
    return found


def multiply(cta: Cta, product: GroupProduct, shares: list[Share]) -> None:
    """Compute the product and keep each warp's rows in its flight. Raises nothing: the forms without a rule
    are refused before the launch."""
    form = product.form
    kind = form.product
    assert product.b is not None
    b = _in_shared(cta, product.b, form.b_mn_major, SHAPES[kind.b.name])
    if product.a is not None:
        a = _in_shared(cta, product.a, form.a_mn_major, SHAPES[kind.a.name])
    else:
        a = _a_in_registers(shares, SHAPES[kind.a.name])
    total = (-1.0 if form.negate_a != form.negate_b else 1.0) * (a @ b.T)
    if product.operands.accumulate:
        total = total + np.concatenate([_sum(share) for share in shares])
    for index, share in enumerate(shares):
        share.flight.doubles = total[ROWS * index : ROWS * (index + 1)]


def write_results(warp: Warp, flight: Flight, copies: Iterable[tuple[int, Register]]) -> None:
    """Write the rows of a flight, which has landed, to its registers; `copies` are (register of D, register
    that a move may have copied its token to)."""
    assert warp.shadows is not None
    assert flight.doubles is not None
    assert flight.words is not None
    values: Doubles = d_words(flight.doubles)  # type: ignore[arg-type,assignment]
    for home in flight.homes:
        for row, register in enumerate(home.registers):
            warp.shadows.put_f32(register, flight.words[row], values[row])
    for row, register in copies:
        warp.shadows.put_f32(register, flight.words[row], values[row])
