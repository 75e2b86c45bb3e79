# SPDX-License-Identifier: Apache-2.0
"""Several stores merged into one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError, StoreError
from gdnbench.store.layout import KEY, METADATA
from gdnbench.store.merge import STAGING, MergeReport, checked_out, merge
from gdnbench.store.prune import prune
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import randn, record

RECORDS = 2  # of a batch


def made(path: Path, segments: Sequence[str], batches: Sequence[int] = (0, 1), kind: str = "capture") -> Path:
    """A store of these segments, each with these batches of two records, which share a tensor."""
    for segment in segments:
        shared = randn(64, seed=len(segment))
        with StoreWriter(
            path, kind=kind, segment=segment, process={"rank": segments.index(segment)}, durable=False
        ) as writer:
            for batch in batches:
                calls = range(batch * RECORDS, (batch + 1) * RECORDS)
                drafts = [
                    record({"q": randn(3, 50, seed=hash_of(segment) + n), "k": shared}, call=n) for n in calls
                ]
                writer.write(f"{batch:04d}", drafts, first=batch * RECORDS)
    return path


def hash_of(text: str) -> int:
    return sum(map(ord, text)) * 1000


def merged(out: Path, *stores: Path) -> MergeReport:
    opened = [Store.open(store) for store in stores]
    try:
        return merge(out, opened)
    finally:
        for store in opened:
            store.close()


def contents(*stores: Path) -> dict[str, dict[str, list[float]]]:
    """Every record of the stores by key, with its values."""
    found = {}
    for path in stores:
        with Store.open(path) as store:
            assert store.problems == ()
            for stored in store.records:
                assert stored.key not in found
                found[stored.key] = {
                    name: handle.read().flatten().tolist() for name, handle in stored.before.items()
                }
    return found


def files_of(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, Path]:
    """What two nodes wrote."""
    return made(tmp_path / "a.zarr", ["10-1-aa", "12-7-bb"]), made(tmp_path / "b.zarr", ["11-1-cc"])


def test_segments_lie_side_by_side(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    before = [files_of(node) for node in nodes]
    report = merged(tmp_path / "all.zarr", *nodes)
    assert (report.segments, report.records, report.already, report.refused) == (3, 12, 0, [])
    assert contents(tmp_path / "all.zarr") == contents(*nodes)
    with Store.open(tmp_path / "all.zarr") as store:
        assert [segment.name for segment in store.segments] == ["10-1-aa", "11-1-cc", "12-7-bb"]
        assert store.segments[2].process == {"rank": 1}
    assert verify(tmp_path / "all.zarr").ok
    assert {path.name for path in (tmp_path / "all.zarr").iterdir()} == {METADATA, "segments"}
    assert [files_of(node) for node in nodes] == before


def test_an_archive_is_merged_too(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in files_of(nodes[0]).items():
            archive.writestr(name, content)
    assert merged(tmp_path / "all.zarr", tmp_path / "a.zip", nodes[1]).refused == []
    assert contents(tmp_path / "all.zarr") == contents(*nodes)


def test_what_is_there_already_is_taken_once(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "all.zarr"
    merged(out, nodes[0])
    report = merged(out, *nodes, nodes[1])
    assert (report.segments, report.records, report.already, report.refused) == (1, 4, 3, [])
    assert contents(out) == contents(*nodes)


def test_a_segment_that_has_grown_gets_its_later_batches(tmp_path: Path) -> None:
    early = made(tmp_path / "early.zarr", ["10-1-aa"], batches=(0,))
    late = made(tmp_path / "late.zarr", ["10-1-aa"], batches=(0, 1, 2))
    out = tmp_path / "all.zarr"
    merged(out, early)
    report = merged(out, late)
    assert (report.segments, report.records, report.already, report.refused) == (1, 4, 0, [])
    assert contents(out) == contents(late)
    # And the other way round nothing is lost.
    assert merged(out, early).already == 1
    assert contents(out) == contents(late)


@pytest.mark.parametrize("other", ["records", "process"])
def test_one_name_for_two_segments_is_refused(nodes: tuple[Path, Path], tmp_path: Path, other: str) -> None:
    out = tmp_path / "all.zarr"
    merged(out, *nodes)
    before = files_of(out)
    impostor = made(tmp_path / "impostor.zarr", ["12-7-bb" if other == "process" else "10-1-aa"])
    if other == "records":
        records = next((impostor / "segments/10-1-aa/0001").glob("records/c/*"))
        whole = made(tmp_path / "fresh.zarr", ["10-1-aa"], batches=(0, 2)) / "segments/10-1-aa/0002"
        records.write_bytes((whole / "records/c" / records.name).read_bytes())
    fine = made(tmp_path / "fine.zarr", ["13-1-dd"])
    report = merged(out, impostor, fine)
    (refused,) = report.refused
    assert "merge them apart" in refused
    assert str(impostor) in refused
    assert report.segments == 1
    after = files_of(out)
    assert {name: after[name] for name in before} == before


def test_a_damaged_segment_is_refused_and_the_others_taken(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    chunk = next(path for path in (nodes[0] / "segments/10-1-aa").rglob("rows/float32.3x50/c/**/*"))
    while chunk.is_dir():
        chunk = next(chunk.iterdir())
    content = bytearray(chunk.read_bytes())
    content[20] ^= 1
    chunk.write_bytes(content)
    report = merged(tmp_path / "all.zarr", *nodes)
    (refused,) = report.refused
    assert "segment 10-1-aa" in refused
    assert "CRC" in refused or "digest" in refused or "checksum" in refused
    assert report.segments == 2
    assert {key.partition("/")[0] for key in contents(tmp_path / "all.zarr")} == {"11-1-cc", "12-7-bb"}


def test_stores_that_do_not_go_together(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    run = made(tmp_path / "run.zarr", ["14-1-ee"], kind="run")
    with pytest.raises(StoreError, match=wording("store.merge-kinds")):
        merged(tmp_path / "all.zarr", nodes[0], run)
    assert not (tmp_path / "all.zarr").exists()
    before = files_of(run)
    with pytest.raises(StoreError, match=wording("store.merge-into-kind")):
        merged(run, nodes[0])
    assert files_of(run) == before


def test_what_a_store_lost_to_be_shared_is_still_said(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    root = json.loads((nodes[0] / METADATA).read_text())
    root["attributes"][KEY]["shared"] = {"dropped": ["argv"]}
    (nodes[0] / METADATA).write_text(json.dumps(root))
    merged(tmp_path / "shared.zarr", nodes[0])
    written = json.loads((tmp_path / "shared.zarr" / METADATA).read_text())["attributes"][KEY]
    assert written["shared"] == {"dropped": ["argv"]}
    with pytest.raises(StoreError, match=wording("store.merge-kinds")):
        merged(tmp_path / "both.zarr", *nodes)


def test_where_a_merge_may_go(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("")
    for out, reason in (
        (nodes[0], wording("store.merge-into-itself")),
        (nodes[1] / "segments/all", wording("store.merge-inside")),
        (tmp_path / "mine", "thesis.txt"),
        (tmp_path / "mine/thesis.txt", wording("store.merge-into-file")),
        ("s3://bucket/all.zarr", wording("store.merge-into-url")),
    ):
        with pytest.raises(BadInputError, match=reason):
            checked_out(str(out), [str(node) for node in nodes])
    assert checked_out(str(tmp_path / "all.zarr"), []) == tmp_path / "all.zarr"


@pytest.mark.every(3)
@pytest.mark.parametrize("moment", [0, 3, 8, 100])
@pytest.mark.parametrize("held", [(), (0,), (0, 1)])
def test_a_batch_that_a_capture_drops_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Sequence[int], moment: int
) -> None:
    """As with --when-over drop-oldest: renamed out of sight, then removed. Other segments come as ever."""
    out, store = tmp_path / "all.zarr", tmp_path / "store.zarr"
    with StoreWriter(store, kind="capture", segment="10-1-aa", durable=False, keep_bytes=1 << 30) as writer:
        for batch in range(4):
            writer.write(f"{batch:04d}", [record({"q": randn(50, seed=batch)})], first=batch)
            if batch + 1 == len(held):
                merged(out, store)
    made(store, ["11-1-bb"])
    segment, steps = store / "segments/10-1-aa", iter(range(1000))

    def drops(*arguments: object) -> bool:
        if next(steps) == moment:
            for batch in range(3):
                (segment / f"{batch:04d}").rename(tmp_path / f"{batch}.dropped")
                shutil.rmtree(tmp_path / f"{batch}.dropped")
        return False

    monkeypatch.setattr("gdnbench.store.merge._cloned", drops)
    report = merged(out, store)
    assert report.refused == []
    found = contents(out)
    assert found.items() >= contents(store).items()
    kept = {f"10-1-aa/{batch}" for batch in (*held, 3)}
    gone = {f"10-1-aa/{batch}" for batch in range(4)} - kept
    assert kept <= found.keys()
    assert report.records == len(found) - len(held)
    assert verify(out).ok
    assert gone.isdisjoint(found) == (moment < 100)


def test_a_segment_that_goes_meanwhile_is_refused_alone(tmp_path: Path) -> None:
    store = made(tmp_path / "store.zarr", ["10-1-aa", "11-1-bb"])

    def goes(done: int, total: int) -> None:
        shutil.rmtree(store / "segments/11-1-bb", ignore_errors=True)

    with Store.open(store) as opened:
        report = merge(tmp_path / "all.zarr", [opened], goes)
    (refused,) = report.refused
    gone = wording("store.meanwhile-gone")
    assert re.fullmatch(f"segment 11-1-bb of {re.escape(str(store))}: {gone}", refused)
    assert contents(tmp_path / "all.zarr") == contents(store)


# Forks, one a moment: a child is ended at its nth step towards the disk, without a word.
KILLED = """
import itertools, os, sys
from pathlib import Path
from gdnbench.store import merge
from gdnbench.store.reader import Store

