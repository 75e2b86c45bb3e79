# SPDX-License-Identifier: Apache-2.0
"""Calls the entry of a kernel compiled with --enable-tvm-ffi. The entry itself unpacks and checks the
arguments."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gdnbench.sim.errors import ExportError, LaunchError
from gdnbench.sim.host.cute_tensors import CUDA, claim_device


def tvm_ffi_module() -> Any:
    """The tvm_ffi module. Raises ExportError if it is missing."""
    try:
        import tvm_ffi
    except ImportError:
        raise ExportError(
            "a kernel compiled with --enable-tvm-ffi needs apache-tvm-ffi: pip install apache-tvm-ffi"
        ) from None
    return tvm_ffi


def tvm_ffi_symbols(names: Sequence[str]) -> dict[str, int]:
    """The addresses of those functions among `names` that the tvm-ffi library defines."""
    from tvm_ffi.libinfo import find_libtvm_ffi

    library = ctypes.CDLL(find_libtvm_ffi())
    found = {}
    for name in names:
        if name.startswith("TVMFFI") and hasattr(library, name):
            found[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return found


class _AsCuda:
    """A CPU tensor that claims to be on CUDA, as the entry demands. Its address does not change."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._tensor.__dlpack__()
        claim_device(capsule, CUDA)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0


def as_cuda(value: Any) -> Any:
    """A tensor, torch's or tvm-ffi's, in the form that the entry takes."""
    return tvm_ffi_module().from_dlpack(_AsCuda(value.detach() if isinstance(value, Tensor) else value))


def entry_argument(_: str, value: Any) -> Any:
    """An argument in the form that the entry takes; of CuTe's own tensors those that
    `from_dlpack(..., enable_tvm_ffi=True)` made."""
    if isinstance(value, Tensor):
        return as_cuda(value)
    return as_cuda(value._tvm_ffi_tensor) if hasattr(value, "_tvm_ffi_tensor") else value


class Entry:
    """The entry at an address. Called with no arguments, it reports its parameters."""

    def __init__(self, address: int) -> None:
        self._function = tvm_ffi_module().Function.__from_extern_c__(address)

    def parameter_count(self) -> int:
        """The number of arguments, including the stream if the entry takes one."""
        try:
            self._function()
        except TypeError as error:
            match = re.search(r"Expects (\d+) parameters", str(error))
            if match is not None:
                return int(match[1])
            raise
        return 0

    def call(self, arguments: Sequence[Any], failed: Callable[[], Exception | None]) -> None:
        """Run the host code. Raises LaunchError with the entry's own message for arguments that it
        refuses."""
        try:
            self._function(*arguments)
        except Exception as error:
            if failed() is None:
                text = " ".join(str(error).split())
                raise LaunchError(f"the kernel's host code refuses its arguments: {text}") from None
