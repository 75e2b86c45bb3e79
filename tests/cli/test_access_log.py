# SPDX-License-Identifier: Apache-2.0
"""What commands say of a store that `gdnbench capture --digests` wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdnbench.capture import CaptureOptions, capturing
from tests.capture.test_graphs import Engine
from tests.messages import wording


def test_commands_about_tensors_refuse_an_access_log(tmp_path: Path, gdnbench: Callable[..., Any]) -> None:
    """Two layers with three sequences: six reads, six writes."""
    store = tmp_path / "run.zarr"
    with capturing(store, CaptureOptions(digests=True)):
        Engine().forward()
    listed = gdnbench("ls", store)
    assert (listed.code, gdnbench("verify", store).code) == (0, 0)
    assert re.search(wording("cli.access-log", rows="12 accesses"), listed.out)
    ran = gdnbench("diff", store, store)
    assert ran.code != 0
    assert re.search(wording("ops.access-log"), ran.out + ran.err)
