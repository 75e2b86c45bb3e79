# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: the native loop that picks a group of lanes and runs its blocks.

It is LLVM IR as text. `run` executes blocks until the quantum is used up or no lane can continue. Lanes at
the same block form a group; the group at the lowest block that can continue runs first. While all lanes that
can continue are in one group, the loop goes from block to block without looking at the lanes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from gdnbench.sim.compiler.blocks import Blocks
from gdnbench.sim.compiler.exits import END, Exit
from gdnbench.sim.compiler.layout import HEADER, load_field


class Status(IntEnum):
    """The return values of `run`."""

    QUANTUM = 0  # the quantum is used up
    IDLE = 1  # no lane can continue
    SERVICE = 2  # Python executes the instruction of block `current` for the lanes `active`
    FAULT = 3
    EXITS = 4  # lanes exited while others waited at a collective
    FULL = 5  # Python must drain the access log


# After this many instructions of one group another runnable group runs: lanes may spin on a value that other
# lanes write.
PATIENCE = 4096


TABLES = {
    f"@kernel_{name}": f"@kernel_{name} = external constant [0 x {kind}]"
    for name, kind in (("blocks", "ptr"), ("lengths", "i64"), ("writes", "i32"), ("ranges", "i32"))
}
SAVED = "@kernel_saved"
TABLES[SAVED] = f"{SAVED} = external constant i64"
"""Declarations of a kernel's tables: for each block its function and the number of its instructions, and the
registers that it writes. For each block and width of `WIDTHS`, `ranges` is the first of these registers in
`writes`, which has the offsets in the state; the next element is the end. `saved` is the most bytes that a
block's registers have."""
WIDTHS = (64, 32, 16, 8, 1)


def tables(blocks: Blocks, writes: Sequence[Sequence[tuple[int, int]]]) -> str:
    """The tables of a kernel. `writes[block]` is (bits, offset in the state) of each register that the block
    writes."""
    offsets: list[int] = []
    ranges: list[int] = []
    for written in writes:
        for width in WIDTHS:
            ranges.append(len(offsets))
            offsets += sorted(offset for bits, offset in written if bits == width)
    ranges.append(len(offsets))
    saved = max((sum(4 * max(bits, 8) for bits, _ in written) for written in writes), default=0)

    def table(name: str, kind: str, values: Sequence[object]) -> str:
        listed = ", ".join(f"{kind} {value}" for value in values)
        return f"@kernel_{name} = constant [{len(values)} x {kind}] [{listed}], align 64\n"

    return (
        table("blocks", "ptr", [f"@block{block.index}" for block in blocks.blocks])
        + table("lengths", "i64", [block.stop - block.start for block in blocks.blocks])
        + table("writes", "i32", offsets)
        + table("ranges", "i32", ranges)
        + f"{SAVED} = constant i64 {max(saved, 64)}\n"
    )


def dispatcher() -> str:
    """`i32 run(ptr state, i64 quantum)`."""
    start = f"""define i32 @run(ptr %state, i64 %quantum) #0 {{
start:
{load_field("executed0", "executed", "i64", 8)}{load_field("counts", "counts", "ptr", 8)}
  %limit = add i64 %executed0, %quantum
  %live.p = getelementptr i8, ptr %state, i64 {HEADER["live"]}
  %waiting.p = getelementptr i8, ptr %state, i64 {HEADER["waiting"]}
  %joining.p = getelementptr i8, ptr %state, i64 {HEADER["joining"]}
  %active.p = getelementptr i8, ptr %state, i64 {HEADER["active"]}
  %floor.p = getelementptr i8, ptr %state, i64 {HEADER["floor"]}
  %mark.p = getelementptr i8, ptr %state, i64 {HEADER["mark"]}
  %current.p = getelementptr i8, ptr %state, i64 {HEADER["current"]}
  %block.p = getelementptr i8, ptr %state, i64 {HEADER["block"]}
  br label %pick

"""
    return start + _pick() + _enter() + _stop() + _place()


