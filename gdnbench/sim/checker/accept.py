# SPDX-License-Identifier: Apache-2.0
"""Accept files: findings of the checker that a person has accepted, each with a reason, in TOML.

    [[accept]]
    cause = "no tcgen05 fence"      # in the first line, between "in launch N: " and ":"
    kernel = "kernel_cutlass_gemm*" # the kernel's name in the PTX
    source = "gemm.py:120"          # the Python line of either access; the end of its path is enough
    text = "cute.copy(tma, s_x)"    # the text of that line, wherever it is; blanks count as one
    ptx = ["tcgen05.ld.*", "*.mma*"]  # the PTX of the accesses: one entry, of either access; two, one
                                      # of each, in any order; the same for `source` and `text`
    count = 2                       # of at most so many pairs of lines in a call; without: of any number
    reason = "the epilogue's barrier orders them, see the header of gemm.py"

An entry accepts a finding that matches every key it has. It needs a reason and at least one other key than
`count`. In `kernel` and `ptx` a `*` matches any text.

A baseline is an accept file that a command has written. Its entries name source lines by their text, so that
they hold in revisions that move the lines. They count pairs of lines, so that one more such pair is not
accepted. They name no kernel: compilers put the types and shapes of its arguments into its name, which is
another one in a call of another shape and after a change of its parameters.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from gdnbench.sim.checker.evidence import Access, Evidence
from gdnbench.sim.checker.source_text import source_text
from gdnbench.sim.errors import InputError
from gdnbench.sim.finding import Finding
from gdnbench.sim.finding_groups import group_key, short_opcode

KIND = "accept"
KNOWN = "known when this baseline was written"
"""The reason of a baseline's entries."""
_OF_ACCESSES = ("source", "text", "ptx")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an accept file. A key that is None matches everything."""

    reason: str
    cause: str | None = None
    kernel: str | None = None
    source: tuple[str, ...] | None = None
    ptx: tuple[str, ...] | None = None
    text: tuple[str, ...] | None = None
    count: int | None = None

    def fits(self, evidence: Evidence) -> bool:
        """Whether the entry accepts this finding."""
        sides = [side for side in (evidence.first, evidence.second) if side is not None]
        return (
            self.cause in (None, evidence.cause)
            and (self.kernel is None or _matches(self.kernel, evidence.kernel))
            and (self.source is None or _each_fits(self.source, sides, _source_fits))
            and (self.ptx is None or _each_fits(self.ptx, sides, _ptx_fits))
            and (self.text is None or _each_fits(self.text, sides, _text_fits))
        )

    def __str__(self) -> str:
        given = [(name, getattr(self, name)) for name in ("cause", "kernel", "source", "text", "ptx")]
        texts = [(name, (value,) if isinstance(value, str) else value) for name, value in given if value]
        return ", ".join(f"{name} {' and '.join(map(repr, value))}" for name, value in texts)


@dataclass(slots=True)
class Accepted:
    """The entries of an accept file, and which of them have accepted something. `path` names it in errors."""

    path: str | Path
    entries: Sequence[Entry]
    _used: set[int] = field(default_factory=set)
    _by_text: dict[str, list[int]] = field(init=False, default_factory=dict)
    """Numbers of the entries by the first of their texts; empty text: of those without. A baseline may have
    many thousands, of which a finding fits one or two."""

    def __post_init__(self) -> None:
        for number, entry in enumerate(self.entries):
            first = " ".join(entry.text[0].split()) if entry.text else ""
            self._by_text.setdefault(first, []).append(number)

    @classmethod
    def read(cls, path: Path, option: str = "--accept") -> Accepted:
        """Read a file, which `option` names. Raises InputError, which names the entry, for a file that is not
        an accept file or an entry without a reason."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), path, option)
        except OSError as error:
            raise InputError(f"{option} {path} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{option} {path} is not TOML: {error}") from None

    @classmethod
    def parse(cls, text: str, path: str | Path, option: str = "--accept") -> Accepted:
        """The accept file of this text. InputError as `read`."""
        try:
            document = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"{option} {path} is not TOML: {' '.join(str(error).split())}") from None
        tables = document.get(KIND, [])
        if not isinstance(tables, list) or document.keys() - {KIND}:
            raise InputError(f"{option} {path} must hold tables [[{KIND}]] and nothing else")
        entries = [
            _entry(table, f"{option} {path}: entry {number}") for number, table in enumerate(tables, 1)
        ]
        return cls(path, entries)

    def apply(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The same findings, those of one call; those that an entry accepts get its reason."""
        pairs: dict[int, set[object]] = {}  # of source lines, by entry
        return tuple(self._judged(finding, pairs) for finding in findings)

    def _judged(self, finding: Finding, pairs: dict[int, set[object]]) -> Finding:
        if finding.evidence is None:
            return finding
        fitting = []
        for number in self._candidates(finding.evidence):
            entry = self.entries[number]
            if entry.fits(finding.evidence):
                key, counted = group_key(finding), pairs.setdefault(number, set())
                if entry.count is None or key in counted or len(counted) < entry.count:
                    counted.add(key)
                    fitting.append(number)
                    if entry.count is not None:  # the next entry with equal keys counts others
                        break
        self._used.update(fitting)
        return replace(finding, accepted=self.entries[fitting[0]].reason) if fitting else finding

    def _candidates(self, evidence: Evidence) -> list[int]:
        """In their order, the numbers of the entries that may fit by their text."""
        sides = [side for side in (evidence.first, evidence.second) if side is not None]
        texts = {source_text(side.place) or "" for side in sides}
        return sorted(number for text in {"", *texts} for number in self._by_text.get(text, ()))

    def as_toml(self) -> str:
        """An accept file of the same entries, to which more can be appended."""
        tables = []
        for entry in self.entries:
            given = {one.name: getattr(entry, one.name) for one in fields(Entry)}
            tables.append(_as_table({name: value for name, value in given.items() if value is not None}))
        return "".join(f"{table}\n\n" for table in tables)

    def unused(self) -> list[str]:
        """A line for each entry that has accepted nothing so far."""
        return [
            f"{self.path}: entry {number + 1} accepts nothing that was found: {entry}"
            for number, entry in enumerate(self.entries)
            if number not in self._used
        ]


def _entry(table: Any, where: str) -> Entry:
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table, [[{KIND}]]")
    known = [one.name for one in fields(Entry)]
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where} has a key {key!r}; keys are {', '.join(known)}")
        if key == "count":
            if type(value) is not int or value < 1:
                raise InputError(f"{where}: count must be a whole number from 1")
            continue
        if key in _OF_ACCESSES and not isinstance(value, list):
            value = table[key] = [value]
        texts = value if isinstance(value, list) and key in _OF_ACCESSES else [value]
        if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
            either = ", or a list of two" if key in _OF_ACCESSES else ""
            raise InputError(f"{where}: {key} must be text{either}")
    if not table.get("reason", "").strip():
        raise InputError(f"{where} has no reason: say why what it accepts is right")
    if not table.keys() - {"reason", "count"}:
        raise InputError(f"{where} would accept everything: give a cause, kernel, source, text or ptx")
    given: dict[str, Any] = {key: tuple(table[key]) for key in _OF_ACCESSES if key in table}
    return Entry(**{**table, **given})


def _each_fits(texts: Sequence[str], sides: Sequence[Access], fits: Callable[[str, Access], bool]) -> bool:
    """Whether the texts can be assigned to different accesses so that each fits."""
    chosen = permutations(sides, len(texts))
    return any(all(map(fits, texts, some)) for some in chosen)


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches the whole of `text`; runs of blanks count as one."""
    # Not a regular expression: with many * its backtracking may take very long to fail.
    start, *parts = " ".join(pattern.split()).split("*")
    if not parts:
        return text == start
    *between, end = parts
    if not text.startswith(start):
        return False
    at = len(start)
    for part in between:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return text.endswith(end, at)


def _ptx_fits(pattern: str, side: Access) -> bool:
    return _matches(pattern, side.place.text)


def _source_fits(source: str, side: Access) -> bool:
    place = f"{side.place.file}:{side.place.file_line}"
    return side.place.file is not None and (place == source or place.endswith(f"/{source}"))


def _text_fits(text: str, side: Access) -> bool:
    return source_text(side.place) == " ".join(text.split())


def _as_table(entry: Mapping[str, Any]) -> str:
    """An entry as a TOML table, in which numbers, strings and lists of them are written as in JSON, but for
    one character that JSON allows."""
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for key, value in entry.items()
    ]
    return "\n".join([f"[[{KIND}]]", *lines])


