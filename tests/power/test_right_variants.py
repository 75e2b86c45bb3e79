"""Right kernels pass: an expert would call each of them right, whatever its rounding and order of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.library import OPERATIONS, variants
from tests.power.report import QUICK
from tests.power.run import Judged, captured, made, outcomes, unrepeatable
from tests.seeds import drawn, fresh

SOME = {
    "gdn_prefill": (
        "chunks: chunks of 64",
        "rounding: the published three kernels",
        "rounding: tf32 intermediates",
        "inverse: merged by halves",
        "exponentials: ex2.approx",
    ),
    "gdn_decode": (
        "state: fp32 state",
        "state: denormals flushed",
        "sums: a warp's butterfly",
        "order: ex2.approx and rsqrt.approx",
    ),
    "swa_decode": (
        "rounding: rows and p in bf16",
        "rounding: rows in bf16, p in fp16",
        "order: online softmax in tiles of 32",
        "sinks: at the start",
    ),
}


def alarms(found: list[Judged]) -> list[str]:
    return [f"{one.specimen}; {one.record}: {one.outcome}, {one.reason}" for one in found if one.caught]


@pytest.mark.parametrize("op", OPERATIONS)
def test_some_right_variants_pass(op: str, tmp_path: Path) -> None:
    chosen = [one for one in variants(op) if one.label in SOME[op]]
    assert len(chosen) == len(SOME[op])
    for found in outcomes(made(op, tmp_path, names=QUICK[op][:3]), chosen):
        assert not alarms(found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2, fresh(drawn("judge power", bits=20))])
@pytest.mark.parametrize("op", OPERATIONS)
def test_all_right_variants_pass(op: str, seed: int, tmp_path: Path) -> None:
    places = made(op, tmp_path, seed)
    if seed == 0:
        places = [*captured(op), *places]
    failed = [line for found in outcomes(places, variants(op)) for line in alarms(found)]
    assert not failed


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATIONS)
def test_right_variants_give_the_same_bits_twice(op: str, tmp_path: Path) -> None:
    places = made(op, tmp_path, names=QUICK[op][:2])
    assert not unrepeatable(places, variants(op))


@pytest.mark.parametrize("op", OPERATIONS)
def test_there_are_20_right_variants(op: str) -> None:
    assert len(variants(op)) >= 20
    assert all(one.right and one.excuse is None for one in variants(op))
