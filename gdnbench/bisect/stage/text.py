# SPDX-License-Identifier: Apache-2.0
"""Prints the answer of the stage axis: rows of a table, notes, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gdnbench.bisect.stage.result import Row, StageResult
from gdnbench.bisect.verdict import State, Verdict

HEADS = ("stage", "step", "chained", "bound", "of exact stages", "its bound", "says")
WITHOUT_STEPS = ("stage", "step", "chained", "bound", "added", "its bound", "says")
"""Heads of a kernel that lists no steps."""

FAULTS = 3
"""How many faults are in notes."""


def heads(found: StageResult) -> tuple[str, ...]:
    return HEADS if found.steps or not found.rows else WITHOUT_STEPS


def cells(found: StageResult) -> list[tuple[str, ...]]:
    """Rows under `heads`."""
    return [_cells(row) for row in found.rows]


def notes(found: StageResult) -> list[str]:
    out = []
    if found.by_schedule:
        out.append(f"depends on the schedule: {found.by_schedule}")
    if found.same_bits is False:
        out.append("the steps, one after another, do not leave the bits that the kernel leaves")
    first = found.first
    for row in found.rows:
        if row.adds and row is not first and not row.explains:
            out.append(
                f"{row.name} is off too, {_where(row.alone)}, and does not explain the outputs: exact"
                " arithmetic from there on leaves them within their bounds"
            )
    more = len(found.faults) - FAULTS
    others = (
        [f"{more} more fault{'s' if more > 1 else ''}, which `gdnbench replay` lists"] if more > 0 else []
    )
    return [*out, *found.notes, *found.faults[:FAULTS], *others]


def _cells(row: Row) -> tuple[str, ...]:
    return (row.name, row.step, *_figures(row.chained), *_figures(row.alone, row.crash), says(row))


def _figures(tensor: Mapping[str, Any] | None, crash: str = "") -> tuple[str, str]:
    if crash:
        return crash.partition(":")[0], ""
    if tensor is None:
        return "", ""
    held = tensor["held"]
    if held is None:
        return ("" if tensor["passed"] else _short(tensor)), ""
    return f"{held['error']:.3g}", f"{held['limit']:.3g}"


def _short(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['x']}" if tensor["at"] is not None else "not comparable"


def says(row: Row) -> str:
    """What a stage does to the error."""
    if row.adds:
        return "adds and inherits" if row.inherits else "adds"
    if row.wrong:
        return "inherits" if row.alone is not None else "is off"
    return ""


def answer(found: StageResult) -> str:
    """One line: which stage, where, by how much, and whether the exact value there mends the outputs."""
    if found.label is None:
        count = f"{found.passing} record{'s' if found.passing != 1 else ''}"
        return f"{found.kernel} passes: no stage or output of {count} is over its bound"
    if found.flaky:
        return f"{found.kernel}, record {found.label} is flaky and was not bisected: {found.flaky}"
    first = found.first
    if first is None:
        return _none_adds(found)
    where = first.crash or _where(first.alone)
    hidden = f" (or {_either(first.hidden)}, which the kernel does not show)" if first.hidden else ""
    text = f"{first.name}{hidden} of {found.kernel}, record {found.label}: {where}"
    return f"{text}; {_mended(found, first)}{_added_up(found)}"


def _either(names: Sequence[str]) -> str:
    return " or ".join(names)


def _none_adds(found: StageResult) -> str:
    first = next((row for row in found.rows if row.wrong), None)
    if first is None:
        what = found.faults[0] if found.faults else (found.outputs.reason if found.outputs else "")
        return f"{found.kernel}, record {found.label}: no stage or output is over its bound; {what}"
    text = f"{first.name} of {found.kernel}, record {found.label}: {_where(first.chained)}"
    if found.same_bits is False:
        return f"{text}; none of its steps adds more than it may, and they are not what the kernel does"
    return (
        f"{text}; no step adds more than it may: it inherits, and what came in was off by less than its own"
        " bound"
    )


def _where(tensor: Mapping[str, Any] | None) -> str:
    if tensor is None:
        return "it left nothing"
    parts = []
    if tensor["at"] is not None:
        parts.append(place(tensor["at"]))
    held = tensor["held"]
    if held is not None:
        parts.append(f"{held['what']} error {held['error']:.3g} over {held['limit']:.3g}")
    elif tensor["at"] is not None:
        parts.append(f"{tensor['x']} where {tensor['y']} is exact")
    else:
        parts.append(tensor["reason"])
    text = ", ".join(parts)
    return f"{text}, in the state that it hands on" if tensor.get("carried") else text


def place(at: Mapping[str, Any]) -> str:
    named = [(name, at[name]) for name in ("sequence", "chunk", "token", "head")]
    words = [f"{name} {value}" for name, value in (*named, *at["dims"].items()) if value is not None]
    return f"{', '.join(words)} [{', '.join(map(str, at['index']))}]"


def _mended(found: StageResult, first: Row) -> str:
    if not first.stage:
        return "it is an output"
    if not any(row.wrong for row in found.rows if not row.stage):
        within = " within their tolerance" if found.tolerance else ""
        return f"the outputs pass{within} all the same"
    if not found.grafts:
        return "what it left cannot be replaced" if found.steps else _carried(first)
    graft = found.grafts[0]
    exact = " and ".join(graft.exact)
    if graft.verdict.state is State.GOOD:
        return f"with the exact {exact} there the outputs pass"
    text = f"with the exact {exact} there the outputs still fail ({graft.verdict.reason})"
    last = found.grafts[-1]
    if last.verdict.state is State.GOOD:
        return f"{text}; they pass with exact {' and '.join(last.exact)}"
    return text


def _carried(first: Row) -> str:
    """Of a kernel without steps: what exact steps make of the stage."""
    if first.carried is None:
        return "no later stage is computed from it, so it cannot be told whether it explains the outputs"
    if first.carried["passed"]:
        return (
            "exact arithmetic from there on leaves the outputs within their bounds: it explains them in part"
        )
    return f"exact arithmetic from there on leaves {first.carried['reason']}"


def _added_up(found: StageResult) -> str:
    """What the calls before make of it."""
    chain = found.chain
    if chain is None:
        return ""
    own, mended = (_kept(verdict) for verdict in (chain.own, chain.mended))
    count = f"{chain.before} earlier call{'s' if chain.before != 1 else ''}"
    return f"; on its own states over {count} {own}, with the exact {chain.exact} in each {mended}"


def _kept(verdict: Verdict) -> str:
    if verdict.state is State.GOOD:
        return "it keeps its bound"
    return f"it is over its bound ({verdict.reason})"


def as_json(found: StageResult) -> dict[str, Any]:
    first = found.first
    return {
        "axis": "stage",
        "kernel": found.kernel,
        "record": found.label,
        "passing": found.passing,
        "flaky": found.flaky or None,
        "by_schedule": found.by_schedule or None,
        "same_bits": found.same_bits,
        "stages": [
            {
                "name": row.name,
                "stage": row.stage,
                "step": row.step or None,
                "chained": row.chained,
                "alone": row.alone,
                "crash": row.crash or None,
                "says": says(row) or None,
                "explains": row.explains if row.adds else None,
                "carried": row.carried,
                "hidden": list(row.hidden),
            }
            for row in found.rows
        ],
        "first": None if first is None else first.name,
        "grafts": [
            {
                "exact": list(graft.exact),
                "passes": graft.verdict.state is State.GOOD,
                "reason": graft.verdict.reason,
            }
            for graft in found.grafts
        ],
        "chain": None
        if found.chain is None
        else {
            "before": found.chain.before,
            "exact": found.chain.exact,
            "keeps": found.chain.own.state is State.GOOD,
            "keeps_with_exact": found.chain.mended.state is State.GOOD,
        },
        "answer": answer(found),
    }
