# SPDX-License-Identifier: Apache-2.0
"""`gdnbench share`: a copy to give away, and what it says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

Invoke = Callable[..., Any]
WRONG = """
def prefill(v, o, final_state, **_):
    o.copy_(v)
    final_state.zero_()
"""


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    """A kernel that returns its values and no state."""
    (tmp_path / "wrong.py").write_text(WRONG)
    return f"{tmp_path / 'wrong.py'}:prefill"


def test_it_says_what_went_and_what_remains(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zip"
    done = gdnbench("share", prefills, copy, "1")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("left out: layer, ")
    assert "what remains:" in lines
    assert any("bit for bit" in line for line in lines)
    assert lines[-1] == f"{copy}: 1 record"
    assert gdnbench("verify", copy).code == 0
    assert gdnbench("replay", copy, "--kernel", "torch").code == 0
    assert gdnbench("share", prefills, copy).code == 2  # it is there


@pytest.mark.slow  # replays in two processes
def test_a_failure_is_shown_in_both(gdnbench: Invoke, prefills: Path, wrong: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zarr"
    done = gdnbench("share", prefills, copy, "0", "--hide", "rotation", "--kernel", wrong, "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert (told["out"], told["records"], told["lost"]) == (str(copy), 1, [])
    (record,) = told["shown"]
    assert (record["outcome"], record["lost"]) == ("numeric mismatch", "")
    assert {failing["tensor"] for failing in record["failing"]} == {"o", "final_state"}
    # The same mistake in another basis: what it is compared with differs by q, k and v being rounded to
    # bfloat16 again, each by 2^-9 of itself, in sums of few terms that matter; ten times that is 2 %.
    for failing in record["failing"]:
        assert failing["copy"] == pytest.approx(failing["source"], rel=0.02)
    assert gdnbench("replay", copy, "--kernel", wrong).code == 1


def test_a_failure_that_is_lost_is_exit_1(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    """torch's kernel has the recorded bits; of inputs that are rounded again it has others."""
    copy = tmp_path / "copy.zarr"
    options = ("--hide", "rotation", "--kernel", "torch", "--against", "recorded", "--bitwise")
    done = gdnbench("share", prefills, copy, "0", *options)
    assert done.code == 1
    assert re.match(
        wording("share.outcomes-differ", source="gdnbench: record 0: pass", copy="numeric mismatch"), done.err
    )
    assert f"nothing is written to {copy}" in done.out
    assert not copy.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--hide", "rotation"), "--kernel"),
        (("--hide", "inversion"), "rotation, permutation, synthetic"),
        (("--tol", "1"), wording("cli.kernel-options-alone")),
    ],
)
def test_what_cannot_be_asked(
    options: tuple[str, ...], says: str, gdnbench: Invoke, prefills: Path, tmp_path: Path
) -> None:
    done = gdnbench("share", prefills, tmp_path / "copy.zarr", *options)
    assert done.code == 2
    assert re.search(says, done.err)
    assert not (tmp_path / "copy.zarr").exists()
