# SPDX-License-Identifier: Apache-2.0
"""Where an H200 was seen not to answer as the PTX ISA says (docs/clusters.md), the simulator does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.run import ENGINES
from tests.sim.silicon.capture import Capture, load
from tests.sim.silicon.cluster_memory import PAIRS
from tests.sim.silicon.patterns import random_u32
from tests.sim.silicon.registry import kernels
from tests.sim.silicon.replay import simulate

CTAS, LANES = 4, 32
Words = npt.NDArray[np.uint32]


def operands() -> list[tuple[Words, Words]]:
    """Of each operation: what is there, and what the CTA before adds. `atomics` makes them in this order."""
    x = random_u32(503, CTAS * LANES).reshape(CTAS, LANES)
    given = x * np.uint32(1664525) + np.uint32(1013904223)
    mask = np.uint32(0xBBFFBBFF)
    found = []
    for _ in PAIRS:
        given = given & mask
        found.append((x & mask, np.roll(given, 1, axis=0)))
    return found


def left(rows: npt.NDArray[np.generic], operation: str) -> Words:
    """(CTA, lane) of the words that an operation leaves."""
    labels = next(kernels("ptxas")["atomics_of_pairs"].results()).labels
    wanted = [f"{operation} leaves, low word, CTA {cta}" for cta in range(CTAS)]
    return np.stack([rows[labels.index(label)] for label in wanted]).astype(np.uint32)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_simulator_adds_pairs_as_pairs(engine: str) -> None:
    """In NumPy's float16, which rounds to nearest even as .noftz sums do."""
    rows = simulate(kernels("ptxas")["atomics_of_pairs"], Capture({}), engine)["out_y"]
    there, given = operands()[0]
    expected = (there.view(np.float16) + given.view(np.float16)).view(np.uint32)
    np.testing.assert_array_equal(left(rows, PAIRS[0]), expected)


def test_ptxas_makes_them_sums_of_words() -> None:
    """What an H200 answered is no sum of pairs, but the sum of the 32 bits as one integer."""
    rows = load("ptxas").answers["atomics_of_pairs/out_y"]
    for operation, (there, given) in zip(PAIRS, operands(), strict=True):
        np.testing.assert_array_equal(left(rows, operation), there + given)
