# SPDX-License-Identifier: Apache-2.0
"""All orders of the launches of a program on the virtual GPU: each process appends what it finds to a file of
a folder, a JSON object a line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from gdnbench.sim.protocol.launch import OrdersOfLaunches
from gdnbench.sim.protocol.result import CheckedLaunch

MODULE = __name__
SUFFIX = ".orders.jsonl"


class HasSettings(Protocol):
    """The virtual GPU of a process, with its `gdnbench.sim.Settings`."""

    settings: Any


def attach_to(gpu: HasSettings, folder: str) -> None:
    """Check all orders of each launch on the GPU of this process before it runs. `Request.attach` calls
    this."""

    def write(launch: CheckedLaunch) -> None:
        with open(os.path.join(folder, f"{os.getpid()}{SUFFIX}"), "a", encoding="utf-8") as file:
            file.write(json.dumps(launch.as_json()) + "\n")

    gpu.settings = replace(gpu.settings, before=OrdersOfLaunches(on_launch=write))


def read_orders(folder: Path) -> list[CheckedLaunch]:
    """What all processes have written, in the order in which they began to."""
    files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    lines = (line for path in files for line in path.read_text(encoding="utf-8").splitlines())
    return [CheckedLaunch.from_json(json.loads(line)) for line in lines]