folder, stride = Path(sys.argv[1]), int(sys.argv[2])
inputs = [Store.open(name) for name in sys.argv[3:]]
for moment in itertools.count(0, stride):
    child = os.fork()
    if not child:
        steps = itertools.count()
        def dying(name, real=None):
            def step(*arguments, **options):
                if next(steps) == moment:
                    os._exit(9)
                return real(*arguments, **options)
            real = getattr(os, name)
            setattr(os, name, step)
        for name in ("link", "rename", "fsync"):
            dying(name)
        merge.merge(folder / f"{moment}.zarr", inputs)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(moment)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_step_nothing_is_half_there_and_the_next_goes_on(tmp_path: Path, stride: int) -> None:
    nodes = [made(tmp_path / f"{name}.zarr", [name], batches=(0,)) for name in ("10-1-aa", "11-1-bb")]
    (tmp_path / "out").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(stride), *map(str, nodes)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    moments = int(ran.stdout)
    assert moments > 20
    whole = contents(*nodes)
    seen = set()
    for moment in range(0, moments, stride):
        out = tmp_path / "out" / f"{moment}.zarr"
        assert (out / STAGING).exists()
        if (out / METADATA).exists():
            found = contents(out)
            assert found.items() <= whole.items()
            assert len(found) % RECORDS == 0
            seen.add(len(found))
        if moment % 3 == 0:
            assert checked_out(str(out), []) == out
            assert merged(out, *nodes).refused == []
            assert contents(out) == whole
            assert not (out / STAGING).exists()
    # All of them are there at one moment only, before the last rename has reached the disk.
    assert seen - {2 * RECORDS} == {0, RECORDS}
    assert stride > 1 or 2 * RECORDS in seen


