# SPDX-License-Identifier: Apache-2.0
"""The page of `gdnbench report --lineage`: timelines of slots, without a script."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from gdnbench.errors import BadInputError
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.table import Access, AccessTable
from gdnbench.lineage.text import describe
from gdnbench.lineage.timeline import PADDING_USER, Holding, Timeline
from gdnbench.page.build import asset
from gdnbench.page.embed import csp_hash
from gdnbench.printable import printable
from gdnbench.whole_file import replace_text

STYLES = ("base", "slots")
MOST_BREAKS = 100
"""Listed below a timeline; marks are of these too."""

_HEIGHT = 10  # of a bar, in units of its drawing
_COLOURS = 4


def write_slots_page(timelines: Sequence[Timeline], summary: Sequence[str], path: Path, title: str) -> None:
    """Write the page to a file, atomically; BadInputError if it cannot be written."""
    try:
        replace_text(path, render_slots(timelines, summary, title))
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from None


def render_slots(timelines: Sequence[Timeline], summary: Sequence[str], title: str) -> str:
    """The HTML document; deterministic. `summary`: lines that say what was checked."""
    style = "\n".join(asset("style", f"{name}.css") for name in STYLES)
    policy = f"default-src 'none'; style-src {csp_hash(style)}; base-uri 'none'; form-action 'none'"
    body = "\n".join(
        [
            f"<h1>{_text(title)}</h1>",
            *(f"<p>{_text(line)}</p>" for line in summary),
            *(part for timeline in timelines for part in _section(timeline)),
        ]
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"</body>\n</html>\n"
    )


def _text(text: object) -> str:
    return html.escape(printable(text))


def _section(timeline: Timeline) -> Iterator[str]:
    first, last = timeline.steps
    process = timeline.table.process
    name = f"{_text(timeline.layer)}, {_text(timeline.chain)}"
    yield f"<section>\n<h2>{name} <small>process {_text(process)}</small></h2>"
    shown = len(timeline.slots)
    left_out = f", {shown} of {timeline.all_slots} slots" if shown < timeline.all_slots else ""
    hint = f"Steps {first} to {last}{left_out}. A bar is the time in which one request uses a slot."
    yield f'<p class="hint">{hint}</p>'
    yield '<ol class="slots">'
    marks = timeline.findings[:MOST_BREAKS]
    for slot in timeline.slots:
        holdings = [one for one in timeline.holdings if one.slot == slot]
        breaks = [one for one in marks if slot in (one.damage.slot, one.found.slot)]
        yield from _row(timeline, slot, holdings, breaks)
    yield "</ol>"
    if marks:
        yield "<h3>Breaks</h3>\n<ul>"
        for one in marks:
            yield f"<li>{_break(timeline.table, one)}</li>"
        yield "</ul>"
        if len(timeline.findings) > MOST_BREAKS:
            yield f"<p>and {len(timeline.findings) - MOST_BREAKS} more</p>"
    yield from _table(timeline)
    yield "</section>"


def _row(
    timeline: Timeline, slot: int, holdings: Sequence[Holding], breaks: Sequence[Finding]
) -> Iterator[str]:
    first, last = timeline.steps
    width = last - first + 1
    words = "; ".join(_holding(timeline.table, one) for one in holdings[:20])
    words += "; more below" if len(holdings) > 20 else ""
    if breaks:
        words += f"; breaks at steps {', '.join(str(one.found.step) for one in breaks[:20])}"
    label = f"slot {slot}" + (" \N{BALLOT X}" if breaks else "")
    yield (
        f'<li><span class="name">{label}</span><svg role="img" aria-label="{_text(words)}"'
        f' viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none">'
    )
    for one in holdings:
        colour = "nobody" if one.request < 0 else f"r{one.request % _COLOURS}"
        yield (
            f'<rect class="{colour}" x="{one.first - first}" width="{one.last - one.first + 1}" y="1"'
            f' height="{_HEIGHT - 2}"><title>{_text(_holding(timeline.table, one))}</title></rect>'
        )
    for step in sorted(
        {access.step for one in breaks for access in (one.damage, one.found) if access.slot == slot}
    ):
        x = step - first + 0.5
        yield f'<line x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}"><title>break at step {step}</title></line>'
    yield "</svg></li>"


def _user(table: AccessTable, request: int) -> str:
    return {-1: "an unknown request", PADDING_USER: "padding"}.get(request) or table.requests[request]


def _holding(table: AccessTable, one: Holding) -> str:
    when = f"step {one.first}" if one.first == one.last else f"steps {one.first} to {one.last}"
    return f"{_user(table, one.request)}, {when}"


def _break(table: AccessTable, one: Finding) -> str:
    parts: list[tuple[str, Access]] = [("damaged by", one.damage)]
    if one.found != one.damage:
        parts.append(("shown by", one.found))
    if one.own is not None and one.own != one.found:
        parts.append(("last written by", one.own))
    said = "; ".join(f"{word} {_text(describe(table, access))}" for word, access in parts)
    return f"<b>{one.kind.value}</b>: {said}"


def _table(timeline: Timeline) -> Iterator[str]:
    yield "<details><summary>The bars as a table</summary>\n<table>"
    yield "<tr><th>slot</th><th>request</th><th>first step</th><th>last step</th></tr>"
    for one in timeline.holdings:
        who = _text(_user(timeline.table, one.request))
        yield f"<tr><td>{one.slot}</td><td>{who}</td><td>{one.first}</td><td>{one.last}</td></tr>"
    yield "</table></details>"
