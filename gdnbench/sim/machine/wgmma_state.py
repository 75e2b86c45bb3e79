# SPDX-License-Identifier: Apache-2.0
"""The wgmma state of a CTA's warpgroups: products in flight, their accumulators, their groups.

A product belongs to a warpgroup: it is in flight once all four warps have issued it, and lands as a whole.
The registers of an accumulator in flight contain tokens, one per register. Successive products on the same
accumulators pass the sum on without accessing the registers; the last one to land writes it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, Place
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.engine_interface import LANES, RegisterList, Warp, Words
from gdnbench.sim.machine.shadow_cells import Cells, Doubles
from gdnbench.sim.machine.tcgen05_operand import Gather
from gdnbench.sim.machine.wgmma_form import Form, Forms
from gdnbench.sim.machine.wgmma_fragment import WARPS, Codes, d_words
from gdnbench.sim.ptx.ir import Instruction, Register

# A token is a NaN in f32 and in both halves: 0xFF80 | 1..126 above 0xFC00 | 1..895. No value is both a lower
# and an upper half, and 126 consecutive tokens differ in either half.
_LOW, _HIGH = 895, 126
_TOKEN_BITS = np.uint32(0xFF80FC00)


@dataclass(slots=True, eq=False)
class Flight:
    """One warp's accumulators while products write them. `homes` are the registers that the products named,
    the latest last. `rows` is D[16, n] after the last product that landed; `words` is what was written to the
    registers once all had landed. `image` is the tokens in all lanes, [registers, 32]. `waits` counts
    products that no wait has covered."""

    form: Form
    place: Place
    tokens: Words
    image: Words
    homes: list[RegisterList]
    under_way: int = 0
    waits: int = 0
    rows: Codes | None = None
    doubles: Doubles | None = None  # `rows` in double precision, with `shadow_cells`
    words: Words | None = None
    superseded: bool = False

    def holds(self, held: Words) -> bool:
        """Whether the registers contain the tokens in all lanes."""
        return held.tobytes() == self.image.tobytes()


@dataclass(slots=True, eq=False)
class Share:
    """One warp's part of a product: its fragment of A, if A is in registers, and its accumulators. `c` is
    their previous contents, or None if the product adds to the flight's own sum or to nothing."""

    warp: Warp
    flight: Flight
    a: Words | None
    c: Words | None
    a_cells: Cells | None = None  # the `shadow_cells` of a and c
    c_cells: Cells | None = None


class Operands(NamedTuple):
    """The descriptors of A (0 if in registers) and B, and scale-d."""

    a: int
    b: int
    accumulate: bool

    def __str__(self) -> str:
        return f"A 0x{self.a:x}, B 0x{self.b:x}, scale-d {int(self.accumulate)}"


@dataclass(slots=True, eq=False)
class GroupProduct:
    """One wgmma.mma_async of a warpgroup. `operation` is set once all four warps have issued it; `a` and `b`
    are the chunks of its matrices in shared memory."""

    ins: Instruction
    form: Form
    operands: Operands
    shares: list[Share | None] = field(default_factory=lambda: [None] * WARPS)
    joined: int = 0
    a: Gather | None = None
    b: Gather | None = None
    operation: AsyncOperation | None = None

    def missing(self, first: int) -> list[int]:
        """The warps that have not issued it; `first` is the warpgroup's first warp."""
        return [first + index for index, share in enumerate(self.shares) if share is None]


@dataclass(slots=True, eq=False)
class WarpState:
    """One warp. `seen` is the contents of the registers `Forms.named` at the last wgmma.fence. `live` are its
    flights by first token; `landed` are those that have landed and that no wait has covered; `latest` is the
    last flight of a D."""

    issued: int = 0
    seen: Words | None = None
    open: list[GroupProduct] = field(default_factory=list)
    groups: deque[list[GroupProduct]] = field(default_factory=deque)
    live: dict[int, Flight] = field(default_factory=dict)
    landed: dict[Flight, None] = field(default_factory=dict)
    latest: dict[RegisterList, Flight] = field(default_factory=dict)

    def moved_here(self, form: Form, held: Words) -> bool:
        """Whether a move wrote landed accumulators to the registers of `form`, which may add to them without
        a fence. With a later landing they would contain tokens."""
        return any(
            form.shape == flight.form.shape
            and flight.words is not None
            and np.array_equal(held, flight.words)
            for flight in self.landed
        )


