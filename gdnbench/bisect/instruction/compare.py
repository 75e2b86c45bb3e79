# SPDX-License-Identifier: Apache-2.0
"""The first value of the good version that the bad one has not, beyond rounding.

Instructions are exact functions of their operands, so that two executions of one instruction can differ by
their operands alone. Values are therefore judged where they come from somewhere else in the two versions: an
operand whose producers are no counterparts, because a statement was edited or runs less often; a constant;
what is loaded. All other differences are consequences of those, and are let through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.diff.traces.alignment import Alignment, Operand, Unequal, lanes_of, made_by
from gdnbench.diff.traces.rounding import (
    SUM_GROWTH,
    Excess,
    Floats,
    decoded,
    element,
    excess,
    is_float,
    precision,
    rounded_apart,
    ulp,
)
from gdnbench.sim.value_trace import LOAD, STORE, TracedRegister

_COMMUTES = ("add", "mul", "fma", "mad", "min", "max", "and", "or", "xor")


@dataclass(frozen=True, slots=True)
class ValueFinding:
    """Event `good` left a value that differs from what `bad` left for the same use. `format` is the one that
    the bound comes from. `excess` None: integers or bits, which are compared as they are. `edited`: events of
    the bad version that the value was made by, in statements that the good version does not have as they are,
    the nearest first."""

    good: int
    bad: int
    format: str
    excess: Excess | None
    lane: int
    texts: tuple[str, str]
    order: int
    edited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LanesFinding:
    """Other lanes of the warp took part."""

    good: int
    bad: int
    order: int


Finding = ValueFinding | LanesFinding | Unequal


def first_difference(
    alignment: Alignment, inputs: float = 0.0, integers: bool = False, exact: bool = False
) -> Finding | None:
    """In the execution order of the good version; None if all is explained. `inputs`: by how much of their
    largest value the inputs of the launch differ. `integers`: loads and stores of what holds no
    floating-point number count too, wherever they differ. `exact`: what rounding explains counts as well."""
    found: Finding | None = None
    comparison = _Comparison(alignment, inputs, integers, exact)
    for number, partner in enumerate(alignment.partner):
        if partner is not None:
            found = comparison.judge(number, partner)
            if found is not None:
                break
    ran = next(iter(alignment.unequal), None)
    if ran is not None and (found is None or ran.order < found.order):
        return ran
    return found


class _Comparison:
    def __init__(self, alignment: Alignment, inputs: float, integers: bool, exact: bool) -> None:
        self.alignment = alignment
        self.good = alignment.good
        self.bad = alignment.bad
        self.stored = inputs  # the largest difference so far in what memory holds, of the values' largest
        self.integers = integers
        self.exact = exact

    def judge(self, one: int, other: int) -> Finding | None:
        good, bad = self.good.events[one], self.bad.events[other]
        if good.lanes != bad.lanes:
            return LanesFinding(one, other, one)
        lanes = lanes_of(good)
        operands = list(self._operands(one, other, lanes))
        found = self._judge_operands(one, operands)
        if found is not None:
            return found
        ins = self.good.instruction(one)
        differs = (good.values != bad.values)[:, lanes].any(axis=1)
        if ins.kind == STORE:
            self._note_stored(one, other, lanes)
        if not differs.any():
            return None
        read = ins.kind == LOAD
        moved = any((a.bits != b.bits)[mine].any() for a, b, mine in operands if a.format != "pred")
        if moved and not read:
            return None
        if ins.kind == STORE and operands:
            return None
        for row in np.flatnonzero(differs):
            register, there = ins.registers[row], self.bad.instruction(other).registers[row]
            found = self._judge_result(one, other, int(row), register, there, lanes, read)
            if found is not None:
                return found
        return None

    def _selected(self, one: int, lanes: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.bool_]]:
        """The lanes that use each operand: of a selection those that select it, for compilers compute both
        sides of a branch."""
        ins = self.good.instruction(one)
        used = [lanes] * len(ins.operands)
        if ins.name.startswith("selp.") and (chosen := self.good.operand(one, 2)) is not None:
            first = chosen.bits.astype(np.bool_)
            used[:2] = [lanes & first, lanes & ~first]
        return used

    def _operands(
        self, one: int, other: int, lanes: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[Operand, Operand, npt.NDArray[np.bool_]]]:
        """The operands of both whose values are known, counterparts together, with the lanes that use
        them."""
        good, bad = (
            [run.operand(event, place) for place in range(len(run.instruction(event).operands))]
            for run, event in ((self.good, one), (self.bad, other))
        )
        if len(good) != len(bad):
            return
        if len(good) >= 2 and self.good.instruction(one).name.partition(".")[0] in _COMMUTES:
            straight, crossed = self._alike(good, bad), self._alike(good, [bad[1], bad[0], *bad[2:]])
            if crossed > straight:
                bad = [bad[1], bad[0], *bad[2:]]
        used = self._selected(one, lanes)
        for a, b, mine in zip(good, bad, used, strict=True):
            if a is not None and b is not None:
                yield a, b, mine

    def _alike(self, good: list[Operand | None], bad: list[Operand | None]) -> int:
        pairs = [(a, b) for a, b in zip(good[:2], bad[:2], strict=True) if a is not None and b is not None]
        return sum(self._counterparts(a, b) + bool((a.bits == b.bits).all()) for a, b in pairs)

    def _counterparts(self, good: Operand, bad: Operand) -> bool:
        return good.event is not None and self.alignment.partner[good.event] == bad.event

    def _judge_operands(
        self, one: int, operands: list[tuple[Operand, Operand, npt.NDArray[np.bool_]]]
    ) -> Finding | None:
        for good, bad, lanes in operands:
            if self._counterparts(good, bad) or not (is_float(good.format) and is_float(bad.format)):
                continue
            if good.format == bad.format and (good.bits == bad.bits)[lanes].all():
                continue
            if (good.event is None) != (bad.event is None):
                continue
            found = self._judge_value(one, good, bad, lanes)
            if found is not None:
                return found
        return None

    def _judge_value(
        self, one: int, good: Operand, bad: Operand, lanes: npt.NDArray[np.bool_]
    ) -> ValueFinding | None:
        """Two values that were made in other ways."""
        x, y = decoded(good.bits, good.format), decoded(bad.bits, bad.format)
        if x.shape != y.shape:
            return None
        kinds, scale = self._chain(good, x)
        made = made_by(bad.event, self.bad, self.alignment.back)
        others = [kind for event in made for kind in self.bad.rounds(event)] or [bad.format]
        bound = rounded_apart(scale, kinds, others) + SUM_GROWTH * self.stored * scale
        kind = min(kinds, key=precision)
        worst = self._excess(x, y, bound, lanes)
        if worst is None:
            return None
        at = one if good.event is None else good.event
        there = self.alignment.partner[one] if bad.event is None else bad.event
        assert there is not None
        texts = (good.format, bad.format)
        return ValueFinding(
            at, there, kind, worst, worst.lane, texts, one, self.alignment.edited_makers(there)
        )

    def _chain(self, good: Operand, x: Floats) -> tuple[list[str], Floats]:
        """The formats that the operations without counterpart which made a value of the good version round
        to, its own if there are none, and the largest value in each lane."""
        kinds: list[str] = []
        scale = np.abs(x).max(axis=1, keepdims=True)
        for event in made_by(good.event, self.good, self.alignment.partner):
            for row, register in enumerate(self.good.instruction(event).registers):
                if is_float(register.format):
                    values = np.abs(decoded(self.good.events[event].values[row], register.format))
                    finite = np.where(np.isfinite(values), values, 0)
                    scale = np.maximum(scale, finite.max(axis=1, keepdims=True))
            kinds += self.good.rounds(event)
        return kinds or [good.format], scale

    def _judge_result(
        self,
        one: int,
        other: int,
        row: int,
        register: TracedRegister,
        there: TracedRegister,
        lanes: npt.NDArray[np.bool_],
        read: bool,
    ) -> ValueFinding | None:
        """A result that its operands do not explain: of a load, or of what has no operands."""
        good, bad = self.good.events[one].values[row], self.bad.events[other].values[row]
        texts = (register.format, there.format)
        if not (is_float(register.format) and is_float(there.format)):
            if not self.integers or not read:
                return None
            lane = int(np.flatnonzero((good != bad) & lanes)[0])
            return ValueFinding(one, other, register.format, None, lane, texts, one)
        x, y = decoded(good, register.format), decoded(bad, there.format)
        if x.shape != y.shape:
            return None
        finite = np.abs(x[lanes])[np.isfinite(x[lanes])]
        scale = np.array(finite.max(initial=0.0))
        bound = SUM_GROWTH * (ulp(scale, register.format) + self.stored * scale)
        worst = self._excess(x, y, bound, lanes)
        if worst is None:
            return None
        return ValueFinding(one, other, element(register.format), worst, worst.lane, texts, one)

    def _excess(self, x: Floats, y: Floats, bound: Floats, lanes: npt.NDArray[np.bool_]) -> Excess | None:
        return excess(x, y, np.broadcast_to(0.0 * bound if self.exact else bound, x.shape), lanes)

    def _note_stored(self, one: int, other: int, lanes: npt.NDArray[np.bool_]) -> None:
        """What memory holds differs by so much, which is explained."""
        good, bad = self.good.events[one], self.bad.events[other]
        pairs = zip(self.good.instruction(one).registers, self.bad.instruction(other).registers, strict=False)
        for row, (register, there) in enumerate(pairs):
            if not (is_float(register.format) and is_float(there.format)):
                continue
            x, y = decoded(good.values[row], register.format), decoded(bad.values[row], there.format)
            if x.shape != y.shape:
                continue
            x, y = x[lanes], y[lanes]
            apart = np.abs(x - y)[np.isfinite(x) & np.isfinite(y)]
            largest = np.abs(x)[np.isfinite(x)].max(initial=0.0)
            if apart.any() and largest:
                self.stored = max(self.stored, float(apart.max() / largest))
