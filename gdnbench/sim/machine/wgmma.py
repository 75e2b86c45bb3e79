# SPDX-License-Identifier: Apache-2.0
"""wgmma: products of a warpgroup, D[64, n] (+)= A[64, k] B[n, k]^T, with D in registers (PTX ISA 9.7.15).

A and B are in shared memory, or A in registers. A product reads A's registers when it is issued and shared
memory when it lands. Until then D's registers contain tokens, NaNs that no computation produces
(`wgmma_state`). The ISA forbids writes to registers of A or D in between, except a compiler's moves; the wait
detects them. By file: `wgmma_form` decodes instructions, `wgmma_fragment` lays out registers and matrices.

Every store is visible at once here; the race checker finds a missing `fence.proxy.async`.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine import tcgen05_operand, wgmma_shadows
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import (
    LANES,
    WRITTEN,
    Argument,
    Lanes,
    RegisterList,
    Results,
    Wait,
    Warp,
    Words,
)
from gdnbench.sim.machine.footprint import Footprint, moved_to
from gdnbench.sim.machine.operands import uniform_value
from gdnbench.sim.machine.tcgen05_operand import Gather
from gdnbench.sim.machine.wgmma_form import OP, Form, M
from gdnbench.sim.machine.wgmma_fragment import (
    ROWS,
    WARPS,
    Codes,
    a_matrix,
    d_rows,
    locate,
    negated,
    read_matrix,
)
from gdnbench.sim.machine.wgmma_state import Flight, GroupProduct, Operands, Share, WarpState
from gdnbench.sim.ptx.ir import Immediate, Instruction

_ALL = bytes([1]) * LANES


def _fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Orders earlier register accesses before later products: records the current contents as ordered."""
    _whole_warp(warp, ins)
    groups = cta.warpgroups
    assert warp.registers is not None
    groups.state(warp).seen = warp.registers.read_words(groups.forms.named)
    return ()


def _whole_warp(warp: Warp, ins: Instruction) -> None:
    if warp.exists.tobytes() != _ALL:
        threads = int(warp.exists.sum())
        raise KernelFault(FaultKind.WGMMA, f"{ins.name} in a warp of {threads} threads; a warpgroup has 128")


def issue(cta: Cta, warp: Warp, ins: Instruction, operands: Operands) -> None:
    """One warp issues a wgmma.mma_async whose operands are equal in all its lanes."""
    _whole_warp(warp, ins)
    groups = cta.warpgroups
    form = groups.forms.by_pc[ins.pc]
    state = groups.state(warp)
    if state.seen is None:
        raise KernelFault(FaultKind.WGMMA, f"{ins.name} before any wgmma.fence of the warp")
    product = groups.join_product(warp, state, ins, form, operands)
    if product.joined == 1:
        product.b = _matrix(cta, operands.b, form.n, form.b_mn_major, form, "B")
        if form.a is None:
            product.a = _matrix(cta, operands.a, M, form.a_mn_major, form, "A")
    share = _share(cta, warp, ins, form, state, operands.accumulate)
    product.shares[warp.index % WARPS] = share
    share.flight.under_way += 1
    share.flight.waits += 1
    state.open.append(product)
    if product.joined == WARPS:
        _start(cta, warp, product)


