# SPDX-License-Identifier: Apache-2.0
"""Kills this process when its parent is gone, however the parent ended.

This module needs the standard library alone: `python_code` also runs its source in interpreters that have no
gdnbench.
"""

from __future__ import annotations

import os
import select
import signal
import threading


def kill_with_parent(pipe: int) -> None:
    """Starts a thread that kills this process, and its session if it leads one, once nobody can write to
    `pipe` any more. `pipe` is the read end of a pipe whose write end the parent alone holds.

    The thread is needed because a killed parent ends nothing itself, and a process that hangs reads nothing.
    """
    threading.Thread(target=_kill_on_hangup, args=(pipe,), name="kill with parent", daemon=True).start()


def _kill_on_hangup(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # no events: poll reports a hangup in any case
    poll.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
