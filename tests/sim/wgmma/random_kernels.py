# SPDX-License-Identifier: Apache-2.0
"""Random legal kernels of wgmma, and what they must give, from the documents alone.

A kernel has one or two warpgroups. Each has one to three accumulators of its own types and width, with A in
shared memory twice and in registers once, and B twice, in random layouts, and repeats a random body: products
with negations, guards and a scale-d from predicates, commits, waits for all groups or all but the youngest,
moves of whole accumulators to other registers while they may be in flight, and changes of signs where the
ISA allows registers to be touched.

Nothing here is computed by the simulator. Where elements lie is from CUTLASS's canonical layouts
(`cute/atom/mma_traits_sm90_gmma.hpp`) and the PTX ISA 9.7.15.5, sums are those of `exact_sums`, and
`kernel_text` writes the PTX.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tests.sim.wgmma.exact_sums import ENCODINGS, TF32_IGNORED, TYPES, Types, fused_sum

Codes = npt.NDArray[np.unsignedinteger]
Places = npt.NDArray[np.int64]

M = 64  # rows of a product


def random_codes(rng: random.Random, name: str, rows: int, columns: int, mode: str) -> Codes:
    """Codes[rows, columns] of up to 41 binades around 1. `special` strews Inf, NaN, subnormals, zeros and
    large numbers in, `sparse` makes half of them zero, `plain` neither."""
    form = ENCODINGS[name]
    count = rows * columns
    spread = rng.choice([0, 3, 8, 20])
    full = (1 << form.exponent) - 1
    middle = full // 2
    sign = [rng.getrandbits(1) for _ in range(count)]
    field = [min(max(middle + rng.randint(-spread, spread), 0), full - 1) for _ in range(count)]
    fraction = [rng.getrandbits(form.fraction) for _ in range(count)]
    for i in range(count) if mode != "plain" else ():
        chance = rng.random()
        if mode == "sparse":
            if chance < 0.5:
                field[i] = fraction[i] = 0
        elif chance < 0.04:
            field[i] = full
            fraction[i] = fraction[i] if chance < 0.03 else 0
        elif chance < 0.15:
            field[i] = 0
        elif chance < 0.25:
            field[i] = fraction[i] = 0
        elif chance < 0.3:
            field[i] = full - 1
    low = form.fraction
    codes = [s << (form.exponent + low) | e << low | f for s, e, f in zip(sign, field, fraction, strict=True)]
    if name == "tf32":
        codes = [code << TF32_IGNORED | rng.getrandbits(TF32_IGNORED) for code in codes]
    return np.array(codes, f"uint{form.width}").reshape(rows, columns)


WIDTHS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}  # bytes of a swizzle's row
SWIZZLE_FIELD = {"none": 0, "128B": 1, "64B": 2, "32B": 3}  # bits 62 and 63 of a descriptor
PATTERN = 1024  # bytes: what every swizzle's pattern may be aligned to


@dataclass(frozen=True, slots=True)
class Layout:
    """In bytes; `turn` is the descriptor's base offset, `advance` a step along K in a swizzled row."""

    swizzle: str
    mn_major: bool
    leading: int
    stride: int
    turn: int = 0
    advance: int = 0

    def offsets(self, rows: int, columns: int, size: int) -> Places:
        """int64[rows, columns]: bytes from the start of the pattern, for elements of `size` bytes.

        CUTLASS's forms, T elements in 16 bytes, w = swizzle's row in bytes / 16, S = stride, L = leading:
            K,  none  ((8,m),(T,2)):((1T,S),(1,L))         K,  swizzled  ((8,m),(T,2)):((wT,S),(1,T))
            MN, none  ((T,1,m),(8,k)):((1,T,S),(1T,L))     MN, swizzled  ((T,w,m),(8,k)):((1,T,L),(wT,S))
        """
        r, c = np.ogrid[:rows, :columns]
        width, chunk = WIDTHS[self.swizzle], 16 // size
        if not self.mn_major:
            along = c // chunk * (self.leading if self.swizzle == "none" else 16) + c % chunk * size
            places = r % 8 * width + r // 8 * self.stride + along
        elif self.swizzle == "none":
            places = r % chunk * size + r // chunk * self.stride + c % 8 * 16 + c // 8 * self.leading
        else:
            per = width // size
            places = r % per * size + r // per * self.leading + c % 8 * width + c // 8 * self.stride
        places = places + self.advance
        # Swizzle<log2 w, 4, 3>: bits of the 128-byte line's number are added, mod 2, to the 16-byte chunk's.
        swizzled: Places = places ^ (((places >> 7) & (width // 16 - 1)) << 4)
        return swizzled


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix[rows, k] in shared memory; `start` is its descriptor's address, from the image's start."""

    codes: Codes
    layout: Layout
    start: int
    end: int

    @property
    def descriptor(self) -> int:
        """What is added to the image's address / 16."""
        fields = self.layout.leading >> 4 << 16 | self.layout.stride >> 4 << 32 | self.layout.turn << 49
        return fields | SWIZZLE_FIELD[self.layout.swizzle] << 62 | self.start >> 4


def random_layout(rng: random.Random, rows: int, size: int, mn_major: bool, swizzle: str) -> Layout:
    """Any in which no two elements meet."""
    width = WIDTHS[swizzle]
    turn = rng.randrange(8) if swizzle != "none" and rng.random() < 0.4 else 0
    if not mn_major and swizzle == "none":
        leading = rng.choice([128, 128 + 16 * rng.randrange(4)])
        return Layout(swizzle, mn_major, leading, max(256, 2 * leading) + 16 * rng.randrange(4))
    if not mn_major:
        leading = 16 * rng.randrange(5)  # means nothing here
        stride = 8 * width * rng.choice([1, 1, 2])
        return Layout(swizzle, mn_major, leading, stride, turn, 32 * rng.randrange(width // 32))
    if swizzle == "none":
        stride = 128 * rng.choice([1, 2])
        return Layout(swizzle, mn_major, stride * (rows // 8) + 16 * rng.randrange(4), stride)
    block = 8 * width
    if rng.random() < 0.5:
        return Layout(swizzle, mn_major, 2 * block, block, turn)
    return Layout(swizzle, mn_major, block, block * -(-rows * size // width), turn)


def store(rng: random.Random, name: str, rows: int, mode: str, base: int, image: Codes) -> Stored:
    """A random matrix, put into the image at `base` or shortly after."""
    size = ENCODINGS[name].width // 8
    mn_major = size == 2 and rng.random() < 0.5  # other sizes are K-major only
    swizzle = rng.choice(list(WIDTHS))
    codes = random_codes(rng, name, rows, 32 // size, mode)
    layout = random_layout(rng, rows, size, mn_major, swizzle)
    # A base offset says which 128-byte line of an aligned pattern the matrix's own pattern starts at.
    start = base + 128 * layout.turn
    places = start + layout.offsets(rows, 32 // size, size)
    assert np.unique(places).size == places.size
    for part in range(size):
        image[places + part] = (codes >> codes.dtype.type(8 * part)).astype(np.uint8)
    return Stored(codes, layout, start + layout.advance, int(places.max()) + size)


@dataclass(frozen=True, slots=True)
class Fence:
    pass


@dataclass(frozen=True, slots=True)
class Commit:
    pass


@dataclass(frozen=True, slots=True)
class Wait:
    left: int


@dataclass(frozen=True, slots=True)
class Move:
    """All of an accumulator to its other registers, in words, pairs or halves, as compilers do."""

    accumulator: int
    by: str


@dataclass(frozen=True, slots=True)
class Flip:
    """Another sign for all of an accumulator's D, or of its A in registers."""

    accumulator: int
    of_a: bool


@dataclass(frozen=True, slots=True)
class Multiply:
    """`a`: which A in shared memory, None for registers. `scale` and `guard` are predicates (`holds`)."""

    accumulator: int
    a: int | None
    b: int
    negate_a: bool
    negate_b: bool
    scale: str
    guard: str = ""


Step = Fence | Commit | Wait | Move | Flip | Multiply


def holds(predicate: str, repetition: int) -> bool:
    """%pt is true, %pf is false, %pl is true in all repetitions of the body but the first."""
    plain = {"%pt": True, "%pf": False, "%pl": repetition > 0}[predicate.removeprefix("!")]
    return plain != predicate.startswith("!")


@dataclass(frozen=True, slots=True)
class Accumulator:
    """D[64, n] at first, and the operands that are multiplied into it."""

    types: Types
    n: int
    d: Codes
    a: tuple[Stored, ...]
    b: tuple[Stored, ...]
    a_registers: Codes

    @property
    def halves(self) -> bool:
        return self.types[0] == "f16"

    @property
    def registers(self) -> int:
        return self.n // 4 if self.halves else self.n // 2


@dataclass(frozen=True, slots=True)
class Group:
    """A warpgroup: the steps are repeated."""

    accumulators: tuple[Accumulator, ...]
    steps: tuple[Step, ...]
    repetitions: int


@dataclass(frozen=True, slots=True)
class RandomKernel:
    """`image` is shared memory as it is at the start, uint8."""

    seed: int
    image: Codes
    groups: tuple[Group, ...]


class _Body:
    """Draws steps, and knows which registers may be in flight.

    A repetition starts with what the one before left, so everything may be, until a wait for all groups.
    """

    def __init__(self, rng: random.Random, accumulators: int) -> None:
        self._rng = rng
        self._count = accumulators
        self._d, self._a = set(range(accumulators)), set(range(accumulators))
        self._open: list[Multiply] = []
        self._groups: list[list[Multiply]] = []
        self._unordered = False  # a register was written after the last fence
        self.steps: list[Step] = [Fence()]

    def draw(self) -> None:
        chance = self._rng.random()
        if chance < 0.5:
            self._multiply()
        elif chance < 0.58:
            self.steps.append(
                Move(
                    self._rng.randrange(self._count), self._rng.choice(["words", "pairs", "halves", "words"])
                )
            )
        elif chance < 0.68:
            self._commit()
        elif chance < 0.85:
            self._wait(self._rng.choice([0, 0, 1, 2]))
        else:
            self._flip()

    def finish(self) -> tuple[Step, ...]:
        """Accumulators are in their first registers at the end, and products get their guards."""
        for i in range(self._count):
            if sum(isinstance(step, Move) and step.accumulator == i for step in self.steps) % 2:
                self.steps.append(Move(i, "words"))
        guards = ["", "", "", "%pl", "!%pf", "%pf"]
        return tuple(
            replace(step, guard=self._rng.choice(guards)) if isinstance(step, Multiply) else step
            for step in self.steps
        )

    def _multiply(self) -> None:
        rng = self._rng
        accumulator = rng.randrange(self._count)
        if self._unordered:
            self.steps.append(Fence())
            self._unordered = False
        a = rng.choice([0, 1, None])
        b, negate_a, negate_b = rng.randrange(2), rng.random() < 0.3, rng.random() < 0.3
        scale = rng.choice(["%pt", "%pt", "%pf", "%pl", "!%pl", "!%pf"])
        step = Multiply(accumulator, a, b, negate_a, negate_b, scale)
        self.steps.append(step)
        self._open.append(step)
        self._fly([step])

    def _fly(self, steps: list[Multiply]) -> None:
        self._d |= {step.accumulator for step in steps}
        self._a |= {step.accumulator for step in steps if step.a is None}

    def _commit(self) -> None:
        self.steps.append(Commit())
        self._groups.append(self._open)
        self._open = []

    def _wait(self, left: int) -> None:
        known = Wait(0) in self.steps
        if left == 0:
            self._commit()
        self.steps.append(Wait(left))
        if left == 0:
            known, self._groups = True, []
        elif len(self._groups) > left:
            self._groups = self._groups[-left:]
        else:
            return
        if known:  # what flies now is what this repetition issued
            self._d, self._a = set(), set()
            self._fly([step for group in (*self._groups, self._open) for step in group])

    def _flip(self) -> None:
        free = [i for i in range(self._count) if i not in self._d]
        free_a = [i for i in range(self._count) if i not in self._a]
        of_a = not (free and self._rng.random() < 0.6)
        if not of_a or free_a:
            self.steps.append(Flip(self._rng.choice(free_a if of_a else free), of_a))
            self._unordered = True


def _random_group(rng: random.Random, image: Codes, room: int) -> tuple[Group, int]:
    """A warpgroup, its matrices in the image from `room` on, and where they end."""
    started = []
    for _ in range(rng.choice([1, 2, 3])):
        types, n = rng.choice(TYPES), 8 * rng.choice([1, 1, 2, 3, 4, 5, 8])
        started.append(
            (types, n, random_codes(rng, types[0], M, n, rng.choice(["plain", "special", "plain"])))
        )
    accumulators = []
    for types, n, d in started:
        mode = rng.choice(["plain", "special", "sparse"])
        stored: list[Stored] = []
        for name, rows in 2 * ((types[1], M), (types[2], n)):
            stored.append(store(rng, name, rows, mode, -(-room // PATTERN) * PATTERN, image))
            room = stored[-1].end
        a_registers = random_codes(rng, types[1], M, 256 // ENCODINGS[types[1]].width, mode)
        accumulators.append(Accumulator(types, n, d, tuple(stored[::2]), tuple(stored[1::2]), a_registers))
    body = _Body(rng, len(accumulators))
    for _ in range(rng.randint(4, 14)):
        body.draw()
    return Group(tuple(accumulators), body.finish(), rng.choice([1, 2, 3])), room


def random_kernel(seed: int) -> RandomKernel:
    rng = random.Random(seed)
    image = np.array([rng.getrandbits(8) for _ in range(160 * 1024)], np.uint8)
    room = 0
    groups = []
    for _ in range(rng.choice([1, 1, 2])):
        group, room = _random_group(rng, image, room)
        groups.append(group)
    return RandomKernel(seed, image[: -(-room // PATTERN) * PATTERN + PATTERN], tuple(groups))


def sign_bit(name: str) -> int:
    return 1 << (ENCODINGS[name].width - 1)


def expected_entry(group: Group, index: int, row: int, column: int) -> int:
    """The code of D[row, column] of an accumulator after all repetitions."""
    one = group.accumulators[index]
    d_sign, a_sign, b_sign = (sign_bit(name) for name in one.types)
    d = int(one.d[row, column])
    held = one.a_registers[row].tolist()
    for repetition in range(group.repetitions):
        for step in group.steps:
            if isinstance(step, Fence | Commit | Wait | Move) or step.accumulator != index:
                continue
            if isinstance(step, Flip):
                if step.of_a:
                    held = [code ^ a_sign for code in held]
                else:
                    d ^= d_sign
                continue
            if step.guard and not holds(step.guard, repetition):
                continue
            a = held if step.a is None else one.a[step.a].codes[row].tolist()
            b = one.b[step.b].codes[column].tolist()
            a = [code ^ a_sign for code in a] if step.negate_a else a
            b = [code ^ b_sign for code in b] if step.negate_b else b
            d = fused_sum(one.types, a, b, d if holds(step.scale, repetition) else None)
    return d
