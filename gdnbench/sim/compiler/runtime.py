"""The native runtime of every kernel: the dispatcher of a warp's blocks, faults, and where addresses lie.

It is LLVM IR as text. `run` executes blocks until the quantum is spent or no lane can go on. Lanes that
stand at one block form a group; the group at the lowest block that can go on runs first. While all lanes
that can go on are in one group, a block is followed by the next without looking at the lanes again.
"""

from __future__ import annotations

from enum import IntEnum

from gdnbench.sim.compiler.blocks import Blocks
from gdnbench.sim.compiler.layout import HEADER
from gdnbench.sim.compiler.translator import END, Exit
from gdnbench.sim.machine.seam import LOCAL_WINDOW, PARAM_WINDOW, SHARED_BASE, SHARED_WINDOW, WINDOW_SIZE


class Status(IntEnum):
    """What `run` returns."""

    QUANTUM = 0  # the quantum is spent
    IDLE = 1  # no lane can go on
    SERVICE = 2  # Python executes the instruction of block `current` for the lanes `active`
    FAULT = 3
    EXITS = 4  # lanes exited while others stood at a collective


# A group that ran this many instructions while others could have is passed over: lanes may spin on what
# others do.
PATIENCE = 4096


def _field(name: str, field: str, kind: str, align: int) -> str:
    """Load header field `field` as %name; its pointer is %name.p."""
    return (
        f"  %{name}.p = getelementptr i8, ptr %state, i64 {HEADER[field]}\n"
        f"  %{name} = load {kind}, ptr %{name}.p, align {align}\n"
    )


def dispatcher(blocks: Blocks) -> str:
    """`i32 run(ptr state, i64 quantum)` and its tables."""
    count = len(blocks.blocks)
    table = ", ".join(f"ptr @block{i}" for i in range(count))
    lengths = ", ".join(f"i64 {b.stop - b.start}" for b in blocks.blocks)
    return f"""
@blocks = internal constant [{count} x ptr] [{table}], align 64
@lengths = internal constant [{count} x i64] [{lengths}], align 64

define i32 @run(ptr %state, i64 %quantum) #0 {{
start:
{_field("executed0", "executed", "i64", 8)}{_field("counts", "counts", "ptr", 8)}
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

pick:
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

enter:
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

stop:
  store i32 %block, ptr %current.p, align 4
  %parts = icmp eq i32 %result, {Exit.PART}
  br i1 %parts, label %pick, label %stay
stay:
  call void @place(ptr %state, i32 %group, i32 %block)
  switch i32 %result, label %failed [ i32 {Exit.SERVICE}, label %service
                                      i32 {Exit.JOIN}, label %join ]
service:
  ret i32 {Status.SERVICE}
failed:
  ret i32 {Status.FAULT}
join:
  %joining.now = load i32, ptr %joining.p, align 4
  %joined = or i32 %joining.now, %group
  store i32 %joined, ptr %joining.p, align 4
  br label %pick
}}

define internal void @exit_early(ptr %state, i32 %lanes, i32 %block) #0 {{
{_field("live", "live", "i32", 4)}{_field("counts", "counts", "ptr", 8)}
{_field("executed", "executed", "i64", 8)}
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

define internal void @place(ptr %state, i32 %group, i32 %block) alwaysinline #0 {{
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


def record_fault() -> str:
    """`record_fault(state, code, pc, lanes, addresses)`: for Python to word."""

    def put(name: str, kind: str, value: str, align: int) -> str:
        return (
            f"  %{name} = getelementptr i8, ptr %state, i64 {HEADER[name]}\n"
            f"  store {kind} {value}, ptr %{name}, align {align}\n"
        )

    return (
        "define internal void @record_fault(ptr %state, i32 %code, i32 %pc, i32 %lanes, <32 x i64> %where)"
        " noinline cold #0 {\n"
        + put("fault_code", "i32", "%code", 4)
        + put("fault_pc", "i32", "%pc", 4)
        + put("fault_lanes", "i32", "%lanes", 4)
        + put("fault_address", "<32 x i64>", "%where", 64)
        + "  ret void\n}\n"
    )


def _splat(name: str, scalar: str) -> str:
    return (
        f"  %{name}.lane = insertelement <32 x i64> poison, i64 {scalar}, i32 0\n"
        f"  %{name} = shufflevector <32 x i64> %{name}.lane, <32 x i64> poison, <32 x i32> zeroinitializer\n"
    )


def _locate_window(name: str, low: int, end_field: str, pointer_field: str, per_lane: bool) -> str:
    """A memory of known size: bounds [low, end), host address = pointer + address (+ lane * size)."""
    stride = (
        "  %stride.1 = mul <32 x i64> %ends, <" + ", ".join(f"i64 {i}" for i in range(32)) + ">\n"
        "  %host = add <32 x i64> %near, %stride.1\n"
        if per_lane
        else "  %host = add <32 x i64> %near, splat (i64 0)\n"
    )
    return (
        f"define internal i32 @locate_{name}(ptr %state, i32 %mask, <32 x i64> %address, i64 %width, "
        "ptr %out) #0 {\n"
        + _field("end", end_field, "i64", 8)
        + _field("pointer", pointer_field, "i64", 8)
        + f"  %room.0 = add i64 %end, {1 - low}\n"
        "  %room.1 = call i64 @llvm.usub.sat.i64(i64 %room.0, i64 %width)\n"
        + _splat("room", "%room.1")
        + _splat("ends", "%end")
        + f"  %from = add <32 x i64> %address, splat (i64 {-low})\n"
        "  %outside = icmp uge <32 x i64> %from, %room\n"
        "  %low.bits = add i64 %width, -1\n"
        + _splat("lows", "%low.bits")
        + "  %rest = and <32 x i64> %address, %lows\n"
        "  %crooked = icmp ne <32 x i64> %rest, zeroinitializer\n"
        "  %bad.lanes = or <32 x i1> %outside, %crooked\n"
        "  %bad.all = bitcast <32 x i1> %bad.lanes to i32\n"
        "  %bad = and i32 %bad.all, %mask\n"
        + _splat("base", "%pointer")
        + "  %near = add <32 x i64> %address, %base\n"
        + stride
        + "  store <32 x i64> %host, ptr %out, align 64\n"
        "  ret i32 %bad\n}\n"
    )


def _locate_global() -> str:
    """Global memory: the interval that this instruction touched last, else a search of the table lane by
    lane. `site` is that interval's place in the state: its base and its end."""
    return (
        "define internal i32 @locate_global(ptr %state, i32 %mask, <32 x i64> %address, i64 %width, "
        "ptr %out, i64 %site) #0 {\nentry:\n"
        "  %site.p = getelementptr i8, ptr %state, i64 %site\n"
        "  %base = load i64, ptr %site.p, align 8\n"
        "  %site.end = getelementptr i8, ptr %site.p, i64 8\n"
        "  %end = load i64, ptr %site.end, align 8\n"
        "  %size = sub i64 %end, %base\n"
        "  %size.1 = add i64 %size, 1\n"
        "  %room.0 = call i64 @llvm.usub.sat.i64(i64 %size.1, i64 %width)\n"
        + _splat("room", "%room.0")
        + _splat("bases", "%base")
        + "  %from = sub <32 x i64> %address, %bases\n"
        "  %outside = icmp uge <32 x i64> %from, %room\n"
        "  %low.bits = add i64 %width, -1\n"
        + _splat("lows", "%low.bits")
        + "  %rest = and <32 x i64> %address, %lows\n"
        "  %crooked = icmp ne <32 x i64> %rest, zeroinitializer\n"
        "  %crooked.all = bitcast <32 x i1> %crooked to i32\n"
        "  %outside.all = bitcast <32 x i1> %outside to i32\n"
        "  %bad.align = and i32 %crooked.all, %mask\n"
        "  %bad.bounds = and i32 %outside.all, %mask\n"
        "  store <32 x i64> %address, ptr %out, align 64\n"
        "  %inside = icmp eq i32 %bad.bounds, 0\n"
        "  br i1 %inside, label %done, label %look\n"
        "look:\n"
        "  %missing = call i32 @search(ptr %state, i32 %bad.bounds, ptr %out, i64 %width, ptr %site.p)\n"
        "  br label %done\n"
        "done:\n"
        "  %lost = phi i32 [ 0, %entry ], [ %missing, %look ]\n"
        "  %bad = or i32 %lost, %bad.align\n"
        "  ret i32 %bad\n}\n" + _search()
    )


