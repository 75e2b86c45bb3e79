# SPDX-License-Identifier: Apache-2.0
"""Pruning: what is kept keeps key and bits, what is dropped frees its bytes, whenever it is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import zarr
from torch import Tensor

from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import RecordDraft
from gdnbench.store import prune as pruning
from gdnbench.store.compression import Compression
from gdnbench.store.prune import prune
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import PLAIN, TINY, randn, record
from tests.subset import quick

BATCH, BATCHES = 4, 5
COUNT = BATCH * BATCHES
WEIGHT = torch.arange(50.0)


def state(n: int) -> Tensor:
    """A row of a shared array."""
    return randn(6, 5, seed=n)


def large(n: int) -> Tensor:
    """An array of its own, which records of one batch and the next share."""
    return randn(40, 50, seed=1000 + n // BATCH)


def step(n: int) -> RecordDraft:
    """A state that step n - 1 left, in whichever batch that is, and a weight that came with step 0."""
    return record({"w": WEIGHT, "s": state(n), "x": large(n)}, {"s": state(n + 1), "y": large(n + 1)}, call=n)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.zarr"
    make(path, "a", PLAIN)
    return path


def make(path: Path, segment: str, compression: Compression, count: int = COUNT) -> None:
    with StoreWriter(
        path, kind="capture", segment=segment, compression=compression, chunking=TINY, durable=False
    ) as out:
        for first in range(0, count, BATCH):
            out.write(f"{first:010d}", [step(n) for n in range(first, first + BATCH)], first)


def assert_holds(path: Path, keys: list[str]) -> None:
    """Exactly the records of `keys`, every element as it was made, with nothing damaged or left over."""
    with Store.open(path) as opened:
        assert [found.key for found in opened.records] == keys
        assert [listed.key for listed in opened.listed()] == keys
        for found in opened.records:
            n = int(found.key.rpartition("/")[2])
            assert found.info.call == n
            assert torch.equal(found.before["w"].read(), WEIGHT)
            assert torch.equal(found.before["s"].read(), state(n))
            assert torch.equal(found.before["x"].read(), large(n))
            assert torch.equal(found.after["s"].read(), state(n + 1))
            assert torch.equal(found.after["y"].read(), large(n + 1))
    report = verify(path)
    assert (report.damages, report.problems) == ((), ())


def keys(entries: list[int], segment: str = "a") -> list[str]:
    return [f"{segment}/{entry}" for entry in entries]


def keeping(entries: list[int]) -> Callable[[object], bool]:
    wanted = set(keys(entries))
    return lambda found: found.key in wanted  # type: ignore[attr-defined]


def disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


CASES = {
    "the newest half": list(range(10, 20)),
    "all but the oldest": list(range(1, 20)),
    "all but the newest": list(range(19)),
    "whole batches only": list(range(8, 16)),
    "one": [9],
    "one of each batch": [0, 5, 10, 15, 19],
    "every other": list(range(0, 20, 2)),
    "a hole": [*range(6), *range(11, 20)],
}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("level", "entries"),
    quick(
        product([None, 1], CASES.values()),
        *(2, 3, 4, 5, 15),
        ids=[f"{level}-{name}" for level, name in product([None, 1], CASES)],
    ),
)
def test_what_is_kept_stays_as_it_was(tmp_path: Path, level: int | None, entries: list[int]) -> None:
    path = tmp_path / "store.zarr"
    make(path, "a", Compression(level))
    before = disk(path)
    found = prune(path, keeping(entries), durable=False)
    assert (found.records, found.kept, found.left_alone) == (COUNT - len(entries), len(entries), ())
    assert_holds(path, keys(entries))
    assert found.bytes == before - disk(path)
    assert not (path / ".incoming").exists()


def stored(path: Path, class_: str) -> int:
    """How many tensors of a class there are, as rows and as arrays of their own."""
    rows = (zarr.open_array(array, mode="r").shape[0] for array in path.rglob(f"rows/{class_}"))
    return sum(rows) + len(list(path.rglob(f"blobs/{class_}.*")))


def test_it_frees_what_the_dropped_records_alone_held(store: Path) -> None:
    classes = ("float32.50", "float32.6x5", "float32.40x50")
    assert [stored(store, name) for name in classes] == [1, COUNT + 1, BATCHES + 1]
    prune(
        store, keeping([9]), durable=False
    )  # a weight, two states, two large ones of its batch and the next
    assert [stored(store, name) for name in classes] == [1, 2, 1]
    with Store.open(store) as opened:
        assert {batch.name for batch in opened.batches if not batch.count} == {"0000000008", "0000000016"}


def test_elements_that_other_records_share_stay_where_they_are(store: Path) -> None:
    """Step 8, of a batch that loses nothing, got its state from step 7, whose batch goes."""
    prune(store, keeping(list(range(8, 20))), durable=False)
    with Store.open(store) as opened:
        assert opened.records[0].before["s"].location.batch == "0000000004"
    assert_holds(store, keys(list(range(8, 20))))
    assert stored(store, "float32.40x50") == 4


def test_pruning_again_and_again(store: Path) -> None:
    for entries in ([*range(2, 20)], [*range(2, 9), *range(11, 20)], [3, 5, 8, 12, 13, 19], [5, 19], [5]):
        prune(store, keeping(entries), durable=False)
        assert_holds(store, keys(entries))
    assert stored(store, "float32.6x5") == 2
    prune(store, keeping([]), durable=False)
    assert_holds(store, [])
    assert not list((store / "segments").glob("a*"))


def test_keeping_everything_changes_no_file(store: Path) -> None:
    files = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    assert prune(store, lambda _: True, durable=False).bytes == 0
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == files


def test_other_segments_are_not_touched_and_one_with_nothing_kept_goes(store: Path) -> None:
    make(store, "b", PLAIN)
    make(store, "c", PLAIN)
    files = {file: file.read_bytes() for file in (store / "segments" / "c").rglob("*") if file.is_file()}
    prune(store, lambda found: found.key == "a/3" or found.segment.name == "c", durable=False)
    assert_holds(store, ["a/3", *keys(list(range(COUNT)), "c")])
    assert not (store / "segments" / "b").exists()
    assert files == {
        file: file.read_bytes() for file in (store / "segments" / "c").rglob("*") if file.is_file()
    }


def test_a_writer_that_goes_on_gives_no_number_again_and_shares_nothing_that_is_gone(store: Path) -> None:
    prune(store, keeping([1, 2]), durable=False)
    with StoreWriter(
        store, kind="capture", segment="a", compression=PLAIN, chunking=TINY, durable=False
    ) as out:
        assert out.has("0000000016")
        out.write("0000000020", [step(20)], 20)
    assert_holds(store, keys([1, 2, 20]))


@pytest.mark.parametrize("folder", [".journal", ".incoming"])
def test_a_segment_that_is_written_is_left_alone(store: Path, folder: str) -> None:
    make(store, "b", PLAIN)
    (store / folder / "b").mkdir(parents=True)
    found = prune(store, keeping([4]), durable=False)
    assert found.left_alone == ("b",)
    with Store.open(store) as opened:
        assert [one.key for one in opened.records] == ["a/4", *keys(list(range(COUNT)), "b")]


@pytest.mark.slow
def test_killed_at_any_instant_it_loses_nothing_and_the_next_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the store before every change that another process could see is what a kill there leaves."""
    store, entries = tmp_path / "store.zarr", [1, 5, 6, *range(8, 12)]
    make(store, "a", PLAIN, 12)
    make(store, "b", PLAIN, 4)
    snapshots: list[Path] = []
    changing = threading.RLock()  # zarr renames from several threads: not while a copy is made

    def watched(change: Callable[..., object]) -> Callable[..., object]:
        def made(*args: object, **kwargs: object) -> object:
            with changing:
                snapshots.append(tmp_path / f"killed{len(snapshots)}.zarr")
                shutil.copytree(store, snapshots[-1])
                return change(*args, **kwargs)

        return made

    with monkeypatch.context() as patched:
        for module, name in ((os, "rename"), (os, "replace"), (shutil, "rmtree")):
            patched.setattr(module, name, watched(getattr(module, name)))
        prune(store, keeping(entries), durable=False)
    assert len(snapshots) > 15
    for left in snapshots:
        with Store.open(left) as opened:
            seen = [one.key for one in opened.records]
            assert len(set(seen)) == len(seen)
            assert set(keys(entries)) <= set(seen)
        assert verify(left).ok
        prune(left, keeping(entries), durable=False)
        assert_holds(left, keys(entries))
        assert not (left / ".incoming").exists()
        assert disk(left / "segments") <= disk(store / "segments") + 4000


