# SPDX-License-Identifier: Apache-2.0
"""Raw gates: the softplus that engines serve passes, and one whose sum is 16 times as coarse does not."""

from __future__ import annotations

from pathlib import Path

from tests.power.library import faults, variants
from tests.power.run import made, outcomes

SERVED = "gates: softplus as log(1 + exp x)"
COARSE = "gates: raw: log(1 + exp x), the sum rounded to 2^-19"  # log(1 + exp x) in fp32 rounds to 2^-23
LOST = "gates: raw: no decay below x = -7"


def test_the_limit_lies_between_the_served_softplus_and_coarser_ones(tmp_path: Path) -> None:
    every = (*variants("gdn_decode"), *faults("gdn_decode"))
    chosen = [one for one in every if one.label in (SERVED, COARSE, LOST)]
    (found,) = outcomes(made("gdn_decode", tmp_path, names=["raw gates, beta to 2"]), chosen)
    assert {one.specimen: one.caught for one in found} == {SERVED: False, COARSE: True, LOST: True}