def _issue(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    in_registers = cta.warpgroups.forms.by_pc[ins.pc].a is not None
    a = 0 if in_registers else uniform_value(sources[0], lanes, "the descriptor of A")
    b = uniform_value(sources[1], lanes, "the descriptor of B")
    accumulate = bool(uniform_value(sources[2], lanes, "scale-d"))
    issue(cta, warp, ins, Operands(a, b, accumulate))
    return WRITTEN


def _matrix(cta: Cta, bits: int, rows: int, mn_major: bool, form: Form, name: str) -> Gather:
    """The chunks of a matrix in shared memory."""
    gather = locate(bits, mn_major, rows, form.product.k, form.product.a.storage.itemsize)
    tcgen05_operand.check_bounds(cta.shared, gather, name)
    return gather


def _share(cta: Cta, warp: Warp, ins: Instruction, form: Form, state: WarpState, accumulate: bool) -> Share:
    """The warp's part of a product: A's registers as they are, D's in flight from here on."""
    groups, registers = cta.warpgroups, warp.registers
    assert registers is not None
    a = None
    if form.a is not None:
        a = registers.read_words(form.a)
        _fenced(cta, state, form.a, a, ins)
    shadowed = cta.launch.shadowed
    a_cells = wgmma_shadows.cells_of(warp, form.a) if shadowed and form.a is not None else None
    c_cells = wgmma_shadows.cells_of(warp, form.d) if shadowed and accumulate else None
    held = registers.read_words(form.d)
    flight = state.live.get(int(held[0, 0]))
    if flight is not None and flight.holds(held):
        _same_shape(ins, form, flight)
        if flight.homes[-1] is not form.d:
            flight.homes.append(form.d)
            registers.mark_in_flight(form.d, flight, ins)
        return Share(warp, flight, a, None, a_cells)
    if groups.in_flight(state, held):
        raise KernelFault(
            FaultKind.WGMMA,
            f"{ins.name}: D has registers that another wgmma in flight writes, not all of its D",
        )
    latest = state.latest.get(form.d)
    passed_on = latest is not None and latest.words is not None and np.array_equal(held, latest.words)
    if passed_on and latest is not None and latest.waits:
        _same_shape(ins, form, latest)
    if accumulate and not passed_on and not state.moved_here(form, held):
        registers.require_written(form.d)
        _fenced(cta, state, form.d, held, ins)
    if latest is not None:
        latest.superseded = True
    flight = groups.start_flight(form, ins.place)
    state.live[int(flight.tokens[0])] = flight
    state.latest[form.d] = flight
    registers.write_words(form.d, flight.image)
    registers.mark_in_flight(form.d, flight, ins)
    return Share(warp, flight, a, held if accumulate else None, a_cells, c_cells)


def _same_shape(ins: Instruction, form: Form, flight: Flight) -> None:
    if form.shape != flight.form.shape:
        raise KernelFault(
            FaultKind.WGMMA,
            f"{ins.name}: the accumulators are in flight of a wgmma of another shape, at {flight.place}",
        )


def _fenced(cta: Cta, state: WarpState, used: RegisterList, held: Words, ins: Instruction) -> None:
    """Raises KernelFault if a register was written after the last wgmma.fence by anything but a move."""
    forms = cta.warpgroups.forms
    assert state.seen is not None
    seen = state.seen.take(forms.rows[used], axis=0)
    if seen.tobytes() == held.tobytes():
        return
    for row in np.flatnonzero((seen != held).any(axis=1)).tolist():
        register = used.registers[row]
        if register.index not in forms.moves:
            raise KernelFault(
                FaultKind.WGMMA,
                f"register {register.name} was written after the last wgmma.fence, and {ins.name} uses it",
            )


def _start(cta: Cta, warp: Warp, product: GroupProduct) -> None:
    """All four warps have issued the product: submit it."""
    issuers = warp.exists.copy()

    def land() -> None:
        try:
            _land(cta, product)
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = product.ins.place, cta.thread(warp, issuers)
            raise

    reads = matrix_reads(cta, product)
    product.operation = AsyncOperation(OP, land, stream=(OP, warp.index // WARPS), reads=reads)
    cta.queue.submit(product.operation)


def matrix_reads(cta: Cta, product: GroupProduct) -> tuple[Footprint, ...]:
    """The shared memory that a product reads."""
    matrices = tuple(gather.footprint for gather in (product.a, product.b) if gather is not None)
    return moved_to(cta.shared.origin, matrices)


def _land(cta: Cta, product: GroupProduct) -> None:
    """Read shared memory, multiply, and write D to the registers that no later product will write."""
    form, shares = product.form, [share for share in product.shares if share is not None]
    kind, groups = form.product, cta.warpgroups
    assert product.b is not None
    b = read_matrix(cta.shared, product.b, form.b_mn_major, kind.b, "B")
    if product.a is not None:
        a = read_matrix(cta.shared, product.a, form.a_mn_major, kind.a, "A")
    else:
        a = a_matrix(np.array([share.a for share in shares]), kind.a)
    if form.negate_a:
        a = negated(a, kind.a)
    if form.negate_b:
        b = negated(b, kind.b)
    multiply = cta.config.multiply
    assert multiply is not None
    d = multiply(kind, cta.config.mma, a, b, _input(product, shares))
    cta.counters.mma_macs += M * form.n * kind.k
    if cta.launch.shadowed:
        wgmma_shadows.multiply(cta, product, shares)
    for index, share in enumerate(shares):
        share.flight.rows = d[ROWS * index : ROWS * (index + 1)]
        share.flight.under_way -= 1
        if not share.flight.under_way:
            groups.write_results(share)
            if cta.launch.shadowed:
                copies = groups.copies(share.flight)
                wgmma_shadows.write_results(share.warp, share.flight, copies)


def _input(product: GroupProduct, shares: list[Share]) -> Codes | None:
    """C[64, n], or None if the product does not accumulate."""
    if not product.operands.accumulate:
        return None
    halves = product.form.product.d == "f16"
    parts = []
    for share in shares:
        part = share.flight.rows if share.c is None else d_rows(share.c, halves)
        assert part is not None
        parts.append(part)
    whole = parts[0].base
    if whole is not None and whole.shape[0] == M and all(part.base is whole for part in parts):
        return whole  # the previous product's result
    return np.concatenate(parts)


def _commit(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    _whole_warp(warp, ins)
    state = cta.warpgroups.state(warp)
    state.groups.append(state.open)
    state.open = []
    return ()


def _wait(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """wait_group N: waits until all but the N youngest groups have landed and frees their registers."""
    _whole_warp(warp, ins)
    groups = cta.warpgroups
    state = groups.state(warp)
    assert isinstance(ins.sources[0], Immediate)
    covered = max(len(state.groups) - ins.sources[0].bits, 0)
    products = [product for group in list(state.groups)[:covered] for product in group]
    waiting = [product for product in products if product.operation is None]
    if waiting:
        first = warp.index // WARPS * WARPS

        def text() -> str:
            left = next(product for product in waiting if product.operation is None)
            return f"warps {left.missing(first)} of its warpgroup to issue {left.ins.op} at {left.ins.place}"

        return Wait(lambda: all(product.operation is not None for product in waiting), text)
    for product in products:
        assert product.operation is not None
        cta.queue.complete(product.operation)
    for _ in range(covered):
        state.groups.popleft()
    _settle(cta, warp, products)
    return ()


def _settle(cta: Cta, warp: Warp, products: list[GroupProduct]) -> None:
    """Check what the ISA forbids between issue and wait, and free the registers."""
    groups, registers = cta.warpgroups, warp.registers
    assert registers is not None
    flights: dict[Flight, None] = {}
    for product in products:
        share = product.shares[warp.index % WARPS]
        assert share is not None
        if share.a is not None and product.form.a is not None:
            held = registers.read_words(product.form.a)
            groups.refuse_writes(product.form.a, held, share.a, "of A is written", product.ins.place)
        share.flight.waits -= 1
        flights[share.flight] = None
    for flight in flights:
        groups.check_accumulators(warp, flight)
        if not flight.waits:
            groups.state(warp).landed.pop(flight, None)
            registers.mark_landed(flight)


HANDLERS: dict[str, Handler] = {
    "wgmma.fence": _fence,
    "wgmma.mma_async": _issue,
    "wgmma.commit_group": _commit,
    "wgmma.wait_group": _wait,
}
