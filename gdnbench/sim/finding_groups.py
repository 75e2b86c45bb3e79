# SPDX-License-Identifier: Apache-2.0
"""Findings as a person mends them: one group for each cause at a pair of source lines.

A loop that is unrolled 32 times has 32 pairs of instructions with one mistake, and each launch of the kernel
repeats them: one group, with counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from gdnbench.sim.checker.evidence import Access, Evidence
from gdnbench.sim.errors import Place
from gdnbench.sim.finding import Finding, Severity

VARIANT = re.compile(
    r".*::.*|sync|aligned|weak|relaxed|acquire|release|volatile|v[248]|x?\d.*|[a-z]+\d+(x\d)?"
)
"""A part of an opcode that says how the operation is done, or with which type, and not which one it is."""
MEMORIES = {"tmem": "tensor memory", "register": "a register", "barrier": "a barrier"}
"""As in the text of one finding; the others are `shared memory`, `global memory`."""

NAMED = 6  # at most so many launches are named; the rest are counted
SHOWN_GROUPS = 16
"""Groups that are shown without --verbose: at three lines each they fit a screen of 50 lines."""
NAME_LENGTH = 160
"""Characters of a file's name or a role that are shown: PTX may hold names of any length."""
SEVERITIES = tuple(Severity)

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class GroupedFinding:
    """Findings of one cause at one pair of source lines, at least one. They differ in their instructions,
    addresses and launches."""

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        first = self.findings[0]
        evidence = _pairs(self.findings)
        if not evidence:
            return str(first)
        memory = evidence[0].memory
        where = evidence[0].where if len(evidence) == 1 else MEMORIES.get(memory, f"{memory} memory")
        of = "" if first.of is None else f" of {first.of}"
        lines = [
            f"{first.severity} in {_launches(self.findings)}{of}: {first.kind}: {where},"
            f" without {evidence[0].missing}"
        ]
        before = [one.first for one in evidence if one.first is not None]
        after = [one.second for one in evidence if one.second is not None]
        if before:
            lines.append(f"first:  {_accesses(before)}")
        lines.append(f"{'second' if before else 'access'}: {_accesses(after)}; {_counts(evidence)}")
        if first.accepted is not None:
            lines.append(f"accepted: {first.accepted}")
        return "\n  ".join(lines)

    @property
    def summary(self) -> str:
        """One line that is equal for every launch with this finding."""
        first = self.findings[0]
        if not _pairs(self.findings) or first.evidence is None:
            return first.summary
        sides = (first.evidence.first, first.evidence.second)
        places = ", then ".join(_source(side.place) for side in sides if side is not None)
        of = "" if first.of is None else f"{first.of}: "
        return f"{of}{first.kind}: {places}, without {first.evidence.missing}"


