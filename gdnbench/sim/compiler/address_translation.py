# SPDX-License-Identifier: Apache-2.0
"""Address translation: native functions that turn 32 addresses of a state space into host addresses.

The functions are LLVM IR as text. Each writes the host addresses to `out` and returns the lanes of `mask`
whose access is misaligned or out of bounds. Python then raises the fault.
"""

from __future__ import annotations

from gdnbench.sim.compiler.layout import load_field
from gdnbench.sim.machine.engine_interface import (
    CLUSTER_STRIDE,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_BASE,
    SHARED_WINDOW,
    WINDOW_SIZE,
)


def _splat(name: str, scalar: str) -> str:
    return (
        f"  %{name}.lane = insertelement <32 x i64> poison, i64 {scalar}, i32 0\n"
        f"  %{name} = shufflevector <32 x i64> %{name}.lane, <32 x i64> poison, <32 x i32> zeroinitializer\n"
    )


def _locate_window(name: str, low: int, end_field: str, pointer_field: str, per_lane: bool) -> str:
    """A memory of fixed size: bounds [low, end), host address = pointer + address (+ lane * size)."""
    stride = (
        "  %stride.1 = mul <32 x i64> %ends, <" + ", ".join(f"i64 {i}" for i in range(32)) + ">\n"
        "  %host = add <32 x i64> %near, %stride.1\n"
        if per_lane
        else "  %host = add <32 x i64> %near, splat (i64 0)\n"
    )
    return (
        f"define internal i32 @locate_{name}(ptr %state, i32 %mask, <32 x i64> %address, i64 %width, "
        "ptr %out) #0 {\n"
        + load_field("end", end_field, "i64", 8)
        + load_field("pointer", pointer_field, "i64", 8)
        + f"  %room.0 = add i64 %end, {1 - low}\n"
        "  %room.1 = call i64 @llvm.usub.sat.i64(i64 %room.0, i64 %width)\n"
        + _splat("room", "%room.1")
        + _splat("ends", "%end")
        + f"  %from = add <32 x i64> %address, splat (i64 {-low})\n"
        "  %outside = icmp uge <32 x i64> %from, %room\n"
        + _check_alignment()
        + _splat("base", "%pointer")
        + "  %near = add <32 x i64> %address, %base\n"
        + stride
        + "  store <32 x i64> %host, ptr %out, align 64\n"
        "  ret i32 %bad\n}\n"
    )


def _check_alignment() -> str:
    """`%bad`: the active lanes that are `%outside` or misaligned."""
    return (
        "  %low.bits = add i64 %width, -1\n"
        + _splat("lows", "%low.bits")
        + "  %rest = and <32 x i64> %address, %lows\n"
        "  %crooked = icmp ne <32 x i64> %rest, zeroinitializer\n"
        "  %bad.lanes = or <32 x i1> %outside, %crooked\n"
        "  %bad.all = bitcast <32 x i1> %bad.lanes to i32\n"
        "  %bad = and i32 %bad.all, %mask\n"
    )


def _locate_in_cluster(name: str, outside: str) -> str:
    """Shared memory in a cluster, whose CTAs have one array: host address = pointer + address. The text
    `outside` computes the lanes `%outside` from `%address`, from `%first`, where the CTA's own memory begins,
    and from `%room`, how far from the start of a CTA's memory an access may begin, plus 1."""
    return (
        f"define internal i32 @locate_{name}(ptr %state, i32 %mask, <32 x i64> %address, i64 %width, "
        "ptr %out) #0 {\n"
        + load_field("end", "shared_end", "i64", 8)
        + load_field("first", "shared_first", "i64", 8)
        + load_field("pointer", "shared", "i64", 8)
        + "  %size = sub i64 %end, %first\n"
        "  %room.0 = add i64 %size, 1\n"
        "  %room.1 = call i64 @llvm.usub.sat.i64(i64 %room.0, i64 %width)\n"
        + _splat("room", "%room.1")
        + outside
        + _check_alignment()
        + _splat("base", "%pointer")
        + "  %host = add <32 x i64> %address, %base\n"
        "  store <32 x i64> %host, ptr %out, align 64\n"
        "  ret i32 %bad\n}\n"
    )


def _locate_own() -> str:
    """The CTA's own shared memory in a cluster: bounds [shared_first, shared_end)."""
    return _locate_in_cluster(
        "shared",
        _splat("firsts", "%first") + "  %from = sub <32 x i64> %address, %firsts\n"
        "  %outside = icmp uge <32 x i64> %from, %room\n",
    )


def _locate_cluster() -> str:
    """The shared memory of any CTA of the cluster that has not exited. All CTAs have equally much."""
    shift = CLUSTER_STRIDE.bit_length() - 1
    return _locate_in_cluster(
        "cluster",
        load_field("alive", "alive", "ptr", 8) + "  %bits = load i64, ptr %alive, align 8\n"
        f"  %offset = and <32 x i64> %address, splat (i64 {CLUSTER_STRIDE - 1})\n"
        f"  %from = add <32 x i64> %offset, splat (i64 {-SHARED_BASE})\n"
        "  %far = icmp uge <32 x i64> %from, %room\n"
        f"  %rank = lshr <32 x i64> %address, splat (i64 {shift})\n"
        "  %beyond = icmp uge <32 x i64> %rank, splat (i64 64)\n"
        "  %rank.1 = and <32 x i64> %rank, splat (i64 63)\n"
        + _splat("each", "%bits")
        + "  %moved = lshr <32 x i64> %each, %rank.1\n"
        "  %there = trunc <32 x i64> %moved to <32 x i1>\n"
        "  %gone = xor <32 x i1> %there, splat (i1 true)\n"
        "  %outside.1 = or <32 x i1> %far, %beyond\n"
        "  %outside = or <32 x i1> %outside.1, %gone\n",
    )


def _locate_global() -> str:
    """Global memory: first try the interval that this instruction accessed last, then search the table lane
    by lane. `site` is the offset of that interval, base and end, in the state."""
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
        "  ret i32 %bad\n}\n"
    )


def _search() -> str:
    """The lanes of `mask` whose access is in no allocation; `site` then has the last interval found."""
    return (
        "define internal i32 @search(ptr %state, i32 %mask, ptr %addresses, i64 %width, ptr %site) "
        "noinline #0 {\n"
        "entry:\n"
        + load_field("bases", "bases", "ptr", 8)
        + load_field("ends", "ends", "ptr", 8)
        + load_field("count", "allocations", "i64", 8)
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


def _locate_generic(shared: str) -> str:
    """Generic addresses: the lanes of each window are located in its memory, those of the shared window by
    the function `shared`."""
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
    functions = {name: f"locate_{name}" for name, _ in windows} | {"shared": shared}
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
            f"  %bad.{name} = call i32 @{functions[name]}(ptr %state, i32 %mask.{name}, "
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


def locators(*, clustered: bool = False) -> tuple[str, ...]:
    """The texts of `locate_shared`, `_param`, `_local`, `_global` and `_generic`, of `search`, and in a
    launch with clusters of `locate_cluster`."""
    shared = (_locate_own(), _locate_cluster()) if clustered else (_locate_alone(),)
    return (
        *shared,
        _locate_window("param", 0, "param_size", "param", False),
        _locate_window("local", 0, "local_size", "local", True),
        _locate_global(),
        _search(),
        _locate_generic("locate_cluster" if clustered else "locate_shared"),
    )


def _locate_alone() -> str:
    """The shared memory of a CTA without a cluster."""
    return _locate_window("shared", SHARED_BASE, "shared_end", "shared", False)
