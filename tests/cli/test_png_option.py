# SPDX-License-Identifier: Apache-2.0
"""`gdnbench report --png`: what it says, and what it takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdnbench.page import png
from tests.messages import wording

Invoke = Callable[..., Any]  # the fixture `gdnbench`


def test_it_says_how_many_records_have_no_files_of_their_own(
    gdnbench: Invoke, prefills: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("resvg_py", reason="PNG files are drawn by resvg-py (extra `pictures`)")
    gdnbench("replay", prefills, "--save", tmp_path / "run.zarr")
    monkeypatch.setattr(png, "MOST_RECORDS", 1)
    result = gdnbench("report", tmp_path / "run.zarr", "--png", tmp_path / "png")
    files = {path.name for path in (tmp_path / "png").iterdir()}
    own = [name for name in files if name.startswith("record-")]
    assert files - set(own) == {"verdicts.png", "captured-00.png"}
    assert len({name.rsplit("-", 1)[0] for name in own}) == 1
    said = wording(
        "cli.png-written",
        path=tmp_path / "png",
        records="2 records",
        pictures=len(files),
        plural="s",
        more=re.compile(wording("cli.png-left-out", records=1)),
    )
    assert re.fullmatch(said + "\n", result.out)
    assert result.code == 0


def test_without_the_packages_it_cannot_run(
    gdnbench: Invoke, prefills: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gdnbench("replay", prefills, "--save", tmp_path / "run.zarr")
    monkeypatch.setitem(sys.modules, "quickjs", None)
    result = gdnbench("report", tmp_path / "run.zarr", "--png", tmp_path / "png")
    assert result.code == 3
    assert result.err.count("\n") == 1
    assert re.search(wording("page.packages-missing"), result.err)


def test_nothing_to_write_is_told(gdnbench: Invoke, tmp_path: Path) -> None:
    result = gdnbench("report", tmp_path)
    assert result.code == 2
    assert re.search(wording("cli.nothing-to-write"), result.err)