def test_one_at_a_time(store: Path) -> None:
    with open(store / "zarr.json") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BadInputError, match=wording("store.busy")):
            prune(store, keeping([1]), durable=False)


def test_a_damaged_tensor_is_not_rewritten_as_whole(store: Path) -> None:
    (chunk,) = store.glob("segments/a/0000000004/rows/float32.6x5/c/0/0/0")
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    files = {file for file in (store / "segments").rglob("*") if file.is_file()}
    with pytest.raises(StoreError):
        prune(store, keeping([5, 6]), durable=False)
    assert files <= {file for file in (store / "segments").rglob("*") if file.is_file()}


@pytest.mark.parametrize("place", [".incoming", "segments/b", "segments/a/0000000000/rows"])
def test_nothing_is_removed_through_a_link(store: Path, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    (outside / "prune-0").mkdir(parents=True)
    (outside / "prune-0" / "precious").write_text("precious")
    if (store / place).exists():
        shutil.rmtree(store / place)
    (store / place).symlink_to(outside)
    with pytest.raises(StoreError, match=wording("store.symlink")):
        prune(store, keeping([]), durable=False)
    assert (outside / "prune-0" / "precious").read_text() == "precious"


def test_a_zip_is_refused(store: Path, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", store)
    with pytest.raises(BadInputError, match=wording("store.prune-packed")):
        prune(Path(packed), lambda _: True)


def test_a_reader_that_knows_only_zarr_finds_the_same(store: Path) -> None:
    """The reader that docs/store.md shows."""
    entries = [1, 5, 6, 19]
    prune(store, keeping(entries), durable=False)
    found = []
    for _, segment in zarr.open_group(store, mode="r")["segments"].groups():  # type: ignore[union-attr]
        for name, batch in segment.groups():
            if name != "end":
                found += bytes(batch["records"][:]).splitlines()
    assert len(found) == len(entries)


def test_a_batch_of_a_pruned_one_counts_only_if_that_one_names_it(store: Path) -> None:
    """As between the two steps of a pruning; and as a stranger might write it."""
    with StoreWriter(
        store, kind="capture", segment="a", compression=PLAIN, chunking=TINY, durable=False
    ) as out:
        out.write("another", [step(0)], 0, of="0000000000")
    assert_holds(store, keys(list(range(COUNT))))
    assert pruning.busy_segments(store) == frozenset()
    prune(store, lambda _: True, durable=False)
    assert not (store / "segments" / "a" / "another").exists()
    assert_holds(store, keys(list(range(COUNT))))


@pytest.mark.parametrize("entries", [[], [0]], ids=["none", "one"])
def test_a_segment_with_a_damaged_batch_is_left_alone(store: Path, entries: list[int]) -> None:
    """What the batch holds could still be mended, and others may need its tensors."""
    make(store, "b", PLAIN)
    metadata = store / "segments" / "a" / "0000000004" / "zarr.json"
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:-9])
    found = prune(store, keeping(entries), durable=False)
    assert (found.left_alone, found.damaged) == ((), ("a",))
    metadata.write_bytes(whole)
    assert_holds(store, keys(list(range(COUNT))))


