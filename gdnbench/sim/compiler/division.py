# SPDX-License-Identifier: Apache-2.0
"""Helper functions for integer operations that CPUs do not have 32 wide: division, and the n-th set bit.

32-bit and narrower quotients are computed in fp64. |a / b| < 2^32 and b has at most 32 bits, so a non-integer
quotient is at least 2^-32 from an integer, far more than the error of fp64; the truncation is exact.
"""

from __future__ import annotations

from gdnbench.sim.compiler.emit import F64, I32, I64, LANES, Code, Library, Value, const, lanes_of


def define_division(library: Library, op: str, kind: str) -> str:
    """The helper `value op(a, b)` for `div` or `rem`. Division by zero is unspecified in the PTX ISA; a GPU
    returns all ones, and the dividend as remainder."""
    name = f"{op}_{kind}"
    library.helper(name, lambda name, library: _define(name, library, op, kind))
    return name


def _define(name: str, library: Library, op: str, kind: str) -> str:
    bits = int(kind[1:])
    vector = lanes_of(f"i{bits}")
    code = Code(library)
    code.start_block("entry")
    a, b = Value(vector, "%a"), Value(vector, "%b")
    zero = code.comparei("icmp eq", b, 0)
    if bits == 64:
        quotient = _lane_by_lane(code, kind, a, b, zero)
    else:
        divisor = code.select(zero, const(vector, 1), b)
        conversion = ("sitofp", "fptosi") if kind[0] == "s" else ("uitofp", "fptoui")
        ratio = code.op("fdiv", code.cast(conversion[0], a, F64), code.cast(conversion[0], divisor, F64))
        # MIN / -1 is 2^31, which wraps when truncated from 64 bits.
        quotient = code.resize(code.cast("fptosi", code.intrinsic("trunc", F64, ratio), I64), vector)
    if op == "div":
        result = code.select(zero, const(vector, -1), quotient)
    else:
        result = code.select(zero, a, code.op("sub", a, code.op("mul", quotient, b)))
    code.line(f"ret {result}")
    return f"define internal {vector} @{name}({vector} %a, {vector} %b) noinline #0 {{\n{code.text()}\n}}\n"


def _lane_by_lane(code: Code, kind: str, a: Value, b: Value, zero: Value) -> Value:
    """64-bit quotients. MIN / -1 wraps; the CPU's division would trap."""
    safe = zero
    wraps = None
    if kind[0] == "s":
        wraps = code.comparei("icmp eq", b, -1)
        safe = code.op("or", zero, wraps)
    divisor = code.select(safe, const(I64, 1), b)
    opcode = "sdiv" if kind[0] == "s" else "udiv"
    quotient = Value(I64, "poison")
    for lane in range(LANES):
        one = code.op(opcode, code.extract(a, lane), code.extract(divisor, lane))
        quotient = code.value(I64, f"insertelement {quotient}, {one}, i32 {lane}")
    if wraps is not None:
        quotient = code.select(wraps, code.op("sub", const(I64, 0), a), quotient)
    return quotient


def find_nth_set(library: Library) -> str:
    """The helper behind `fns`: walks the 32 positions from the base and counts."""
    library.helper("find_nth_set", _find_nth_set)
    return "find_nth_set"


def _find_nth_set(name: str, library: Library) -> str:
    code = Code(library)
    mask, base, offset = Value(I32, "%mask"), Value(I32, "%base"), Value(I32, "%offset")
    code.start_block("entry")
    down = code.comparei("icmp slt", offset, 0)
    step = code.select(down, const(I32, -1), const(I32, 1))
    size = code.intrinsic("abs", I32, offset, const("i1", 0))
    wanted = code.intrinsic("umax", I32, size, const(I32, 1))
    left, result, position = wanted, const(I32, -1), base
    # With offset 0 only the base itself counts.
    only_base = code.comparei("icmp eq", offset, 0)
    for distance in range(32):
        inside = code.comparei("icmp ult", position, 32)
        bit = code.op("lshr", mask, code.opi("and", position, 31))
        hit = code.op("and", code.value("<32 x i1>", f"trunc {bit} to <32 x i1>"), inside)
        if distance:
            hit = code.op("and", hit, code.not_(only_base))
        left = code.op("sub", left, code.cast("zext", hit, I32))
        done = code.op("and", hit, code.comparei("icmp eq", left, 0))
        result = code.select(done, position, result)
        position = code.op("add", position, step)
    code.line(f"ret {result}")
    head = f"define internal {I32} @{name}({I32} %mask, {I32} %base, {I32} %offset) noinline #0"
    return f"{head} {{\n{code.text()}\n}}\n"