def _pick() -> str:
    """Select the group to run: the lanes at the lowest block that can continue, unless it has run for too
    long."""
    return f"""pick:
  %live = load i32, ptr %live.p, align 4
  %waiting = load i32, ptr %waiting.p, align 4
  %joining = load i32, ptr %joining.p, align 4
  %not.waiting = xor i32 %waiting, -1
  %awake = and i32 %live, %not.waiting
  %not.joining = xor i32 %joining, -1
  %ready = and i32 %awake, %not.joining
  %idle = icmp eq i32 %ready, 0
  br i1 %idle, label %no.lane, label %choose
no.lane:
  ret i32 {Status.IDLE}
choose:
  %where = load <32 x i32>, ptr %block.p, align 64
  %ready.lanes = bitcast i32 %ready to <32 x i1>
  %keyed = select <32 x i1> %ready.lanes, <32 x i32> %where, <32 x i32> splat (i32 {END})
  %lowest = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %keyed)
  %floor = load i32, ptr %floor.p, align 4
  %no.floor = icmp eq i32 %floor, 0
  br i1 %no.floor, label %chosen, label %pass.over
pass.over:
  %floor.1 = insertelement <32 x i32> poison, i32 %floor, i32 0
  %floors = shufflevector <32 x i32> %floor.1, <32 x i32> poison, <32 x i32> zeroinitializer
  %above.lanes = icmp sge <32 x i32> %keyed, %floors
  %above.keyed = select <32 x i1> %above.lanes, <32 x i32> %keyed, <32 x i32> splat (i32 {END})
  %above = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %above.keyed)
  %none.above = icmp eq i32 %above, {END}
  %other.low = select i1 %none.above, i32 %lowest, i32 %above
  br label %chosen
chosen:
  %low = phi i32 [ %lowest, %choose ], [ %other.low, %pass.over ]
  %low.1 = insertelement <32 x i32> poison, i32 %low, i32 0
  %lows = shufflevector <32 x i32> %low.1, <32 x i32> poison, <32 x i32> zeroinitializer
  %here.lanes = icmp eq <32 x i32> %where, %lows
  %here = bitcast <32 x i1> %here.lanes to i32
  %group = and i32 %here, %awake
  %not.group = xor i32 %group, -1
  %still.joining = and i32 %joining, %not.group
  store i32 %still.joining, ptr %joining.p, align 4
  store i32 %group, ptr %active.p, align 4
  %others = and i32 %awake, %not.group
  %alone = icmp eq i32 %others, 0
  br i1 %alone, label %calm, label %go
calm:
  %mark.now = load i64, ptr %executed0.p, align 8
  store i64 %mark.now, ptr %mark.p, align 8
  store i32 0, ptr %floor.p, align 4
  br label %go
go:
  %lanes.1 = call i32 @llvm.ctpop.i32(i32 %group)
  %lanes = zext i32 %lanes.1 to i64
  %everyone = icmp eq i32 %group, -1
  br label %enter

"""


