# SPDX-License-Identifier: Apache-2.0
"""Reads the rows of the instruction table, and matches the suffixes and types of an instruction to them.

A row has three columns, opcode, suffixes and operands, each in the notation of the PTX ISA.

    ld  {.sem}{.scope}{.space}{.hint}*{.vec}.moved  d, [a]{.L2::cache_hint, cache-policy}

    .name         a suffix; one of a set of suffixes if `name` is a set (`instructions.SETS`)
    .{a,b}        one of them
    {.a.b}        both or none; {.a,.b} one of them or none
    {.a}*         any number of them
    d  d|p  d{|p} the destination, if the first operand is `d`, `p` or `r`; {d,} may be left out. r, d: two
    [a]  a        a memory operand; another source. [map, coordinates] is the operand of a tensor copy
    {, b}         an operand that may be left out; {.x, b} an operand that comes with the suffix .x
    b:32          an immediate here has 32 bits; b:first as many as the first type, b:double twice as many as
                  the last type. Without such a mark it has as many as the last type

The suffixes of an instruction may have any order, since ptxas accepts most orders. Types keep theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, Flag, auto

from gdnbench.sim.ptx.literals import width_of


class Owner(Enum):
    """Who executes an instruction: the engine itself, or the machine through `Cta.issue`."""

    ENGINE = auto()
    MACHINE = auto()


class Flow(Enum):
    """Which instruction follows: the next one, a branch target, or none."""

    NEXT = auto()
    BRANCH = auto()
    EXIT = auto()
    TRAP = auto()


class Access(Enum):
    """How an instruction accesses memory through the generic proxy while it executes."""

    NONE = auto()
    READ = auto()
    WRITE = auto()
    UPDATE = auto()
    REDUCE = auto()  # an update without a result


class Sync(Enum):
    """How an instruction synchronises threads with each other, or a thread with its asynchronous
    operations."""

    NONE = auto()
    INIT = auto()  # initialises an mbarrier
    INVALIDATE = auto()  # ends the use of an mbarrier
    ARRIVE = auto()  # arrives at an mbarrier
    ARRIVE_EXPECT = auto()  # adds to the bytes that an mbarrier expects, then arrives
    EXPECT = auto()  # adds to the bytes that an mbarrier expects
    COMPLETE = auto()  # subtracts from the bytes that an mbarrier expects
    POLL = auto()  # tests whether a phase of an mbarrier is complete
    BARRIER_ARRIVE = auto()  # arrives at a barrier of threads and goes on
    BARRIER_WAIT = auto()  # waits at a barrier of threads
    BARRIER_REDUCE = auto()  # waits at a barrier of threads for a reduced value
    CLUSTER_ARRIVE = auto()
    CLUSTER_WAIT = auto()
    WARP_BARRIER = auto()  # waits for lanes of its warp
    FENCE = auto()
    COMMIT = auto()  # collects asynchronous operations in a group, or has them arrive at an mbarrier
    WAIT_GROUP = auto()  # waits until no more than so many groups are in flight
    WAIT = auto()  # waits for all asynchronous operations of a kind


class Until(Enum):
    """The wait that completes an asynchronous operation."""

    NOW = ""
    TENSOR_LOAD = "tcgen05.wait::ld"
    TENSOR_STORE = "tcgen05.wait::st"
    TENSOR_COMMIT = "tcgen05.commit and a wait for its mbarrier"
    WGMMA_GROUP = "wgmma.wait_group"
    COPY_GROUP = "cp.async.wait_group, or cp.async.mbarrier.arrive and a wait"
    BULK_GROUP = "cp.async.bulk.wait_group"
    MBARRIER = "a wait for the copy's mbarrier"


class Effect(Flag):
    """What another instruction has to be ordered with. Shared and global memory are accessed through the
    generic proxy by `READ_*`, `WRITE_*`, through the async proxy by `FILL` (writes shared memory), `DRAIN`
    (reads shared memory, writes global) and `PRODUCT` (reads shared memory). `TMEM_READ` and `TMEM_WRITE`
    access tensor memory, or free it. `SIGNAL`: an asynchronous operation that arrives at an mbarrier.
    `HAND_ON`: other threads may go on from here, knowing what this one did."""

    NONE = 0
    READ_SHARED = auto()
    WRITE_SHARED = auto()
    READ_GLOBAL = auto()
    WRITE_GLOBAL = auto()
    FILL = auto()
    DRAIN = auto()
    PRODUCT = auto()
    TMEM_READ = auto()
    TMEM_WRITE = auto()
    SIGNAL = auto()
    HAND_ON = auto()


ALL_EFFECTS = ~Effect.NONE
OTHER = "other"  # the class of hints and launch control
_TYPES = """b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 tf32 f32 f32x2 f64 pred
    u16x2 s16x2 u8x4 s8x4 e4m3 e5m2 e2m3 e3m2 e2m1 e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2 ue8m0x2
    e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4"""
TYPES = frozenset(_TYPES.split())
# The fundamental types, which registers may have (PTX ISA, "Fundamental Types").
_REGISTER_TYPES = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 f32 f64 pred"
REGISTER_TYPES = frozenset(_REGISTER_TYPES.split())
VECTORS = {"v2": 2, "v4": 4, "v8": 8}

# State spaces without synchronisation, and orders by which other threads may go on.
_PRIVATE = ("param", "param::entry", "const", "local")
_RELEASES = ("release", "acq_rel")
_SHARED = ("shared", "shared::cta", "shared::cluster")


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties that all instructions of a row share.

    `cls`: the class in a profile.
    `owner`: who executes the instruction.
    `flow`: which instruction follows.
    `access`: how the instruction accesses memory while it executes.
    `sync`: how it synchronises.
    `effects`: what other instructions must be ordered with. Rows with `access` or `bulk` leave it out: their
        suffixes decide.
    `bulk`: a bulk copy. `reduces`: a bulk copy that combines its data with the destination's.
    `aligned`: all threads of the warp execute it together, even without the suffix `.aligned`.
    `fragment`: it moves a matrix between memory and the registers of the whole warp, each lane its elements.
    `lanes_meet`: it waits for the lanes of its warp that its mask names.
    `moves`: the sources whose bits the destination receives, even if they were never written. `whole`: the
        destination receives all bits of one of these sources.
    `until`: the wait that completes the asynchronous operation that it starts.
    `ends`: the asynchronous operations that it waits for.
    `commits`: the asynchronous operations that it collects in a group, or that arrive at its mbarrier.
    `orders`: the effects of later instructions that it orders.
    `executed`: False if no engine executes it; both engines refuse it by name.
    """

    cls: str
    owner: Owner = Owner.ENGINE
    flow: Flow = Flow.NEXT
    access: Access = Access.NONE
    sync: Sync = Sync.NONE
    effects: Effect = Effect.NONE
    bulk: bool = False
    reduces: bool = False
    aligned: bool = False
    fragment: bool = False
    lanes_meet: bool = False
    moves: tuple[int, ...] = ()
    whole: bool = False
    until: Until = Until.NOW
    ends: Until = Until.NOW
    commits: Until = Until.NOW
    orders: Effect = ALL_EFFECTS
    executed: bool = True


