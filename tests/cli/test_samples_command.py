# SPDX-License-Identifier: Apache-2.0
"""`gdnbench samples`, and the files that a wheel brings for it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gdnbench import shipped
from gdnbench.errors import BadInputError, CannotRunError
from tests.cli.conftest import Invoke
from tests.messages import wording

ROOT = Path(__file__).parents[2]


def digests(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.is_file()
    }


def test_they_are_copied_once_and_left_alone_after(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "samples"
    assert all(new for _, new in shipped.copy_samples(folder))
    assert digests(folder).items() <= digests(ROOT / "captures").items()
    assert {"prefill.zarr.zip", "wrong_kernel.py", "README.md"} <= digests(folder).keys()
    (folder / "prefill.zarr.zip").unlink()
    assert [path.name for path, new in shipped.copy_samples(folder) if new] == ["prefill.zarr.zip"]


def test_a_file_of_the_user_stays_and_nothing_is_copied(tmp_path: Path) -> None:
    (tmp_path / "wrong_kernel.py").write_text("mine")
    with pytest.raises(BadInputError, match=wording("shipped.differs")):
        shipped.copy_samples(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["wrong_kernel.py"]
    with pytest.raises(BadInputError, match=wording("shipped.folder")):
        shipped.copy_samples(tmp_path / "wrong_kernel.py")


def test_a_full_disk_is_said_of_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a copy names the file that is read."""

    def full(source: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))

    monkeypatch.setattr(shipped, "copy_whole", full)
    for folder, place, error in (
        (tmp_path, tmp_path / "README.md", "No space left on device"),
        (tmp_path / "file" / "in", tmp_path / "file" / "in", "Not a directory"),
    ):
        (tmp_path / "file").touch()
        with pytest.raises(BadInputError) as refused:
            shipped.copy_samples(folder)
        assert re.fullmatch(wording("shipped.unwritable", place=str(place), error=error), str(refused.value))


def test_an_installation_without_captures_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match=wording("shipped.none")):
        shipped.copy_samples(tmp_path / "to", source=tmp_path)
    assert not (tmp_path / "to").exists()


def test_the_command_lists_them(gdnbench: Invoke, tmp_path: Path) -> None:
    ran = gdnbench("samples", tmp_path / "here")
    assert ran.code == 0
    assert re.search(r"here/decode\.zarr\.zip +3\.3 MiB +copied\n", ran.out)
    listed = json.loads(gdnbench("samples", tmp_path / "here", "--json").out)
    assert {file["file"]: file["copied"] for file in listed} == {
        str(file): False for file in (tmp_path / "here").iterdir()
    }
    assert all(file["bytes"] == Path(file["file"]).stat().st_size for file in listed)


@pytest.mark.slow
def test_a_wheel_of_an_sdist_has_them(tmp_path: Path) -> None:
    """And what else no module imports: the page's files, the start-up line, py.typed."""
    build = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"

    def built(kind: str, source: Path) -> Path:
        command = [sys.executable, "-c", build, f"build_{kind}", str(tmp_path)]
        ran = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
        return tmp_path / ran.stdout.splitlines()[-1]

    copy = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    subprocess.run(["tar", "xzf", str(built("sdist", copy)), "-C", str(tmp_path)], check=True)
    (source,) = (path for path in tmp_path.glob("gdnbench-*") if path.is_dir())
    names = set(zipfile.ZipFile(built("wheel", source)).namelist())
    shipped_files = {f"captures/{file.name}" for file in shipped.sample_files()} | {"suites/made.toml"}
    assert {f"gdnbench/_shipped/{name}" for name in shipped_files} <= names
    assert {"gdnbench_capture.pth", "gdnbench/page/assets/page.html"} <= names
