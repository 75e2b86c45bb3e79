# SPDX-License-Identifier: Apache-2.0
"""A comparison of two traces, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench.diff.traces.compare import LaunchComparison, TraceComparison
from gdnbench.diff.traces.places import describe_place
from gdnbench.printable import printable

SCHEMA = 1
SHOWN = 20
"""Python lines that are listed; of more there is the count."""


def as_json(found: TraceComparison, exit_code: int) -> dict[str, Any]:
    """Plain values; docs/trace.md has the fields."""
    return {
        "schema": SCHEMA,
        "command": "diff",
        "what": "traces",
        "a": str(found.a.path),
        "b": str(found.b.path),
        "rule": str(found.bound),
        "exit_code": exit_code,
        "unpaired": list(found.unpaired),
        "launches": [_launch(one) for one in found.launches],
    }


def _launch(one: LaunchComparison) -> dict[str, Any]:
    return {
        "a": one.a.number,
        "b": one.b.number,
        "record": one.a.attributes.get("record"),
        "entry": one.a.entry,
        "aligned": one.aligned,
        "only_a": one.only[0],
        "only_b": one.only[1],
        "differing": one.differing,
        "first": one.first,
        "lines": [
            {"file": file, "line": line, "text": one.text(file, line), "differing": count}
            for (file, line), count in one.lines.most_common()
        ],
        "missing": one.missing,
        "notes": one.notes,
    }


def report_lines(found: TraceComparison) -> Iterator[str]:
    """The last line is the verdict. Nothing in them does anything to a terminal."""
    yield from (printable(line) for line in found.unpaired)
    for one in found.launches:
        yield from map(printable, _lines(one))
    aligned = sum(one.aligned for one in found.launches)
    differing = sum(one.differing for one in found.launches)
    count = f"{len(found.launches)} launch{'' if len(found.launches) == 1 else 'es'}"
    verdict = "no difference" if found.equal else f"{differing:,} differ" if differing else "not the same"
    yield f"{count}: {aligned:,} events aligned, {verdict} | {found.bound}"


def _lines(one: LaunchComparison) -> Iterator[str]:
    name = f"launch {one.a.number}" + ("" if one.a.number == one.b.number else f" / {one.b.number}")
    yield from (f"{name}: {note}" for note in (*one.notes, *one.missing))
    if any(one.only):
        a, b = one.only
        yield f"{name}: {a:,} events of A and {b:,} of B have no counterpart and are not compared"
    if one.first is None:
        return
    yield f"{name}, {one.a.entry}"
    yield from (f"  {line}" for line in first_lines(one.first))
    if one.lines:
        yield "  differing executions by Python line of A, this one among them:"
        for (file, line), count in one.lines.most_common(SHOWN):
            place = describe_place({"file": file, "line": line, "function": ""})
            yield f"    {count:>9,}  {place}: {one.text(file, line)}"
        if len(one.lines) > SHOWN:
            yield f"    and of {len(one.lines) - SHOWN} more lines"


def first_lines(first: dict[str, Any]) -> Iterator[str]:
    """What `first_json` found."""
    a, b = first["a"], first["b"]
    who = f"CTA ({','.join(map(str, first['cta']))}), warp {first['warp']}"
    if first["kind"] == "missing":
        name, there = ("A", a) if a is not None else ("B", b)
        yield f"first difference: {who}: only {name} executes occurrence {there['occurrence']} of"
        yield f"{name}: {describe_place(there)}: {there['text']}"
        yield f"   PTX line {there['ptx_line']:,}: {there['ptx']}"
        if first["counts"] is not None:
            yield f"the statement ran {first['counts'][0]} times in A, {first['counts'][1]} in B"
        return
    lane = f", lane {first['lane']}" if first["kind"] == "value" else ""
    occurrence = str(a["occurrence"])
    if b["occurrence"] != a["occurrence"]:
        occurrence += f" / {b['occurrence']}"
    yield f"first difference: {who}{lane}, occurrence {occurrence}"
    for name, side in (("A", a), ("B", b)):
        yield f"{name}: {describe_place(side)}: {side['text']}"
        yield f"   PTX line {side['ptx_line']:,}: {side['ptx']}"
    if first["kind"] == "lanes":
        yield f"lanes {a['lanes']:#010x} execute it in A, {b['lanes']:#010x} in B"
        return
    ulps = "" if first["ulps"] is None else f", {_shown(first['ulps'], 3)} ULPs apart"
    yield f"{a['register']} ({a['format']}): A {_value(a)}, B {_value(b)}{ulps}"
    for one in first["inputs"]:
        what = "address " if one["what"] == "address" else ""
        values = "" if "a" not in one else f": A {_value(one['a'])}"
        if one["state"] in ("differs", "within the bound"):
            values += f", B {_value(one['b'])}"
        yield f"input {what}{one['name']}: {one['state']}{values}"
    for place in first["edited"]:
        yield f"not in A as it is: {describe_place(place)}: {place['text']}"


def _value(side: dict[str, Any]) -> str:
    values = side["value"] if isinstance(side["value"], list) else [side["value"]]
    return f"{' '.join(map(_shown, values))} ({side['bits']})"


def _shown(value: float | str, digits: int = 9) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
