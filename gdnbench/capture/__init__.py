# SPDX-License-Identifier: Apache-2.0
"""Capture records the inputs and outputs of a program's kernels without changing what the program does.

`capturing` and `record` are the Python interface; `gdnbench.capture.launch` runs the command `gdnbench
capture`. Names are imported on first use, because every Python process of a captured command imports this
package at start-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdnbench.capture.context import capturing
    from gdnbench.capture.functions import record
    from gdnbench.capture.options import CaptureOptions

__all__ = ["CaptureOptions", "capturing", "record"]

_HOMES = {"CaptureOptions": "options", "capturing": "context", "record": "functions"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
