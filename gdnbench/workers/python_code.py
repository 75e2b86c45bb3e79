# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in a process of any interpreter, with a time limit, killed together with its parent."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdnbench.workers import parent_watch

# The interpreter need not have gdnbench, so the source of the module goes into the code that it runs. Its
# argument is the read end of a pipe that nobody writes to and that hangs up when this process is gone.
_PRELUDE = f"""{inspect.getsource(parent_watch)}
import sys
kill_with_parent(int(sys.argv.pop(1)))
"""


@dataclass(frozen=True, slots=True)
class FinishedProcess:
    """`status` is the exit status as of `subprocess`, negative for a signal; `out` and `err` what the process
    printed."""

    status: int
    out: str
    err: str


def run_python_code(
    python: Sequence[str],
    code: str,
    arguments: Sequence[str],
    *,
    folder: str,
    environment: Mapping[str, str],
    seconds: float,
) -> FinishedProcess:
    """Runs `code` with the command `python`. In it `sys.argv[1:]` are `arguments`, and `os`, `select`,
    `signal`, `sys` and `threading` are imported. TimeoutError after `seconds`. Whatever the code started is
    killed at its end."""
    watched, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*python, "-c", _PRELUDE + code, str(watched), *arguments],
            cwd=folder,
            env=environment,
            pass_fds=(watched,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(watched)
    try:
        with process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                raise TimeoutError(seconds) from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        os.close(write_end)
    return FinishedProcess(process.returncode, out, err)
