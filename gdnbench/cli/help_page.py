# SPDX-License-Identifier: Apache-2.0
"""The help of a command as text: usage, one sentence, examples, arguments, then options under headings.

A page that `--help` prints has at most 40 lines of 80 columns. Where a command has more options than fit,
`--help` explains those that are used every day and names the others, and `--help-all` explains them all.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gdnbench.cli.examples import EXAMPLES, Example
from gdnbench.cli.headings import FEW, heading
from gdnbench.cli.parameters import Parameter, parameters

HELP_ALL = "gdnbench.help_all"
"""In the `meta` of a context: whether to explain every option."""
OPTIONS = "Options"
LEFT = 24  # columns of the names of options; a longer one has a line of its own
INDENT, GAP = 2, 2


def command_page(tree: Any, ctx: Any, width: int) -> str:
    """The help of a command of typer's tree, in lines of at most `width` columns."""
    example = EXAMPLES.get(name_of(ctx), Example(""))
    arguments, options = parameters(tree)
    text, status = described(tree)
    shown, rest = _chosen(options, example, ctx)
    titled = shown if len(options) <= FEW else [_titled(one, name_of(ctx)) for one in shown]
    own = ["[OPERATION'S OPTIONS]"] if ctx.ignore_unknown_options else []
    blocks = [
        _usage(ctx.command_path, [*_usage_of(options), *(one.usage for one in arguments), *own], width),
        _paragraphs(text[:1], width),
        _examples(example.commands[:2] if rest else example.commands, width),
        _paragraphs([] if rest else text[1:], width),
        _fields("Arguments", [(one.usage, _meaning(one)) for one in arguments], width),
        *_panels([_short(one) if rest else one for one in titled], width),
        _paragraphs([status] if status and not rest else [], width),
        _rest(rest, width),
    ]
    return _page(blocks)


def group_page(tree: Any, ctx: Any, width: int) -> str:
    """The help of a group: its commands under their headings."""
    example = EXAMPLES.get(name_of(ctx), Example(""))
    _, options = parameters(tree)
    shown, rest = _chosen(options, example, ctx)
    longest = max(len(entry.name) for entries in tree.headings.values() for entry in entries)
    commands = [
        line
        for heading, entries in tree.headings.items()
        for line in _fields(heading, [(one.name, one.summary) for one in entries], width, longest)
    ]
    blocks = [
        _usage(ctx.command_path, ["[OPTIONS]", "COMMAND ..."], width),
        _paragraphs([tree.help or ""], width),
        _examples(example.commands, width),
    ]
    end = _paragraphs([tree.epilog] if tree.epilog else [], width) + _rest(rest, width)
    panels = [*filter(None, _panels(shown, width))]
    # Without options nothing stands between the commands and the end: a blank line less on a full page.
    return _page([*blocks, commands, *panels, end] if panels else [*blocks, commands + end])


def name_of(ctx: Any) -> str:
    """The command of a context in full: "gdnbench bisect commit", whatever the program is called."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join(["gdnbench", *words])


def described(tree: Any) -> tuple[list[str], str]:
    """The paragraphs of a command's docstring, and the one of them that says its exit status."""
    paragraphs = (inspect.getdoc(inspect.unwrap(tree.callback)) or "").split("\n\n")
    status = [one for one in paragraphs if "exit status" in one.lower()]
    return [one for one in paragraphs if one not in status], " ".join(status)


def _chosen(
    options: Sequence[Parameter], example: Example, ctx: Any
) -> tuple[list[Parameter], list[Parameter]]:
    """The options to explain, and those to name only."""
    if ctx.meta.get(HELP_ALL) or example.everyday is None:
        return list(options), []
    everyday = [one for one in options if one.required or one.spellings[0] in example.everyday]
    return everyday, [one for one in options if one not in everyday]


def _page(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _usage(path: str, words: Sequence[str], width: int) -> list[str]:
    """`Usage: gdnbench replay [OPTIONS] STORE [RECORDS]`; no word is divided."""
    lines, begin = [f"Usage: {path}"], " " * len("Usage: ")
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(begin)
        lines[-1] += f" {word}"
    return lines


def _usage_of(options: Sequence[Parameter]) -> list[str]:
    required = [f"{one.spellings[0]} {one.value}" for one in options if one.required]
    return ["[OPTIONS]"] * (len(required) < len(options)) + required


def _paragraphs(paragraphs: Sequence[str], width: int) -> list[str]:
    """Reflowed, with an empty line between them; what is indented stays as it is."""
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += [""] * bool(lines)
        lines += paragraph.splitlines() if paragraph.startswith("  ") else _wrapped(paragraph, width)
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def _examples(commands: Sequence[str], width: int) -> list[str]:
    lines = [line for one in commands for line in _command_lines(one, width)]
    if len(lines) == 1 and len("Example: ") + len(lines[0].strip()) <= width:
        return [f"Example: {lines[0].strip()}"]
    return ["Examples:" if len(commands) > 1 else "Example:", *lines] if lines else []


def _command_lines(command: str, width: int) -> Iterator[str]:
    """A command to paste: lines that are continued end in a backslash. No quoted text is divided, and no
    option from its value."""
    line = " " * INDENT
    parts: list[str] = []
    for word in re.findall(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+", command):
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    for word in parts:
        if line.strip() and len(line) + 1 + len(word) > width - 2:
            yield f"{line} \\"
            line = " " * (INDENT + 4)
        line += f"{' ' * bool(line.strip())}{word}"
    yield line


def _panels(options: Sequence[Parameter], width: int) -> Iterator[list[str]]:
    """The options under their headings, those without one first."""
    panels: dict[str, list[tuple[str, str]]] = {OPTIONS: []}
    for one in options:
        panels.setdefault(one.panel or OPTIONS, []).append((_option(one), _meaning(one)))
    for title, rows in panels.items():
        yield _fields(title, rows, width)


def _titled(option: Parameter, command: str) -> Parameter:
    """The option under the heading that its declaration or its name gives."""
    return replace(option, panel=option.panel or heading(command, option.spellings[0]))


def _short(option: Parameter) -> Parameter:
    """The option with the first sentence of its help, and the one that says its default."""
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", option.help)
    return replace(option, help=" ".join([first, *(one for one in others if one.startswith("Default:"))]))


def _option(option: Parameter) -> str:
    return f"{', '.join(option.spellings)} {option.value}".rstrip()


def _meaning(one: Parameter) -> str:
    known = one.default and "Default:" not in one.help
    return f"{one.help} Default: {one.default.rstrip('.')}." if known else one.help


def _fields(heading: str, rows: Sequence[tuple[str, str]], width: int, longest: int = 0) -> list[str]:
    """A heading, and names with their meanings beside them."""
    if not rows:
        return []
    column = longest or max((len(name) for name, _ in rows if len(name) <= LEFT), default=LEFT)
    begin = " " * (INDENT + column + GAP)
    lines = [f"{heading}:"]
    for name, meaning in rows:
        texts = _wrapped(meaning, width - len(begin)) or [""]
        if len(name) > column:
            lines.append(f"{' ' * INDENT}{name}")
        else:
            lines.append(f"{' ' * INDENT}{name:{column}}{' ' * GAP}{texts.pop(0)}".rstrip())
        lines += [f"{begin}{text}" for text in texts]
    return lines


def _rest(rest: Sequence[Parameter], width: int) -> list[str]:
    if not rest:
        return []
    names = ", ".join(one.spellings[0] for one in rest)
    return _wrapped(f"More with --help-all: {names}.", width)
