# SPDX-License-Identifier: Apache-2.0
"""The commands on records whose output is a set of indices, and on one with stale columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.messages import wording

KERNELS = """
import torch


def last_ties(logits, lens, top_k, indices):
    indices[:] = -1
    for row, count in enumerate(lens.tolist()):
        best = logits[row, :count].flip(0).argsort(descending=True, stable=True)[:top_k]
        indices[row, : len(best)] = (count - 1 - best).int()


def repeats(logits, lens, top_k, indices):
    last_ties(logits, lens, top_k, indices)
    for row, count in enumerate(lens.tolist()):
        if min(count, top_k) > 2:
            indices[row, 2] = indices[row, 0]
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    file = tmp_path / "select.py"
    file.write_text(KERNELS)
    return file


def test_a_set_is_replayed_compared_and_shrunk(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    store = tmp_path / "topk.zarr"
    made = gdnbench("synth", store, "--op", "indexer_topk", "--lens", "9,4", "--top-k", 4, "--zeros", 0.5)
    assert made.code == 0
    for against, options in (("reference", []), ("recorded", ["--bitwise"])):
        right = gdnbench("replay", store, "--kernel", f"{kernels}:last_ties", "--against", against, *options)
        assert right.code == 0, right.out
    run = tmp_path / "run.zarr"
    wrong = gdnbench("replay", store, "--kernel", f"{kernels}:repeats", "--save", run)
    assert wrong.code == 1
    assert re.search(wording("judge.set-repeated", entry=2, before=0), wrong.out)
    assert gdnbench("diff", store, run).code == 1


@pytest.mark.slow
def test_a_set_is_shrunk(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    """Some 20 trials in processes of their own."""
    store = tmp_path / "topk.zarr"
    assert gdnbench("synth", store, "--op", "indexer_topk", "--lens", "9,4", "--top-k", 4).code == 0
    out = tmp_path / "small.zarr"
    script = tmp_path / "small.py"
    shrunk = gdnbench(
        "bisect",
        "input",
        store,
        0,
        "--kernel",
        f"{kernels}:repeats",
        "--out",
        out,
        "--script",
        script,
        "--json",
    )
    assert shrunk.code == 1  # a failure is found
    assert re.search(wording("bisect.script-of-sets", name="indices"), shrunk.err + shrunk.out)
    assert not script.exists()
    # One row, and the three candidates of which the third entry repeats the first.
    assert "R=1 N=3" in gdnbench("ls", out).out


def test_stale_columns_are_left_out(gdnbench: Invoke, tmp_path: Path) -> None:
    store = tmp_path / "logits.zarr"
    sizes = ["--lens", "20,3", "--heads", 2, "--head-dim", 32, "--block-size", 16]
    assert gdnbench("synth", store, "--op", "indexer_logits", *sizes).code == 0
    file = tmp_path / "stale.py"
    file.write_text(
        "from gdnbench_kernels.indexer_logits.torch_logits import torch_logits\n\n\n"
        "def stale(**call):\n"
        "    call.pop('logits')\n"
        "    logits = torch_logits(**call)['logits']\n"
        "    return logits.nan_to_num(0.0, 0.0, 7.0)\n"
    )
    assert gdnbench("replay", store, "--kernel", f"{file}:stale").code == 0
    assert (
        gdnbench("replay", store, "--kernel", f"{file}:stale", "--against", "recorded", "--bitwise").code == 0
    )
