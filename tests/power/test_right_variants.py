# SPDX-License-Identifier: Apache-2.0
"""Right kernels pass: an expert would call each of them right, whatever its rounding and order of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.library import LARGE, OPERATIONS, variants
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
    "v4_decode": (
        "rounding: rows in bf16, p in fp16",
        "splits: seven parts, merged in base 2",
        "order: the extra segment first",
    ),
    "v4_compress": ("order: online softmax, descending", "norm: the weight first, by rsqrt"),
    "indexer_logits": ("order: the scale first", "order: heads in pairs"),
    "indexer_topk": ("ties: the last of equal ones", "selection: by radix"),
}
RECORDS = {
    "v4_decode": ("pages of 2 compressed rows",),
    "v4_compress": ("CSA, windows at every place",),
    "indexer_logits": ("three queries a request, pages apart",),
    "indexer_topk": ("a plateau of zeros",),
}
"""The made records on which `SOME` are judged; the first three of `QUICK` if left out."""
FEWEST = dict.fromkeys(LARGE, 20) | {
    "v4_decode": 20,
    "v4_compress": 10,
    "indexer_logits": 10,
    "indexer_topk": 8,
}


def alarms(found: list[Judged]) -> list[str]:
    return [f"{one.specimen}; {one.record}: {one.outcome}, {one.reason}" for one in found if one.caught]


@pytest.mark.parametrize("op", OPERATIONS)
def test_some_right_variants_pass(op: str, tmp_path: Path) -> None:
    chosen = [one for one in variants(op) if one.label in SOME[op]]
    assert len(chosen) == len(SOME[op])
    for found in outcomes(made(op, tmp_path, names=RECORDS.get(op, QUICK[op][:3])), chosen):
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
def test_there_are_enough_right_variants(op: str) -> None:
    assert len(variants(op)) >= FEWEST[op]
    assert all(one.right and one.excuse is None for one in variants(op))
