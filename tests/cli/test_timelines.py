# SPDX-License-Identifier: Apache-2.0
"""Timelines that commands write: whole files, in place of earlier ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdnbench.cli.timelines import check_timeline, write_timeline
from gdnbench.errors import BadInputError


def fails_half_way(path: Path) -> None:
    path.write_text('{"traceEvents": [')
    raise OSError("No space left on device")


def test_a_timeline_replaces_an_earlier_one_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for text in ("earlier", "later"):
        write_timeline(path, lambda given, text=text: given.write_text(text))  # type: ignore[misc]
        assert path.read_text() == text
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize("before", [None, "earlier"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "t.json"
    if before is not None:
        path.write_text(before)
    with pytest.raises(BadInputError, match=r"t\.json: No space left on device"):
        write_timeline(path, fails_half_way)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == (
        {} if before is None else {"t.json": before}
    )


def test_a_device_is_written_to_itself() -> None:
    check_timeline(Path(os.devnull))
    write_timeline(Path(os.devnull), lambda given: given.write_text("text"))  # type: ignore[arg-type,return-value]
    assert Path(os.devnull).is_char_device()
