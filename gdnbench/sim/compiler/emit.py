# SPDX-License-Identifier: Apache-2.0
"""Writes LLVM IR as text: function bodies with numbered values, and the declarations that they need.

Values are typed names. Lane values are vectors of 32: `<32 x i32>`, `<32 x float>`, and `<32 x i1>` for
predicates and masks. Text is several times faster than one object per instruction; a kernel of a few thousand
PTX instructions makes tens of thousands of lines.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LANES = 32


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value or a constant: its type and its text."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def lanes_of(element: str) -> str:
    """The vector type with one element per lane."""
    return f"<{LANES} x {element}>"


I1, I8, I16, I32, I64 = (lanes_of(f"i{bits}") for bits in (1, 8, 16, 32, 64))
F32, F64 = lanes_of("float"), lanes_of("double")


def element_of(vector: str) -> str:
    """`<32 x i32>` -> `i32`."""
    return vector.split(" x ", 1)[1][:-1] if vector.startswith("<") else vector


def bits_of(type_name: str) -> int:
    """Bits of one element."""
    element = element_of(type_name)
    return {"float": 32, "double": 64, "half": 16}.get(element) or int(element[1:])


def const(type_name: str, value: int) -> Value:
    """An integer constant in all lanes, signed or unsigned."""
    bits = bits_of(type_name)
    value &= (1 << bits) - 1
    if bits == 1:
        text = "true" if value else "false"
    else:
        text = str(value - (1 << bits) if value >> (bits - 1) else value)
    if not type_name.startswith("<"):
        return Value(type_name, text)
    return Value(type_name, f"splat ({element_of(type_name)} {text})")


def lane_constants(element: str, values: Sequence[int]) -> Value:
    """A constant with a separate value in each lane."""
    return Value(f"<{len(values)} x {element}>", "<" + ", ".join(f"{element} {v}" for v in values) + ">")


def f64_const(value: float) -> Value:
    """A double in all lanes."""
    return Value(F64, f"splat (double 0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X})")


def f32_const(value: float) -> Value:
    """The f32 nearest to `value` in all lanes; LLVM writes it as the double of the same value."""
    (near,) = struct.unpack("<f", struct.pack("<f", value))
    return Value(F32, f64_const(near).text.replace("double", "float"))


LANE_IDS = lane_constants("i32", range(LANES))


@dataclass(frozen=True, slots=True)
class Helper:
    """A function that blocks call: its definition, the declarations of intrinsics and constants that it
    needs, and the names of the helpers that it calls."""

    text: str
    declarations: dict[str, str]
    calls: frozenset[str]


_BEING_DEFINED = Helper("", {}, frozenset())


@dataclass(slots=True)
class Library:
    """What the functions of a module need: declarations of intrinsics and constants, and the helper functions
    that they call. `helpers`, by name, are those defined so far; libraries may share them."""

    declarations: dict[str, str] = field(default_factory=dict)
    helpers: dict[str, Helper] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)

    def helper(self, name: str, define: Callable[[str, Library], str]) -> None:
        """Define the helper function if it does not exist; `define(name, library)` writes its text."""
        if name not in self.helpers:
            self.helpers[name] = _BEING_DEFINED  # a helper may use another helper, not itself
            own = Library(helpers=self.helpers)
            text = define(name, own)
            self.helpers[name] = Helper(text, own.declarations, frozenset((*own.called, *_CALLED(text))))

    def all_called(self) -> dict[str, Helper]:
        """The helpers that the module's functions call, directly or through each other."""
        found: dict[str, Helper] = {}
        pending = sorted(self.called)
        while pending:
            name = pending.pop()
            if name in self.helpers and name not in found:
                found[name] = self.helpers[name]
                pending += sorted(found[name].calls)
        return found


_CALLED = re.compile(r"call [^@\n]*@([\w.]+)\(").findall


