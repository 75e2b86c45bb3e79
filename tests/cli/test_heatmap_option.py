# SPDX-License-Identifier: Apache-2.0
"""`--heatmap` of replay and diff: behind the table, whatever it is printed to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

Invoke = Callable[..., Any]  # the fixture `gdnbench`

KERNEL = """
import torch
from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked

def gdn_prefill(*, q, k, v, g, beta, cu_seqlens, o, final_state):
    made = torch_chunked(q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens)
    o.copy_(made["o"])
    o[65:71, 1] *= 2
    final_state.copy_(made["final_state"])
"""


def test_replay_shows_the_chunk_and_head_that_are_wrong(
    gdnbench: Invoke, prefills: Path, tmp_path: Path
) -> None:
    """Tokens 65 to 70 are chunk 1 of sequence 1, after one token of sequence 0 and 64 of chunk 0."""
    (tmp_path / "mine.py").write_text(KERNEL)
    name = f"{tmp_path / 'mine.py'}:gdn_prefill"
    result = gdnbench("replay", prefills, 0, "--kernel", name, "--no-isolate", "--heatmap")
    assert result.code == 1
    _, _, picture = result.out.partition("record 0 gdn_prefill synth step 0: o: error / limit, log scale\n")
    legend, sequences, *rows = picture.splitlines()[:4]
    assert legend.endswith("█ more  ! not finite")
    assert sequences == "seq.   0"  # there is no room for the 1 of the next column
    assert rows == ["head 0 ▁▁▁", "head 1 ▁▁▅"]
    assert "in sequence 1 chunk 1 head 1; there [" in picture
    assert picture.count("log scale") == 0  # final_state passes


def test_diff_shows_both_values(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    for name in ("reference", "torch"):
        gdnbench("replay", prefills, "--kernel", name, "--save", tmp_path / f"{name}.zarr")
    stores = (tmp_path / "reference.zarr", tmp_path / "torch.zarr")
    assert "log scale" not in gdnbench("diff", *stores).out
    result = gdnbench("diff", *stores, "--heatmap")
    assert result.code == 1
    label = re.compile(wording("heatmap.of-value"))
    shown = wording("heatmap.label", tensor="o", side=", difference", label=label)
    assert len(re.findall(shown, result.out)) == 2
    same = gdnbench("diff", stores[0], stores[0], "--heatmap")
    assert same.code == 0
    assert re.search("\n" + wording("heatmap.nothing") + "\n\\Z", same.out)


def test_json_stays_one_document(gdnbench: Invoke, prefills: Path) -> None:
    assert gdnbench("replay", prefills, "--heatmap", "--json").out.rstrip().endswith("}")


@pytest.mark.slow  # a program of its own
def test_a_pipe_of_ascii_gets_ascii(prefills: Path) -> None:
    command = [sys.executable, "-m", "gdnbench", "replay", str(prefills), "--heatmap"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60", "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    text = done.stdout.decode("ascii")
    assert ". 0  - up to 1  1 3.2  2 10  3 32  4 100  5 320  6 1000  7 more  ! not finite" in text
    assert all(len(line) <= 60 for line in text.splitlines() if line.startswith("head "))


def test_traces_and_exploration_have_none(gdnbench: Invoke, prefills: Path) -> None:
    result = gdnbench("explore", prefills, "--kernel", "sm100", "--heatmap")
    assert result.code == 2
    assert "--heatmap" in result.err
