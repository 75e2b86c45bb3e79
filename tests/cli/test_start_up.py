# SPDX-License-Identifier: Apache-2.0
"""What a command imports before it runs. Imports are most of a short command's time, and can be asserted."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from gdnbench.cli.main import app

STORE = str(Path(__file__).parents[2] / "captures" / "decode.zarr.zip")
HEAVY = ("torch", "llvmlite", "zarr", "rich", "pydantic", "numpy", "gdnbench.ops")
LIGHT = ("torch", "llvmlite", "zarr", "rich", "pydantic", "gdnbench.ops")
"""Of a command that reads a store, as NumPy decodes it."""

SHOW = (
    "torch",
    "llvmlite",
    "rich",
    "pydantic",
    "gdnbench.ops",
)
"""It reads elements, those of an archive by zarr."""

# One process runs them one after the other, so that what one imports is there for the next: lightest first.
STEPS: tuple[tuple[list[str], str, tuple[str, ...]], ...] = (
    (["--version"], "", HEAVY),
    (["--help"], "", HEAVY),
    (["replay", "--help"], "", HEAVY),
    ([], "gdnbench ", HEAVY),
    ([], "gdnbench replay --", HEAVY),
    ([], f"gdnbench replay {STORE} --kernel ", HEAVY),
    ([], f"gdnbench replay {STORE} ", HEAVY),
    (["ls", STORE], "", LIGHT),
    (["show", STORE, "0"], "", SHOW),
)
RUN = """
import contextlib, io, json, os, sys
from gdnbench.cli.main import COMPLETING, console_main
found = []
for words, line, heavy in json.loads(sys.argv[1]):
    sys.argv = ["gdnbench", *words]
    if line:
        os.environ |= {COMPLETING: "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    else:
        os.environ.pop(COMPLETING, None)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        console_main()
    found.append([[name for name in heavy if sys.modules.get(name)], len(out.getvalue().splitlines())])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("command", "name", "values"),
    [
        ("show", "record", ["7", "07", "x", "-1", "1.0", " 7", "7\n", "٣", "9" * 18, "9" * 30, ""]),
        ("show", "store", ["run.zarr", "", None]),
        ("ls", "order", ["step", "stored", "STEP", "nope", None]),
        ("ls", "op", ["gdn_decode", None]),
        ("replay", "workers", ["0", "-1", "3", None]),
        ("replay", "timeout", ["1", "0.5", "x", None]),
        ("replay", "save", ["run.zarr", None]),
        ("replay", "check", [True, False]),
    ],
)
def test_values_are_those_that_typer_would_make(command: str, name: str, values: list[object]) -> None:
    """Most of them are made without it: the packages by which it converts take longer to import."""
    tree = typer.main.get_command(app)
    context = tree.make_context("gdnbench", [], resilient_parsing=True)
    parameter = next(one for one in tree.commands[command].params if one.name == name)

    def outcome(process_value: Callable[[Any, Any], Any], value: object) -> object:
        try:
            made = process_value(context, value)
        except Exception as error:
            return type(error), str(error)
        return type(made), made

    for value in values:
        theirs = outcome(functools.partial(type(parameter).process_value, parameter), value)
        assert outcome(parameter.process_value, value) == theirs, value


def test_short_commands_import_nothing_heavy() -> None:
    command = [sys.executable, "-c", RUN, json.dumps(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [" ".join(words) or line for words, line, _ in STEPS]
    found = dict(zip(names, json.loads(done.stdout), strict=True))
    assert {name: heavy for name, (heavy, _) in found.items() if heavy} == {}
    assert {name: lines for name, (_, lines) in found.items() if lines == 0} == {}
    assert found[f"show {STORE} 0"][1] > 10  # it ran
