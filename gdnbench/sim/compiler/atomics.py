# SPDX-License-Identifier: Apache-2.0
"""atom and red: a helper function executes the active lanes one by one, in ascending order. CTAs of kernels
that use atomics on global memory run in one thread (machine/grid.py)."""

from __future__ import annotations

from gdnbench.sim.compiler.access_log import log_access
from gdnbench.sim.compiler.emit import I64, Code, Library, Value, bits_of, const, lanes_of
from gdnbench.sim.compiler.floating import extremum
from gdnbench.sim.compiler.formats import canonical, encode, flush32, to_f32
from gdnbench.sim.compiler.memory import count_access, locate, space_in, zero_elsewhere
from gdnbench.sim.compiler.translator import Translate, Translator
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.engine_interface import SHARED_WINDOW, WINDOW_SIZE
from gdnbench.sim.ptx.ir import Instruction, Vector
from gdnbench.sim.ptx.literals import width_of

_NAMES = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")
_FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def _integer(code: Code, name: str, kind: str, old: Value, b: Value, c: Value) -> Value:
    """The new value of one lane."""
    if name in ("add", "and", "or", "xor"):
        return code.op(name, old, b)
    if name in ("min", "max"):
        return code.intrinsic(f"{kind[0]}{name}", old.type, old, b)
    if name == "exch":
        return b
    if name == "cas":
        return code.select(code.compare("icmp eq", old, b), c, old)
    one, zero = const(old.type, 1), const(old.type, 0)
    if name == "inc":
        return code.select(code.compare("icmp uge", old, b), zero, code.op("add", old, one))
    spent = code.op("or", code.compare("icmp eq", old, zero), code.compare("icmp ugt", old, b))
    return code.select(spent, b, code.op("sub", old, one))