@dataclass(frozen=True, slots=True)
class Form(Traits):
    """The row's properties for one combination of suffixes and types.

    `dests`: the number of destinations. None: the first operand is a destination unless it is a memory
        operand.
    `sources`: the fewest and the most sources.
    `widths`: for each source the bits of an immediate, None for as many as its value needs.
    `addresses`: for each source that must be there "", "address" or "tensor".
    """

    op: str = ""
    dests: int | None = 0
    sources: tuple[int, int] = (0, 0)
    widths: tuple[int | None, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def by_machine(self) -> bool:
        """Whether the machine executes it, not the engine."""
        return self.owner is Owner.MACHINE

    @property
    def in_engine(self) -> bool:
        """Whether it accesses memory when the engine executes it."""
        return self.access is not Access.NONE and not self.by_machine

    @property
    def by_rows(self) -> bool:
        """Whether lanes give the addresses of matrix rows that are the whole warp's."""
        return self.aligned and self.access is not Access.NONE and not self.fragment

    @property
    def atomic(self) -> bool:
        """Whether it is an atomic read-modify-write, with or without a result."""
        return self.access in (Access.UPDATE, Access.REDUCE)

    @property
    def copies(self) -> bool:
        """Whether it copies bits between registers of a lane, as `mov` does between one and its parts too."""
        return self.whole and self.moves == (0,) and not self.lanes_meet

    @property
    def chooses(self) -> bool:
        """Whether it copies one of two registers, as `selp` does, and drops the other."""
        return self.whole and len(self.moves) > 1

    @property
    def ends_thread(self) -> bool:
        """Whether no instruction follows."""
        return self.flow in (Flow.EXIT, Flow.TRAP)


@dataclass(frozen=True, slots=True)
class _Group:
    """Suffixes of which all parts are spelled, one choice each; none if `optional`, any number of a single
    part if `many`."""

    parts: tuple[frozenset[str], ...]
    optional: bool
    many: bool


@dataclass(frozen=True, slots=True)
class _Operand:
    """A source. `optional`: it may be left out. `given`: the suffixes that it comes with; none if it does not
    depend on any."""

    name: str
    width: str
    optional: bool
    given: frozenset[str]

    @property
    def kind(self) -> str:
        return "" if self.name[0] != "[" else "tensor" if "," in self.name else "address"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table; `text` as it is written."""

    op: str
    text: str
    traits: Traits
    groups: tuple[_Group, ...]
    types: tuple[frozenset[str], ...]
    dests: int | None
    operands: tuple[_Operand, ...]

    @property
    def suffixes(self) -> frozenset[str]:
        """All that may be spelled, types apart."""
        return frozenset(name for group in self.groups for part in group.parts for name in part)

    def match(self, mods: tuple[str, ...], types: tuple[str, ...], vec: int) -> Form | None:
        """The form of these suffixes and types; None if the row does not have them."""
        if len(types) != len(self.types) or any(t not in s for t, s in zip(types, self.types, strict=True)):
            return None
        left = [*mods, *(name for name, count in VECTORS.items() if count == vec)]
        parts = [part for group in self.groups for part in group.parts]
        if any(left.count(name) > max(sum(name in part for part in parts), 1) for name in left):
            return None
        for group in self.groups:
            chosen = [[name for name in left if name in part] for part in group.parts]
            if group.many:
                left = [name for name in left if name not in chosen[0]]
                continue
            if group.optional and not any(chosen):
                continue
            if any(len({*names}) != 1 for names in chosen):
                return None
            for names in chosen:
                left.remove(names[0])
        return None if left else self._form(mods, types)

    def _form(self, mods: tuple[str, ...], types: tuple[str, ...]) -> Form:
        there = [each for each in self.operands if not each.given or not each.given.isdisjoint(mods)]
        needed = [operand for operand in there if not operand.optional]
        leading = next((i for i, operand in enumerate(there) if operand.optional), len(there))
        common = {each.name: getattr(self.traits, each.name) for each in fields(Traits)}
        common["effects"] = _effects(self.traits, mods)
        common["aligned"] = self.traits.aligned or "aligned" in mods
        if self.traits.bulk:
            common["until"] = Until.BULK_GROUP if "bulk_group" in mods else Until.MBARRIER
        return Form(
            **common,
            op=self.op,
            dests=self.dests,
            sources=(len(needed), len(there)),
            widths=tuple(self._width(operand, types) for operand in there),
            addresses=tuple(operand.kind for operand in there[:leading]),
        )

    def _width(self, operand: _Operand, types: tuple[str, ...]) -> int | None:
        if self.traits.owner is Owner.MACHINE or not types:
            return None
        if operand.width == "first":
            return width_of(types[0])
        if operand.width == "double":
            return 2 * width_of(types[-1])
        return int(operand.width) if operand.width else width_of(types[-1])


def _effects(traits: Traits, mods: tuple[str, ...]) -> Effect:
    """The effects of an instruction with these suffixes. An address without a state space may be in shared or
    in global memory. No thread writes what `ld.global.nc` reads. Bulk copies to shared memory arrive at an
    mbarrier; bulk copies from shared memory belong to a group."""
    if traits.bulk:
        return Effect.DRAIN if "bulk_group" in mods else Effect.FILL | Effect.SIGNAL
    if traits.access is Access.NONE or any(mod in _PRIVATE for mod in mods):
        return traits.effects if traits.access is Access.NONE else Effect.NONE
    to_shared, to_global = any(mod in _SHARED for mod in mods), "global" in mods
    found = Effect.HAND_ON if any(mod in _RELEASES for mod in mods) else Effect.NONE
    reads = traits.access in (Access.READ, Access.UPDATE)
    writes = traits.access is not Access.READ
    if to_shared or not to_global:
        found |= Effect.READ_SHARED if reads else Effect.NONE
        found |= Effect.WRITE_SHARED if writes else Effect.NONE
    if to_global or not to_shared:
        found |= Effect.READ_GLOBAL if reads and "nc" not in mods else Effect.NONE
        found |= Effect.WRITE_GLOBAL if writes else Effect.NONE
    return found


_SUFFIX = re.compile(r"\{(\.[^}]*)\}(\*?)|\.\{([^}]*)\}|\.([^.{}]+)")
_OPERAND = re.compile(r"\{(\.[\w:]+)?, ([^}]*)\}|\{(\w+),\}|(\[[^]]*\])|([^,{}\s]+(?:\{\|\w\})?)")
_DESTINATIONS = frozenset(("d", "p", "r", "d|p", "d{|p}", "p{|q}"))


def row(line: str, traits: Traits, sets: Mapping[str, frozenset[str]]) -> Row:
    """Read a row of the table."""
    op, _, rest = line.strip().partition(" ")
    if re.fullmatch(r"[a-z][\w.:]*", op) is None:
        raise ValueError(f"a row without an opcode: {line}")
    suffixes, _, operands = rest.strip().partition(" ") if rest.lstrip()[:1] in (".", "{") else ("", "", rest)
    if suffixes.startswith("{") and not suffixes.startswith("{."):  # {d,} [a]: there are no suffixes
        suffixes, operands = "", rest
    groups, types = [], []
    for match in _SUFFIX.finditer(suffixes):
        group = _group(match, sets)
        if all(name in TYPES for name in group.parts[0]) and not group.optional:
            types.append(group.parts[0])
        else:
            groups.append(group)
    dests, sources = _operands(operands, sets)
    return Row(op, " ".join(line.split()), traits, tuple(groups), tuple(types), dests, sources)


def _group(match: re.Match[str], sets: Mapping[str, frozenset[str]]) -> _Group:
    optional, star, choice, single = match.groups()
    if optional is None:
        names = choice.split(",") if choice is not None else [single]
        return _Group((_choice(names, sets),), False, False)
    if "," in optional:
        return _Group((_choice([name.strip(".") for name in optional.split(",")], sets),), True, bool(star))
    parts = tuple(_choice([name], sets) for name in optional.split(".")[1:])
    return _Group(parts, True, bool(star))


def _choice(names: list[str], sets: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset(each for name in names for each in sets.get(name, (name,)))


def _operands(text: str, sets: Mapping[str, frozenset[str]]) -> tuple[int | None, tuple[_Operand, ...]]:
    dests: int | None = 0
    sources: list[_Operand] = []
    for index, match in enumerate(_OPERAND.finditer(text)):
        suffix, tied, maybe_dest, address, plain = match.groups()
        if maybe_dest is not None:
            dests = None
        elif index == dests and plain in _DESTINATIONS:
            dests += 1
        else:
            name, _, width = (address or plain or tied).partition(":") if not address else (address, "", "")
            given = _choice([suffix[1:]], sets) if suffix else frozenset[str]()
            sources.append(_Operand(name, width, tied is not None and not suffix, given))
    return dests, tuple(sources)
