# SPDX-License-Identifier: Apache-2.0
"""Control flow: bra, brx, call, ret, exit, trap."""

from __future__ import annotations

from gdnbench.sim.compiler.emit import I32, Value, const
from gdnbench.sim.compiler.exits import Exit, FaultCode
from gdnbench.sim.compiler.layout import HEADER
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.ptx.flow import targets_of
from gdnbench.sim.ptx.forms import Flow
from gdnbench.sim.ptx.ir import Instruction


def branch(t: Translator, ins: Instruction) -> None:
    """If all lanes go one way, jump; otherwise write each lane's block and split the warp."""
    (target,) = targets_of(ins)
    there, here = t.next_block(target.pc), t.next_block(ins.pc + 1)
    if ins.guard is None:
        t.leave(there)
        return
    code = t.code
    lanes = code.op("and", code.mask_bits(t.guard(ins)), t.entered)
    t.write_back()
    all_label, not_all, none_label, split = (code.new_label(s) for s in ("taken", "other", "not", "split"))
    code.branch(code.compare("icmp eq", lanes, t.entered), all_label, not_all)
    code.start_block(all_label)
    t.go_to(there)
    code.start_block(not_all)
    code.branch(code.comparei("icmp eq", lanes, 0), none_label, split)
    code.start_block(none_label)
    t.go_to(here)
    code.start_block(split)
    taken = code.bits(lanes, "<32 x i1>")
    gone = False
    for block, mask in ((there, taken), (here, code.op("xor", taken, t.active))):
        if t.exits(block):
            t.exit_at(block, mask)
            gone = True
        else:
            t.set_block(block, mask)
    t.ret(const("i32", Exit.GONE if gone else Exit.SPLIT))


def branch_table(t: Translator, ins: Instruction) -> None:
    """`brx.idx`: each lane's block by its index. Lanes whose guard is false go to the next instruction."""
    code = t.code
    taken = t.active if ins.guard is None else code.op("and", t.guard(ins), t.active)
    index = t.read(ins.sources[0], 32)
    targets = targets_of(ins)
    outside = code.op("and", code.comparei("icmp uge", index, len(targets)), taken)
    t.fault(outside, FaultCode.BRANCH, ins, index)
    t.write_back()
    where = const(I32, t.next_block(ins.pc + 1))
    for number, target in enumerate(targets):
        here = code.op("and", code.comparei("icmp eq", index, number), taken)
        where = code.select(here, const(I32, t.next_block(target.pc)), where)
    pcs = dict.fromkeys((*(target.pc for target in targets), ins.pc + 1))
    gone = const("i32", Exit.SPLIT)
    for block in dict.fromkeys(t.next_block(pc) for pc in pcs):
        if not t.exits(block):
            continue
        mask = code.op("and", code.comparei("icmp eq", where, block), t.active)
        leave, on = code.new_label("leave"), code.new_label("on")
        some = code.any(mask)
        gone = code.select(some, const("i32", Exit.GONE), gone)
        code.branch(some, leave, on)
        code.start_block(leave)
        t.exit_at(block, mask)
        code.jump(on)
        code.start_block(on)
    t.masked_store(where, code.offset(t.state, HEADER["block"]), t.active, 64)
    t.ret(gone)


def leave_kernel(t: Translator, ins: Instruction) -> None:
    """`ret` of an entry and `exit`; `ret` of a function goes on behind its call. With a guard the other lanes
    continue."""
    if ins.form.flow is Flow.BRANCH:
        branch(t, ins)
        return
    t.write_back()
    t.exit_lanes(t.active)
    following = t.next_block(ins.pc + 1)
    if ins.guard is not None:
        code = t.code
        rest = code.op("xor", t.active, Value("<32 x i1>", "%lanes"))
        if t.exits(following):
            t.exit_at(following, rest)
        else:
            t.set_block(following, rest)
    t.ret(const("i32", Exit.GONE))


def trap(t: Translator, ins: Instruction) -> None:
    t.fault(t.active, FaultCode.TRAP, ins, None)
    t.leave(t.next_block(ins.pc + 1))


TABLE: dict[str, Translate] = {
    "bra": branch,
    "brx.idx": branch_table,
    "call": branch,
    "ret": leave_kernel,
    "exit": leave_kernel,
    "trap": trap,
    "brkpt": trap,
}
