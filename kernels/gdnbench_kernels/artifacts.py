# SPDX-License-Identifier: Apache-2.0
"""The results of compiling a kernel: its code, and the parameters of its host function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ARCHS: dict[str, tuple[tuple[int, int], ...]] = {
    "sm_90a": ((9, 0),),
    "sm_100a": ((10, 0),),
    "sm_100f": ((10, 0), (10, 3)),
    "sm_103a": ((10, 3),),
}
"""Targets and the compute capabilities that run their code: one for suffix "a", a family for "f"."""

STREAM = "!cuda.stream"


class ArgumentError(ValueError):
    """Arguments that a compiled kernel does not take; the message names the argument and what the kernel
    takes."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel's host function: its type in the compiler's IR, or None if it was compiled
    in."""

    name: str
    type: str | None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Artifacts:
    """A complete compiled kernel: it can be loaded, simulated or linked without compiling anything."""

    name: str
    arch: str
    key: str
    symbol: str  # prefix of the host object's symbols
    function: str  # the compiler's name of the host function
    parameters: tuple[Parameter, ...]  # in order, including the stream
    ptx: str
    header: str  # C, declares what the host object defines
    host_object: bytes  # ELF, with the cubin in it
    cubin: bytes
    compile_seconds: float

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name, without streams; compiled-in parameters are None."""
        names = [parameter.name for parameter in self.parameters if parameter.type != STREAM]
        required = [parameter.name for parameter in self.parameters if parameter.type not in (STREAM, None)]
        given = dict(zip(names, args, strict=False))
        twice = [name for name in kwargs if name in given]
        unknown = [name for name in kwargs if name not in names]
        missing = [name for name in required if name not in {*given, *kwargs}]
        if len(args) > len(names) or twice or unknown or missing:
            what = f"{len(args)} positional arguments" + (f" and {', '.join(kwargs)}" if kwargs else "")
            raise ArgumentError(f"{self.name} takes {', '.join(names)}; given were {what}")
        given.update(kwargs)
        for parameter in self.parameters:
            if parameter.type is None and given.setdefault(parameter.name, None) is not None:
                raise ArgumentError(f"{self.name} was compiled without {parameter.name}; it is to be None")
        return {name: given[name] for name in names}
