# SPDX-License-Identifier: Apache-2.0
"""docs/commands.md is printed from the command line, which says what each option is; its examples parse."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdnbench.cli import examples
from scripts import document_commands
from tests.docs import commands, page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def documenting() -> Any:
    """The modules of tests/docs, and the script."""
    return {
        "commands": list(commands.commands()),
        "examples": examples.EXAMPLES,
        "page": page,
        "script": document_commands,
    }


def test_the_page_is_up_to_date(documenting: Any) -> None:
    there = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    stale = documenting["script"].stale(documenting["page"].page(), there)
    assert not stale, f"stale: {', '.join(stale)}; run python scripts/document_commands.py"


def test_the_page_does_not_depend_on_the_terminal(tmp_path: Path) -> None:
    """Nor on colours, nor on the folder it is written from."""
    command = [sys.executable, str(ROOT / "scripts" / "document_commands.py"), "--check"]
    narrow = {"COLUMNS": "30", "FORCE_COLOR": "1", "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=narrow, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_names_what_is_stale(documenting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, text = documenting["script"], documenting["page"].page()
    old = text.replace("Check a store", "Inspect a store", 1)  # in the list
    old = old.replace("Check a store", "Inspect a store", 1)  # in its section
    assert script.stale(text, old) == ["the list of commands", "gdnbench verify"]
    assert script.stale(text, text.replace("## gdnbench ls", "## gdnbench list")) == [
        "gdnbench ls",
        "gdnbench list",
    ]
    monkeypatch.setattr(script, "PAGE", tmp_path / "commands.md")
    monkeypatch.setattr(sys, "argv", ["document_commands.py", "--check"])
    assert script.main() == 1  # there is none
    monkeypatch.setattr(sys, "argv", ["document_commands.py"])
    assert script.main() == 0
    assert (tmp_path / "commands.md").read_text(encoding="utf-8") == text


def test_every_command_and_option_says_what_it_is(documenting: Any) -> None:
    silent = [
        f"{command.name} {parameter.spellings[0]}"
        for command in documenting["commands"]
        for parameter in (*command.arguments, *command.options)
        if not parameter.help.strip()
    ]
    silent += [one.name for one in documenting["commands"] if not any(text.strip() for text in one.text)]
    assert not silent, "no help text"


def test_commands_are_those_of_the_command_line(documenting: Any, gdnbench: Any) -> None:
    """Both ways: those that `gdnbench --help` lists, by its own words."""
    found = {one.words[1] for one in documenting["commands"] if len(one.words) == 2}
    listed = set(re.findall(r"^  ([a-z]+) {2,}\S", gdnbench("--help").out, re.MULTILINE))
    assert found == listed


def test_examples_are_of_commands_that_there_are(documenting: Any) -> None:
    commands = documenting["commands"]
    examples = set(documenting["examples"])
    assert {one.name for one in commands if not one.group} <= examples, "gdnbench/cli/examples.py"
    assert examples <= {one.name for one in commands}, "gdnbench/cli/examples.py"


def test_examples_are_typed_right(documenting: Any) -> None:
    """Each parses: its options exist and have values of their type. Nothing runs."""
    for command in documenting["commands"]:
        if command.group:
            continue
        lines = "\n".join(documenting["examples"][command.name].lines).replace("\\\n", " ")
        for line in lines.splitlines():
            words = tuple(shlex.split(line))
            assert words[: len(command.words)] == command.words, line
            made = command.tree.make_context(command.name, list(words[len(command.words) :]))
            unknown = [word for word in made.args if word.startswith("-")]
            assert command.extra or not unknown, line


def test_pages_that_examples_name_exist(documenting: Any) -> None:
    missing = {
        one.page for one in documenting["examples"].values() if not (ROOT / "docs" / one.page).exists()
    }
    assert not missing
