# SPDX-License-Identifier: Apache-2.0
"""Help pages: 40 lines of 80 columns, everything on --help-all, and `gdnbench help` by a command's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer

from gdnbench.cli.completion import COMPLETERS
from gdnbench.cli.examples import EXAMPLES
from gdnbench.cli.groups import CommandGroup
from gdnbench.cli.headings import BY_HEADING, OF_COMMAND, PLACEHOLDERS
from gdnbench.cli.help_page import HELP_ALL, name_of
from gdnbench.cli.main import app

Invoke = Callable[..., Any]  # the fixture `gdnbench`


def contexts(tree: Any, context: Any) -> Iterator[Any]:
    yield context
    if isinstance(tree, CommandGroup):
        for name in tree.list_commands(context):
            below = tree.commands[name]
            yield from contexts(below, type(context)(below, parent=context, info_name=name))


@pytest.fixture(scope="module")
def every() -> dict[str, Any]:
    """A context of every command and group, by name."""
    tree = typer.main.get_command(app)
    root = tree.make_context("gdnbench", [], resilient_parsing=True)
    return {name_of(one): one for one in contexts(tree, root)}


def page(context: Any, monkeypatch: pytest.MonkeyPatch, columns: int = 80, whole: bool = False) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    context.meta[HELP_ALL] = whole
    return str(context.get_help()).splitlines()


def test_a_page_fits_a_terminal(every: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {name: page(context, monkeypatch) for name, context in every.items()}
    assert {name: len(lines) for name, lines in sizes.items() if len(lines) > 40} == {}
    wide = [line for lines in sizes.values() for line in lines if len(line) > 80]
    assert wide == []
    assert len(sizes) > 30  # commands and groups


def test_pages_begin_with_usage_a_sentence_and_examples(
    every: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order, before any option."""
    for name, context in every.items():
        text = "\n".join(page(context, monkeypatch))
        usage, sentence, third = text.split("\n\n")[:3]
        assert usage.startswith(f"Usage: {name} "), name
        assert not sentence.startswith(" "), name
        assert third.startswith("Example") == bool(EXAMPLES.get(name)), name
        assert "<" not in usage, name


def test_help_all_explains_every_option_and_help_names_it(
    every: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, context in every.items():
        short = "\n".join(page(context, monkeypatch))
        whole = "\n".join(page(context, monkeypatch, whole=True))
        for parameter in context.command.params:
            if parameter.param_type_name != "option":
                continue
            spelling = re.escape(parameter.opts[0])
            explained = re.search(rf"^  (\S+, )*{spelling}\b.*$", whole, re.MULTILINE)
            assert explained, f"{name} {spelling}"
            first = parameter.help.split()[0]
            after = whole[explained.start() :].split("\n")
            assert first in " ".join(after[:2]), f"{name} {spelling} has no help beside it"
            assert re.search(rf"(?<![-\w]){spelling}\b", short), f"{name} --help does not name {spelling}"
        assert "More with" not in whole, name


def test_everyday_options_are_there(every: dict[str, Any]) -> None:
    for name, example in EXAMPLES.items():
        there = {opt for one in every[name].command.params for opt in one.opts}
        assert (example.everyday or set()) <= there, name


def test_tables_by_name_are_of_options_that_there_are(every: dict[str, Any]) -> None:
    there = {opt for one in every.values() for parameter in one.command.params for opt in parameter.opts}
    assert {name for name in PLACEHOLDERS if name not in there} == set()
    tables = (BY_HEADING, *OF_COMMAND.values())
    words = " ".join(names for table in tables for names in table.values()).split()
    assert {word for word in words if f"--{word}" not in there} == set()


def test_every_completer_is_of_a_parameter_that_there_is(every: dict[str, Any]) -> None:
    assert set(COMPLETERS) <= {parameter.name for one in every.values() for parameter in one.command.params}


def test_text_is_reflowed_to_the_width(every: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A paragraph of more than one line fills its lines: the next word would not have fitted."""
    for columns in (60, 100):
        lines = page(every["gdnbench compile"], monkeypatch, columns, whole=True)
        paragraph = next(one for one in "\n".join(lines).split("\n\n") if one.startswith("`gdnbench compile"))
        for line, following in pairwise(paragraph.split("\n")):
            assert len(line) <= columns
            assert len(line) + 1 + len(following.split()[0]) > columns - 2


def test_help_names_a_command_by_its_words(gdnbench: Invoke) -> None:
    assert gdnbench("help").out == gdnbench("--help").out
    assert gdnbench("help", "bisect").out == gdnbench("bisect", "--help").out
    assert gdnbench("help", "bisect", "commit").out == gdnbench("bisect", "commit", "--help").out
    whole = gdnbench("help", "replay", "--all")
    assert whole.out == gdnbench("replay", "--help-all").out != gdnbench("replay", "--help").out
    assert (whole.code, whole.err) == (0, "")


@pytest.mark.parametrize("words", [("nope",), ("bisect", "nope"), ("ls", "nope")])
def test_help_of_no_command_is_one_line_and_exit_2(gdnbench: Invoke, words: tuple[str, ...]) -> None:
    result = gdnbench("help", *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "'nope'" in result.err


def test_help_all_after_two_dashes_is_the_programs(every: dict[str, Any]) -> None:
    context = every["gdnbench capture"]
    words = ["s.zarr", "--", "python", "serve.py", "--help-all"]
    made = context.command.make_context("capture", words, parent=context.parent)
    assert list(made.params["command"]) == ["python", "serve.py", "--help-all"]
    assert made.meta[HELP_ALL] is False


def test_without_a_command_the_help_is_printed_as_it_is(gdnbench: Invoke) -> None:
    for words in ((), ("bisect",), ("baseline",)):
        asked, bare = gdnbench(*words, "--help"), gdnbench(*words)
        assert (bare.code, bare.out, bare.err) == (2, "", asked.out)


def test_a_missing_option_lists_its_choices_in_one_sentence(gdnbench: Invoke) -> None:
    answer = gdnbench("export", "run.zarr", "0")
    said = "Missing option '--to'. Choose from: safetensors, npz, pt; see gdnbench export --help"
    assert (answer.code, answer.err) == (2, f"gdnbench: {said}\n")