def test_a_segment_that_begins_meanwhile_is_left_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been read before its last batch came, and have ended before it was looked for."""
    read = Store.open

    def begin_before(*arguments: object, **more: object) -> Store:
        if not (store / "segments" / "b").exists():
            make(store, "b", PLAIN)
        return read(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "open", begin_before)
    found = prune(store, keeping([4]), durable=False)
    assert found.left_alone == ("b",)
    assert_holds(store, ["a/4", *keys(list(range(COUNT)), "b")])


@pytest.mark.parametrize("mark", ["pruning...", "pruning."])
def test_a_mark_that_leads_elsewhere_removes_nothing(store: Path, mark: str) -> None:
    (store / ".incoming").mkdir()
    (store / ".incoming" / mark).touch()
    with pytest.raises(StoreError, match=wording("store.mark-strange")):
        prune(store, keeping([4]), durable=False)
    (store / ".incoming" / mark).unlink()
    assert_holds(store, keys(list(range(COUNT))))


@pytest.mark.parametrize("entries", [[9, 19], []], ids=["some kept", "none kept"])
def test_what_it_takes_while_a_store_is_verified_is_no_damage(store: Path, entries: list[int]) -> None:
    make(store, "b", PLAIN, count=BATCH)
    begun: list[int] = []

    def progress(done: int, count: int) -> None:
        if not begun:
            begun.append(count)
            others = set(keys(list(range(BATCH)), "b"))
            prune(store, lambda found: keeping(entries)(found) or found.key in others, durable=False)

    report = verify(store, progress)
    assert (begun, report.records) == ([COUNT + BATCH], len(entries) + BATCH)
    assert report.damages == ()


def test_damage_of_what_a_pruning_keeps_is_told_all_the_same(store: Path) -> None:
    (chunk,) = store.glob("segments/a/0000000016/rows/float32.6x5/c/0/0/0")
    content = bytearray(chunk.read_bytes())
    content[10] ^= 1
    chunk.write_bytes(content)
    begun: list[int] = []

    def progress(done: int, count: int) -> None:
        if not begun:
            begun.append(count)
            prune(store, keeping([16, 17, 18, 19]), durable=False)

    report = verify(store, progress)
    assert report.records == 4
    assert {damage.record for damage in report.damages} <= set(keys([16, 17, 18, 19]))
    assert report.damages


def test_the_lock_of_another_is_not_taken_through_a_link(store: Path, tmp_path: Path) -> None:
    (store / "zarr.json").rename(tmp_path / "other.json")
    (store / "zarr.json").symlink_to(tmp_path / "other.json")
    with pytest.raises(
        StoreError,
        match=wording("store.lock-refused", file="zarr.json", reason="Too many levels of symbolic links"),
    ):
        prune(store, keeping([1]), durable=False)


def test_what_is_no_store_is_not_pruned(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=wording("store.lock-refused", file="zarr.json", reason="No such file")
    ):
        prune(tmp_path, keeping([1]), durable=False)
