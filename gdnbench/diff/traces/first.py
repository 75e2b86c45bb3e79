# SPDX-License-Identifier: Apache-2.0
"""A difference as plain JSON: where it is, both values, and what its instruction had to work with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdnbench.diff.traces.alignment import Alignment, Operand, Run
from gdnbench.diff.traces.judging import Mask, Row
from gdnbench.diff.traces.places import cta_of, number, place_of
from gdnbench.diff.traces.rounding import decoded, is_float, ulp
from gdnbench.sim import Dim3
from gdnbench.sim.value_trace import TracedRegister

Apart = Callable[[Row, Row, TracedRegister, TracedRegister], Mask]
"""Where two registers differ, in lanes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Events `a` and `b` of an alignment, None where one has no counterpart. `row` and `lane` say which
    register of the instruction differs where; both are None where other lanes executed, or where one
    execution has no counterpart; of a statement that ran more often in one, `counts` are how often."""

    alignment: Alignment
    a: int | None
    b: int | None
    row: int | None = None
    lane: int | None = None
    counts: tuple[int, int] | None = None


def first_json(found: Difference, grid: Dim3, apart: Apart) -> dict[str, Any]:
    """`kind`: "value", "lanes" (other lanes executed it) or "missing" (only one of the traces has it); `cta`,
    `warp`, `a` and `b` with the place and occurrence in each; of a value also `lane`, `register`, `inputs`,
    and which lines of B, not in A as they are, made them."""
    sides = (found.alignment.good, found.a), (found.alignment.bad, found.b)
    run, event = next((run, event) for run, event in sides if event is not None)
    data: dict[str, Any] = {
        "cta": cta_of(run.events[event].cta, grid),
        "warp": run.events[event].warp,
        "a": _side(*sides[0]),
        "b": _side(*sides[1]),
    }
    if found.a is None or found.b is None:
        return {"kind": "missing", **data, "counts": found.counts}
    if found.row is None or found.lane is None:
        return {"kind": "lanes", **data}
    registers = [side.instruction(event).registers[found.row] for side, event in _both(found)]
    rows = [side.events[event].values[found.row] for side, event in _both(found)]
    values = [_value(int(row[found.lane]), one) for row, one in zip(rows, registers, strict=True)]
    for name, value, register in zip("ab", values, registers, strict=True):
        data[name] |= {**value, "register": register.name, "format": register.format}
    data["ulps"] = _ulps(rows[0], rows[1], registers[0], registers[1], found.lane)
    inputs = list(_inputs(found, found.lane, apart))
    return {"kind": "value", **data, "lane": found.lane, "inputs": inputs, "edited": list(_edited(found))}


def _both(found: Difference) -> list[tuple[Run, int]]:
    assert found.a is not None
    assert found.b is not None
    return [(found.alignment.good, found.a), (found.alignment.bad, found.b)]


def _side(run: Run, event: int | None) -> dict[str, Any] | None:
    if event is None:
        return None
    one = run.events[event]
    return {**place_of(run, event), "occurrence": one.occurrence, "lanes": one.lanes}


def _value(bits: int, register: TracedRegister) -> dict[str, Any]:
    """A register in one lane: its bits, and the numbers that they are."""
    if is_float(register.format):
        found = decoded(np.array([bits], np.uint64), register.format)[0].tolist()
        values = [number(one) for one in found]
    else:
        values = [bits]
    digits = max(register.bits // 4, 1)
    return {"bits": f"{bits:#0{digits + 2}x}", "value": values[0] if len(values) == 1 else values}


def _ulps(x: Row, y: Row, mine: TracedRegister, there: TracedRegister, lane: int) -> float | str | None:
    """How far apart the numbers are, at most; None for what are no numbers of one format."""
    if mine.format != there.format or not is_float(mine.format):
        return None
    a, b = (decoded(row[lane : lane + 1], mine.format) for row in (x, y))
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.abs(a - b) / ulp(np.maximum(np.abs(a), np.abs(b)), mine.format)
    return number(float(np.where(a == b, 0.0, found).max()))


def _inputs(found: Difference, lane: int, apart: Apart) -> Iterator[dict[str, Any]]:
    """What the instruction's operands were in the lane, in order, then what its addresses begin with."""
    (good, a), (bad, b) = _both(found)
    ins, other = good.instruction(a), bad.instruction(b)
    operands = zip(range(len(ins.operands)), range(len(other.operands)), strict=False)
    pairs = [("operand", ins.operands[i], good.operand(a, i), bad.operand(b, j)) for i, j in operands]
    addresses = zip(range(len(ins.addresses)), range(len(other.addresses)), strict=False)
    pairs += [("address", ins.addresses[i], good.base(a, i), bad.base(b, j)) for i, j in addresses]
    names = {one.index: one for every in good.instructions for one in every.registers}
    for what, operand, mine, there in pairs:
        register = names.get(operand) if isinstance(operand, int) else None
        name = "a constant" if isinstance(operand, str) else register.name if register else "a register"
        yield {"what": what, "name": name, **_states(mine, there, register, lane, apart)}


def _states(
    mine: Operand | None, there: Operand | None, register: TracedRegister | None, lane: int, apart: Apart
) -> dict[str, Any]:
    """Whether an input was the same before: "equal", "differs", "within the bound", or "not recorded"."""
    if mine is None or there is None:
        return {"state": "not recorded"}
    bits = 64 if register is None else register.bits
    one, other = (TracedRegister(0, "", bits, side.format) for side in (mine, there))
    values = [_value(int(side.bits[lane]), kind) for side, kind in ((mine, one), (there, other))]
    if not apart(mine.bits, there.bits, one, other)[lane]:
        same = mine.bits[lane] == there.bits[lane]
        moved = bits == 64 and not is_float(mine.format)
        state = "equal" if same else "equal, the same place of a tensor" if moved else "within the bound"
    else:
        state = "differs"
    return {"state": state, "format": mine.format, "a": values[0], "b": values[1]}


def _edited(found: Difference) -> Iterator[dict[str, Any]]:
    """Lines of B that made the value or the inputs and are not in A as they are, the nearest first."""
    _, (bad, b) = _both(found)
    makers = [b, *(one for one in (*bad.producers[b], *bad.bases[b]) if one is not None)]
    made = [one for maker in makers for one in found.alignment.edited_makers(maker)]
    places = [place_of(bad, event) for event in made]
    yield from {(one["file"], one["line"]): one for one in places if one["text"]}.values()
