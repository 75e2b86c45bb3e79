# SPDX-License-Identifier: Apache-2.0
"""The page of all commands, in Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from gdnbench.cli.examples import EXAMPLES
from gdnbench.ops import operations
from gdnbench.options import option_defaults
from tests.docs.commands import Command, commands

HEAD = """# Commands

Written by `python scripts/document_commands.py` from the command line itself; a test holds this page to it.
`gdnbench COMMAND --help-all` and `gdnbench help COMMAND --all` say the same; where a command has many
options, `--help` explains those used every day. [Help and completion](shell.md) is about both.
"""


def page() -> str:
    """The whole page. ValueError for a command that has no example."""
    found = list(commands())
    return "\n".join([HEAD, *_index(found[1:]), *("\n".join(_section(one)) for one in found)]).rstrip() + "\n"


def _index(found: Sequence[Command]) -> Iterator[str]:
    """The commands under the headings of `gdnbench --help`; those of a group beneath the group."""
    heading = ""
    for one in found:
        inner = len(one.words) > 2
        if not inner and one.under != heading:
            heading = one.under
            yield f"\n{heading}\n" if one is not found[0] else f"{heading}\n"
        yield f"{'  ' * inner}- [`{one.name}`](#{_anchor(one.name)}): {_first(one)}"
    yield ""


def sections(text: str) -> dict[str, str]:
    """Of a page, by heading; what comes before the first is `the list of commands`."""
    head, *rest = text.split("\n## ")
    return {"the list of commands": head, **{part.partition("\n")[0]: part for part in rest}}


def _section(command: Command) -> Iterator[str]:
    yield f"## {command.name}"
    usage = [command.name] + ["[OPTIONS]"] * any(not one.required for one in command.options)
    usage += [f"{one.spellings[0]} {one.value}" for one in command.options if one.required]
    usage += [one.usage for one in command.arguments]
    usage += ["[OPTIONS OF THE OPERATION]"] * command.extra + ["COMMAND"] * command.group
    yield f"    {' '.join(usage)}\n"
    for paragraph in command.text:
        yield f"{_paragraph(paragraph)}\n"
    if command.arguments:
        rows = [(_cell(one.usage), one.takes, one.help) for one in command.arguments]
        yield _table(("argument", "takes", "meaning"), rows)
    if command.options:
        rows = [
            (
                ", ".join(f"`{spelling}`" for spelling in one.spellings),
                one.takes,
                "required" if one.required else _cell(one.default),
                one.help,
            )
            for one in command.options
        ]
        yield _table(("option", "takes", "default", "meaning"), rows)
    if command.words == ("gdnbench", "synth"):
        yield from _synth_options()
    if not command.group:
        if command.name not in EXAMPLES:
            raise ValueError(f"{command.name} has no example: write one in gdnbench/cli/examples.py")
        example = EXAMPLES[command.name]
        yield "For example\n"
        yield "".join(f"    {line}\n" for line in example.lines)
        yield f"{_paragraph(command.status)} More: [{example.page}]({example.page}).\n"
    else:
        yield f"{_paragraph(command.status)}\n"


def _synth_options() -> Iterator[str]:
    for name, operation in operations().items():
        rows = [
            (f"`--{option.replace('_', '-')}`", _cell(_shown(default)))
            for option, default in option_defaults(operation.synth).items()
        ]
        yield f"Options of {name}:\n"
        yield _table(("option", "default"), rows)
        _, *meanings = (inspect.getdoc(operation.synth) or "").split("\n\n")
        for paragraph in meanings:
            yield f"{_paragraph(paragraph)}\n"


def _shown(default: object) -> str:
    """A default as it is typed."""
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "none"
    return str(default).lower() if isinstance(default, bool) or default is None else f"{default}"


def _paragraph(text: str) -> str:
    """As it stands where it is indented, an example; else without its line ends."""
    if text.startswith("  "):
        return "\n".join(f"    {line.strip()}" for line in text.splitlines())
    return _escaped(" ".join(text.split()))


def _first(command: Command) -> str:
    return _paragraph(command.text[0]) if command.text else ""


def _anchor(heading: str) -> str:
    return heading.replace(" ", "-")


def _cell(text: str) -> str:
    return f"`{text}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