def _search() -> str:
    """The lanes of `mask` whose access lies in no allocation; the last one found is remembered at `site`."""
    return (
        "define internal i32 @search(ptr %state, i32 %mask, ptr %addresses, i64 %width, ptr %site) "
        "noinline #0 {\n"
        "entry:\n"
        + _field("bases", "bases", "ptr", 8)
        + _field("ends", "ends", "ptr", 8)
        + _field("count", "allocations", "i64", 8)
        + """  br label %lane
lane:
  %left = phi i32 [ %mask, %entry ], [ %left.next, %judged ]
  %bad = phi i32 [ 0, %entry ], [ %bad.next, %judged ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %begin
begin:
  %index = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %bit = shl i32 1, %index
  %address.p = getelementptr i64, ptr %addresses, i32 %index
  %address = load i64, ptr %address.p, align 8
  br label %halve
halve:
  %low = phi i64 [ 0, %begin ], [ %low.next, %step ]
  %high = phi i64 [ %count, %begin ], [ %high.next, %step ]
  %open = icmp ult i64 %low, %high
  br i1 %open, label %step, label %found
step:
  %sum = add i64 %low, %high
  %middle = lshr i64 %sum, 1
  %base.p = getelementptr i64, ptr %bases, i64 %middle
  %base = load i64, ptr %base.p, align 8
  %right = icmp ule i64 %base, %address
  %after = add i64 %middle, 1
  %low.next = select i1 %right, i64 %after, i64 %low
  %high.next = select i1 %right, i64 %high, i64 %middle
  br label %halve
found:
  %before = icmp eq i64 %low, 0
  br i1 %before, label %outside, label %candidate
candidate:
  %at = add i64 %low, -1
  %at.base.p = getelementptr i64, ptr %bases, i64 %at
  %at.base = load i64, ptr %at.base.p, align 8
  %at.end.p = getelementptr i64, ptr %ends, i64 %at
  %at.end = load i64, ptr %at.end.p, align 8
  %room = sub i64 %at.end, %address
  %past = icmp uge i64 %address, %at.end
  %short = icmp ult i64 %room, %width
  %wrong = or i1 %past, %short
  br i1 %wrong, label %outside, label %inside
inside:
  store i64 %at.base, ptr %site, align 8
  %site.end = getelementptr i8, ptr %site, i64 8
  store i64 %at.end, ptr %site.end, align 8
  br label %judged
outside:
  br label %judged
judged:
  %verdict = phi i32 [ 0, %inside ], [ %bit, %outside ]
  %bad.next = or i32 %bad, %verdict
  %left.1 = add i32 %left, -1
  %left.next = and i32 %left, %left.1
  br label %lane
done:
  ret i32 %bad
}
"""
    )


