"""Wrong kernels are caught: at least 95 % of those that the contract does not allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.library import OPERATIONS, faults
from tests.power.report import QUICK, enough, measure
from tests.power.run import made, outcomes, unrepeatable

SOME = {
    "gdn_prefill": (
        "heads: value head hv reads key head hv % H",
        "gates: the chunk's decay is that of row 59 of 64",
        "tails: rows of the next sequence are not masked",
        "borders: the state leaks into the next sequence",
        "states: the final state is transposed",
        "inverses: I - A + A^2",
        "norms: q and k are not normalised",
        "noise: noise of 5% on o",
    ),
    "gdn_decode": (
        "heads: value head hv reads key head hv % H",
        "gates: no decay",
        "slots: num_accepted is one too large",
        "slots: -1 is the last slot",
        "states: the state is stored as bf16",
        "norms: k is not normalised",
        "gain: stored state 0.1% too large",
    ),
    "swa_decode": (
        "windows: one entry too few",
        "windows: -1 is slot 0",
        "pages: fp8_ds_mla: no padding between pages",
        "scales: of the neighbouring group of 64",
        "sinks: missing",
        "lse: base 2",
        "gain: o 5% too large",
    ),
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_some_faults_are_caught(op: str, tmp_path: Path) -> None:
    chosen = [one for one in faults(op) if one.label in SOME[op]]
    assert len(chosen) == len(SOME[op])
    left = chosen
    for place in made(op, tmp_path, names=QUICK[op][-3:]):
        (found,) = outcomes([place], left)
        caught = {one.specimen for one in found if one.caught}
        left = [one for one in left if one.label not in caught]
    assert not [one.label for one in left]


@pytest.mark.parametrize("op", OPERATIONS)
def test_kernels_that_do_not_repeat_are_caught(op: str, tmp_path: Path) -> None:
    chosen = [one for one in faults(op) if one.repeats]
    places = made(op, tmp_path, names=QUICK[op][:2])
    assert set(unrepeatable(places, chosen)) == {one.label for one in chosen}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("op", OPERATIONS)
def test_nearly_all_faults_are_caught(op: str, tmp_path: Path) -> None:
    power = measure(op, tmp_path)
    assert enough(power), [one.label for one in power.misses if one.excuse is None]


def test_there_are_200_faults() -> None:
    assert len(faults("gdn_prefill")) >= 85
    assert len(faults("gdn_decode")) >= 60
    assert len(faults("swa_decode")) >= 60
