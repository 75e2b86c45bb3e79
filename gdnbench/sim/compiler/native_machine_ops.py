# SPDX-License-Identifier: Apache-2.0
"""Machine instructions that compiled code executes itself, when nothing observes the launch.

An instruction without effect goes through the machine the first time, which refuses unknown ones, and is then
skipped. Arrivals, and an `mbarrier.try_wait` that succeeds, access the mbarrier's own bytes (machine/
mbarrier.py defines them). All unusual cases, including faults, go to the machine. If a launch is profiled or
checked, everything goes through the machine: the state's field `inline` is zero.
"""

from __future__ import annotations

from gdnbench.sim.compiler.emit import I1, I32, I64, Code, Library, Value, const
from gdnbench.sim.compiler.layout import HEADER
from gdnbench.sim.compiler.translator import Translator
from gdnbench.sim.machine import fences, mbarrier
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.ir import Instruction, Register

# The machine refuses an unknown `fence`, and otherwise does nothing for these either.
WITHOUT_EFFECT = frozenset(
    (
        *fences.WITHOUT_EFFECT,
        *("fence", "tcgen05.wait::ld"),
        *("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync"),
    )
)
_SHARED = ("shared", "shared::cta", "shared::cluster")


def try_native(t: Translator, ins: Instruction, python: str) -> None:
    """Try to execute the instruction and end the block; otherwise continue at the label `python`."""
    if ins.op in WITHOUT_EFFECT:
        _skip(t, ins, python)
    elif ins.op == "mbarrier.try_wait" and ins.has("parity") and ins.has(*_SHARED):
        _try_wait(t, ins, python)
    elif ins.op in ("mbarrier.arrive", "mbarrier.arrive.expect_tx") and ins.has(*_SHARED):
        _arrive(t, ins, python)


def _when(t: Translator, condition: Value, python: str) -> None:
    """Continue here if `condition` is true, otherwise at `python`."""
    here = t.code.new_label("inline")
    t.code.branch(condition, here, python)
    t.code.start_block(here)


def _allowed(t: Translator, python: str) -> None:
    _when(t, t.code.comparei("icmp ne", t.code.load("i32", t.header("inline"), 4), 0), python)


def _skip(t: Translator, ins: Instruction, python: str) -> None:
    """`seen` becomes nonzero once the machine has accepted the instruction."""
    code = t.code
    _allowed(t, python)
    word = code.load("i32", code.offset(t.state, t.program.accepted(t.block)), 4)
    _when(t, code.comparei("icmp ne", word, 0), python)
    t.leave(t.next_block(ins.pc + 1))


def _try_wait(t: Translator, ins: Instruction, python: str) -> None:
    code = t.code
    if len(ins.sources) < 2:
        return
    _allowed(t, python)
    address, parity = t.address(ins, ins.sources[0]), t.read(ins.sources[1], 32)
    code.library.helper("mbarrier_over", _define_over)
    over = code.call("mbarrier_over", "i1", t.state, code.mask_bits(t.active), address, parity)
    _when(t, over, python)
    t.write(ins.dests[0], const(I1, 1))
    t.leave(t.next_block(ins.pc + 1))


def _arrive(t: Translator, ins: Instruction, python: str) -> None:
    code = t.code
    # The state that an arrival returns is rarely used: compilers name a register that nothing reads.
    wanted = any(isinstance(r, Register) and t.block.live_out >> r.index & 1 for r in ins.written())
    if ins.has("noComplete") or wanted:
        return
    expects = ins.form.sync is Sync.ARRIVE_EXPECT
    if expects and len(ins.sources) != 2:
        return
    _allowed(t, python)
    address = t.address(ins, ins.sources[0])
    operand = t.read(ins.sources[1], 32) if len(ins.sources) > 1 else const(I32, 1)
    code.library.helper("mbarrier_arrive", _define_arrive)
    flag = const("i1", int(expects))
    done = code.call("mbarrier_arrive", "i1", t.state, code.mask_bits(t.active), address, operand, flag)
    _when(t, done, python)
    t.leave(t.next_block(ins.pc + 1))


_STATE, _MASK = Value("ptr", "%state"), Value("i32", "%mask")


def _give_up_unless(code: Code, condition: Value) -> None:
    """Return False if the condition is false."""
    on = code.new_label("on")
    code.branch(condition, on, "other")
    code.start_block(on)


