# SPDX-License-Identifier: Apache-2.0
"""`gdnbench prune`: says what would go, and does it when told to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.messages import wording

Invoke = Callable[..., Any]


def listed(gdnbench: Invoke, store: Path) -> list[str]:
    return [record["key"] for record in json.loads(gdnbench("ls", store, "--json").out)]


def test_it_says_what_would_go_and_goes_with_yes(gdnbench: Invoke, prefills: Path) -> None:
    before = listed(gdnbench, prefills)
    said = gdnbench("prune", prefills, "--keep", "1")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("would drop 1 of 2 records and ")
    assert re.search(wording("cli.prune-preview", what=re.compile(".* of tensors")) + "\n$", said.out)
    assert listed(gdnbench, prefills) == before

    done = gdnbench("prune", prefills, "--keep", "1", "--yes")
    assert done.code == 0
    assert done.out.startswith("dropped 1 record, 1 is left; freed ")
    assert listed(gdnbench, prefills) == before[1:]
    assert gdnbench("verify", prefills).code == 0
    assert gdnbench("replay", prefills, "--kernel", "torch").code == 0
    shown = gdnbench("ls", prefills).out.splitlines()[-1]
    removed = wording("cli.ls-removed", records=1)
    assert re.fullmatch(f"1 record, 1 process, synth store{removed}", shown)


def test_json(gdnbench: Invoke, prefills: Path) -> None:
    first = listed(gdnbench, prefills)[0]
    said = json.loads(gdnbench("prune", prefills, "--max-records", "1", "--json").out)
    assert (said["dropped"], said["kept"]) == ([first], 1)
    assert said["bytes"] > 0
    done = json.loads(gdnbench("prune", prefills, "--max-records", "1", "--json", "--yes").out)
    assert (done["dropped"], done["kept"], done["left_alone"]) == (1, 1, [])


def test_what_is_being_written_is_left_alone_and_said(gdnbench: Invoke, prefills: Path) -> None:
    segment = listed(gdnbench, prefills)[0].partition("/")[0]
    (prefills / ".incoming" / segment).mkdir(parents=True)
    for more in ((), ("--yes",)):
        said = gdnbench("prune", prefills, "--max-records", "0", *more)
        assert said.code == 0
        assert re.search(wording("cli.segment-busy", segment=segment), said.out)
    assert len(listed(gdnbench, prefills)) == 2


def test_a_copy_to_share_has_no_age(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    """Its segments' names have zeros where others have a time: not 1970."""
    copy = tmp_path / "copy.zarr"
    assert gdnbench("share", prefills, copy).code == 0
    said = gdnbench("prune", copy, "--older-than", "7d", "--yes")
    assert said.code == 0
    assert said.out.startswith("dropped 0 records, 2 are left")
    assert re.fullmatch(wording("cli.prune-ageless", processes="1 process") + "\n", said.err)
    assert len(listed(gdnbench, copy)) == 2


def test_refusals_are_one_line(gdnbench: Invoke, prefills: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((prefills,), wording("store.prune-nothing")),
        ((prefills, "--keep", "7"), wording("store.keep-missing", number=7, records=2)),
        ((prefills, "--older-than", "soon"), "--older-than 'soon' is no age"),
        ((tmp_path / "nothing", "--keep", "0"), wording("store.missing")),
        (("s3://bucket/run.zarr", "--keep", "0"), r"s3://bucket/run\.zarr is a URL"),
    ):
        refused = gdnbench("prune", *arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert re.search(message, refused.err)
