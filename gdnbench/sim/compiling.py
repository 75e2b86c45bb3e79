"""Compiles kernels such that they can be simulated: PTX, source lines and argument types are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gdnbench.sim.host import cutlass_dsl


@contextmanager
def keep_ptx(arch: str | None = None) -> Iterator[None]:
    """While kernels are compiled, by anybody: keeps what the simulator needs, no environment variable needed.

    `arch` is sm_100a or sm_90a; None for what CUTE_DSL_ARCH says, sm_100a if it says nothing.
    """
    with cutlass_dsl.keep_ptx(arch):
        yield


def compile(function: Any, *args: Any, arch: str | None = None, **kwargs: Any) -> Any:
    """`cute.compile(function, *args, **kwargs)`, within `keep_ptx(arch)`."""
    return cutlass_dsl.compile_kept(function, *args, arch=arch, **kwargs)
