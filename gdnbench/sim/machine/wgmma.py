"""wgmma: products of a warpgroup, D[64, n] (+)= A[64, k] B[n, k]^T, with D in registers (PTX ISA 9.7.15).

A and B are in shared memory, or A in registers. A product reads A's registers when it is issued and shared
memory when it lands; D's registers hold tokens, NaNs that no computation gives, until then (`wgmma_state`).
What the ISA forbids meanwhile is found at the wait: that a register of A or D was written by anything but a
compiler's move. By file: `wgmma_form` what an instruction says, `wgmma_fragment` registers and matrices.

A fence of the proxies before shared memory is read (`fence.proxy.async`) is for a race checker: every store
is visible at once here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import tcgen05_operand
from gdnbench.sim.machine.async_queue import AsyncOperation, Span
from gdnbench.sim.machine.operands import uniform
from gdnbench.sim.machine.seam import WRITTEN, Argument, Handler, Lanes, Results, Wait, Warp, Words
from gdnbench.sim.machine.tcgen05_operand import Gather
from gdnbench.sim.machine.wgmma_form import OP, Form, M
from gdnbench.sim.machine.wgmma_fragment import (
    ROWS,
    WARPS,
    Codes,
    a_matrix,
    d_matrix,
    locate,
    negated,
    read_matrix,
)
from gdnbench.sim.machine.wgmma_state import Flight, GroupProduct, Share, WarpState
from gdnbench.sim.ptx.ir import Immediate, Instruction

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Cta


def _fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Orders earlier accesses of registers before the products that follow: what they hold now is ordered."""
    _whole_warp(warp, ins)
    groups = cta.warpgroups
    assert warp.registers is not None
    groups.state(warp).seen = warp.registers.take(groups.forms.named)
    return ()


def _whole_warp(warp: Warp, ins: Instruction) -> None:
    if not warp.exists.all():
        threads = int(warp.exists.sum())
        raise KernelFault(FaultKind.WGMMA, f"{ins.name} in a warp of {threads} threads; a warpgroup has 128")


