# SPDX-License-Identifier: Apache-2.0
"""The check of all orders on mutants, each without one wait or arrival, of kernels with proved orders."""

from collections import Counter

import pytest

from tests.sim.mutation.judging import launches
from tests.sim.mutation.orders import Told, judged
from tests.subset import quick


@pytest.mark.parametrize(
    ("name", "proved"),
    # Of pair_gemm the wait of its tail and the epilogue's only one; of persistent the waits of its two tails.
    quick([("launch_control", 0), ("pair_gemm", 2), ("persistent", 4)], 0),
)
def test_a_wait_or_an_arrival_is_left_out(name: str, proved: int) -> None:
    """Without an arrival the run itself hangs. Without a wait it does, or another order is broken, unless the
    phases do not depend on it (`scripts/mutate_orders.py`)."""
    for kept in launches(name).values():
        found = list(judged(kept))
        counts = Counter(one.told for one in found)
        assert not counts[Told.OPEN]
        assert counts[Told.PROVED] == proved
        waits = [one for one in found if "_wait" in one.mutant.op]
        others = [one for one in found if "_wait" not in one.mutant.op]
        assert waits
        assert others
        assert all(one.told is not Told.PROVED for one in others), list(map(str, others))
