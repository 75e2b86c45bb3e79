# SPDX-License-Identifier: Apache-2.0
"""The typed IR that both engines execute: one `Instruction` per PTX instruction, operands resolved.

A register is an index into the kernel's register table; labels are resolved to the index of the instruction
they stand before (`pc`); immediates carry their bits in the type of the instruction. Nothing of an opcode's
spelling is lost: `op` is the base, `types` the type suffixes in order, `mods` all other suffixes in order.

    cvt.rn.satfinite.bf16x2.f32  ->  op "cvt", mods ("rn", "satfinite"), types ("bf16x2", "f32")
    ld.shared.v4.b32             ->  op "ld", mods ("shared",), vec 4, types ("b32",)
    mbarrier.try_wait.parity.shared::cta.b64 -> op "mbarrier.try_wait", mods ("parity", "shared::cta")
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from gdnbench.sim.errors import Place
from gdnbench.sim.ptx.forms import Form
from gdnbench.sim.ptx.literals import width_of


@cache  # asked for every register of every instruction
def _width(declared: str) -> int:
    return width_of(declared)


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register: `index` is its row in the register file, `type` as declared (b32, pred, ...)."""

    index: int
    name: str
    type: str

    @property
    def bits(self) -> int:
        """Width in bits; a predicate has one."""
        return _width(self.type)


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant as bits, already in the width of the operand it stands for (two's complement, IEEE)."""

    bits: int
    text: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register without its percent sign: `tid.x`, `ctaid.y`, `laneid`, `dynamic_smem_size`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, in its own state space, plus a byte offset."""

    variable: Variable
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; base None for an absolute address."""

    base: Register | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """`[descriptor, {coordinates}]` of a bulk tensor copy; the descriptor is an address of 128 bytes."""

    descriptor: Address
    coordinates: tuple[Register | Immediate, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A branch target: the index of the instruction that follows the label."""

    pc: int
    name: str


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of `brx.idx` in the order of its table."""

    targets: tuple[Target, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that is thrown away."""


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p` as a source operand."""

    register: Register


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Register | Immediate | Special | Sink, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results of one instruction (shfl, elect, setp)."""

    first: Register | Sink
    second: Register | Sink


Source = (
    Register | Immediate | Special | Symbol | Address | TensorAddress | Target | Targets | Negated | Vector
)
Destination = Register | Sink | Vector | Pair
Operand = Source | Destination


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p`."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `pc` is its index in the kernel. `dests` are written, `sources` read
    (the memory operand of a store or copy is a source: an `Address` is read to know where to write). `form`
    is what the instruction table says of it."""

    pc: int
    op: str
    mods: tuple[str, ...]
    types: tuple[str, ...]
    vec: int
    dests: tuple[Destination, ...]
    sources: tuple[Source, ...]
    guard: Guard | None
    place: Place
    form: Form

    @property
    def name(self) -> str:
        """The opcode as far as it decides what happens, for messages and counts."""
        vector = (f"v{self.vec}",) if self.vec > 1 else ()
        return ".".join((self.op, *self.mods, *vector, *self.types))

    def has(self, *mods: str) -> bool:
        """True if any of `mods` was spelled."""
        own = self.mods
        for mod in mods:  # noqa: SIM110  # several times as fast as any()
            if mod in own:
                return True
        return False

    def choice(self, *mods: str, default: str = "") -> str:
        """The one of `mods` that was spelled; `default` if none was."""
        return next((mod for mod in mods if mod in self.mods), default)

    def written(self) -> Iterator[Register | Sink]:
        """The destination registers in order, vectors and pairs flattened; a Sink keeps its position."""
        for dest in self.dests:
            if isinstance(dest, Vector):
                for element in dest.elements:
                    assert isinstance(element, Register | Sink)
                    yield element
            elif isinstance(dest, Pair):
                yield dest.first
                yield dest.second
            else:
                yield dest


DYNAMIC = -1
# Swizzled layouts of dynamic shared memory count on this alignment, and the hardware gives it.
DYNAMIC_SHARED_ALIGN = 1024


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable. `space` is param, shared, global, const or local; `size` in bytes, 0 for `extern`.

    `offset` is its place in the space's block of the kernel (param, shared, local) or of the module (global,
    const). Dynamic (`extern`) shared memory has offset DYNAMIC: it starts at `Kernel.dynamic_shared`.
    A parameter also has its declared `type`, such as u32, and says whether it is an `array`, which is how
    structs are passed, and whether `.ptr` marks it as a `pointer`.
    """

    name: str
    space: str
    size: int
    align: int
    offset: int
    init: bytes | None = None
    type: str = ""
    array: bool = False
    pointer: bool = False


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Kernel:
    """An `.entry`: registers by index, instructions by pc. `shared_size` is static shared memory in bytes."""

    name: str
    params: tuple[Variable, ...]
    registers: tuple[Register, ...]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    shared_size: int
    local_size: int
    reqntid: tuple[int, int, int] | None
    maxntid: tuple[int, int, int] | None
    maxnreg: int | None
    minnctapersm: int | None
    cluster: tuple[int, int, int] | None
    max_cluster: int | None = None  # .maxclusterrank

    @property
    def dynamic_shared(self) -> int:
        """Offset of dynamic shared memory in the CTA's block, after all static shared memory."""
        return -(-self.shared_size // DYNAMIC_SHARED_ALIGN) * DYNAMIC_SHARED_ALIGN

    def shared_with(self, dynamic: int) -> int:
        """The shared memory of a CTA with so many bytes of dynamic shared memory."""
        return dynamic + self.dynamic_shared if dynamic else self.shared_size

    def shared_offset(self, variable: Variable) -> int:
        """Where a shared variable, static or dynamic, lies in the CTA's block."""
        return self.dynamic_shared if variable.offset == DYNAMIC else variable.offset


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX file: `target` such as sm_100a, the ISA `version`, kernels by name, module-scope variables."""

    version: tuple[int, int]
    target: str
    kernels: dict[str, Kernel]
    variables: tuple[Variable, ...]
    text: str
