"""The dispatcher: the native loop that picks a group of lanes and runs its blocks.

It is LLVM IR as text. `run` executes blocks until the quantum is used up or no lane can continue. Lanes at
the same block form a group; the group at the lowest block that can continue runs first. While all lanes that
can continue are in one group, the loop goes from block to block without looking at the lanes again.
"""

from __future__ import annotations

from enum import IntEnum

from gdnbench.sim.compiler.blocks import Blocks
from gdnbench.sim.compiler.layout import HEADER, load_field
from gdnbench.sim.compiler.translator import END, Exit


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


def dispatcher(blocks: Blocks) -> str:
    """`i32 run(ptr state, i64 quantum)` and its tables."""
    count = len(blocks.blocks)
    table = ", ".join(f"ptr @block{i}" for i in range(count))
    lengths = ", ".join(f"i64 {b.stop - b.start}" for b in blocks.blocks)
    start = f"""
@blocks = internal constant [{count} x ptr] [{table}], align 64
@lengths = internal constant [{count} x i64] [{lengths}], align 64

define i32 @run(ptr %state, i64 %quantum) #0 {{
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
    return start + _pick() + _enter(count) + _stop() + _place()


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
  br label %enter

"""


def _enter(count: int) -> str:
    """Run one of `count` blocks and count it. Then jump to the next block if no other group can run;
    otherwise store the lanes' blocks and select again."""
    return f"""enter:
  %block = phi i32 [ %low, %go ], [ %result, %straight ]
  %slot = getelementptr [{count} x ptr], ptr @blocks, i64 0, i32 %block
  %function = load ptr, ptr %slot, align 8
  %result = call i32 %function(ptr %state, i32 %group)
  %stopped = icmp slt i32 %result, {Exit.GONE}
  br i1 %stopped, label %stop, label %account
account:
  %length.p = getelementptr [{count} x i64], ptr @lengths, i64 0, i32 %block
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
