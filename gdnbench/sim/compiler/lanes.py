# SPDX-License-Identifier: Apache-2.0
"""Moves lanes' bytes between memory and vectors: one helper function per element size and vector length.

`fetch_E_N(hosts, mask, out)` reads N elements of E bytes for each lane into `out`, N rows of 32.
`put_E_N(hosts, mask, rows)` is its inverse, in ascending order of lanes, so the highest lane wins where lanes
write one address. Lanes with contiguous bytes, the common case, move as one block. On the CPUs measured,
gather and scatter instructions are no faster than a loop over the lanes.
"""

from __future__ import annotations

from gdnbench.sim.compiler.emit import I64, Code, Library, Value, const, lane_constants

LANES = 32
HOSTS, MASK, ROWS = Value(I64, "%hosts"), Value("i32", "%mask"), Value("ptr", "%rows")


def gather_helper(library: Library, size: int, count: int) -> str:
    """The name of the helper that reads `count` elements of `size` bytes for each lane."""
    name = f"fetch_{size}_{count}"
    library.helper(name, lambda name, library: _fetch(name, library, size, count))
    return name


def scatter_helper(library: Library, size: int, count: int) -> str:
    """The name of the helper that writes `count` elements of `size` bytes for each lane."""
    name = f"put_{size}_{count}"
    library.helper(name, lambda name, library: _put(name, library, size, count))
    return name


def _neighbours(code: Code, width: int) -> tuple[Value, Value, Value]:
    """(the first active lane's host address, offsets from it, whether all lanes are contiguous)."""
    first = code.extract(HOSTS, code.intrinsic("cttz", "i32", MASK, const("i1", 0)))
    apart = code.op("sub", HOSTS, code.splat(first))
    steps = lane_constants("i64", [lane * width for lane in range(LANES)])
    other = code.any(code.compare("icmp ne", apart, steps))
    full = code.comparei("icmp eq", MASK, -1)
    return first, apart, code.op("and", full, code.not_(other))


def _define(name: str, code: Code) -> str:
    head = f"define internal void @{name}({I64} %hosts, i32 %mask, ptr noalias %rows) noinline #0"
    return f"{head} {{\n{code.text()}\n}}\n"


def _lane_loop(code: Code, copy: tuple[str, str], width: int, table: Value, area: Value, done: str) -> None:
    """Copy `width` bytes for each set bit of the mask between the lane's host address and its bytes of
    `area`."""
    start, body, begin = code.label, code.new_label("lane"), code.new_label("begin")
    after = code.new_label("after")
    code.jump(begin)
    code.start_block(begin)
    left, left_next = code.name(), code.name()
    code.line(f"{left} = phi i32 [ %mask, %{start} ], [ {left_next}, %{body} ]")
    code.branch(code.comparei("icmp eq", Value("i32", left), 0), after, body)
    code.start_block(body)
    lane = code.intrinsic("cttz", "i32", Value("i32", left), const("i1", 0))
    lane64 = code.cast("zext", lane, "i64")
    host = code.load("i64", code.value("ptr", f"getelementptr i64, {table}, {lane64}"), 8)
    place = code.offset(area, code.opi("mul", lane64, width))
    remote = code.cast("inttoptr", host, "ptr")
    source, target = (remote, place) if copy == ("host", "area") else (place, remote)
    unit, align = (f"i{width * 8}", width) if width <= 8 else (f"<{width // 4} x i32>", 4)
    code.store(code.load(unit, source, align), target, align)
    lower = code.opi("add", Value("i32", left), -1)
    code.line(f"{left_next} = and i32 {left}, {lower.text}")
    code.jump(begin)
    code.start_block(after)
    code.jump(done)


