# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels are caught: at least 95 % of those that the contract does not allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.library import LARGE, OPERATIONS, faults
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
    "v4_decode": (
        "segments: two softmaxes",
        "lengths: one entry too few",
        "scales: of the window's slots",
        "entries: a duplicate counts once",
        "splits: NaN of an empty one",
        "sinks: missing",
        "lse: base 2 for base e",
    ),
    "v4_compress": (
        "windows: the overlap shifted by one token",
        "windows: halves of the columns exchanged",
        "scores: no ape",
        "rope: of the window's last token",
        "states: the next token's place is read",
    ),
    "indexer_logits": (
        "relu: missing",
        "weights: of the next head",
        "scales: of the next key",
        "pages: rows with their scales",
        "columns: the last key is lost",
    ),
    "indexer_topk": (
        "boundary: the next one for the last",
        "ties: those at the boundary are dropped",
        "columns: row_starts are ignored",
        "rows: an index twice",
        "rows: 0 for padding",
    ),
}
RECORDS = {
    "v4_decode": ("slots several times", "the window alone", "pages of 2 compressed rows"),
    "v4_compress": ("CSA, windows at every place",),
    "indexer_logits": ("lengths about a page", "three queries a request, pages apart"),
    "indexer_topk": ("rows that start apart, live columns", "a plateau of zeros"),
}
"""The made records on which `SOME` are judged; the last three of `QUICK` if left out."""


@pytest.mark.parametrize("op", OPERATIONS)
def test_some_faults_are_caught(op: str, tmp_path: Path) -> None:
    chosen = [one for one in faults(op) if one.label in SOME[op]]
    assert len(chosen) == len(SOME[op])
    left = chosen
    for place in made(op, tmp_path, names=RECORDS.get(op, QUICK[op][-3:])):
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
    assert sum(len(faults(op)) for op in OPERATIONS if op not in LARGE) >= 150
