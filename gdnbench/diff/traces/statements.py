# SPDX-License-Identifier: Apache-2.0
"""Python statements of two versions of a kernel, and which of them correspond.

A `.loc` line belongs to the innermost statement around it. A statement is known by what it says without
comments and layout, and by the function it stands in, not by its line: what moved is still the same.
"""

from __future__ import annotations

import ast
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

LIKENESS = 0.5
"""How much of two statements or functions must be the same text where one may have become the other."""


DEFINITION = "def ..."
"""What the text of a function's header begins with; compilers put there what they merged from several
lines."""


@dataclass(frozen=True, slots=True)
class Statement:
    """`number` tells equal statements of a function apart. `text` is normalised; of a compound statement it
    is the header alone."""

    file: str
    function: str
    number: int
    line: int
    text: str


@dataclass(slots=True)
class Source:
    """The statements of one version's files, by file; a file that cannot be read has statements without
    text."""

    _lines: dict[str, dict[int, Statement]] = field(default_factory=dict)
    _texts: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of_files(cls, files: Iterable[str]) -> Source:
        """Of files as they are now; those that cannot be read are left out."""
        texts = {}
        for file in dict.fromkeys(files):
            with contextlib.suppress(OSError, ValueError):
                texts[file] = Path(file).read_text(encoding="utf-8")
        return cls.of_texts(texts)

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> Source:
        """Of the texts of files; those that are no Python are left out."""
        source = cls()
        for file, text in texts.items():
            try:
                found = list(_statements(file, ast.parse(text)))
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            source._texts[file] = text.splitlines()
            source._lines[file] = {line: one for one, lines in found for line in lines}
        return source

    def statement_at(self, file: str, line: int) -> Statement:
        found = self._lines.get(file, {}).get(line)
        return found or Statement(file, "", line, line, "")

    def line_text(self, file: str, line: int) -> str:
        """The text of a line as it is written; empty where it is not known."""
        lines = self._texts.get(file, [])
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def files(self) -> list[str]:
        """Those that could be read."""
        return list(self._texts)

    def functions(self) -> dict[tuple[str, str], list[Statement]]:
        """Statements by file and function, in their order."""
        found: dict[tuple[str, str], dict[Statement, None]] = defaultdict(dict)
        for file, lines in self._lines.items():
            for line in sorted(lines):
                one = lines[line]
                found[file, one.function][one] = None
        return {key: sorted(ones, key=lambda one: one.line) for key, ones in found.items()}


def _statements(file: str, tree: ast.Module) -> Iterator[tuple[Statement, list[int]]]:
    """Statements with the lines that are theirs, an outer one before those within it."""
    count = 0

    def visit(body: Sequence[ast.stmt], function: str) -> Iterator[tuple[Statement, list[int]]]:
        nonlocal count
        for node in body:
            within = [value for name in _BODIES for value in getattr(node, name, ())]
            blocks = [
                one.body if isinstance(one, ast.ExceptHandler | ast.match_case) else [one] for one in within
            ]
            inner = [one for block in blocks for one in block]
            last = node.end_lineno or node.lineno
            if inner:
                last = max(node.lineno, min(_first(one) for one in inner) - 1)
            count += 1
            statement = Statement(file, function, count, node.lineno, _text(node))
            yield statement, list(range(_first(node), last + 1))
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            name = f"{function}.{node.name}".lstrip(".") if named else function  # type: ignore[attr-defined]
            yield from visit(inner, name)

    yield from visit(tree.body, "")


_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def _first(node: ast.stmt) -> int:
    """The line that a statement begins on, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _text(node: ast.stmt) -> str:
    """The statement in one line; of a compound one its header."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"{DEFINITION}({ast.unparse(node.args)})"
    if isinstance(node, ast.ClassDef):
        return "class ..."
    lines = ast.unparse(node).splitlines()
    return lines[0] if any(getattr(node, name, None) for name in _BODIES) else "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Pairing:
    """`of` gives a statement of the bad version the one of the good version that it was; `edited` are those
    of the bad version that say something else than theirs."""

    of: Mapping[Statement, Statement]
    edited: frozenset[Statement]


def pair(good: Source, bad: Source) -> Pairing:
    """Functions first: those of one name in files of one name, then of one name, then the most alike. Within
    a function equal statements in their order, then equal ones that changed places, then those that stand in
    each other's place."""
    of: dict[Statement, Statement] = {}
    edited: set[Statement] = set()
    for before, after in _functions(good.functions(), bad.functions()):
        _pair_within(before, after, of, edited)
    return Pairing(of, frozenset(edited))


Functions = dict[tuple[str, str], list[Statement]]


def _functions(good: Functions, bad: Functions) -> Iterator[tuple[list[Statement], list[Statement]]]:
    good, bad = dict(good), dict(bad)
    names: tuple[Callable[[str], str], ...] = (str, lambda file: Path(file).name, lambda file: "")
    for name in names:
        for key in list(good):
            wanted = (name(key[0]), key[1])
            other = next((there for there in bad if (name(there[0]), there[1]) == wanted), None)
            if other is not None:
                yield good.pop(key), bad.pop(other)
    for key in list(good):
        likeness = {other: _alike(_joined(good[key]), _joined(bad[other])) for other in bad}
        best = max(likeness, key=likeness.__getitem__, default=None)
        if best is not None and likeness[best] >= LIKENESS:
            yield good.pop(key), bad.pop(best)


def _joined(statements: Sequence[Statement]) -> str:
    return "\n".join(one.text for one in statements)


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _pair_within(
    good: list[Statement], bad: list[Statement], of: dict[Statement, Statement], edited: set[Statement]
) -> None:
    matcher = SequenceMatcher(None, [one.text for one in good], [one.text for one in bad], autojunk=False)
    replaced: list[tuple[list[Statement], list[Statement]]] = []
    for kind, first, last, there, until in matcher.get_opcodes():
        if kind == "equal":
            of.update(zip(bad[there:until], good[first:last], strict=True))
        else:
            replaced.append((good[first:last], bad[there:until]))
    left = [one for before, _ in replaced for one in before]
    for _, after in replaced:
        for one in after:
            moved = next((before for before in left if before.text == one.text), None)
            if moved is not None:
                of[one] = moved
                left.remove(moved)
    for before, after in replaced:
        before = [one for one in before if one in left]
        for one in after:
            if one in of or not before:
                continue
            best = max(before, key=lambda other: _alike(one.text, other.text))
            if _alike(one.text, best.text) >= LIKENESS or len(before) == len(after) == 1:
                of[one] = best
                edited.add(one)
                before.remove(best)