def _fetch(name: str, library: Library, size: int, count: int) -> str:
    code = Code(library)
    width = size * count
    code.start_block("entry")
    area = code.value("ptr", f"alloca [{LANES * width} x i8], align 64")
    table = code.value("ptr", f"alloca {I64}, align 64")
    code.branch(code.comparei("icmp eq", MASK, 0), "nothing", "begin")
    code.start_block("nothing")
    code.line("ret void")
    code.start_block("begin")
    first, apart, follow = _neighbours(code, width)
    code.branch(follow, "block", "scattered")

    code.start_block("block")
    source = code.cast("inttoptr", first, "ptr")
    code.jump("spread")

    code.start_block("scattered")
    lanes = code.value("<32 x i1>", f"bitcast {MASK} to <32 x i1>")
    differs = code.op("and", code.comparei("icmp ne", apart, 0), lanes)
    code.branch(code.any(differs), "each", "same")

    code.start_block("same")
    element = f"i{size * 8}"
    for row in range(count):
        one = code.load(element, code.offset(code.cast("inttoptr", first, "ptr"), row * size), size)
        code.store(code.splat(one), code.offset(ROWS, row * LANES * size), min(64, LANES * size))
    code.line("ret void")

    code.start_block("each")
    code.store(HOSTS, table, 64)
    _lane_loop(code, ("host", "area"), width, table, area, "gathered")
    code.start_block("gathered")
    code.jump("spread")

    code.start_block("spread")
    pointer = code.phi("ptr", (source, "block"), (area, "gathered"))
    whole = code.load(f"<{LANES * count} x {element}>", pointer, size)
    for row in range(count):
        order = [lane * count + row for lane in range(LANES)]
        part = code.shuffle(whole, order) if count > 1 else whole
        code.store(part, code.offset(ROWS, row * LANES * size), min(64, LANES * size))
    code.line("ret void")
    return _define(name, code)


def _put(name: str, library: Library, size: int, count: int) -> str:
    code = Code(library)
    width = size * count
    element = f"i{size * 8}"
    code.start_block("entry")
    area = code.value("ptr", f"alloca [{LANES * width} x i8], align 64")
    table = code.value("ptr", f"alloca {I64}, align 64")
    code.branch(code.comparei("icmp eq", MASK, 0), "done", "begin")
    code.start_block("begin")
    kind = f"<{LANES} x {element}>"
    rows = [code.load(kind, code.offset(ROWS, r * LANES * size), min(64, LANES * size)) for r in range(count)]
    whole = _interleave(code, rows)
    first, _, follow = _neighbours(code, width)
    code.branch(follow, "block", "each")
    code.start_block("block")
    code.store(whole, code.cast("inttoptr", first, "ptr"), size)
    code.jump("done")
    code.start_block("each")
    code.store(HOSTS, table, 64)
    code.store(whole, area, min(64, LANES * size))
    _lane_loop(code, ("area", "host"), width, table, area, "done")
    code.start_block("done")
    code.line("ret void")
    return _define(name, code)


def _interleave(code: Code, rows: list[Value]) -> Value:
    """Interleave rows of 32 to a vector with the elements of each lane together. The number of rows is a
    power of two."""
    if len(rows) == 1:
        return rows[0]
    even, odd = _interleave(code, rows[0::2]), _interleave(code, rows[1::2])
    length = LANES * len(rows) // 2
    order = [index // 2 + (index % 2) * length for index in range(2 * length)]
    return code.shuffle(even, order, odd)


def collect(library: Library, width: int) -> str:
    """The helper that copies `width` bytes of each lane of the mask to contiguous memory, in order of
    lanes."""
    library.helper(f"collect_{width}", lambda name, library: _copy(name, library, width, ("host", "area")))
    return f"collect_{width}"


def spread(library: Library, width: int) -> str:
    """The inverse of `collect`."""
    library.helper(f"spread_{width}", lambda name, library: _copy(name, library, width, ("area", "host")))
    return f"spread_{width}"


def _copy(name: str, library: Library, width: int, copy: tuple[str, str]) -> str:
    code = Code(library)
    code.start_block("entry")
    table = code.value("ptr", f"alloca {I64}, align 64")
    code.store(HOSTS, table, 64)
    _lane_loop(code, copy, width, table, ROWS, "done")
    code.start_block("done")
    code.line("ret void")
    return _define(name, code)
