# SPDX-License-Identifier: Apache-2.0
"""Prints the finding as plain JSON and as lines."""

from __future__ import annotations

from typing import Any

from gdnbench.bisect.instruction.compare import Finding, LanesFinding, ValueFinding
from gdnbench.bisect.instruction.edits import SHOWN
from gdnbench.bisect.instruction.launches import LaunchDifference, kernel_name
from gdnbench.diff.traces.alignment import Alignment
from gdnbench.diff.traces.places import cta_of, describe_place, number, place_of
from gdnbench.diff.traces.rounding import element, ulp
from gdnbench.diff.traces.statements import Statement
from gdnbench.sim import Dim3


def launch_line(difference: LaunchDifference, launches: int) -> str:
    how = "differs" if difference.beyond else "differs by no more than rounding"
    place = ", ".join(map(str, difference.place))
    return (
        f"launch {difference.launch + 1} of {launches}, {kernel_name(difference.entry)}, {how}:"
        f" {difference.tensor}[{place}] is {difference.good:.6g} and {difference.bad:.6g}"
    )


def difference_facts(found: Finding, alignment: Alignment, cta: int, grid: Dim3) -> dict[str, Any]:
    """The finding as plain JSON; `kind` is its kind."""
    good, bad = alignment.good, alignment.bad
    where: dict[str, Any] = {"cta": cta_of(cta, grid)}
    if isinstance(found, ValueFinding):
        where |= _value(found, alignment)
        places = [place_of(bad, one) for one in found.edited]
        where["edited"] = list({(one["file"], one["line"]): one for one in places[::-1]}.values())[::-1]
        return where
    if isinstance(found, LanesFinding):
        event = good.events[found.good]
        lanes = {"good_lanes": event.lanes, "bad_lanes": bad.events[found.bad].lanes}
        sides = {"good": place_of(good, found.good), "bad": place_of(bad, found.bad)}
        who = {"warp": event.warp, "occurrence": event.occurrence}
        return {**where, "kind": "lanes", **lanes, **sides, **who, "edited": []}
    run = good if found.good > found.bad else bad
    return {
        **where,
        "kind": "sequence",
        "warp": found.warp,
        "occurrence": run.events[found.event].occurrence,
        "more": "good" if run is good else "bad",
        "good_count": found.good,
        "bad_count": found.bad,
        "place": place_of(run, found.event),
        "edited": _edited_beside(found.site, alignment),
    }


def _edited_beside(site: Statement, alignment: Alignment) -> list[dict[str, Any]]:
    """What the bad version has edited of the function that `site` stands in, else of its file: loops, above
    all."""
    of = alignment.pairing.of
    near = [one for one in alignment.pairing.edited if of[one].file == site.file]
    edited = [one for one in near if of[one].function == site.function] or near
    source = alignment.bad.source
    return [
        {
            "file": one.file,
            "line": one.line,
            "function": one.function,
            "text": source.line_text(one.file, one.line),
        }
        for one in sorted(edited, key=lambda one: one.line)
    ]


def _value(found: ValueFinding, alignment: Alignment) -> dict[str, Any]:
    event = alignment.good.events[found.good]
    data: dict[str, Any] = {
        "kind": "value",
        "warp": event.warp,
        "occurrence": event.occurrence,
        "lane": found.lane,
        "format": found.format,
        "good": place_of(alignment.good, found.good),
        "bad": place_of(alignment.bad, found.bad),
    }
    worst = found.excess
    if worst is not None:
        import numpy as np

        kind = element(found.format)
        unit = float(ulp(np.array(worst.good), kind))
        data |= {
            "good_value": number(worst.good),
            "bad_value": number(worst.bad),
            "ulps": number(worst.difference / unit),
            "explained_ulps": number(worst.bound / unit),
        }
    return data


def difference_lines(found: dict[str, Any]) -> list[str]:
    """The finding as lines; the last line is the answer."""
    *shown, answer = _found(found)
    changed = found.get("edits", [])
    shown += [
        f"{one['how']}, by the source alone: {describe_place(one)}: {one['text']}" for one in changed[:SHOWN]
    ]
    if len(changed) > SHOWN:
        shown.append(f"and {len(changed) - SHOWN} more statements that the versions do not have alike")
    if len(changed) == 1:
        (one,) = changed
        answer = f"{describe_place(one)}: `{one['text']}` is {one['how']}, no other statement; {answer}"
    return [*shown, answer]


def _found(found: dict[str, Any]) -> list[str]:
    who = f"CTA ({','.join(map(str, found['cta']))}), warp {found['warp']}"
    if found["kind"] == "sequence":
        return [*_edited(found["edited"]), _sequence(found, who)]
    good, bad = found["good"], found["bad"]
    shown = [f"good: {describe_place(good)}: {good['text']}", f"bad:  {describe_place(bad)}: {bad['text']}"]
    ptx = f"PTX line {good['ptx_line']:,} / {bad['ptx_line']:,}: {good['ptx']}"
    if bad["ptx"].split()[0] != good["ptx"].split()[0]:
        ptx += f" / {bad['ptx']}"
    if found["kind"] == "lanes":
        lanes = f"lanes {found['good_lanes']:#010x} execute it, {found['bad_lanes']:#010x} in the bad version"
        return [*shown, f"{describe_place(bad)}: {lanes}, {who}, occurrence {found['occurrence']}; {ptx}"]
    edited = found["edited"]
    shown += _edited(edited)
    first = edited[0] if edited else bad
    values = f"{good['instruction']} value"
    if "ulps" in found:
        values += f" {_shown(found['good_value'])} against {_shown(found['bad_value'])}"
        values += f" ({_shown(found['ulps'], 3)} {found['format'].partition('x')[0]} ULPs,"
        values += f" rounding explains {_shown(found['explained_ulps'], 3)})"
    else:
        values += f" of {found['format']} differs"
    where = f"{who}, lane {found['lane']}, occurrence {found['occurrence']}"
    return [*shown, f"{describe_place(first)}: {values}, {where}; {ptx}"]


def _edited(places: list[dict[str, Any]]) -> list[str]:
    return [f"edited: {describe_place(one)}: {one['text']}" for one in places]


def _shown(value: float | str, digits: int = 7) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def _sequence(found: dict[str, Any], who: str) -> str:
    place = found["place"]
    counts = f"{found['good_count']} times in the good version, {found['bad_count']} in the bad one"
    said = (
        f"{describe_place(place)}: `{place['text']}` runs {counts}, {who}; first without a counterpart"
        " is occurrence"
        f" {found['occurrence']} of PTX line {place['ptx_line']:,} of the {found['more']} version:"
        f" {place['ptx']}"
    )
    loops = [one for one in found["edited"] if one["text"].startswith(_CONTROL)]
    return f"{describe_place(loops[0])}: `{loops[0]['text']}` is edited; {said}" if loops else said


_CONTROL = ("for ", "while ", "if ", "elif ")
"""What decides how often a statement runs."""