class Code:
    """The body of one function under construction."""

    def __init__(self, library: Library, entered: Value | None = None) -> None:
        """`entered` is the bits of the mask `%lanes`, if the function has them."""
        self.library = library
        self.entered = entered
        self.lines: list[str] = []
        self.label = "entry"
        self._next = 0

    # Lines and labels

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def name(self) -> str:
        self._next += 1
        return f"%v{self._next}"

    def new_label(self, stem: str) -> str:
        self._next += 1
        return f"{stem}{self._next}"

    def start_block(self, label: str) -> None:
        """Start the basic block `label`."""
        self.lines.append(f"{label}:")
        self.label = label

    def value(self, type_name: str, text: str) -> Value:
        """A new value defined by the instruction `text`."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return Value(type_name, name)

    # Arithmetic

    def op(self, opcode: str, a: Value, b: Value) -> Value:
        """An instruction `opcode type a, b` whose result has the operands' type."""
        return self.value(a.type, f"{opcode} {a}, {b.text}")

    def opi(self, opcode: str, a: Value, immediate: int) -> Value:
        """`op` with a constant."""
        return self.op(opcode, a, const(a.type, immediate))

    def compare(self, opcode: str, a: Value, b: Value) -> Value:
        """`icmp ult`, `fcmp olt`, ... -> a mask."""
        return self.value(I1 if a.type.startswith("<") else "i1", f"{opcode} {a}, {b.text}")

    def comparei(self, opcode: str, a: Value, immediate: int) -> Value:
        return self.compare(opcode, a, const(a.type, immediate))

    def cast(self, opcode: str, a: Value, type_name: str) -> Value:
        """zext, sext, trunc, bitcast, fpext, ...; no instruction if the type is already right."""
        if a.type == type_name:
            return a
        return self.value(type_name, f"{opcode} {a} to {type_name}")

    def bits(self, a: Value, type_name: str) -> Value:
        return self.cast("bitcast", a, type_name)

    def resize(self, a: Value, type_name: str, *, signed: bool = False) -> Value:
        """An integer extended or truncated to another width."""
        have, want = bits_of(a.type), bits_of(type_name)
        if have == want:
            return a
        return self.cast("trunc" if want < have else "sext" if signed else "zext", a, type_name)

    def select(self, mask: Value, yes: Value, no: Value) -> Value:
        """`yes` where the mask is set, `no` elsewhere."""
        return self.value(yes.type, f"select {mask}, {self._frozen(yes)}, {self._frozen(no)}")

    def _frozen(self, a: Value) -> Value:
        """`a`, opaque to instruction selection. LLVM 22.1 joins `select m, (x & C) | (y & ~C), y` in one
        masked vpternlog with its operands in the wrong order if C is a constant and x is in memory."""
        if not a.type.startswith("<") or not a.text.startswith("%"):
            return a
        return self.value(a.type, f"freeze {a}")

    def fneg(self, a: Value) -> Value:
        return self.value(a.type, f"fneg {a}")

    def not_(self, a: Value) -> Value:
        return self.opi("xor", a, -1)

    # Vectors

    def splat(self, scalar: Value, count: int = LANES) -> Value:
        """A scalar in all lanes."""
        vector = f"<{count} x {scalar.type}>"
        first = self.value(vector, f"insertelement {vector} poison, {scalar}, i32 0")
        return self.value(vector, f"shufflevector {first}, {vector} poison, <{count} x i32> zeroinitializer")

    def extract(self, vector: Value, lane: Value | int) -> Value:
        index = f"i32 {lane}" if isinstance(lane, int) else str(lane)
        return self.value(element_of(vector.type), f"extractelement {vector}, {index}")

    def shuffle(self, vector: Value, order: Sequence[int], other: Value | None = None) -> Value:
        """Elements of `vector`, followed by those of `other`, in the given order."""
        second = str(other) if other is not None else f"{vector.type} poison"
        mask = lane_constants("i32", order)
        result = f"<{len(order)} x {element_of(vector.type)}>"
        return self.value(result, f"shufflevector {vector}, {second}, {mask}")

    def mask_bits(self, mask: Value) -> Value:
        """<32 x i1> -> i32."""
        if mask.text == "%lanes" and self.entered is not None:
            return self.entered
        return self.bits(mask, "i32")

    def any(self, mask: Value) -> Value:
        return self.compare("icmp ne", self.mask_bits(mask), const("i32", 0))

    # Calls

    def intrinsic(self, name: str, result: str, *arguments: Value, suffix: str | None = None) -> Value:
        """`@llvm.name.suffix`; the suffix defaults to that of the result's type."""
        full = f"@llvm.{name}.{suffix if suffix is not None else mangled(result)}".rstrip(".")
        self.declare(full, result, *(a.type for a in arguments))
        return self.value(result, f"call {result} {full}({', '.join(map(str, arguments))})")

    def declare(self, full: str, result: str, *types: str) -> None:
        self.library.declarations.setdefault(full, f"declare {result} {full}({', '.join(types)})")

    def call(self, name: str, result: str, *arguments: Value) -> Value:
        """A call of a helper or runtime function."""
        self.library.called.add(name)
        return self.value(result, f"call {result} @{name}({', '.join(map(str, arguments))})")

    def call_void(self, name: str, *arguments: Value) -> None:
        self.library.called.add(name)
        self.line(f"call void @{name}({', '.join(map(str, arguments))})")

    # Memory and control

    def offset(self, base: Value, amount: Value | int) -> Value:
        """A pointer `amount` bytes further."""
        index = f"i64 {amount}" if isinstance(amount, int) else str(amount)
        if index == "i64 0":
            return base
        result = "ptr" if not index.startswith("<") else lanes_of("ptr")
        return self.value(result, f"getelementptr i8, {base}, {index}")

    def load(self, type_name: str, pointer: Value, align: int) -> Value:
        return self.value(type_name, f"load {type_name}, {pointer}, align {align}")

    def store(self, value: Value, pointer: Value, align: int) -> None:
        self.line(f"store {value}, {pointer}, align {align}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.line(f"br {condition}, label %{yes}, label %{no}")

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def phi(self, type_name: str, *arms: tuple[Value, str]) -> Value:
        return self.value(type_name, f"phi {type_name} " + ", ".join(f"[ {v.text}, %{b} ]" for v, b in arms))

    def text(self) -> str:
        return "\n".join(self.lines)


def mangled(type_name: str) -> str:
    """A type's text in an intrinsic's name: `v32i32`, `f64`."""
    spell = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
    element = element_of(type_name)
    short = spell.get(element, element)
    if type_name.startswith("<"):
        return f"v{type_name[1:].split(' ', 1)[0]}{short}"
    return short