def acceptance_template(findings: Iterable[Finding]) -> str:
    """An accept file for all findings that are not accepted yet. The reasons are empty and have to be filled
    in."""
    found: dict[str, str] = {}
    for evidence in (one.evidence for one in findings if one.accepted is None):
        if evidence is None or evidence.second is None:
            continue
        places = [side.place for side in (evidence.first, evidence.second) if side is not None]
        entry: dict[str, str | list[str]] = {"cause": evidence.cause, "kernel": evidence.kernel}
        if all(place.file is not None for place in places):
            entry["source"] = sorted(f"{place.file}:{place.file_line}" for place in places)
        else:
            entry["ptx"] = sorted(place.text for place in places)
        found.setdefault(_as_table({**entry, "reason": ""}), f"# {evidence.summary}")
    return "".join(f"{says}\n{table}\n\n" for table, says in found.items())


def known_findings(findings: Iterable[Finding]) -> Counter[str]:
    """How many pairs of source lines each entry of a baseline stands for, by the entry in TOML without its
    count and reason: the errors among the findings of one call that are not accepted. For several calls use
    the larger count, `|`."""
    pairs: dict[str, set[object]] = {}
    for finding in findings:
        evidence = finding.evidence
        if not finding.fails or evidence is None or evidence.second is None:
            continue
        sides = [side for side in (evidence.first, evidence.second) if side is not None]
        entry: dict[str, str | list[str]] = {"cause": evidence.cause}
        texts = [text for side in sides if (text := source_text(side.place)) is not None]
        if len(texts) == len(sides):
            entry["text"] = sorted(texts)
        elif all(side.place.file is not None for side in sides):
            entry["source"] = sorted(f"{side.place.file}:{side.place.file_line}" for side in sides)
        else:
            entry["kernel"] = evidence.kernel
        entry["ptx"] = sorted(f"*{short_opcode(side.does)}*" for side in sides)
        pairs.setdefault(_as_table(entry), set()).add(group_key(finding))
    return Counter({table: len(found) for table, found in pairs.items()})


def extended_baseline(text: str, known: Mapping[str, int]) -> str:
    """The accept file of the entries of another, of this text, and of known findings. InputError if the text
    is none."""
    return Accepted.parse(text, "to extend", "the baseline").as_toml() + baseline(known)


def baseline(known: Mapping[str, int]) -> str:
    """The accept file of known findings, as `known_findings` counts them."""
    return "".join(f'{table}\ncount = {count}\nreason = "{KNOWN}"\n\n' for table, count in known.items())
