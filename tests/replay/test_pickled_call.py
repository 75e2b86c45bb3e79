# SPDX-License-Identifier: Apache-2.0
"""A call in a process of its own: what it raises, and that it ends. What it returns is seen in
tests/cli/test_sim_gpu.py."""

from __future__ import annotations

import os
import re

import pytest

from gdnbench.errors import CannotRunError
from gdnbench.sim import LaunchError
from gdnbench.sim.virtual import machine_named
from gdnbench.workers.pickled_call import call_in_process
from tests.messages import wording


def test_an_error_of_the_call_is_raised_here() -> None:
    with pytest.raises(LaunchError, match=wording("sim.virtual.machine-unknown", name="gb10")):
        call_in_process(machine_named, "gb10", what="the process")


def test_a_process_that_ends() -> None:
    """os.abort takes no arguments; the traceback is on stderr."""
    with pytest.raises(CannotRunError) as raised:
        call_in_process(os.abort, what="the process for 4")
    sentence = wording("workers.call-ended", what="the process for 4", status="exit status 1")
    assert re.fullmatch(sentence, str(raised.value))
