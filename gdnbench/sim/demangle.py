# SPDX-License-Identifier: Apache-2.0
"""Demangles the C++ names of kernels: `_Z4gemmIfLi64EEvPT_` is `void gemm<float, 64>(float*)`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache

_LIBRARY = "libstdc++.so.6"


@cache
def _demangler() -> Callable[[bytes], str] | None:
    """`abi::__cxa_demangle` (Itanium C++ ABI); None where there is no libstdc++."""
    try:
        function = ctypes.CDLL(_LIBRARY).__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p]

    def demangle(name: bytes) -> str:
        status = ctypes.c_int()
        text = function(name, None, None, ctypes.addressof(status))
        if not text:
            return name.decode("utf-8", "replace")
        try:
            return ctypes.string_at(text).decode("utf-8", "replace")
        finally:
            free(text)

    return demangle


def demangled(name: str) -> str:
    """The C++ declaration behind a mangled name. Any other name, and every name on a system without
    libstdc++, is returned unchanged."""
    demangle = _demangler() if name.startswith("_Z") else None
    return name if demangle is None else demangle(name.encode())


def short_name(name: str) -> str:
    """The C++ name without return type and parameters: `gemm<float, 64>`."""
    text = demangled(name)
    if text == name:
        return name
    depth = 0
    for at in range(len(text) - 1, -1, -1):  # the parameters are the last parentheses
        depth += (text[at] == ")") - (text[at] == "(")
        if text[at] == "(" and depth == 0:
            return text[:at].removeprefix("void ")
    return text


def names_called(wanted: str, names: Iterable[str]) -> list[str]:
    """The mangled names that `wanted` can mean: the mangled name itself, or else all with this declaration,
    all with this name, all templates with this name, all with this name in any namespace. Spaces do not
    count."""
    known = list(names)
    if wanted in known:
        return [wanted]
    text = wanted.replace(" ", "")
    for spelled in (demangled, short_name, _without_arguments, _without_namespace):
        found = [name for name in known if spelled(name).replace(" ", "") == text]
        if found:
            return found
    return []


def _without_arguments(name: str) -> str:
    """`ns::gemm` of `ns::gemm<float, 64>`."""
    return short_name(name).partition("<")[0]


def _without_namespace(name: str) -> str:
    """`gemm` of `ns::gemm<float, 64>`."""
    return _without_arguments(name).rpartition("::")[2]
