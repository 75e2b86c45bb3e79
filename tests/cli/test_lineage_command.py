# SPDX-License-Identifier: Apache-2.0
"""`gdnbench lineage`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Invoke
from tests.lineage.logs import Engine, Options, Planted
from tests.lineage.stores import write_store
from tests.messages import wording

Broken = tuple[Path, Planted]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """A store in which one request's state was overwritten, and what happened."""
    path = tmp_path_factory.mktemp("lineage") / "broken.zarr"
    engine = Engine(3, Options(bug="overwritten")).run(45)
    write_store(path, engine)
    assert engine.planted is not None
    return path, engine.planted


def test_a_break_is_a_line_with_both_calls(gdnbench: Invoke, broken: Broken, tmp_path: Path) -> None:
    store, planted = broken
    result = gdnbench("lineage", store, "--junit", tmp_path / "results.xml")
    assert result.code == 1
    header, first, *_ = result.out.splitlines()
    assert header.startswith("break ")
    call = rf"record {planted.call} \(step {planted.call}\)"
    assert re.match(rf"overwritten +layers\.0 +{planted.request} .*{call}: .* writes", first)
    assert re.search(
        rf"{planted.request} reads slot \d+ at \d+ .*{planted.request} writes slot \d+ at \d+", first
    )
    junit = ElementTree.parse(tmp_path / "results.xml").getroot()
    assert [case.get("type") for case in junit.iter("failure")] == ["overwritten"]


def test_json_has_every_access(gdnbench: Invoke, broken: Broken) -> None:
    store, planted = broken
    result = gdnbench("lineage", store, "--json")
    document = json.loads(result.out)
    found = document["processes"][0]["chains"][0]["breaks"][0]
    assert (found["break"], found["damage"]["record"]) == ("overwritten", planted.call)
    assert found["found"]["request"] == found["own"]["request"] == planted.request
    assert found["found"]["digest"] == found["source"]["digest"] != found["own"]["digest"]
    assert (
        document["reads"] == document["right"] + sum(document["unknown"].values()) + 1
        or document["breaks"] > 1
    )


def test_explain_shows_one_chain(gdnbench: Invoke, broken: Broken) -> None:
    store, planted = broken
    result = gdnbench("lineage", store, "--explain", planted.request)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith(f"{planted.request} in layers.0, state, process ")
    assert any(line.endswith("did the damage: overwritten") for line in lines)
    assert any(re.search(rf"{planted.request} +read .* overwritten$", line) for line in lines)
    document = json.loads(gdnbench("lineage", store, "--explain", planted.request, "--json").out)
    assert len(document[0]["accesses"]) == len(lines) - 2


def test_a_right_store_passes(gdnbench: Invoke, tmp_path: Path) -> None:
    write_store(tmp_path / "run.zarr", Engine(3, Options()).run(8))
    result = gdnbench("lineage", tmp_path / "run.zarr")
    assert result.code == 0
    assert re.fullmatch(r"1 process, 1 chain, \d+ reads: \d+ right, 0 breaks, 0 unknown\n", result.out)


def test_a_store_counts_once(gdnbench: Invoke, broken: Broken, tmp_path: Path) -> None:
    store, _ = broken
    link = tmp_path / "link.zarr"
    link.symlink_to(store)
    result = gdnbench("lineage", store, link)
    assert (result.code, bool(re.search(wording("lineage.same-store", path=str(store)), result.err))) == (
        2,
        True,
    )


@pytest.mark.slow
def test_refusals_are_one_line(gdnbench: Invoke, broken: Broken, prefills: Path, tmp_path: Path) -> None:
    store, _ = broken
    for sentence, *arguments in (
        (wording("lineage.nothing-read"), prefills),
        (wording("lineage.layer-alone"), store, "--layer", "x"),
        (wording("lineage.explain-with-junit"), store, "--explain", "x", "--junit", tmp_path / "x.xml"),
        (wording("lineage.explain-unknown"), store, "--explain", "nobody"),
        (r"; calls name 'r\d+', ", store, "--explain", "nobody"),
    ):
        result = gdnbench("lineage", *arguments)
        assert result.code == 2
        assert re.search(sentence, result.err)
    assert gdnbench("replay", prefills, "--save", tmp_path / "replayed.zarr").code == 0
    result = gdnbench("lineage", tmp_path / "replayed.zarr")
    assert (result.code, bool(re.search(wording("lineage.saved-replay"), result.err))) == (2, True)
