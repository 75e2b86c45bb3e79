# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect input` from the command line, and the file it writes, run without this project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

Invoke = Callable[..., Any]

KERNEL = '''
import torch


def kernel(*, q, k, v, g, beta, cu_seqlens, initial_state=None, scale=None, o, final_state):
    """Right but for the second value head, whose gate it leaves out."""
    ratio = v.shape[1] // q.shape[1]
    q, k = (x.float().repeat_interleave(ratio, 1) for x in (q, k))
    scale = q.shape[2] ** -0.5 if scale is None else scale
    alpha = g.exp()
    if g.shape[1] > 1:
        alpha[:, 1] = 1
    bounds = cu_seqlens.tolist()
    for n in range(len(bounds) - 1):
        state = torch.zeros(v.shape[1], v.shape[2], k.shape[2])
        if initial_state is not None:
            state = initial_state[n].float()
        for t in range(bounds[n], bounds[n + 1]):
            state = alpha[t, :, None, None] * state
            u = beta[t, :, None] * (v[t].float() - (state @ k[t, :, :, None])[..., 0])
            state = state + u[..., None] * k[t, :, None, :]
            o[t] = (scale * (state @ q[t, :, :, None])[..., 0]).to(o.dtype)
        final_state[n] = state


def right(*, q, k, v, g, beta, cu_seqlens, **others):
    from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked
    return torch_chunked(q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens)
'''

FLAKY = """


def flaky(*, o, **call):
    from pathlib import Path

    found = right(**call)
    if Path("called").exists():
        found["o"] = 2 * found["o"]
    Path("called").touch()
    return found
"""

BLOCKED = """
import sys, runpy


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("gdnbench", "gdnbench_kernels"):
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def store(gdnbench: Invoke, tmp_path: Path, probes_here: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    options = ("--seqlens", "3,0,9", "--heads", "1,3", "--head-dim", "8,8", "--gate-span", "60")
    assert gdnbench("synth", "s.zarr", "--op", "gdn_prefill", "--count", "2", *options).code == 0
    Path("mine.py").write_text(KERNEL)
    return Path("s.zarr")


def without_gdnbench(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, str(script), *arguments], capture_output=True, text=True, check=False
    )


def test_shrinks_and_writes_what_reproduces_it(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    command = ("bisect", "input", store, "1", "--kernel", "mine.py:kernel", "--out", "small.zarr")
    done = gdnbench(*command, "--script", "new/repro.py")
    assert done.code == 1, done.err
    assert "'../small.zarr'" in Path("new/repro.py").read_text()
    done = gdnbench(*command, "--script", "repro.py")
    assert done.code == 1, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["before", "after"]
    assert ["tokens", "12", "2"] in [line.split() for line in lines]
    assert ["value", "heads", "3", "2"] in [line.split() for line in lines]
    # The gate of the second of two tokens: without it the state of the first is taken whole.
    assert lines[-1].startswith("record 1 shrunk from 12 tokens, 3 sequences, ")
    assert " to 2 tokens, 1 sequence, " in lines[-1]
    assert "RMS error" in lines[-1]
    assert gdnbench("replay", "small.zarr", "--kernel", "mine.py:kernel").code == 1
    assert gdnbench("verify", "small.zarr").code == 0

    ran = without_gdnbench(Path("repro.py"))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "it reproduces" in ran.stdout
    fixed = KERNEL.replace("if g.shape[1] > 1:", "if False:")
    Path("fixed.py").write_text(fixed)
    ran = without_gdnbench(Path("repro.py"), "fixed.py:kernel")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = Path("repro.py").read_text()
    assert str(tmp_path) not in text
    assert "import gdnbench" not in text

    # All is known: nothing is asked again, and the result is replaced.
    again = gdnbench(*command, "--json")
    assert again.code == 1, again.err
    assert "..." not in again.err
    found = json.loads(again.out)
    assert found["complete"]
    assert found["after"]["token"] == 2


def test_what_passes_and_what_is_refused(gdnbench: Invoke, store: Path) -> None:
    done = gdnbench("bisect", "input", store, "0", "--kernel", "mine.py:right")
    assert done.code == 0, done.err
    assert re.fullmatch(wording("bisect.not-shrunk", record=0, reason="it passes"), done.out.splitlines()[-1])
    for arguments, message in (
        (("0-1",), wording("cli.one-record")),
        (("7",), wording("record_numbers.missing", number=7)),
        (("0", "--out", str(store)), wording("bisect.output-strange", path=store)),
        (
            ("0", "--out", "mine.py/small.zarr"),
            wording(
                "bisect.output-unwritable", option="--out", path="mine.py/small.zarr", why="is no folder"
            ),
        ),
        (
            ("0", "--script", "mine.py/deep/repro.py"),
            wording("bisect.output-unwritable", option="--script", path="mine.py/deep/repro.py"),
        ),
        (("0", "--script", "."), wording("bisect.script-is-folder")),
    ):
        refused = gdnbench("bisect", "input", store, *arguments, "--kernel", "mine.py:kernel")
        assert refused.code == 2
        assert re.search(message, refused.err)


def test_a_record_that_passes_at_first_and_fails_later_is_not_fine(gdnbench: Invoke, store: Path) -> None:
    Path("mine.py").write_text(KERNEL + FLAKY)
    found = gdnbench("bisect", "input", store, "0", "--kernel", "mine.py:flaky")
    assert found.code == 1, found.err
    assert re.search(wording("bisect.flaky", spread="pass 1 of 5, numeric mismatch 4 of 5"), found.out)
