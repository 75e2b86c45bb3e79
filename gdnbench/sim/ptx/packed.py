# SPDX-License-Identifier: Apache-2.0
"""Instructions that compute each element of a packed result alone, so that an element without a value leaves
the others theirs.

    fma.rn.f32x2 %rd2, %rd0, %rd1, %rd1;      each half of %rd2 from the same half of the sources
    cvt.rn.bf16x2.f32 %r2, %r0, %r1;          the upper half from %r0, the lower from %r1 (PTX ISA 9.7.9.21)

Compilers that vectorise pad with undefined elements: LLVM computes one float with fma.rn.f32x2 and discards
the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.ptx.ir import Immediate, Instruction, Register
from gdnbench.sim.ptx.literals import width_of

_BY_ELEMENT = frozenset(("add", "sub", "mul", "fma", "min", "max", "abs", "neg", "ex2", "tanh", "cvt"))


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a result: the mask of its bytes in the destination, and by source, in order, the mask of
    the bytes that it is computed from."""

    result: int
    sources: tuple[int, ...]


def elements_of(ins: Instruction) -> tuple[Element, ...]:
    """The elements that `ins` computes each alone, low first; none if it does not, or if an element is not of
    whole bytes."""
    if ins.op not in _BY_ELEMENT or not ins.types or len(ins.dests) != 1:
        return ()
    of_result, of_sources = ins.types[0], ins.types[-1]
    count = _count(of_result)
    whole, width = width_of(of_result), width_of(of_sources)
    if count == 1 or whole % (8 * count) or not _has_width(ins.dests[0], whole):
        return ()
    if not all(_has_width(source, width) for source in ins.sources):
        return ()
    places = range(len(ins.sources))
    results = [_bytes(whole // count, element) for element in range(count)]
    if _count(of_sources) == count and not width % (8 * count):
        return tuple(
            Element(result, tuple(_bytes(width // count, element) for _ in places))
            for element, result in enumerate(results)
        )
    if ins.op == "cvt" and of_sources == "f32" and len(ins.sources) == count:
        return tuple(
            Element(
                result, tuple(_bytes(width, 0) if place == count - 1 - element else 0 for place in places)
            )
            for element, result in enumerate(results)
        )
    return ()


def _count(type_name: str) -> int:
    return int(type_name.partition("x")[2] or 1)


def _has_width(operand: object, bits: int) -> bool:
    return isinstance(operand, Immediate) or (isinstance(operand, Register) and operand.bits == bits)


def _bytes(bits: int, element: int) -> int:
    """The mask of the bytes of an element of `bits` bits."""
    size = bits // 8
    return ((1 << size) - 1) << size * element
