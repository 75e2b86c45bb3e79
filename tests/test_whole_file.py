# SPDX-License-Identifier: Apache-2.0
"""A file that is replaced is the new one or the old one, with nothing left beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gdnbench.whole_file import new_file, replace_message, replace_text


@pytest.mark.parametrize("durable", [False, True])
def test_it_is_made_and_then_replaced(tmp_path: Path, durable: bool) -> None:
    for text in ("one\n", "zwei ü\n"):
        replace_text(tmp_path / "file", text, durable=durable)
        assert (tmp_path / "file").read_bytes() == text.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_leaves_the_old_one_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(tmp_path / "file", "a" * 100_000 + "\udcff")  # more than a buffer, then what UTF-8 lacks
    assert (tmp_path / "file").read_text() == "old"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_text(tmp_path / "folder", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # as /dev/null and /dev/stdout are none of our files
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_text(pipe, "text")
        assert os.read(reads, 100) == b"text"
    finally:
        os.close(reads)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link"
    link.symlink_to(Path("elsewhere", "file"))
    for text in ("one", "two"):
        replace_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "elsewhere" / "file").read_text() == text
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["file"]


@pytest.mark.parametrize("folder", ["", "/"])
def test_a_folder_without_a_name_is_refused_as_one(folder: str) -> None:
    with pytest.raises(IsADirectoryError):
        replace_text(Path(folder), "text")


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_has_its_name_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Until then no file has: a process that is killed leaves none of that name."""

    def unlinkable(self: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))  # as FAT has no links

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", unlinkable)
    with new_file(tmp_path / "file") as file:
        file.write(b"new")
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_bytes() == b"new"
    with pytest.raises(FileExistsError), new_file(tmp_path / "late") as file:
        (tmp_path / "late").write_bytes(b"another's")
    assert (tmp_path / "late").read_bytes() == b"another's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "late"]


def test_half_of_a_surrogate_pair_becomes_its_escape_in_a_message(tmp_path: Path) -> None:
    replace_message(tmp_path / "a.xml", "layer \udc80 ü")
    assert (tmp_path / "a.xml").read_bytes() == b"layer \\udc80 \xc3\xbc"
