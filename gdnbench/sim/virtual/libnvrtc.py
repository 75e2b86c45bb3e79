# SPDX-License-Identifier: Apache-2.0
"""NVRTC for callers that ask it for a cubin, such as cuda.core: they are given the PTX instead, which the
virtual GPU can load.

A library that leads to the real one is loaded under its name, before the program loads it. It cannot take the
place of an NVRTC that was loaded before, nor of one that is loaded by its path.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gdnbench.sim.cuda_source import nvrtc_paths
from gdnbench.sim.virtual.jump_table import JumpTable, supported

# NVRTC 13.0, "NVRTC User Interface", and what NVRTC keeps for NVIDIA's own libraries.
FUNCTIONS = """
    nvrtcAddNameExpression nvrtcCompileProgram nvrtcCreateProgram nvrtcDestroyProgram
    nvrtcGetBundledHeadersInfo nvrtcGetCUBIN nvrtcGetCUBINSize nvrtcGetErrorString nvrtcGetLTOIR
    nvrtcGetLTOIRSize nvrtcGetLoweredName nvrtcGetNumSupportedArchs nvrtcGetOptiXIR nvrtcGetOptiXIRSize
    nvrtcGetPCHCreateStatus nvrtcGetPCHHeapSize nvrtcGetPCHHeapSizeRequired nvrtcGetPTX nvrtcGetPTXSize
    nvrtcGetProgramLog nvrtcGetProgramLogSize nvrtcGetSupportedArchs nvrtcGetTileIR nvrtcGetTileIRSize
    nvrtcInstallBundledHeaders nvrtcRemoveBundledHeaders nvrtcSetFlowCallback nvrtcSetPCHHeapSize
    nvrtcVersion
"""
# In place of each function, while there is a virtual GPU.
PTX_INSTEAD = {"nvrtcGetCUBIN": "nvrtcGetPTX", "nvrtcGetCUBINSize": "nvrtcGetPTXSize"}
_INTERNAL_ERROR = 11  # nvrtcResult
_WORDS = (ctypes.c_uint64,) * 6  # no function takes more; a smaller parameter is in one of them

_libraries: dict[str, _Library] = {}


@contextmanager
def nvrtc_gives_ptx() -> Iterator[None]:
    """Inside this block whoever finds NVRTC by its name and asks it for a cubin gets PTX."""
    if supported():
        for path in nvrtc_paths():
            name = Path(path).name
            if name not in _libraries and not _is_loaded(name):
                _libraries[name] = _Library(name, path)
    for library in _libraries.values():
        library.give_ptx(True)
    try:
        yield
    finally:
        for library in _libraries.values():
            library.give_ptx(False)


def _is_loaded(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


class _Library:
    """One NVRTC, which is loaded from `path` at the first call of one of its functions."""

    def __init__(self, name: str, path: str) -> None:
        self._path = path
        self._real: ctypes.CDLL | None = None
        self._ptx = False
        self._table = JumpTable(name, dict.fromkeys(FUNCTIONS.split(), _INTERNAL_ERROR))
        kind = ctypes.CFUNCTYPE(ctypes.c_uint64, *_WORDS)
        self._callbacks = {name: kind(partial(self._first_call, name)) for name in FUNCTIONS.split()}
        for name, callback in self._callbacks.items():
            self._table.assign(name, ctypes.cast(callback, ctypes.c_void_p).value or 0)

    def give_ptx(self, ptx: bool) -> None:
        """Choose what a caller that wants a cubin gets."""
        self._ptx = ptx
        if self._real is not None:
            self._assign(self._real)

    def _assign(self, real: ctypes.CDLL) -> None:
        for name in FUNCTIONS.split():
            function = getattr(real, PTX_INSTEAD.get(name, name) if self._ptx else name, None)
            if function is not None:
                self._table.assign(name, ctypes.cast(function, ctypes.c_void_p).value or 0)

    def _first_call(self, name: str, *given: int) -> int:
        self._real = self._real or ctypes.CDLL(self._path)
        self._assign(self._real)
        function = ctypes.CFUNCTYPE(ctypes.c_uint64, *_WORDS)(self._table.target(name))
        return int(function(*given))