def _barrier(code: Code, other_operand: Value) -> tuple[Value, Value, Value]:
    """(address, pointer to the number of completed phases, phases) of the mbarrier that all active lanes name
    with equal operands. Returns false if they do not."""
    addresses = Value(I64, "%address")
    code.start_block("entry")
    first = code.opi("and", code.intrinsic("cttz", "i32", _MASK, const("i1", 0)), 31)
    address = code.extract(addresses, first)
    operand = code.extract(other_operand, first)
    apart = code.op(
        "or",
        code.compare("icmp ne", addresses, code.splat(address)),
        code.compare("icmp ne", other_operand, code.splat(operand)),
    )
    differing = code.op("and", code.mask_bits(apart), _MASK)
    end = code.load("i64", code.offset(_STATE, HEADER["shared_end"]), 8)
    last = code.opi("add", end, -mbarrier.BYTES)
    legal = code.comparei("icmp eq", code.opi("and", address, mbarrier.BYTES - 1), 0)
    first_address = code.load("i64", code.offset(_STATE, HEADER["shared_first"]), 8)
    for condition in (
        code.comparei("icmp eq", differing, 0),
        code.compare("icmp uge", address, first_address),
        code.compare("icmp ule", address, last),
    ):
        legal = code.op("and", legal, condition)
    _give_up_unless(code, legal)
    # Each eight bytes of shared memory have a count of eight bytes, so the offsets are equal.
    pointer = code.offset(code.load("ptr", code.offset(_STATE, HEADER["phases"]), 8), address)
    phase = code.load("i64", pointer, 8)
    _give_up_unless(code, code.comparei("icmp sge", phase, 0))
    return address, pointer, phase


def _finish(code: Code, head: str) -> str:
    code.line("ret i1 true")
    code.start_block("other")
    code.line("ret i1 false")
    return f"{head} noinline #0 {{\n{code.text()}\n}}\n"


def _define_over(name: str, library: Library) -> str:
    """Whether the awaited phase is complete: the current phase has the other parity."""
    code = Code(library)
    parities = Value(I32, "%parity")
    _, _, phase = _barrier(code, parities)
    first = code.opi("and", code.intrinsic("cttz", "i32", _MASK, const("i1", 0)), 31)
    parity = code.opi("and", code.cast("zext", code.extract(parities, first), "i64"), 1)
    _give_up_unless(code, code.compare("icmp ne", code.opi("and", phase, 1), parity))
    return _finish(code, f"define internal i1 @{name}(ptr %state, i32 %mask, {I64} %address, {I32} %parity)")


def _define_arrive(name: str, library: Library) -> str:
    """All lanes' arrivals and expected bytes at once, unless that passes the end of the phase."""
    code = Code(library)
    operands = Value(I32, "%operand")
    address, pointer, phase = _barrier(code, operands)
    first = code.opi("and", code.intrinsic("cttz", "i32", _MASK, const("i1", 0)), 31)
    operand = code.cast("zext", code.extract(operands, first), "i64")
    members = code.cast("zext", code.intrinsic("ctpop", "i32", _MASK), "i64")
    expects = Value("i1", "%expects")
    arrivals = code.op("mul", code.select(expects, const("i64", 1), operand), members)
    size = code.op("mul", code.select(expects, operand, const("i64", 0)), members)
    place = code.offset(code.load("ptr", code.offset(_STATE, HEADER["shared"]), 8), address)
    word = code.load("i64", place, 8)
    pending = code.opi("and", word, mbarrier.COUNT_MAX)
    expected = code.opi("and", code.opi("lshr", word, mbarrier.EXPECTED_SHIFT), mbarrier.COUNT_MAX)
    spare = 64 - mbarrier.TX_SHIFT - mbarrier.TX_BITS
    tx = code.opi("ashr", code.opi("shl", word, spare), 64 - mbarrier.TX_BITS)
    total = code.op("add", tx, size)
    _give_up_unless(code, code.comparei("icmp uge", arrivals, 1))
    _give_up_unless(code, code.compare("icmp ule", arrivals, pending))
    _give_up_unless(code, code.comparei("icmp sle", total, mbarrier.TX_MAX))
    left = code.op("sub", pending, arrivals)
    none_left, no_bytes = code.comparei("icmp eq", left, 0), code.comparei("icmp eq", total, 0)
    over = code.op("and", none_left, no_bytes)
    phase = code.op("add", phase, code.cast("zext", over, "i64"))
    left = code.select(over, expected, left)
    code.store(phase, pointer, 8)
    tx_bits = code.opi("and", total, (1 << mbarrier.TX_BITS) - 1)
    fields = (
        code.opi("shl", expected, mbarrier.EXPECTED_SHIFT),
        code.opi("shl", tx_bits, mbarrier.TX_SHIFT),
        code.opi("shl", phase, mbarrier.PARITY_SHIFT),
    )
    for part in fields:
        left = code.op("or", left, part)
    code.store(left, place, 8)
    head = f"define internal i1 @{name}(ptr %state, i32 %mask, {I64} %address, {I32} %operand, i1 %expects)"
    return _finish(code, head)
