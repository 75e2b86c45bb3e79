"""Processes that may take long and know nothing of this one: they end with it, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A Python of its own watches a pipe that nobody writes to: it hangs up when this process is gone.
_WATCH = """
import os, select, signal, sys, threading


def end_with_parent(pipe):
    hangup = select.poll()
    hangup.register(pipe, 0)
    hangup.poll()
    os.killpg(0, signal.SIGKILL)


threading.Thread(target=end_with_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """`status`: as of `subprocess`, negative for a signal."""

    status: int
    out: str
    err: str


def run(
    python: Sequence[str],
    code: str,
    arguments: Sequence[str],
    *,
    folder: str,
    environment: Mapping[str, str],
    seconds: float,
) -> Ended:
    """Runs Python `code`, to which `arguments` are `sys.argv[1:]` and the modules above are there.
    TimeoutError after so many seconds. What it started ends with it."""
    watched, held = os.pipe()
    try:
        process = subprocess.Popen(
            [*python, "-c", _WATCH + code, str(watched), *arguments],
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
        os.close(held)
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
        os.close(held)
    return Ended(process.returncode, out, err)
