# SPDX-License-Identifier: Apache-2.0
"""A reader that has gone, as in `gdnbench ls | head`, is no failure of the command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.subset import quick


@pytest.mark.parametrize(
    "arguments",
    quick(
        [(("ls",),), (("bisect", "record", "--kernel", "torch", "--state", "state"),)],
        0,
        ids=["ls", "bisect"],
    ),
)
def test_a_reader_may_leave(prefills: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "gdnbench", *arguments, str(prefills)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait() == 0, errors
    assert "Traceback" not in errors
    assert "Broken pipe" not in errors


def test_streams_may_be_closed_ahead_of_the_program(prefills: Path) -> None:
    """As `>&- 2>&-` does; what would be printed goes nowhere."""
    started = "import sys; sys.argv[1:] = ['ls', sys.argv[1]]; sys.stdin = sys.stdout = sys.stderr = None\n"
    program = f"{started}from gdnbench.cli.main import console_main; console_main()"
    ran = subprocess.run([sys.executable, "-c", program, prefills], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


INTERRUPTED_IMPORT = """
import importlib, signal, sys

class Interrupts:
    def find_spec(name, path, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts)
module, _, function = sys.argv.pop().partition(":")
getattr(importlib.import_module(module), function)()
"""


def test_an_interrupt_of_the_first_imports_ends_with_a_line() -> None:
    """Of the console script that pyproject.toml names: 130 is what a shell says of a program that SIGINT
    ended."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    script = project["project"]["scripts"]["gdnbench"]
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, script]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == "gdnbench: interrupted; what was finished is kept\n"
