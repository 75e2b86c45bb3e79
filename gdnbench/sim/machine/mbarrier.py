# SPDX-License-Identifier: Apache-2.0
"""mbarriers: 64-bit objects in shared memory that count arrivals and bytes, phase by phase.

The bits of the object (opaque to kernels; PTX ISA, "Contents of the mbarrier object", gives the ranges):

    [0, 20)   arrivals pending in the current phase
    [20, 40)  arrivals that the next phase expects
    [40, 61)  tx-count: bytes expected and not yet completed, two's complement
    63        parity of the current phase

Threads arrive at, and announce bytes for, mbarriers of any CTA of their cluster. They initialise and wait for
those of their own CTA only (PTX ISA, "mbarrier").

A phase completes when both counts are zero; the next phase starts with the expected count.
`SharedMemory.phase` counts the completed phases of the mbarrier at each address, -1 where there is none.

The PTX ISA lets `try_wait` return False after an unspecified time and `test_wait` at once. Here both wait as
long as anything in the CTA can run, and return False when nothing can. So a kernel that polls and then waits
progresses, and a wait that can never end is found. Under the `random` schedule both sometimes return False
at once, with an odd seed nearly always: this tests what a kernel does after a failed poll.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import LANES, Argument, Lanes, Results, Values, Wait, Warp
from gdnbench.sim.machine.operands import (
    active_lanes,
    distinct_operands,
    equal_operands,
    same_in_all_lanes,
    scalar_operand,
    shared_address,
    wants_result,
)
from gdnbench.sim.machine.shared_memory import SharedMemory, rank_of
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.ir import Instruction

COUNT_BITS = 20
COUNT_MAX = (1 << COUNT_BITS) - 1
EXPECTED_SHIFT = 20
TX_SHIFT = 40
TX_BITS = 21
TX_MAX = (1 << 20) - 1
HASTE = (1 / 2, 31 / 32)
"""How often a wait answers at once under even and under odd seeds. Under odd seeds many peeks in a row fail:
a peek with the wrong parity then succeeds before the other side has progressed."""
PARITY_SHIFT = 63
BYTES = 8

_ZERO, _ONE = same_in_all_lanes(0), same_in_all_lanes(1)


def _fault(message: str) -> KernelFault:
    return KernelFault(FaultKind.BARRIER, message)


def _slot(shared: SharedMemory, address: int) -> int:
    """The index of the mbarrier at `address`. Raises KernelFault if there is none."""
    _check_address(shared, address)
    if not _exists(shared, address):
        raise _fault(f"no mbarrier was initialised at shared address {address:#x}")
    return address // BYTES


def _exists(shared: SharedMemory, address: int) -> bool:
    """Whether there is an mbarrier at `address`, a multiple of 8."""
    return shared.phase_cells[address // BYTES] >= 0


def _check_address(shared: SharedMemory, address: int) -> None:
    if address % BYTES:
        raise KernelFault(FaultKind.MISALIGNED, f"mbarrier at {address:#x}, no multiple of {BYTES}")
    shared.check(address, BYTES)


def unpack(word: int) -> tuple[int, int, int]:
    """Split the word into (pending arrivals, expected arrivals, tx-count)."""
    tx = word >> TX_SHIFT & ((1 << TX_BITS) - 1)
    return word & COUNT_MAX, word >> EXPECTED_SHIFT & COUNT_MAX, tx - (1 << TX_BITS) * (tx >> TX_BITS - 1)


def _put(shared: SharedMemory, slot: int, pending: int, expected: int, tx: int) -> None:
    """Write the counts back; a phase whose counts are both zero completes."""
    if not -TX_MAX <= tx <= TX_MAX:
        raise _fault(f"tx-count {tx} of mbarrier {slot * BYTES:#x} is out of range, +-{TX_MAX}")
    phase = shared.phase_cells[slot]
    if pending == 0 and tx == 0:
        phase += 1
        pending = expected
        shared.phase_cells[slot] = phase
    shared.word_cells[slot] = (
        pending
        | expected << EXPECTED_SHIFT
        | (tx & ((1 << TX_BITS) - 1)) << TX_SHIFT
        | (phase & 1) << PARITY_SHIFT
    )


def init(shared: SharedMemory, address: int, count: int) -> None:
    """Make a new mbarrier in phase 0."""
    _check_address(shared, address)
    if not 1 <= count <= COUNT_MAX:
        raise _fault(f"mbarrier.init with count {count}; the range is 1 to {COUNT_MAX}")
    slot = address // BYTES
    if _exists(shared, address):
        raise _fault(f"mbarrier.init at {address:#x}, where an mbarrier is; mbarrier.inval comes first")
    shared.phase_cells[slot] = 0
    shared.written(address, BYTES)
    _put(shared, slot, count, count, 0)


def inval(shared: SharedMemory, address: int) -> None:
    """Free the bytes for other use."""
    shared.phase_cells[_slot(shared, address)] = -1


def arrive(shared: SharedMemory, address: int, count: int = 1, *, expect: int = 0, drop: bool = False) -> int:
    """Expect `expect` bytes, then arrive `count` times. Returns the object before that, the state token."""
    slot = _slot(shared, address)
    word = shared.word_cells[slot]
    pending, expected, tx = unpack(word)
    if not 1 <= count <= COUNT_MAX:
        raise _fault(f"arrival with count {count}; the range is 1 to {COUNT_MAX}")
    if count > pending:
        raise _fault(
            f"{count} arrivals at mbarrier {address:#x}, "
            f"whose phase {shared.phase_cells[slot]} waits for {pending} of {expected}"
        )
    _put(shared, slot, pending - count, expected - count if drop else expected, tx + expect)
    return word


def expect_arrival(shared: SharedMemory, address: int) -> None:
    """Make the current phase wait for one more arrival (cp.async.mbarrier.arrive without .noinc)."""
    slot = _slot(shared, address)
    pending, expected, tx = unpack(shared.word_cells[slot])
    if pending == COUNT_MAX:
        raise _fault(f"mbarrier {address:#x} waits for {pending} arrivals, the most it can")
    _put(shared, slot, pending + 1, expected, tx)


def expect_tx(shared: SharedMemory, address: int, size: int) -> None:
    """Make the current phase wait for `size` more bytes."""
    slot = _slot(shared, address)
    pending, expected, tx = unpack(shared.word_cells[slot])
    # Only an arrival or a completion ends a phase; this instruction only raises a count.
    if size:
        _put(shared, slot, pending, expected, tx + size)


def complete_tx(shared: SharedMemory, address: int, size: int) -> None:
    """Complete `size` bytes."""
    slot = _slot(shared, address)
    pending, expected, tx = unpack(shared.word_cells[slot])
    if size:
        _put(shared, slot, pending, expected, tx - size)


def is_complete(shared: SharedMemory, address: int, parity: int) -> bool:
    """True once the phase of this parity has completed, that is, the current phase has the other parity.
    Before the first phase completes, the phase of parity 1 counts as complete (PTX ISA, "mbarrier.test_wait",
    phaseParity)."""
    return shared.phase_cells[_slot(shared, address)] & 1 != parity


def describe(shared: SharedMemory, address: int, parity: int) -> str:
    """Text for messages: the arrivals and bytes that a wait for `parity` lacks."""
    slot = _slot(shared, address)
    pending, expected, tx = unpack(shared.word_cells[slot])
    return (
        f"mbarrier {address:#x} parity {parity} (phase {shared.phase_cells[slot]}): "
        f"{pending} of {expected} arrivals and {tx} bytes pending"
    )


def _init(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    for members, (address, count) in distinct_operands(
        lanes, scalar_operand(sources[0]), scalar_operand(sources[1])
    ):
        if len(members) > 1:
            cta.note(f"{len(members)} lanes initialise one mbarrier", ins)
        init(cta.shared, shared_address(address, ins), count & 0xFFFF_FFFF)
    return ()


def _inval(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    for _, (address,) in distinct_operands(lanes, scalar_operand(sources[0])):
        inval(cta.shared, shared_address(address, ins))
    return ()


def _arrive(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """arrive and arrive_drop, with or without expect_tx: each lane arrives once."""
    shared = window(cta, ins)
    drop = ins.op.startswith("mbarrier.arrive_drop")
    expects = ins.form.sync is Sync.ARRIVE_EXPECT
    extra = scalar_operand(sources[1]) if len(sources) > 1 else _ZERO if expects else _ONE
    addresses = scalar_operand(sources[0])
    if wants_result(ins):
        _refuse_remote_state(cta, ins, lanes, addresses)
    same = equal_operands(lanes, addresses, extra)
    if same is not None and not ins.has("noComplete"):
        at, count, expect = shared_address(same[0], ins), *_counts(same[1], expects)
        members = int(np.count_nonzero(lanes))
        alike = expect == 0 or not wants_result(ins)
        # One combined arrival, unless the lanes complete a phase and continue in the next.
        if members == 1 or (alike and count * members <= shared.word_cells[_slot(shared, at)] & COUNT_MAX):
            word = arrive(shared, at, count * members, expect=expect * members, drop=drop)
            return (_tokens(word, count, lanes, drop),) if ins.dests else ()
    state = np.zeros(LANES, np.uint64)
    operands = zip(active_lanes(lanes), addresses[lanes].tolist(), extra[lanes].tolist(), strict=True)
    for lane, address, operand in operands:
        at, count, expect = shared_address(address, ins), *_counts(operand, expects)
        before = shared.phase_cells[_slot(shared, at)]
        state[lane] = arrive(shared, at, count, expect=expect, drop=drop)
        if ins.has("noComplete") and shared.phase_cells[at // BYTES] != before:
            raise _fault(f"{ins.name} completed phase {before} of mbarrier {at:#x}")
    return (state,) if ins.dests else ()


def window(cta: Cta, ins: Instruction) -> SharedMemory:
    """The shared memory that an instruction's address may lie in: shared::cta if it says so, otherwise that
    of every CTA of the cluster."""
    return cta.shared if ins.has("shared", "shared::cta") else cta.cluster_shared


def _refuse_remote_state(cta: Cta, ins: Instruction, lanes: Lanes, addresses: Values) -> None:
    """Raises KernelFault for a state of an mbarrier of another CTA: only the CTA of the mbarrier can get it
    (PTX ISA, "mbarrier.arrive")."""
    for address in addresses[lanes].tolist():
        rank = rank_of(shared_address(address, ins))
        if rank != cta.rank:
            raise _fault(f"{ins.name} returns the state of an mbarrier of another CTA, of rank {rank}")


def _tokens(word: int, count: int, lanes: Lanes, drop: bool) -> Values:
    """The state tokens of lanes that arrive one after the other in one phase."""
    step = count * (1 + (1 << EXPECTED_SHIFT) * drop)
    tokens: Values = np.uint64(word) - np.uint64(step) * (np.cumsum(lanes, dtype=np.uint64) - lanes)
    return tokens


def _counts(operand: int, expects: bool) -> tuple[int, int]:
    """Decode the operand beside the address: (arrivals, bytes to expect)."""
    return (1, operand & 0xFFFF_FFFF) if expects else (operand & 0xFFFF_FFFF, 0)


def _transaction(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    change = expect_tx if ins.form.sync is Sync.EXPECT else complete_tx
    addresses, sizes = scalar_operand(sources[0])[lanes].tolist(), scalar_operand(sources[1])[lanes].tolist()
    for address, size in zip(addresses, sizes, strict=True):
        change(window(cta, ins), shared_address(address, ins), size & 0xFFFF_FFFF)
    return ()


def _wait(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results | Wait:
    """test_wait and try_wait. Lanes that wait at several mbarriers continue together. Of a parity only bit 0
    counts: ptxas shifts the others out, an H100 answers 0 to 3 so, and QuACK's GEMM for sm_90 counts phases
    on instead of flipping."""
    shared = cta.shared
    by_parity = ins.has("parity")
    operands = (scalar_operand(sources[0]), scalar_operand(sources[1]))
    same = equal_operands(lanes, *operands)
    groups = distinct_operands(lanes, *operands) if same is None else [(lanes, same)]
    awaited: list[tuple[list[int] | Lanes, int, int]] = []
    for members, (address, operand) in groups:
        parity = operand & 1 if by_parity else operand >> PARITY_SHIFT
        if parity > 1:
            raise _fault(f"{ins.name} for the state {operand:#x}, which no arrival returned")
        at = shared_address(address, ins)
        if rank_of(at) != cta.rank:
            raise _fault(
                f"{ins.name} waits for an mbarrier of the CTA of rank {rank_of(at)}: only threads of that"
                " CTA can"
            )
        awaited.append((members, at, parity))
    done = [is_complete(shared, address, parity) for _, address, parity in awaited]
    if all(done) and same is not None:
        return (_ONE,)
    if all(done) or (previous is not None and previous.timed_out) or _answers_at_once(cta):
        result = np.zeros(LANES, np.uint64)
        for (members, _, _), complete in zip(awaited, done, strict=True):
            result[members] = complete
        return (result,)
    pending = [(address, parity) for _, address, parity in awaited]
    phases = shared.phase_cells
    slots = [(address // BYTES, parity) for address, parity in pending]

    def ready() -> bool:
        """Also once an mbarrier is gone: the instruction is issued again, and its fault names the place."""
        for slot, parity in slots:
            phase = phases[slot]
            if phase & 1 == parity and phase >= 0:
                return False
        return True

    def text() -> str:
        waiting = [pair for pair in pending if not is_complete(shared, *pair)]
        return "; ".join(describe(shared, *pair) for pair in waiting)

    def advance() -> bool:
        for address, parity in pending:
            if not is_complete(shared, address, parity) and cta.advance_signal(address):
                return True
        return False

    return Wait(ready, text, expires=True, advance=advance)


def _answers_at_once(cta: Cta) -> bool:
    """True at random, but never always: a kernel that polls for ever must be reported as a deadlock."""
    schedule = cta.config.schedule
    return schedule.kind == "random" and cta.queue.random.random() < HASTE[schedule.seed % 2]


def _pending_count(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    return (scalar_operand(sources[0]) & np.uint64(COUNT_MAX),)


HANDLERS: dict[str, Handler] = {
    "mbarrier.init": _init,
    "mbarrier.inval": _inval,
    "mbarrier.arrive": _arrive,
    "mbarrier.arrive.expect_tx": _arrive,
    "mbarrier.arrive_drop": _arrive,
    "mbarrier.arrive_drop.expect_tx": _arrive,
    "mbarrier.expect_tx": _transaction,
    "mbarrier.complete_tx": _transaction,
    "mbarrier.test_wait": _wait,
    "mbarrier.try_wait": _wait,
    "mbarrier.pending_count": _pending_count,
}
