# SPDX-License-Identifier: Apache-2.0
"""Helpers for sixteen lanes of LLVM IR, used by `codegen`: vector types, constants and small functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

LANES = 16

Value = Any  # llvmlite is untyped

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
V_I1, V_I32, V_I64 = (ir.VectorType(t, LANES) for t in (I1, I32, I64))
V_F32, V_F64 = ir.VectorType(F32, LANES), ir.VectorType(F64, LANES)
POINTER = ir.PointerType()


def constant(type_: Any, value: float) -> Value:
    """A constant in every lane of a vector type."""
    return ir.Constant(type_, [ir.Constant(type_.element, value)] * LANES)


def ints(value: int) -> Value:
    return constant(V_I32, value)


def floats(value: float) -> Value:
    return constant(V_F32, value)


def splat(b: ir.IRBuilder, scalar: Value) -> Value:
    """A scalar in every lane."""
    type_ = ir.VectorType(scalar.type, LANES)
    first = b.insert_element(ir.Constant(type_, ir.Undefined), scalar, I32(0))
    return b.shuffle_vector(first, ir.Constant(type_, ir.Undefined), ints(0))


def intrinsic(b: ir.IRBuilder, name: str, result: Any, *args: Value) -> Value:
    """Call an intrinsic by its full name, declared on first use."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def smax(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    return b.select(b.icmp_signed(">", x, y), x, y)


def smin(b: ir.IRBuilder, x: Value, y: Value) -> Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def power_of_two(b: ir.IRBuilder, exponent: Value) -> Value:
    """2^exponent as floats, for exponents of normal floats."""
    return b.bitcast(b.shl(b.add(exponent, ints(127)), ints(23)), V_F32)


def power_of_two_f64(b: ir.IRBuilder, exponent: Value) -> Value:
    """2^exponent as doubles, for exponents of normal doubles."""
    field = b.sext(b.add(exponent, ints(1023)), V_I64)
    return b.bitcast(b.shl(field, constant(V_I64, 52)), V_F64)


def element(b: ir.IRBuilder, base: Value, type_: Any, index: Value) -> Value:
    """The address of `base[index]`."""
    return b.gep(base, [index], source_etype=type_)


def stack_array(b: ir.IRBuilder, type_: Any, count: int, name: str) -> Value:
    """An array in the function's frame, aligned for vectors."""
    array = b.alloca(ir.ArrayType(type_, count), name=name)
    array.align = 64
    array.type = POINTER  # llvmlite's is typed and would take no vector
    return array


def load(b: ir.IRBuilder, type_: Any, base: Value, index: Value) -> Value:
    return b.load(element(b, base, type_, index), typ=type_)


@contextmanager
def counted(b: ir.IRBuilder, stop: Value, step: int, name: str) -> Iterator[Value]:
    """`for i in range(0, stop, step)` around the block; i is an i64."""
    before = b.block
    head = b.append_basic_block(f"{name}.head")
    body = b.append_basic_block(f"{name}.body")
    after = b.append_basic_block(f"{name}.after")
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64, name)
    i.add_incoming(I64(0), before)
    b.cbranch(b.icmp_signed("<", i, stop), body, after)
    b.position_at_end(body)
    yield i
    i.add_incoming(b.add(i, I64(step)), b.block)
    b.branch(head)
    b.position_at_end(after)
