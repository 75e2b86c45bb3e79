# SPDX-License-Identifier: Apache-2.0
"""Zip files of stores that a stranger made: refused in one line, with nothing outside them read."""

from __future__ import annotations

import copy
import os
import re
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gdnbench.errors import StoreError
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from tests.messages import wording
from tests.store.store_samples import make_store


def pack(path: Path, archive: Path, change: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(path.rglob("*")):
            out.write(file, file.relative_to(path))
        change(out)
    return archive


def add_link(out: zipfile.ZipFile) -> None:
    link = zipfile.ZipInfo("segments/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    out.writestr(link, "/etc/passwd")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda out: out.writestr("../escape", "x"), wording("store.path-escapes", path="'../escape'")),
        (lambda out: out.writestr("segments/../../escape", "x"), wording("store.path-escapes")),
        (
            lambda out: out.writestr("/etc/cron.d/x", "x"),
            wording("store.path-escapes", path="'/etc/cron.d/x'"),
        ),
        (lambda out: out.writestr("C:/x", "x"), wording("store.path-escapes")),
        (lambda out: out.writestr("a\\..\\b", "x"), wording("store.path-escapes")),
        (lambda out: out.writestr("a//b", "x"), wording("store.path-escapes")),
        (add_link, wording("store.zip-link", member="'segments/link'")),
        (lambda out: out.writestr("bz", b"x" * 9, zipfile.ZIP_BZIP2), wording("store.zip-method", method=12)),
    ],
)
def test_zip_members_that_lead_elsewhere(
    tmp_path: Path, change: Callable[[zipfile.ZipFile], None], said: str
) -> None:
    archive = pack(make_store(tmp_path / "s"), tmp_path / "z.zip", change)
    with pytest.raises(StoreError) as refusal:
        Store.open(archive)
    assert re.search(said, str(refusal.value))


def claim(archive: Path, member: str, size: int) -> None:
    """Change what the zip's directory says of a member's size."""
    content = bytearray(archive.read_bytes())
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(member.encode()))
    content[at + 24 : at + 28] = struct.pack("<I", size)
    archive.write_bytes(content)


def test_zip_members_that_claim_more_than_they_hold(tmp_path: Path) -> None:
    archive = pack(make_store(tmp_path / "s"), tmp_path / "z.zip", lambda out: None)
    claim(archive, "segments/seg/0/records/c/0", 4_000_000_000)
    with pytest.raises(StoreError, match=wording("store.zip-claims", file="records/c/0'", bytes=4000000000)):
        Store.open(archive)


def test_a_zip_that_expands_to_more_than_metadata_may_have(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    (path / "zarr.json").unlink()
    archive = pack(
        path,
        tmp_path / "z.zip",
        lambda out: out.writestr("zarr.json", b" " * (65 << 20), zipfile.ZIP_DEFLATED),
    )
    assert archive.stat().st_size < 1 << 20
    with pytest.raises(
        StoreError, match=wording("store.file-too-large", key="zarr.json", size=68157440, limit=67108864)
    ):
        Store.open(archive)


def test_a_zip_with_a_damaged_member(tmp_path: Path) -> None:
    archive = pack(make_store(tmp_path / "s"), tmp_path / "z.zip", lambda out: None)
    content = bytearray(archive.read_bytes())
    at = content.index(b"segments/seg/0/blobs/float32.40x20") + 200
    content[content.index(b"c/0/0", at) + 20] ^= 1  # past the local header: an element
    archive.write_bytes(content)
    report = verify(archive)
    assert {(d.record, d.tensor) for d in report.damages} == {("seg/0", "t before")}


def test_a_zip_whose_members_share_bytes(tmp_path: Path) -> None:
    """Each member of the directory points to the same compressed bytes."""
    archive = tmp_path / "z.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("zarr.json", os.urandom(4000))
        first = out.infolist()[0]
        for number in range(100):
            again = copy.copy(first)
            again.filename = again.orig_filename = f"c/{number}"
            out.filelist.append(again)
            out.NameToInfo[again.filename] = again
    with pytest.raises(StoreError, match=wording("store.zip-overlaps")):
        Store.open(archive)
