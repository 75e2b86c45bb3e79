# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect instruction` on versions of kernels with a planted fault, whose line is known."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gdnbench_kernels
from gdnbench.bisect.instruction import find
from gdnbench.bisect.instruction.version import Version, VersionFails
from gdnbench.trace.layout import EVENT_BYTES, ROW_BYTES
from tests.cli.smooth_kernel import COMMENT, PLANTED, SMOOTH, written
from tests.messages import wording
from tests.subset import quick

Invoke = Callable[..., Any]  # the fixture `gdnbench`

KERNEL = (
    SMOOTH
    + '''

def kernel(v, o):
    """Not what gdn_prefill asks for: two versions are held against each other alone."""
    fake = runtime.make_fake_tensor(cutlass.Float32, (128,), (1,), assumed_align=16)
    compiled = sim.compile(smooth, fake, fake, 4, runtime.make_fake_stream())
    x = v.float().flatten()[:128].contiguous()
    z = torch.zeros_like(x)
    sim.launch(compiled, x, z, 4)
    o.copy_(z.view(o.shape))
'''
)
OUTSIDE = ("z[index] = total", "z[index + 4096] = total")
FEWER = ("in cutlass.range(rounds, unroll=1)", "in cutlass.range(rounds - 1, unroll=1)")
RANDOM = ("z.view(o.shape)", "z.view(o.shape) * torch.rand(1, generator=torch.Generator().manual_seed(SEED))")


@pytest.fixture
def store(gdnbench: Invoke, tmp_path: Path) -> Path:
    path = tmp_path / "prefill.zarr"
    options = ("--op", "gdn_prefill", "--seqlens", "1", "--heads", "1,1", "--head-dim", "128,128")
    assert gdnbench("synth", path, *options).code == 0
    return path


def version(folder: Path, name: str, *edits: tuple[str, str]) -> str:
    return f"{written(folder / f'{name}.py', KERNEL, *edits)}:kernel"


def asked(store: Path, good: str, bad: str, *options: str) -> list[str]:
    state = str(store.parent / "state")
    named = ["--good", good, "--bad", bad, "--state", state, "--no-check-ends", *options]
    return ["bisect", "instruction", str(store), "0", *named]


@pytest.mark.usefixtures("probes_here")
def test_the_planted_line_is_named_and_asking_again_is_free(
    gdnbench: Invoke, store: Path, tmp_path: Path
) -> None:
    good, bad = version(tmp_path, "good"), version(tmp_path, "bad", COMMENT, PLANTED)
    found = gdnbench(*asked(store, good, bad))
    assert found.code == 1, found.err
    answer = found.out.splitlines()[-1]
    line = 1 + (tmp_path / "bad.py").read_text().splitlines().index(f"        total = {PLANTED[1]}")
    assert answer.startswith(f"bad.py:{line} in _smooth: ")
    # Element 77: thread 13 of CTA 1.
    assert "CTA (1,0,0), warp 0, lane 13" in answer
    assert PLANTED[1] in found.out
    again = gdnbench(*asked(store, good, bad, "--json"))
    assert "(known)" in again.err
    assert "tracing" not in again.err
    data = json.loads(again.out)
    assert data["kind"] == "value"
    assert data["bad_value"] == pytest.approx(0.75 * data["good_value"], rel=2**-22)