def _enter() -> str:
    """Run a block and count it. Then jump to the next block if no other group can run; otherwise store the
    lanes' blocks and select again."""
    return f"""enter:
  %block = phi i32 [ %low, %go ], [ %result, %straight ]
  br i1 %everyone, label %wholly, label %partly
wholly:
  %slot = getelementptr ptr, ptr @kernel_blocks, i32 %block
  %function = load ptr, ptr %slot, align 8
  %result.wholly = call i32 %function(ptr %state, i32 %group)
  br label %returned
partly:
  %result.partly = call i32 @run_partly(ptr %state, i32 %group, i32 %block)
  br label %returned
returned:
  %result = phi i32 [ %result.wholly, %wholly ], [ %result.partly, %partly ]
  %stopped = icmp slt i32 %result, {Exit.GONE}
  br i1 %stopped, label %stop, label %account
account:
  %length.p = getelementptr i64, ptr @kernel_lengths, i32 %block
  %length = load i64, ptr %length.p, align 8
  %executed.old = load i64, ptr %executed0.p, align 8
  %executed = add i64 %executed.old, %length
  store i64 %executed, ptr %executed0.p, align 8
  %count.p = getelementptr [2 x i64], ptr %counts, i32 %block
  %count.lanes.p = getelementptr i8, ptr %count.p, i64 8
  %count.old = load i64, ptr %count.p, align 8
  %count.new = add i64 %count.old, 1
  store i64 %count.new, ptr %count.p, align 8
  %count.lanes.old = load i64, ptr %count.lanes.p, align 8
  %count.lanes.new = add i64 %count.lanes.old, %lanes
  store i64 %count.lanes.new, ptr %count.lanes.p, align 8
  %spent = icmp sge i64 %executed, %limit
  %plain = icmp sge i32 %result, 0
  br i1 %plain, label %moved, label %parted
moved:
  %not.spent = xor i1 %spent, true
  %on = and i1 %alone, %not.spent
  br i1 %on, label %straight, label %park
straight:
  br label %enter
park:
  call void @place(ptr %state, i32 %group, i32 %result)
  br label %parted.more
parted:
  %gone = icmp eq i32 %result, {Exit.GONE}
  %joining.left = load i32, ptr %joining.p, align 4
  %stranded = icmp ne i32 %joining.left, 0
  %exits = and i1 %gone, %stranded
  br i1 %exits, label %exits.end, label %parted.more
exits.end:
  ret i32 {Status.EXITS}
parted.more:
  %mark = load i64, ptr %mark.p, align 8
  %ran = sub i64 %executed, %mark
  %impatient = icmp sgt i64 %ran, {PATIENCE}
  br i1 %impatient, label %rotate, label %turn
rotate:
  store i64 %executed, ptr %mark.p, align 8
  %above.block = add i32 %block, 1
  store i32 %above.block, ptr %floor.p, align 4
  br label %turn
turn:
  br i1 %spent, label %quantum.end, label %pick
quantum.end:
  ret i32 {Status.QUANTUM}

"""


def _stop() -> str:
    """Handle a block that did not run to its end: return to Python, or mark the lanes as waiting."""
    return f"""stop:
  store i32 %block, ptr %current.p, align 4
  %parts = icmp eq i32 %result, {Exit.PART}
  br i1 %parts, label %pick, label %stay
stay:
  call void @place(ptr %state, i32 %group, i32 %block)
  switch i32 %result, label %failed [ i32 {Exit.SERVICE}, label %service
                                      i32 {Exit.JOIN}, label %join
                                      i32 {Exit.FULL}, label %full ]
service:
  ret i32 {Status.SERVICE}
full:
  ret i32 {Status.FULL}
failed:
  ret i32 {Status.FAULT}
join:
  %joining.now = load i32, ptr %joining.p, align 4
  %joined = or i32 %joining.now, %group
  store i32 %joined, ptr %joining.p, align 4
  br label %pick
}}

"""


def run_partly() -> str:
    """`run_partly(state, group, block)`: runs a block for some of the lanes. It writes its registers in all
    lanes; this restores those of the others."""
    text = f"""define internal i32 @run_partly(ptr %state, i32 %group, i32 %block) noinline #0 {{
begin:
  %bytes = load i64, ptr {SAVED}, align 8
  %saved = alloca i8, i64 %bytes, align 64
  %others = xor i32 %group, -1
  %others.lanes = bitcast i32 %others to <32 x i1>
  %first = mul i32 %block, {len(WIDTHS)}
  br label %save.{WIDTHS[0]}
"""
    text += _each_written("save", "call")
    text += """call:
  %slot = getelementptr ptr, ptr @kernel_blocks, i32 %block
  %function = load ptr, ptr %slot, align 8
  %result = call i32 %function(ptr %state, i32 %group)
  br label %restore.64
"""
    return text + _each_written("restore", "done") + "done:\n  ret i32 %result\n}\n\n"


