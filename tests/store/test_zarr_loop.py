# SPDX-License-Identifier: Apache-2.0
"""The end of zarr's thread: it may be of the lowest priority on a busy machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The thread is busy for longer than zarr waits for it.
BUSY = """
import sys, time
from zarr.core.sync import sync
async def nothing(): pass
sync(nothing())
from zarr.core.sync import loop
loop[0].call_soon_threadsafe(time.sleep, 1.0)
if sys.argv[1] == "waits":
    from gdnbench.store.zarr_loop import end_zarr_loop_at_exit
    end_zarr_loop_at_exit()
    end_zarr_loop_at_exit()
"""


@pytest.mark.parametrize("how", ["waits", pytest.param("does not wait", marks=pytest.mark.slow)])
def test_a_slow_thread_of_zarr_leaves_no_traceback(how: str) -> None:
    command = [sys.executable, "-c", BUSY, how]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert ("Traceback" in ran.stderr) is (how != "waits"), ran.stderr