def _issue(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    _whole_warp(warp, ins)
    groups = cta.warpgroups
    form = groups.forms.by_pc[ins.pc]
    a = uniform(sources[0], lanes, "the descriptor of A") if form.a is None else 0
    b = uniform(sources[1], lanes, "the descriptor of B")
    accumulate = bool(uniform(sources[2], lanes, "scale-d"))
    for name, gather in _gathers(form, a, b):
        tcgen05_operand.check_bounds(cta.shared, gather, name)
    state = groups.state(warp)
    if state.seen is None:
        raise KernelFault(FaultKind.WGMMA, f"{ins.name} before any wgmma.fence of the warp")
    product = groups.join(warp, GroupProduct(ins, form, (a, b, accumulate)))
    share = _share(cta, warp, ins, form, state, accumulate)
    product.shares[warp.index % WARPS] = share
    share.flight.under_way += 1
    share.flight.waits += 1
    state.open.append(product)
    if all(product.shares):
        _start(cta, warp, product)
    return WRITTEN


def _gathers(form: Form, a: int, b: int) -> list[tuple[str, Gather]]:
    """The matrices in shared memory by name."""
    k, element = form.product.k, form.product.a.storage.itemsize
    found = [("B", locate(b, form.b_mn_major, form.n, k, element))]
    if form.a is None:
        found.append(("A", locate(a, form.a_mn_major, M, k, element)))
    return found


def _share(cta: Cta, warp: Warp, ins: Instruction, form: Form, state: WarpState, accumulate: bool) -> Share:
    """The warp's part: A's registers as they are, D's in flight from here on."""
    groups, registers = cta.warpgroups, warp.registers
    assert registers is not None and state.seen is not None
    a = None
    if form.a is not None:
        a = registers.take(form.a)
        _fenced(cta, state, form.a.registers, a, ins)
    held = registers.take(form.d)
    flight = state.live.get(int(held[0, 0]))
    if flight is not None and flight.holds(held):
        _same_shape(ins, form, flight)
        if flight.homes[-1] is not form.d:
            flight.homes.append(form.d)
        registers.launch(form.d, flight, ins.place)
        return Share(warp, flight, a, None)
    if groups.in_flight(state, held):
        raise KernelFault(
            FaultKind.WGMMA,
            f"{ins.name}: D has registers that another wgmma in flight writes, not all of its D",
        )
    latest = state.latest.get(form.d)
    passed_on = latest is not None and latest.words is not None and np.array_equal(held, latest.words)
    if passed_on and latest is not None and latest.waits:
        _same_shape(ins, form, latest)
    if accumulate and not passed_on:
        registers.require(form.d)
        _fenced(cta, state, form.d.registers, held, ins)
    if latest is not None:
        latest.superseded = True
    flight = Flight(form, ins.place, groups.tokens(held.shape[0]), [form.d])
    state.live[int(flight.tokens[0])] = flight
    state.latest[form.d] = flight
    registers.put(form.d, np.broadcast_to(flight.tokens[:, None], held.shape))
    registers.launch(form.d, flight, ins.place)
    return Share(warp, flight, a, held if accumulate else None)


def _same_shape(ins: Instruction, form: Form, flight: Flight) -> None:
    if form.shape != flight.form.shape:
        raise KernelFault(
            FaultKind.WGMMA,
            f"{ins.name}: the accumulators are in flight of a wgmma of another shape, at {flight.place}",
        )


def _fenced(cta: Cta, state: WarpState, registers: tuple[object, ...], held: Words, ins: Instruction) -> None:
    """Fault if one of the registers was written after the last wgmma.fence, by anything but a move."""
    forms = cta.warpgroups.forms
    assert state.seen is not None
    rows = [forms.row[register.index] for register in registers]  # type: ignore[attr-defined]
    changed = (state.seen[rows] != held).any(axis=1)
    for index in np.flatnonzero(changed).tolist():
        register = forms.named.registers[rows[index]]
        if register.index not in forms.moves:
            raise KernelFault(
                FaultKind.WGMMA,
                f"register {register.name} was written after the last wgmma.fence, and {ins.name} uses it",
            )


def _start(cta: Cta, warp: Warp, product: GroupProduct) -> None:
    """All four warps have issued the product."""
    issuers = warp.exists.copy()

    def land() -> None:
        try:
            _land(cta, product)
        except KernelFault as fault:
            if fault.place is None:
                fault.place, fault.thread = product.ins.place, cta.thread(warp, issuers)
            raise

    a, b, _ = product.operands
    reads = tuple(Span("shared", g.low, g.high - g.low) for _, g in _gathers(product.form, a, b))
    product.operation = AsyncOperation(OP, land, stream=(OP, warp.index // WARPS), reads=reads)
    cta.queue.submit(product.operation)


def _land(cta: Cta, product: GroupProduct) -> None:
    """Read shared memory, multiply, and put D into the registers that no later product is going to write."""
    form, shares = product.form, [share for share in product.shares if share is not None]
    kind, groups = form.product, cta.warpgroups
    matrices = {
        name: read_matrix(
            cta.shared, gather, form.b_mn_major if name == "B" else form.a_mn_major, kind.b, name
        )
        for name, gather in _gathers(form, *product.operands[:2])
    }
    if form.a is not None:
        matrices["A"] = a_matrix(np.stack([share.a for share in shares if share.a is not None]), kind.a)
    a, b = matrices["A"], matrices["B"]
    if form.negate_a:
        a = negated(a, kind.a)
    if form.negate_b:
        b = negated(b, kind.b)
    multiply = cta.config.multiply
    assert multiply is not None
    d = multiply(kind, cta.config.mma, a, b, _input(product, shares))
    cta.counters.mma_macs += M * form.n * kind.k
    for index, share in enumerate(shares):
        share.flight.rows = d[ROWS * index : ROWS * (index + 1)]
        share.flight.under_way -= 1
        if not share.flight.under_way:
            groups.deliver(share)


def _input(product: GroupProduct, shares: list[Share]) -> Codes | None:
    """C[64, n], or None without one."""
    if not product.operands[2]:
        return None
    halves = product.form.product.d == "f16"
    parts = []
    for share in shares:
        if share.c is None:
            assert share.flight.rows is not None
            parts.append(share.flight.rows)
        else:
            parts.append(_rows_of(share.c, halves))
    whole = parts[0].base
    if whole is not None and all(part.base is whole for part in parts) and whole.shape[0] == M:
        return whole  # the result of the product before
    return np.concatenate(parts)


def _rows_of(words: Words, halves: bool) -> Codes:
    """16 rows of one warp."""
    return d_matrix(np.broadcast_to(words, (WARPS, *words.shape)), halves)[:ROWS]


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
    """wait_group N: all but the N youngest groups have landed; their registers may be used."""
    _whole_warp(warp, ins)
    if not isinstance(ins.sources[0], Immediate):
        raise UnsupportedError(f"{ins.name} with a register")
    groups = cta.warpgroups
    state = groups.state(warp)
    covered = max(len(state.groups) - ins.sources[0].bits, 0)
    products = [product for group in list(state.groups)[:covered] for product in group]
    waiting = [product for product in products if product.operation is None]
    if waiting:
        first = warp.index // WARPS * WARPS
        return Wait(
            lambda: all(product.operation is not None for product in waiting),
            lambda: (
                f"warps {waiting[0].missing(first)} of its warpgroup to issue {waiting[0].ins.op} "
                f"at {waiting[0].ins.place}"
            ),
        )
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
            changed = (registers.take(product.form.a) != share.a).any(axis=1)
            groups.refuse_writes(product.form.a, changed, "of A is written", product.ins.place)
        share.flight.waits -= 1
        flights[share.flight] = None
    for flight in flights:
        groups.check_accumulators(warp, flight)
        if not flight.waits:
            registers.settle(flight)


HANDLERS: dict[str, Handler] = {
    "wgmma.fence": _fence,
    "wgmma.mma_async": _issue,
    "wgmma.commit_group": _commit,
    "wgmma.wait_group": _wait,
}