def _float(code: Code, name: str, kind: str, old: Value, b: Value, flushing: Value) -> Value:
    """The new value of one lane, computed by the vector operations on a vector of 32 copies."""
    element = kind.removesuffix("x2")
    if kind == "f64":
        wide = [code.bits(code.splat(x), lanes_of("double")) for x in (old, b)]
        return code.extract(canonical(code, code.op("fadd", *wide)), 0)
    size = 32 if element == "f32" else 16
    results = []
    for index in range(bits_of(old.type) // size):
        pair = []
        for source in (old, b):
            part = code.opi("lshr", source, index * size) if index else source
            part = code.cast("trunc", part, f"i{size}") if bits_of(part.type) > size else part
            pair.append(to_f32(code, element, code.splat(part)))
        results.append(code.extract(_combine(code, name, element, pair, flushing), 0))
    if len(results) == 1:
        return results[0]
    low, high = (code.cast("zext", part, "i32") for part in results)
    return code.op("or", low, code.opi("shl", high, 16))


def _combine(code: Code, name: str, element: str, pair: list[Value], flushing: Value) -> Value:
    """Sums round to nearest even. f32 sums flush subnormals in global memory and keep them in shared memory
    (PTX ISA, "atom")."""
    if name != "add":
        return encode(code, element, extremum(code, pair[0], pair[1], name == "max", False))
    if element != "f32":
        return encode(code, element, code.op("fadd", *pair))
    plain = encode(code, "f32", code.op("fadd", *pair))
    total = code.op("fadd", *(flush32(code, value) for value in pair))
    return code.select(code.splat(flushing), encode(code, "f32", flush32(code, total)), plain)


def _helper(library: Library, name: str, kind: str) -> str:
    full = f"atomic_{name}_{kind}"
    library.helper(full, lambda full, library: _define(full, library, name, kind))
    return full


def _define(full: str, library: Library, name: str, kind: str) -> str:
    """`(hosts, mask, in_shared, b, c, old)`: updates memory and fills `old`; b, c and old are rows of 32."""
    bits = width_of(kind)
    scalar, size = f"i{bits}", bits // 8
    code = Code(library)
    code.start_block("entry")
    table = code.value("ptr", f"alloca {I64}, align 64")
    code.store(Value(I64, "%hosts"), table, 64)
    code.jump("begin")
    code.start_block("begin")
    code.line("%left = phi i32 [ %mask, %entry ], [ %next, %last ]")
    code.branch(code.comparei("icmp eq", Value("i32", "%left"), 0), "done", "body")
    code.start_block("body")
    lane = code.intrinsic("cttz", "i32", Value("i32", "%left"), const("i1", 0))
    index = code.cast("zext", lane, "i64")
    address = code.load("i64", code.value("ptr", f"getelementptr i64, {table}, {index}"), 8)
    place = code.cast("inttoptr", address, "ptr")
    old = code.load(scalar, place, size)
    row = code.opi("mul", index, size)
    b, c = (code.load(scalar, code.offset(Value("ptr", p), row), size) for p in ("%b", "%c"))
    if kind in _FLOATS:
        shifted = code.op("lshr", Value("i32", "%in_shared"), lane)
        flushing = code.comparei("icmp eq", code.opi("and", shifted, 1), 0)
        new = _float(code, name, kind, old, b, flushing)
    else:
        new = _integer(code, name, kind, old, b, c)
    code.store(new, place, size)
    code.store(old, code.offset(Value("ptr", "%old"), row), size)
    code.jump("last")
    code.start_block("last")
    lower = code.opi("add", Value("i32", "%left"), -1)
    code.line(f"%next = and i32 %left, {lower.text}")
    code.jump("begin")
    code.start_block("done")
    code.line("ret void")
    head = f"define internal void @{full}({I64} %hosts, i32 %mask, i32 %in_shared, ptr %b, ptr %c, ptr %old)"
    return f"{head} noinline #0 {{\n{code.text()}\n}}\n"


def atomic(t: Translator, ins: Instruction) -> None:
    """Vectors are updated one element after another."""
    name = ins.choice(*_NAMES)
    space = space_in(t, ins)
    code, kind = t.code, ins.types[0]
    bits = width_of(kind)
    size = bits // 8
    operands = ins.sources[1 : 3 if name == "cas" else 2]
    rows = [operand.elements if isinstance(operand, Vector) else (operand,) for operand in operands]
    dests = tuple(ins.written())
    if any(len(row) != ins.vec for row in rows) or len(dests) not in (0, ins.vec):
        raise UnsupportedError(ins.name)
    base = t.address(ins, ins.sources[0])
    # Read all sources before writing the first result: a destination may be a source too.
    values = [[t.read(part, bits) for part in row] for row in rows]
    results = []
    everyone = t.active
    for index in range(ins.vec):
        address = code.opi("add", base, index * size) if index else base
        hosts = locate(t, ins, space, address, size, index)
        b, c, old = (t.scratch_at(place * 256) for place in (1, 2, 3))
        code.store(values[0][index], b, 32 if size == 1 else 64)
        code.store(values[-1][index], c, 32 if size == 1 else 64)
        mask = code.mask_bits(t.active)
        helper = _helper(code.library, name, kind)
        code.call_void(helper, hosts, mask, _shared_lanes(t, space, address), b, c, old)
        results += zero_elsewhere(t, [code.load(lanes_of(f"i{bits}"), old, 64)])
        if dests:
            count_access(t, space, address, size, load=True)
        count_access(t, space, address, size, load=False)
    log_access(t, ins, base)
    t.active = everyone
    for dest, result in zip(dests, results, strict=False):
        t.write(dest, result)


def _shared_lanes(t: Translator, space: str, address: Value) -> Value:
    """The lanes whose address is in shared memory."""
    if space != "generic":
        return const("i32", -1 if space in ("shared", "cluster") else 0)
    shift = WINDOW_SIZE.bit_length() - 1
    window = t.code.opi("lshr", t.code.resize(address, I64), shift)
    return t.code.mask_bits(t.code.comparei("icmp eq", window, SHARED_WINDOW >> shift))


TABLE: dict[str, Translate] = {"atom": atomic, "red": atomic}
