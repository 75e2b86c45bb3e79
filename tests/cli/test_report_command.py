# SPDX-License-Identifier: Apache-2.0
"""`gdnbench report` from a replay to the file, without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording


def records(page: Path) -> list[dict[str, Any]]:
    """What the page has of each record."""
    blocks = re.findall(r'id="block-\d+">([^<]*)<', page.read_text(encoding="utf-8"))
    return [one for block in blocks for one in json.loads(gzip.decompress(base64.b64decode(block)))]


@pytest.fixture
def saved(gdnbench: Callable[..., Any], prefills: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run.zarr"
    assert gdnbench("replay", prefills, "--kernel", "torch", "--stages", "--save", run).code == 0
    return run


def test_a_saved_run_is_shown(
    gdnbench: Callable[..., Any], saved: Path, prefills: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    done = gdnbench("report", saved, "-o", page)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{page}: 2 records, {page.stat().st_size / 2**20:.1f} MiB\n"
    found = records(page)
    assert sorted(one["number"] for one in found) == [0, 1]
    for one in found:
        assert one["outcome"] == "pass"
        assert one["waterfall"]
        assert one["capture"]
        assert all(tensor["grid"] for tensor in one["tensors"])
        words = f"replay {prefills} {one['number']} --kernel torch --against reference --on cpu --stages"
        assert one["command"] == f"gdnbench {words}"
    assert gdnbench(*words.split()).code == 0  # and it does run


def test_json_is_shown_too_and_runs_stand_beside_each_other(
    gdnbench: Callable[..., Any], saved: Path, prefills: Path, tmp_path: Path
) -> None:
    text = tmp_path / "replay.json"
    text.write_text(gdnbench("replay", prefills, "1", "--kernel", "reference", "--json").out)
    page = tmp_path / "report.html"
    assert gdnbench("report", saved, text, "-o", page, "--title", "<both>").code == 0
    assert [one["number"] for one in records(page)].count(1) == 2
    assert "<title>&lt;both&gt;</title>" in page.read_text()


def test_what_is_no_run_is_refused_in_a_line(
    gdnbench: Callable[..., Any], prefills: Path, tmp_path: Path
) -> None:
    (tmp_path / "no.json").write_text("[1]")
    empty = {"schema": 1, "command": "diff", "a": "a", "b": "b", "rule": "bitwise", "records": []}
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    page = tmp_path / "report.html"
    for arguments, said in (
        ((prefills, "-o", page), wording("report.not-a-run")),
        ((tmp_path / "no.json", "-o", page), r"no\.json"),
        ((tmp_path / "absent.zarr", "-o", page), r"absent\.zarr"),
        ((prefills,), wording("cli.nothing-to-write")),
        ((tmp_path / "empty.json", "-o", tmp_path / "absent" / "r.html"), wording("file.unwritable")),
    ):
        done = gdnbench("report", *arguments)
        assert done.code == 2
        assert re.search(said, done.err)
        assert done.err.count("\n") == 1
    assert not page.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capture", 1.5),
        ("capture", [{"name": "g", "values": {"min": [[]]}}]),
        pytest.param("step", 10**400, id="step-huge"),
        ("tensors", 7),
    ],
)
def test_values_that_no_replay_writes_are_refused_in_a_line(
    gdnbench: Callable[..., Any], prefills: Path, tmp_path: Path, name: str, value: Any
) -> None:
    pytest.importorskip("resvg_py", reason="PNG files are drawn by resvg-py (extra `pictures`)")
    document = json.loads(gdnbench("replay", prefills, "0", "--kernel", "torch", "--json").out)
    (record,) = document["records"]
    record["decode"] = True
    second = {**record, "key": "other", "step": 2, "number": 1, name: value}
    run = tmp_path / "run.json"
    run.write_text(json.dumps({**document, "records": [record, second]}))
    done = gdnbench("report", run, "--png", tmp_path / "png")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert str(run) in done.err
