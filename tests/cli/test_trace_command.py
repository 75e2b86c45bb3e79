# SPDX-License-Identifier: Apache-2.0
"""`gdnbench trace`, `gdnbench sim --trace` and `gdnbench diff` of what they wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.trace.reader import open_trace
from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from tests.cli.smooth_kernel import COMMENT, PLANTED, SMOOTH, written

Invoke = Callable[..., Any]  # the fixture `gdnbench`

KERNEL = (
    SMOOTH
    + """

def twice():
    fake = runtime.make_fake_tensor(cutlass.Float32, (128,), (1,), assumed_align=16)
    compiled = sim.compile(smooth, fake, fake, 4, runtime.make_fake_stream())
    x = torch.linspace(1, 2, 128)
    sim.launch(compiled, x, torch.zeros(128), 4)
    return compiled, (x, torch.zeros(128), 4)


def kernel(v, o):
    \"\"\"Not what gdn_prefill asks for: it is traced, whatever is said of its outputs.\"\"\"
    compiled, (x, z, rounds) = twice()
    sim.launch(compiled, x, z, rounds)
"""
)


def version(folder: Path, name: str, *edits: tuple[str, str]) -> Path:
    return written(folder / f"{name}.py", KERNEL, *edits)


@pytest.mark.slow  # compiles three versions
def test_the_planted_line_is_named_across_versions(gdnbench: Invoke, tmp_path: Path) -> None:
    traces = {}
    for name, edits in (("a", ()), ("b", (COMMENT, PLANTED)), ("c", (COMMENT,))):
        file, traces[name] = version(tmp_path, name, *edits), tmp_path / f"{name}.zarr"
        done = gdnbench("sim", f"{file}:twice", "--trace", traces[name], "--select", "all")
        assert done.code == 0, done.err
        # Both launches: the one that is made on the way, and the one that is returned.
        assert re.search(wording("cli.trace-written", launches="2 launches"), done.err)
    same = gdnbench("diff", traces["a"], traces["c"])
    assert (same.code, same.err) == (0, "")
    assert same.out.splitlines()[-1].startswith("2 launches: ")
    assert ", no difference | equal bits" in same.out
    found = gdnbench("diff", traces["a"], traces["b"])
    assert found.code == 1
    # Element 77: thread 13 of CTA 1.
    first = wording("diff.first-difference", warp="CTA (1,0,0), warp 0", lane=", lane 13", occurrence=0)
    assert re.search(f"  {first}\n", found.out)
    line = 1 + (tmp_path / "b.py").read_text().splitlines().index(f"        total = {PLANTED[1]}")
    edited = wording("diff.not-in-a", place=f"b.py:{line} in _smooth", text=f"total = {PLANTED[1]}")
    assert re.search(f"  {edited}\n", found.out)
    data = json.loads(gdnbench("diff", traces["a"], traces["b"], "--json").out)
    one = data["launches"][0]["first"]
    assert one["b"]["value"] == pytest.approx(0.75 * one["a"]["value"], rel=2**-22)
    assert (data["exit_code"], data["rule"]) == (1, "equal bits")
    assert gdnbench("diff", traces["a"], traces["b"], "--tol", "0,0.5").code == 0
    assert gdnbench("diff", traces["a"], traces["b"], "--ulp", "100").code == 1
    for options, said in (
        (["--oracle"], wording("cli.misplaced", given="--oracle")),
        (["--junit", tmp_path / "j.xml"], wording("cli.misplaced", given="--junit")),
        (["--tol", "1", "--ulp", "1"], wording("diff.tol-or-ulp")),
    ):
        refused = gdnbench("diff", traces["a"], traces["b"], *options)
        assert (refused.code, refused.out) == (2, "")
        assert re.search(said, refused.err)


def test_a_selection_of_nothing_that_ran_is_told(gdnbench: Invoke, tmp_path: Path) -> None:
    done = gdnbench(
        "sim", f"{version(tmp_path, 'a')}:twice", "--trace", tmp_path / "t.zarr", "--select", "cta=0 warp=77"
    )
    assert done.code == 0, done.err
    assert re.search(wording("cli.select-nothing") + "\n", done.err)
    assert re.search(wording("cli.trace-written", events=0, launches="2 launches"), done.err)


@pytest.fixture
def store(gdnbench: Invoke, tmp_path: Path) -> Path:
    path = tmp_path / "prefill.zarr"
    size = ("--seqlens", "1", "--heads", "1,1", "--head-dim", "128,128")
    assert gdnbench("synth", path, "--op", "gdn_prefill", *size).code == 0
    return path


@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_replay_is_traced_wherever_it_runs(
    gdnbench: Invoke, store: Path, tmp_path: Path, isolate: str
) -> None:
    path = tmp_path / "t.zarr"
    kernel = f"{version(tmp_path, 'a')}:kernel"
    done = gdnbench("trace", store, path, "--kernel", kernel, isolate, "--select", "cta=1 class=store")
    assert done.code in (0, 1), done.err  # its outputs are nobody's
    assert re.search(
        wording("cli.trace-written", events=4, launches="2 launches", path=path), done.err
    )  # two warps each
    with open_trace(path) as trace:
        assert [launch.attributes["record_number"] for launch in trace.launches] == [0, 0]
        assert {event.cta for launch in trace.launches for event in launch.read()} == {1}
    again = gdnbench(
        "trace", store, tmp_path / "again.zarr", "--kernel", kernel, "--check", "--schedule", "early"
    )
    assert again.code in (0, 1), again.err
    assert re.search(wording("cli.trace-written", launches="2 launches"), again.err)
    mixed = gdnbench("diff", path, store)
    assert mixed.code == 2
    assert re.search(wording("cli.kinds-differ"), mixed.err)
    assert gdnbench("diff", store, store, "--ulp", "1").code == 2
    listed = gdnbench("ls", path)
    assert listed.code == 2
    assert re.search(wording("store.trace-not-store"), listed.err)


def test_what_is_not_traced_is_not_written(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.zarr"
    missing = gdnbench("trace", store, path)
    assert missing.code == 2
    assert "--kernel" in missing.err
    assert not path.exists()
    nothing = gdnbench("sim", f"{version(tmp_path, 'a')}:missing", "--trace", path)
    assert nothing.code == 2
    assert not path.exists()
