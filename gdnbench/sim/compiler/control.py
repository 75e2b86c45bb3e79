"""Control flow: bra, ret, exit, trap."""

from __future__ import annotations

from gdnbench.sim.compiler.emit import Value, const
from gdnbench.sim.compiler.translator import Exit, FaultCode, Translate, Translator
from gdnbench.sim.ptx.ir import Instruction, Target


def branch(t: Translator, ins: Instruction) -> None:
    """If all lanes go one way, jump; otherwise write each lane's block and split the warp."""
    target = ins.sources[0]
    assert isinstance(target, Target)
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


def leave_kernel(t: Translator, ins: Instruction) -> None:
    """`ret` of an entry and `exit`. With a guard the other lanes continue."""
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
    "ret": leave_kernel,
    "exit": leave_kernel,
    "trap": trap,
    "brkpt": trap,
}
