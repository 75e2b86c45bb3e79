# SPDX-License-Identifier: Apache-2.0
"""Every micro-kernel gives, in both engines, the bits that a real sm_90 GPU gave."""

from __future__ import annotations

from functools import cache

import pytest

from gdnbench.sim.errors import KernelFault
from gdnbench.sim.run import ENGINES
from tests.sim.silicon.capture import Capture, load
from tests.sim.silicon.registry import FAMILIES, kernels
from tests.sim.silicon.replay import differences, simulate
from tests.subset import quick

RUNS = [(family, name, engine) for family in FAMILIES for name in kernels(family) for engine in ENGINES]
OF_LONG_FAMILIES = {
    "convert": "cvt_f32_to_half",
    "float32": "f32_div",
    "half": "f16x2_arithmetic",
    "cluster_memory": "loads_of_the_next",
    "cluster_barriers": "token_of_3",
    "cluster_copies": "multicasts_of_4",
    "grid_dependency": "launched_at_once",
}
"""What default runs keep, in the interpreter, of families that take it long: all patterns of 16 bits, others
as many, and the many kernels of clusters. The compiled engine runs all of them."""


def is_short(family: str, name: str) -> bool:
    return OF_LONG_FAMILIES.get(family, name) == name


@cache
def stored(family: str) -> Capture:
    return load(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recording_is_of_these_kernels(family: str) -> None:
    recorded = stored(family).about["kernels"]
    assert recorded == {name: kernel.fingerprint() for name, kernel in kernels(family).items()}


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("family", "name", "engine"),
    quick(RUNS, *(place for place, run in enumerate(RUNS) if run[2] != "interpreter" or is_short(*run[:2]))),
)
def test_bits_equal(family: str, name: str, engine: str) -> None:
    kernel, capture = kernels(family)[name], stored(family)
    if name in capture.about["faults"]:
        with pytest.raises(KernelFault):
            simulate(kernel, capture, engine)
        return
    found = list(differences(kernel, simulate(kernel, capture, engine), capture))
    assert not found, "\n".join((f"{len(found)} answers differ", *found))
