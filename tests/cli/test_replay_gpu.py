# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --machine --sms`: refusals, before anything is replayed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Invoke
from tests.messages import wording

DECODE = Path(__file__).resolve().parents[2] / "captures/decode.zarr.zip"


def test_a_gpu_that_is_not_simulated(gdnbench: Invoke) -> None:
    result = gdnbench("replay", DECODE, 0, "--kernel", "fla", "--on", "cpu", "--sms", 4)
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("replay.gpu-not-simulated"), result.err)


def test_a_machine_that_is_not_known(gdnbench: Invoke) -> None:
    result = gdnbench("replay", DECODE, 0, "--kernel", "fla", "--on", "sim", "--machine", "gb10")
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("sim.virtual.machine-unknown", name="gb10"), result.err)