def _locate_generic() -> str:
    """Generic addresses: each window's lanes are located in their own memory."""
    shift = WINDOW_SIZE.bit_length() - 1
    text = (
        "define internal i32 @locate_generic(ptr %state, i32 %mask, <32 x i64> %address, i64 %width, ptr "
        "%out, i64 %site) #0 {\nentry:\n"
        f"  %window = lshr <32 x i64> %address, splat (i64 {shift})\n"
    )
    windows = (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW))
    for name, base in windows:
        text += (
            f"  %is.{name} = icmp eq <32 x i64> %window, splat (i64 {base >> shift})\n"
            f"  %bits.{name} = bitcast <32 x i1> %is.{name} to i32\n"
            f"  %mask.{name} = and i32 %bits.{name}, %mask\n"
        )
    text += (
        "  %other.1 = or i32 %mask.shared, %mask.local\n"
        "  %other = or i32 %other.1, %mask.param\n"
        "  %not.other = xor i32 %other, -1\n"
        "  %mask.global = and i32 %mask, %not.other\n"
        "  %part = alloca <32 x i64>, align 64\n"
        "  %bad.global = call i32 @locate_global(ptr %state, i32 %mask.global, <32 x i64> %address, "
        "i64 %width, ptr %out, i64 %site)\n"
        "  %windowed = icmp ne i32 %other, 0\n"
        "  br i1 %windowed, label %try.shared, label %plain\n"
        "plain:\n  ret i32 %bad.global\n"
    )
    previous, bad = "entry", "%bad.global"
    names = [name for name, _ in windows]
    for position, (name, base) in enumerate(windows):
        following = f"try.{names[position + 1]}" if position + 1 < len(names) else "finish"
        text += (
            f"try.{name}:\n"
            f"  %so.far.{name} = phi i32 "
            + (
                f"[ {bad}, %{previous} ]\n"
                if position == 0
                else f"[ %so.far.{names[position - 1]}, %try.{names[position - 1]} ], "
                f"[ %sum.{names[position - 1]}, %in.{names[position - 1]} ]\n"
            )
            + f"  %some.{name} = icmp ne i32 %mask.{name}, 0\n"
            f"  br i1 %some.{name}, label %in.{name}, label %{following}\n"
            f"in.{name}:\n"
            f"  %local.{name} = sub <32 x i64> %address, splat (i64 {base})\n"
            f"  %bad.{name} = call i32 @locate_{name}(ptr %state, i32 %mask.{name}, "
            f"<32 x i64> %local.{name}, i64 %width, ptr %part)\n"
            f"  %new.{name} = load <32 x i64>, ptr %part, align 64\n"
            f"  %old.{name} = load <32 x i64>, ptr %out, align 64\n"
            f"  %mix.{name} = select <32 x i1> %is.{name}, <32 x i64> %new.{name}, <32 x i64> %old.{name}\n"
            f"  store <32 x i64> %mix.{name}, ptr %out, align 64\n"
            f"  %sum.{name} = or i32 %so.far.{name}, %bad.{name}\n"
            f"  br label %{following}\n"
        )
    last = names[-1]
    return (
        text + f"finish:\n  %bad = phi i32 [ %so.far.{last}, %try.{last} ], [ %sum.{last}, %in.{last} ]\n"
        "  ret i32 %bad\n}\n"
    )


DECLARATIONS = {
    "@llvm.vector.reduce.umin.v32i32": "declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)",
    "@llvm.ctpop.i32": "declare i32 @llvm.ctpop.i32(i32)",
    "@llvm.cttz.i32": "declare i32 @llvm.cttz.i32(i32, i1)",
    "@llvm.usub.sat.i64": "declare i64 @llvm.usub.sat.i64(i64, i64)",
}


def runtime(blocks: Blocks) -> str:
    """The text of all of it."""
    return "\n".join(
        (
            dispatcher(blocks),
            record_fault(),
            _locate_window("shared", SHARED_BASE, "shared_end", "shared", False),
            _locate_window("param", 0, "param_size", "param", False),
            _locate_window("local", 0, "local_size", "local", True),
            _locate_global(),
            _locate_generic(),
        )
    )
