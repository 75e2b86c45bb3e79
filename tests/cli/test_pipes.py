# SPDX-License-Identifier: Apache-2.0
"""A reader that has gone, as in `gdnbench ls | head`, is no failure of the command."""

from __future__ import annotations

import subprocess
import sys
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