@pytest.mark.slow
def test_a_loop_that_makes_a_round_less_is_named(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    good, bad = version(tmp_path, "good"), version(tmp_path, "bad", FEWER)
    found = gdnbench(*asked(store, good, bad, "--json"))
    assert found.code == 1, found.err
    data = json.loads(found.out)
    lines = (tmp_path / "bad.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "rounds - 1" in text)
    assert (data["kind"], data["good_count"], data["bad_count"]) == ("sequence", 4, 3)
    assert re.fullmatch(
        wording("bisect.edited", place=f"bad.py:{line} in _smooth", text=lines[line - 1].strip()),
        data["lines"][-1],
    )


@pytest.mark.usefixtures("probes_here")
def test_comments_and_moved_lines_are_no_difference(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    found = gdnbench(*asked(store, version(tmp_path, "good"), version(tmp_path, "bad", COMMENT)))
    assert found.code == 0, found.err
    assert re.fullmatch(wording("bisect.same-bits") + "\n", found.out)


@pytest.mark.usefixtures("probes_here")
def test_a_version_that_does_not_run(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    good, bad = version(tmp_path, "good"), version(tmp_path, "bad", OUTSIDE)
    found = gdnbench(*asked(store, good, bad))
    assert found.code == 1, found.err
    assert "out-of-bounds" in found.out
    assert "bad.py:" in found.out.splitlines()[-1]
    found = gdnbench(*asked(store, bad, good))
    assert found.code == 2
    assert re.search(wording("bisect.good-version-fails"), found.err)


@pytest.mark.slow
def test_versions_come_from_their_folders_also_in_a_checkout_of_one(
    gdnbench: Invoke, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that a process starts in comes before PYTHONPATH, and a path of a file is from it."""
    for side, edits in (("one", ()), ("two", (PLANTED,))):
        (tmp_path / side).mkdir()
        version(tmp_path / side, "mine", *edits)
    monkeypatch.chdir(tmp_path / "two")
    found = gdnbench(
        *asked(store, "mine:kernel", "mine.py:kernel", "--good-path", "../one", "--bad-path", ".")
    )
    assert found.code == 1, found.err
    assert PLANTED[1] in found.out
    again = gdnbench(
        *asked(store, "mine.py:kernel", "mine:kernel", "--good-path", "../one", "--bad-path", ".")
    )
    assert again.code == 1, again.err
    assert PLANTED[1] in again.out


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize("check_ends", quick([True, False], 1))
def test_a_version_that_cannot_be_run_here_says_nothing(
    gdnbench: Invoke, store: Path, tmp_path: Path, check_ends: bool
) -> None:
    lacks = ("x = v.float()", "import nosuchpackage\n    x = v.float()")
    good, bad = version(tmp_path, "good"), version(tmp_path, "bad", lacks)
    for ends in ((good, bad), (bad, good)):
        found = gdnbench(*[one for one in asked(store, *ends) if not check_ends or one != "--no-check-ends"])
        assert found.code == 3, found.out
        assert "nosuchpackage" in found.err.splitlines()[-1]


@pytest.mark.usefixtures("probes_here")
def test_what_is_let_be_is_not_said_to_agree(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    good, bad = version(tmp_path, "good"), version(tmp_path, "bad", PLANTED)
    found = gdnbench(*asked(store, good, bad, "--tolerance", "1e9"))
    assert found.code == 0, found.err
    assert "same bits" not in found.out
    assert "smooth_" in found.out
    assert "--tolerance lets be" in found.out


@pytest.mark.slow  # processes that import torch
@pytest.mark.usefixtures("probes_here")
def test_a_trace_that_is_cut_or_fails_is_no_answer(
    gdnbench: Invoke, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = version(tmp_path, "good"), version(tmp_path, "bad", PLANTED)
    with monkeypatch.context() as patched:
        patched.setattr(find, "TRACE_BYTES", 10 * (EVENT_BYTES + ROW_BYTES))  # of one register each
        found = gdnbench(*asked(store, good, bad))
    assert found.code == 3, found.out
    assert re.search(wording("bisect.traces-too-short", events=10, cta=1), found.err.splitlines()[-1])

    def hangs(*args: Any) -> None:
        raise VersionFails("hang", "no answer within 600 s")

    with monkeypatch.context() as patched:
        patched.setattr(Version, "trace", hangs)
        found = gdnbench(*asked(store, good, bad))
    assert found.code == 3, found.out
    assert re.search(wording("bisect.timeout", limit=600), found.err.splitlines()[-1])
    assert gdnbench(*asked(store, good, bad)).code == 1  # nothing was kept


@pytest.mark.slow
def test_an_end_that_changes_by_itself_is_said_to(gdnbench: Invoke, store: Path, tmp_path: Path) -> None:
    seeded = (RANDOM[0], RANDOM[1].replace("manual_seed(SEED)", "manual_seed(__import__('os').getpid())"))
    good, bad = version(tmp_path, "good", seeded), version(tmp_path, "bad")
    found = gdnbench(*[one for one in asked(store, good, bad) if one != "--no-check-ends"])
    assert found.code == 1, found.err
    assert found.out.startswith("the good version is flaky: ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lower_precision_planted_in_chunk_uw(gdnbench: Invoke, tmp_path: Path) -> None:
    store = tmp_path / "prefill.zarr"
    options = ("--op", "gdn_prefill", "--seqlens", "70", "--heads", "1,1", "--key-correlation", "0.9")
    assert gdnbench("synth", store, *options).code == 0
    for side in ("good", "bad"):
        package(tmp_path / side / "planted")
    inverse = tmp_path / "bad" / "planted" / "inverse.py"
    text = inverse.read_text()
    rounded = "r_part.store(rest.to(cutlass.Float16))"
    lower = "r_part.store(rest.to(cutlass.BFloat16).to(cutlass.Float32).to(cutlass.Float16))"
    assert text.count(rounded) == 1
    inverse.write_text(text.replace(rounded, lower))
    paths = ("--good-path", str(tmp_path / "good"), "--bad-path", str(tmp_path / "bad"))
    found = gdnbench(*asked(store, "planted.sm100:sm100", "planted.sm100:sm100", *paths, "--json"))
    assert found.code == 1, found.err
    data = json.loads(found.out)
    named = data["edited"][0]
    assert Path(named["file"]) == inverse
    assert named["text"] == lower
    assert "ChunkUW" in data["launch"]


def package(folder: Path) -> None:
    """The kernels of gdn_prefill as a package of their own."""
    source = Path(gdnbench_kernels.__path__[0]) / "gdn_prefill"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in folder.glob("*.py"):
        file.write_text(file.read_text().replace("gdnbench_kernels.gdn_prefill", folder.name))
