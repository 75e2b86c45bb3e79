# SPDX-License-Identifier: Apache-2.0
"""Gives a Python process its virtual GPU when `GDNBENCH_VIRTUAL` is set, without a change to the program.

`gdnbench_capture.pth` imports this module when Python starts. It only adds an import hook and a libcuda: the
GPU is made once the program imports the first library that could use it, or calls the driver. It never
raises: it prints one line on stderr and notes it for the command.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType

from gdnbench.sim.virtual.import_hook import ImportHook, add_hook, remove_hook
from gdnbench.sim.virtual.libcuda import provide_libcuda

# The modules whose import makes the GPU; `install.LIBRARIES` are all that are shown it.
GPU_USERS = (
    *("torch", "cutlass", "triton", "cuda.bindings.driver", "cuda.bindings.runtime"),
    "cupy_backends.cuda.api.runtime",
)


def _start(module: ModuleType | None = None) -> None:
    if _hook not in sys.meta_path:
        return  # it has started, or failed to
    remove_hook(_hook)
    _hook.after_import.clear()
    try:
        from gdnbench.sim.virtual.process import start_from_environment

        start_from_environment(os.environ)
    except Exception as error:
        _tell(f"there is no virtual GPU: {_message(error)}")


def _provide() -> None:
    try:
        provide_libcuda(_start)
    except Exception as error:
        _tell(f"there is no libcuda of the virtual GPU: {_message(error)}")


def _message(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _tell(text: str) -> None:
    with contextlib.suppress(Exception):  # stderr may be closed, full or None
        sys.stderr.write(f"gdnbench: {text}\n")


# Modules of gdnbench import torch themselves, and the start imports them.
_hook = ImportHook(dict.fromkeys(GPU_USERS, _start), outside="gdnbench.")
add_hook(_hook)
_provide()