def _each_written(stem: str, after: str) -> str:
    """A loop over the written registers of each width that saves or restores them; `%saved` is filled in
    their order."""
    text = ""
    at = "0"
    for place, width in enumerate(WIDTHS):
        kind, align = (f"<32 x i{width}>", 64 if width >= 16 else 32) if width > 1 else ("i32", 4)
        size = 4 * max(width, 8)
        name = f"{stem}.{width}"
        following = f"{stem}.{WIDTHS[place + 1]}" if place + 1 < len(WIDTHS) else after
        text += f"""{name}:
  %{name}.range = add i32 %first, {place}
  %{name}.from.p = getelementptr i32, ptr @kernel_ranges, i32 %{name}.range
  %{name}.to.p = getelementptr i8, ptr %{name}.from.p, i64 4
  %{name}.from = load i32, ptr %{name}.from.p, align 4
  %{name}.to = load i32, ptr %{name}.to.p, align 4
  br label %{name}.each
{name}.each:
  %{name}.index = phi i32 [ %{name}.from, %{name} ], [ %{name}.next, %{name}.one ]
  %{name}.at = phi i64 [ {at}, %{name} ], [ %{name}.at.next, %{name}.one ]
  %{name}.more = icmp slt i32 %{name}.index, %{name}.to
  br i1 %{name}.more, label %{name}.one, label %{following}
{name}.one:
  %{name}.offset.p = getelementptr i32, ptr @kernel_writes, i32 %{name}.index
  %{name}.offset = load i32, ptr %{name}.offset.p, align 4
  %{name}.p = getelementptr i8, ptr %state, i32 %{name}.offset
  %{name}.copy = getelementptr i8, ptr %saved, i64 %{name}.at
"""
        source, target = ("p", "copy") if stem == "save" else ("copy", "p")
        text += f"  %{name}.value = load {kind}, ptr %{name}.{source}, align {align}\n"
        if stem == "save":
            text += f"  store {kind} %{name}.value, ptr %{name}.{target}, align {align}\n"
        elif width > 1:
            text += (
                f"  call void @llvm.masked.store.v32i{width}.p0({kind} %{name}.value, ptr align {align}"
                f" %{name}.p, <32 x i1> %others.lanes)\n"
            )
        else:
            text += f"""  %{name}.now = load i32, ptr %{name}.p, align 4
  %{name}.new = and i32 %{name}.now, %group
  %{name}.old = and i32 %{name}.value, %others
  %{name}.both = or i32 %{name}.new, %{name}.old
  store i32 %{name}.both, ptr %{name}.p, align 4
"""
        text += f"""  %{name}.next = add i32 %{name}.index, 1
  %{name}.at.next = add i64 %{name}.at, {size}
  br label %{name}.each
"""
        at = f"%{name}.at"
    return text


def exit_early() -> str:
    """`exit_early(state, lanes, block)`: lanes whose next instruction, at `block`, only exits."""
    return f"""define internal void @exit_early(ptr %state, i32 %lanes, i32 %block) #0 {{
{load_field("live", "live", "i32", 4)}{load_field("counts", "counts", "ptr", 8)}
{load_field("executed", "executed", "i64", 8)}
  %stay = xor i32 %lanes, -1
  %left = and i32 %live, %stay
  store i32 %left, ptr %live.p, align 4
  %more = add i64 %executed, 1
  store i64 %more, ptr %executed.p, align 8
  %count.p = getelementptr [2 x i64], ptr %counts, i32 %block
  %count = load i64, ptr %count.p, align 8
  %count.new = add i64 %count, 1
  store i64 %count.new, ptr %count.p, align 8
  %sum.p = getelementptr i8, ptr %count.p, i64 8
  %sum = load i64, ptr %sum.p, align 8
  %here = call i32 @llvm.ctpop.i32(i32 %lanes)
  %here.long = zext i32 %here to i64
  %sum.new = add i64 %sum, %here.long
  store i64 %sum.new, ptr %sum.p, align 8
  ret void
}}

"""


def _place() -> str:
    """`place(state, group, block)`: sets the block of the lanes of the group."""
    return f"""define internal void @place(ptr %state, i32 %group, i32 %block) alwaysinline #0 {{
  %block.p = getelementptr i8, ptr %state, i64 {HEADER["block"]}
  %one = insertelement <32 x i32> poison, i32 %block, i32 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  %lanes = bitcast i32 %group to <32 x i1>
  %old = load <32 x i32>, ptr %block.p, align 64
  %new = select <32 x i1> %lanes, <32 x i32> %all, <32 x i32> %old
  store <32 x i32> %new, ptr %block.p, align 64
  ret void
}}
"""