class Warpgroups:
    """The state of one CTA."""

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        self._warps: dict[int, WarpState] = {}
        self._products: dict[tuple[int, int], GroupProduct] = {}
        self._serial = 0

    def state(self, warp: Warp) -> WarpState:
        found = self._warps.get(warp.index)
        if found is None:
            found = self._warps[warp.index] = WarpState()
        return found

    def tokens(self, count: int) -> Words:
        """`count` tokens that no flight uses: they repeat after 895 * 126, which are coprime."""
        serial = np.arange(self._serial, self._serial + count) % (_LOW * _HIGH)
        self._serial = (self._serial + count) % (_LOW * _HIGH)
        return (_TOKEN_BITS | (1 + serial % _HIGH) << 16 | 1 + serial % _LOW).astype(np.uint32)

    def start_flight(self, form: Form, place: Place) -> Flight:
        """Start a flight of the accumulators of `form`."""
        tokens = self.tokens(len(form.d.registers))
        return Flight(form, place, tokens, np.repeat(tokens, LANES).reshape(-1, LANES), [form.d])

    def join_product(
        self, warp: Warp, state: WarpState, ins: Instruction, form: Form, operands: Operands
    ) -> GroupProduct:
        """The product of this warp's next wgmma. The four warps must issue the same instruction."""
        group = warp.index // WARPS
        key = (group, state.issued)
        found = self._products.get(key)
        if found is None:
            found = self._products[key] = GroupProduct(ins, form, operands)
        if found.ins.pc != ins.pc or found.operands != operands:
            others = [WARPS * group + index for index, share in enumerate(found.shares) if share is not None]
            raise KernelFault(
                FaultKind.WGMMA,
                f"{ins.name} with {operands}, where warps {others} of the warpgroup issued {found.ins.name} "
                f"with {found.operands} at {found.ins.place}",
            )
        state.issued += 1
        found.joined += 1
        if found.joined == WARPS:
            del self._products[key]
        return found

    def check_accumulators(self, warp: Warp, flight: Flight) -> None:
        """Check that the registers contain the products' results or the flight's tokens when the warp has
        waited; otherwise something wrote them in between."""
        if flight.superseded:
            return
        assert warp.registers is not None
        home = flight.homes[-1]
        expected = flight.image if flight.words is None else flight.words
        self.refuse_writes(home, warp.registers.read_words(home), expected, "is written", flight.place)

    def refuse_writes(
        self, registers: RegisterList, held: Words, expected: Words, how: str, place: Place
    ) -> None:
        """Raises KernelFault if a register differs from `expected` and no compiler move can have written
        it."""
        if held.tobytes() == expected.tobytes():
            return
        for row in np.flatnonzero((held != expected).any(axis=1)).tolist():
            register = registers.registers[row]
            if register.index not in self.forms.moves:
                raise KernelFault(
                    FaultKind.WGMMA, f"register {register.name} {how} while the wgmma at {place} is in flight"
                )

    def write_results(self, share: Share) -> None:
        """Write the sum of a flight to the registers that contain its tokens."""
        flight, registers, forms = share.flight, share.warp.registers, self.forms
        # Half of an f32 may equal half a token, so for f32 only 16-bit registers are compared by halves.
        of_halves = forms.by_halves if flight.form.product.d == "f16" else frozenset()
        assert flight.rows is not None
        assert registers is not None
        flight.words = words = d_words(flight.rows)
        state = self.state(share.warp)
        state.live.pop(int(flight.tokens[0]), None)
        state.landed[flight] = None
        for home in flight.homes:
            held = registers.read_words(home)
            if flight.holds(held):
                registers.write_words(home, words)
            else:
                registers.write_words(home, np.where(held == flight.image, words, held))
            for row, register in enumerate(home.registers):
                for copy in forms.moved_to.get(register.index, ()):
                    halves = copy.bits == 16 or copy.index in of_halves
                    registers.replace_token(copy, int(flight.tokens[row]), words[row], halves)

    def copies(self, flight: Flight) -> Iterator[tuple[int, Register]]:
        """(number of a register of D, a register that a move may have copied it to)."""
        for home in flight.homes:
            for row, register in enumerate(home.registers):
                for copy in self.forms.moved_to.get(register.index, ()):
                    yield row, copy

    def in_flight(self, state: WarpState, held: Words) -> bool:
        """Whether registers contain a token of a flight."""
        suspects = held[(held & _TOKEN_BITS) == _TOKEN_BITS]
        if not suspects.size or not state.live:
            return False
        return any(np.isin(suspects, flight.tokens).any() for flight in state.live.values())

    def at_exit(self) -> None:
        """Raises KernelFault if a product was never waited for."""
        for index, state in sorted(self._warps.items()):
            left = [product for group in (*state.groups, state.open) for product in group]
            if left:
                raise KernelFault(
                    FaultKind.WGMMA,
                    f"warp {index} exited with {len(left)} wgmma in flight that no wgmma.wait_group covers",
                    left[0].ins.place,
                )
