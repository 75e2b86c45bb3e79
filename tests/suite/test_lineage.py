# SPDX-License-Identifier: Apache-2.0
"""Lineage checks in a suite."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gdnbench.errors import BadInputError, Exit
from gdnbench.lineage.finding import Unknown
from gdnbench.suite.read import read_suite, restrict_to_entries
from gdnbench.suite.run import run_suite
from tests.lineage.logs import Engine, Options
from tests.lineage.stores import write_store
from tests.messages import wording


def suite_of(folder: Path) -> Path:
    """A suite of one capture with a broken chain and one without."""
    write_store(folder / "good.zarr", Engine(3, Options()).run(20))
    write_store(folder / "bad.zarr", Engine(3, Options(bug="older-version")).run(35))
    path = folder / "suite.toml"
    path.write_text('[[lineage]]\nname = "served"\ncaptures = "*.zarr"\n')
    return path


def test_a_broken_chain_fails_the_suite(tmp_path: Path) -> None:
    suite = read_suite(suite_of(tmp_path))
    assert [check.name for check in suite.lineage] == ["served.bad.lineage", "served.good.lineage"]
    result = run_suite(suite, tmp_path / "results", today=date(2027, 1, 1))
    assert result.exit_code is Exit.MISMATCH
    assert [one.exit_code for one in result.lineage] == [Exit.MISMATCH, Exit.PASS]
    summary = json.loads((tmp_path / "results/summary.json").read_text())
    bad, good = summary["lineage"]
    assert "older-version" in bad["breaks"][0]
    assert good["breaks"] == []
    assert summary["state"] == "finished"
    junit = ElementTree.parse(tmp_path / "results/junit.xml").getroot()
    assert (junit.get("tests"), junit.get("failures"), junit.get("errors")) == ("2", "1", "0")
    assert bad["command"] in (tmp_path / "results/summary.md").read_text()


@pytest.mark.slow
def test_a_check_is_chosen_by_name(tmp_path: Path) -> None:
    suite = restrict_to_entries(read_suite(suite_of(tmp_path)), "*good*")
    assert run_suite(suite, tmp_path / "results", today=date(2027, 1, 1)).exit_code is Exit.PASS


@pytest.mark.slow
def test_a_capture_without_claims_is_refused(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(
        f'[[lineage]]\ncaptures = "{Path("captures/decode.zarr.zip").resolve()}"\n'
    )
    result = run_suite(read_suite(tmp_path / "suite.toml"), tmp_path / "results", today=date(2027, 1, 1))
    (one,) = result.lineage
    assert one.exit_code is Exit.BAD_INPUT
    assert re.search(wording("lineage.nothing-checked", reason=Unknown.NO_REQUEST), one.error)


def test_a_table_without_captures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text('[[lineage]]\nname = "served"\n')
    with pytest.raises(
        BadInputError, match=wording("suite.lineage-without-captures", where=f"{path}: [[lineage]] 1")
    ):
        read_suite(path)
