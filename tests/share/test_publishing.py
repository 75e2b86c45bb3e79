# SPDX-License-Identifier: Apache-2.0
"""A copy is at its path whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError, StoreError
from gdnbench.share import share as module
from gdnbench.share.share import share
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from tests.messages import wording
from tests.share.share_samples import decode, keep
from tests.subset import quick


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return keep(tmp_path / "s.zarr", [decode(), decode(seed=1)])


def share_to(source: Path, out: Path) -> None:
    with Store.open(source) as opened:
        share(opened, out, range(len(opened.records)))


@pytest.mark.parametrize("name", ["copy.zarr", "copy.zip"])
def test_a_copy_is_a_store(name: str, source: Path, tmp_path: Path) -> None:
    share_to(source, tmp_path / name)
    report = verify(tmp_path / name)
    assert (report.ok, report.problems) == (True, ())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "s.zarr"])
    share_to(tmp_path / name, tmp_path / "again.zarr")  # and can be shared on


@pytest.mark.parametrize("name", ["copy.zarr", "copy.zip"])
def test_what_is_there_is_left_alone(name: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInputError, match=wording("share.exists", out=tmp_path / name)):
        share_to(source, tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"


def test_runs_are_refused(tmp_path: Path) -> None:
    path = keep(tmp_path / "run.zarr", [decode()], kind="run")
    with pytest.raises(BadInputError, match=wording("share.not-a-capture", path=path, kind="run")):
        share_to(path, tmp_path / "copy.zarr")


def test_a_store_without_records_is_refused(source: Path, tmp_path: Path) -> None:
    with Store.open(source) as opened, pytest.raises(BadInputError, match=wording("share.no-records")):
        share(opened, tmp_path / "copy.zarr", [])


def test_a_damaged_tensor_is_not_shared(source: Path, tmp_path: Path) -> None:
    chunk = max((one for one in source.rglob("c/**/*") if one.is_file()), key=lambda one: one.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(StoreError):
        share_to(source, tmp_path / "copy.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


@pytest.mark.parametrize("name", ["copy.zarr", "copy.zip"])
def test_of_two_at_once_one_is_there_whole(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have written their copy before either publishes it."""
    publish, both = module._publish, threading.Barrier(2)
    failed: list[StoreError] = []

    def together(folder: Path, out: Path) -> None:
        both.wait(60)
        publish(folder, out)

    def one() -> None:
        try:
            share_to(source, tmp_path / name)
        except StoreError as error:
            failed.append(error)

    monkeypatch.setattr(module, "_publish", together)
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 1
    assert name in str(failed[0])
    assert verify(tmp_path / name).ok
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "s.zarr"])


KILLED = """
import os, signal, sys
from gdnbench.share import share as module
from gdnbench.store.reader import Store

setattr(module, sys.argv[3], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
with Store.open(sys.argv[1]) as source:
    module.share(source, sys.argv[2], [0, 1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", quick(["_write_root", "_check_bytes", "_publish"], 0, 2))
def test_killed_it_leaves_nothing_at_its_path(at: str, source: Path, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, source, tmp_path / "copy.zarr", at], env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "copy.zarr").exists()
    share_to(source, tmp_path / "copy.zarr")
    assert verify(tmp_path / "copy.zarr").ok
