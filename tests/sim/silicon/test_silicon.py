"""Every micro-kernel gives, in both engines, the bits that a real sm_90 GPU gave."""

from __future__ import annotations

from functools import cache

import pytest

from gdnbench.sim.errors import KernelFault
from gdnbench.sim.run import ENGINES
from tests.sim.silicon.capture import Capture, load
from tests.sim.silicon.registry import FAMILIES, kernels
from tests.sim.silicon.replay import differences, simulate

CASES = [(family, name) for family in FAMILIES for name in kernels(family)]


@cache
def stored(family: str) -> Capture:
    return load(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recording_is_of_these_kernels(family: str) -> None:
    recorded = stored(family).about["kernels"]
    assert recorded == {name: kernel.fingerprint() for name, kernel in kernels(family).items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("family", "name"), CASES)
def test_bits_equal(family: str, name: str, engine: str) -> None:
    kernel, capture = kernels(family)[name], stored(family)
    if name in capture.about["faults"]:
        with pytest.raises(KernelFault):
            simulate(kernel, capture, engine)
        return
    found = list(differences(kernel, simulate(kernel, capture, engine), capture))
    assert not found, "\n".join((f"{len(found)} answers differ", *found))
