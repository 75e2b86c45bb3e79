# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim --check --delays FILE`: the instruction that CUTracer is to delay."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.session import blocks
from tests.sim.predict.tools import toolkit

Invoke = Callable[..., Any]  # the fixture `gdnbench`

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "zoo" / "delays.md").read_text(encoding="utf-8")
(LATE_READER,) = (block.text for block in blocks(PAGE) if block.file == "late.ptx")


def test_a_late_reader(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read and the second store are delayed; the first store and the one to global memory are not."""
    toolkit(monkeypatch)
    kernel, delays = tmp_path / "late.ptx", tmp_path / "d.json"
    kernel.write_text(LATE_READER)
    call = ("sim", f"{kernel}:late", "--grid", "1", "--block", "64", "i32[64]", "--check")
    result = gdnbench(*call, "--delays", delays)
    assert result.code == 1
    assert "1 of 1" in result.err
    ((name, found),) = json.loads(delays.read_text())["kernels"].items()
    assert (name.split("_")[0], found["kernel_name"]) == ("late", "late")
    points = [*found["instrumentation_points"].values()]
    words = " ".join(one["sass"] for one in points).split()
    assert (len(points), words.count("LDS"), words.count("STS.U16")) == (2, 1, 1)
    assert all(one["on"] and one["pc"] % 16 == 0 for one in points)  # instructions have 128 bits
    # The same instructions under CUTracer's name, from a pipe: the file is read once.
    seen = {**found, "kernel_name": "late()", "kernel_checksum": "1f"}
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        json.dump({"kernels": {"late()_1f": seen}}, pipe)
    gdnbench(*call, "--delays", delays, "--delays-dump", f"/dev/fd/{reader}")
    os.close(reader)
    assert [*json.loads(delays.read_text())["kernels"]] == ["late()_1f"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--delays", "d.json"), "--check"),
        (("--check", "--delays-dump", "d.json"), "--delays"),
        (("--check", "--time", "--delays", "d.json"), "--time"),
    ],
)
def test_options_that_do_not_go_together(gdnbench: Invoke, options: tuple[str, ...], says: str) -> None:
    result = gdnbench("sim", "k.ptx:k", *options)
    assert result.code == 2
    assert says in result.err


def test_without_the_tools(gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnbench.sim.predict.machine_code.shutil.which", lambda name: None)
    monkeypatch.setattr("gdnbench.sim.predict.machine_code.find_spec", lambda name: None)
    result = gdnbench("sim", "k.ptx:k", "--check", "--delays", "d.json")
    assert result.code == 3
    assert "gdnbench[predict]" in result.err