def group_findings(findings: Iterable[Finding]) -> list[GroupedFinding]:
    """The findings in their order, those of one cause at one pair of source lines together."""
    groups: dict[Key, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(group_key(finding), []).append(finding)
    return [GroupedFinding(tuple(group)) for group in groups.values()]


def text_of_groups(findings: Iterable[Finding]) -> list[str]:
    """The text of each group. Of many, the first SHOWN_GROUPS in the order of their severity, and a line that
    counts the others."""
    groups = group_findings(findings)
    if len(groups) <= SHOWN_GROUPS:
        return list(map(str, groups))
    groups.sort(key=lambda group: SEVERITIES.index(group.findings[0].severity))
    return [*map(str, groups[:SHOWN_GROUPS]), _rest(groups[SHOWN_GROUPS:])]


def _rest(groups: list[GroupedFinding]) -> str:
    counts = Counter(group.findings[0].severity for group in groups)
    said = ", ".join(f"{counts[one]:,} {one}" for one in SEVERITIES if counts[one])
    return f"{len(groups):,} more pairs of source lines and causes ({said}); --verbose lists every finding"


def lines_by_cause(groups: Iterable[GroupedFinding]) -> list[str]:
    """One line for each severity and cause: its first group, and how many more there are."""
    by_cause: dict[Key, list[GroupedFinding]] = {}
    for group in groups:
        first = group.findings[0]
        by_cause.setdefault((first.severity, first.kind), []).append(group)
    lines = []
    for found in by_cause.values():
        more = f"; {len(found) - 1} more of this cause" if len(found) > 1 else ""
        lines.append(f"{found[0].findings[0].severity}: {found[0].summary}{more}")
    return lines


def short_opcode(text: str) -> str:
    """The opcode at the start of `text` without its variants: `tcgen05.ld` of `tcgen05.ld.sync.aligned`."""
    first, *parts = text.split(maxsplit=1)[0].split(".")
    return ".".join([first, *takewhile(lambda part: VARIANT.fullmatch(part) is None, parts)])


def group_key(finding: Finding) -> Key:
    """Equal for the findings of one group: those of one severity and cause at one pair of source lines. The
    kernel counts where there are no source lines: its name has the types and shapes it was compiled for."""
    evidence = finding.evidence
    if evidence is None or evidence.second is None:
        return (finding.severity, finding.kind, finding.of, finding.launch, finding.message, finding.ptx_line)
    sides = [side.place for side in (evidence.first, evidence.second) if side is not None]
    kernel = "" if all(place.file is not None for place in sides) else evidence.kernel
    said = (evidence.cause, kernel, evidence.missing, evidence.memory)
    return (finding.severity, finding.of, finding.accepted, *said, *map(_line, sides))


def _line(place: Place) -> Key:
    """What tells a source line from others: of PTX without source lines, that of the PTX."""
    return (place.line,) if place.file is None else (place.file, place.file_line)


def _pairs(findings: Iterable[Finding]) -> list[Evidence]:
    """The evidence of findings about accesses; empty for a fault, and for what says what was not judged."""
    found = (finding.evidence for finding in findings)
    return [evidence for evidence in found if evidence is not None and evidence.second is not None]


def _launches(findings: Iterable[Finding]) -> str:
    numbers = sorted({finding.launch for finding in findings})
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"launch{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:NAMED]))}{more}"


def _accesses(sides: list[Access]) -> str:
    """The source line, what its instructions do there, and the roles of their warps."""
    does: dict[str, list[str]] = {}  # by opcode: reads, writes
    for side in sides:
        verbs = does.setdefault(short_opcode(side.does), [])
        verb = side.does.split(maxsplit=1)[-1]
        if verb not in verbs:
            verbs.append(verb)
    operations = ", ".join(f"{opcode} {' or '.join(sorted(verbs))}" for opcode, verbs in does.items())
    late = ", asynchronously" if any(side.asynchronous for side in sides) else ""
    roles = _shortened(", ".join(dict.fromkeys(side.role for side in sides)))
    if sides[0].kernel:
        roles += ", in an earlier launch"
    return f"{_source(sides[0].place)}: {operations}{late} ({roles})"


def _source(place: Place) -> str:
    """`file:line`, relative to the current folder if it is in it; without source lines, that of the PTX."""
    if place.file is None:
        return str(place)
    path, folder = Path(place.file), Path.cwd()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return f"{_shortened(str(shown))}:{place.file_line}"


def _shortened(name: str) -> str:
    """`name`, or its two ends with three dots between them if it is longer than NAME_LENGTH."""
    half = (NAME_LENGTH - 3) // 2
    return name if len(name) <= NAME_LENGTH else f"{name[:half]}...{name[-half:]}"


def _counts(evidence: list[Evidence]) -> str:
    one, many = ("access", "accesses") if evidence[0].first is None else ("pair", "pairs")
    executions, instructions = sum(each.count for each in evidence), sum(each.places for each in evidence)
    ctas = max(each.ctas for each in evidence)
    text = f"{executions} {many if executions > 1 else one} in {ctas} CTA{'s' if ctas > 1 else ''}"
    of = "instructions" if evidence[0].first is None else "pairs of instructions"
    return f"{text}, of {instructions} {of}" if instructions > 1 else text
