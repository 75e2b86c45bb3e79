# SPDX-License-Identifier: Apache-2.0
"""The plain values of a page: order, what is left out for size, and what is refused."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import BadInputError
from gdnbench.page.build import render_page, write_page
from gdnbench.page.document import BLOCK, page_data, page_title
from tests.messages import wording


def details(blocks: list[str]) -> list[dict[str, Any]]:
    return [one for block in blocks for one in json.loads(gzip.decompress(base64.b64decode(block)))]


def test_failures_stand_first_and_columns_fit_details(made: Any, wrong: Any, right: dict[str, Any]) -> None:
    others = [{**right, "number": number, "key": f"k/{number}"} for number in range(10, 10 + 2 * BLOCK)]
    crashed = {**right, "number": 7, "outcome": "crash", "reason": "signal 11", "tensors": []}
    cannot = {**right, "number": 8, "outcome": "unsupported", "reason": "no", "tensors": []}
    index, blocks = page_data([made.run([*others, cannot, wrong[0], crashed])], "t")
    found, columns = details(blocks), index["columns"]
    assert [one["number"] for one in found] == columns["number"]
    assert columns["number"][:3] == [3, 7, 8]
    assert columns["severity"][:4] == [0, 0, 1, 3]
    assert index["failures"] == 3
    strings = index["strings"]
    assert [strings[reason] for reason in columns["reason"][1:3]] == ["signal 11", "no"]
    assert strings[columns["outcome"][0]] == "numeric mismatch"
    held = wrong[0]["tensors"][0]["held"][0]
    assert columns["ratio"][0] == pytest.approx(held["error"] / held["limit"], rel=1e-3)  # four digits
    assert len(blocks) == 3


def test_grids_beyond_the_limit_are_left_out_of_passing_records_alone(
    made: Any, wrong: Any, right: dict[str, Any]
) -> None:
    index, blocks = page_data([made.run([right, wrong[0]])], "t", grid_characters=1)
    failing, passing = details(blocks)
    assert failing["tensors"][0]["grid"] == wrong[0]["tensors"][0]["grid"]
    assert passing["tensors"][0]["grid"] is None
    assert passing["grid_left_out"]
    assert index["without_grid"] == 1


@pytest.mark.parametrize(
    ("headers", "title"),
    [
        ([{"kernel": "sm100"}], "sm100"),
        ([{"kernel": "a/b/mine.py:prefill"}, {"kernel": "sm100"}], "mine.py:prefill, sm100"),
        ([{"kernel": "package.module:f"}] * 30, "package.module:f"),
        ([{"kernel": name} for name in "abcd"], "4 kernels"),
        ([{"command": "diff", "a": "s3://x/old.zarr/", "b": "new.zarr"}], "old.zarr against new.zarr"),
    ],
)
def test_a_page_is_titled_by_its_kernels(made: Any, headers: list[dict[str, str]], title: str) -> None:
    assert page_title([made.run([], header={"command": "replay", **one}) for one in headers]) == title


def test_no_runs_are_refused() -> None:
    with pytest.raises(BadInputError, match=wording("page.runs-missing")):
        render_page([])


@pytest.mark.parametrize(
    "broken",
    [{"tensors": [{"tensor": "o"}]}, {"faults": None}, {"seconds": 1, "tensors": [None]}, {"held": 3}],
)
def test_records_that_no_replay_writes_are_refused_or_harmless(
    made: Any, right: dict[str, Any], broken: dict[str, Any]
) -> None:
    try:
        render_page([made.run([{**right, **broken}], "there.json")])
    except BadInputError as error:
        assert "there.json" in str(error)  # noqa: PT017  either is right
    else:
        assert broken == {"held": 3}


def test_a_file_that_cannot_be_written_is_named(made: Any, right: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=wording("file.unwritable")):
        write_page([made.run([right])], tmp_path / "no" / "report.html")
    write_page([made.run([right])], tmp_path / "report.html", "a byte of no text: \udcff")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
