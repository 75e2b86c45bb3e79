# SPDX-License-Identifier: Apache-2.0
"""What all tests of the simulator share."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_dumps_in_the_working_directory() -> Iterator[None]:
    """CuTe DSL drops PTX and IR where it is called, unless what is kept goes to a folder of its own."""
    here = Path.cwd()
    before = set(here.glob("cutlass_*"))
    yield
    assert set(here.glob("cutlass_*")) <= before


# The features of x86-64 CPUs without AVX-512, and of those without fused multiply-add and half precision.
CPUS = {"x86-64-v3": "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe", "x86-64-v2": "+sse4.2,+popcnt"}


@pytest.fixture
def as_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Called with the name of a CPU, code is compiled for that one in this test."""
    import llvmlite.binding as llvm

    from gdnbench.sim.compiler import native as programs
    from gdnbench.sim.tensorcore import native as products

    if platform.machine() != "x86_64":
        pytest.skip("the names are those of x86-64 CPUs")
    caches = (programs._host, products._compile, products._function)

    def compile_for(name: str) -> None:
        features = CPUS[name]
        monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: name)
        monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: SimpleNamespace(flatten=lambda: features))
        for cached in caches:
            cached.cache_clear()

    yield compile_for
    for cached in caches:
        cached.cache_clear()