def test_one_merge_at_a_time(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "all.zarr"
    with Store.open(nodes[0]) as a, Store.open(nodes[1]) as b:

        def another(done: int, total: int) -> None:
            with pytest.raises(BadInputError, match=wording("store.busy")):
                merge(out, [b])

        merge(out, [a], another)
    assert contents(out) == contents(nodes[0])


def test_a_link_is_not_cleared(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("")
    (tmp_path / "all.zarr").mkdir()
    (tmp_path / "all.zarr" / STAGING).symlink_to(tmp_path / "mine")
    with pytest.raises(StoreError, match=wording("store.merge-staging-link")):
        merged(tmp_path / "all.zarr", *nodes)
    assert (tmp_path / "mine/thesis.txt").exists()


def test_locks_of_nfs(nodes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux's flock(2): NFS emulates it by locks of bytes, so that a file must be open for reading to be
    locked with others, and for writing to be locked alone; a folder cannot be."""
    real, seen = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        if mode == (os.O_RDONLY if operation & fcntl.LOCK_EX else os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        seen.append(operation)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    out = tmp_path / "all.zarr"
    assert merged(out, *nodes).segments == 3
    assert prune(out, lambda record: record.number > 0).records == 1
    assert len(seen) == 2


def test_no_pruning_while_a_merge_is_at_work(nodes: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "all.zarr"

    def another(done: int, total: int) -> None:
        with pytest.raises(BadInputError, match=wording("store.busy")):
            prune(out, lambda record: False)

    with Store.open(nodes[0]) as a:
        merge(out, [a], another)
    assert contents(out) == contents(nodes[0])
    assert prune(out, lambda record: False).records > 0  # nobody holds it any more
