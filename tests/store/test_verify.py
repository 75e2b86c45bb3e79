# SPDX-License-Identifier: Apache-2.0
"""Damage of every kind is found, and named by record, tensor and chunk."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.errors import StoreError
from gdnbench.store.compression import Compression
from gdnbench.store.prune import prune
from gdnbench.store.reader import Store
from gdnbench.store.verify import VerifyReport, verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import TINY, randn, record
from tests.subset import quick

BIG = (300, 40)  # 48,000 bytes: 12 shards of 4 chunks


def make(path: Path, level: int | None = None) -> Path:
    """Three records: `big` is shared by the first two, `small` differs in each."""
    with StoreWriter(
        path, kind="capture", segment="seg", compression=Compression(level), chunking=TINY, durable=False
    ) as out:
        for i in range(3):
            tensors = {
                "big": randn(*BIG, seed=i // 2),
                "small": randn(3, 4, seed=10 + i),
                "empty": torch.empty(0, 2),
            }
            out.write(str(i), [record(tensors, {"o": randn(20, 40, seed=20 + i)}, i)], i)
    return path


def array_of(path: Path, number: int, name: str) -> Path:
    with Store.open(path) as store:
        found = store.records[number]
        return path / {**found.before, **found.after}[name].location.array


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def places(report: VerifyReport) -> set[tuple[str | None, str | None]]:
    return {(damage.record, damage.tensor) for damage in report.damages}


@pytest.mark.parametrize("level", [None, 1])
def test_an_intact_store(tmp_path: Path, level: int | None) -> None:
    path = make(tmp_path / "s", level)
    seen: list[tuple[int, int]] = []
    report = verify(path, lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.records, report.tensors, report.damages, report.problems) == (3, 12, (), ())
    # Two big tensors, three small, three outputs, and an empty one that all records share.
    assert report.bytes == 2 * 48_000 + 3 * 48 + 3 * 3200
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert verify(Path(shutil.make_archive(str(tmp_path / "z"), "zip", path))).ok


@pytest.mark.parametrize("level", [None, 1])
def test_one_bit_names_each_record_the_tensor_and_the_chunk(tmp_path: Path, level: int | None) -> None:
    path = make(tmp_path / "s", level)
    array = array_of(path, 0, "big")
    flip(array / "c" / "3" / "0", 10)  # in the first chunk of the shard, whose codec is seen to reject it
    report = verify(path)
    shard = array.relative_to(path) / "c" / "3" / "0"
    assert [(d.record, d.tensor, d.chunk) for d in report.damages] == [
        ("seg/0", "big before", f"chunk (0, 0) of shard {shard}"),
        ("seg/1", "big before", f"chunk (0, 0) of shard {shard}"),
    ]
    assert "checksum" in str(report.damages[0])
    chunk = wording("store.chunk-of-shard", chunk=(0, 0), array=shard.parents[2], file="c/3/0")
    assert re.match(f"record seg/0, tensor big before, {chunk}: ", str(report.damages[0]))


@pytest.mark.parametrize("level", quick([None, 1], 0))
def test_every_byte_of_a_tensors_files_counts(tmp_path: Path, level: int | None) -> None:
    """Flips spread over a whole shard: elements, checksums and the shard's index."""
    path = make(tmp_path / "s", level)
    file = array_of(path, 2, "o") / "c" / "0" / "0"
    intact = file.read_bytes()
    for at in range(0, len(intact), 61):
        flip(file, at)
        assert places(verify(path)) == {("seg/2", "o after")}, at
        file.write_bytes(intact)
    assert verify(path).ok


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.every(2)
@pytest.mark.parametrize("level", [None, 1])
@pytest.mark.parametrize("harm", [cut, empty, Path.unlink], ids=["cut", "empty", "missing"])
def test_files_that_are_cut_or_missing(
    tmp_path: Path, harm: Callable[[Path], None], level: int | None
) -> None:
    path = make(tmp_path / "s", level)
    array = array_of(path, 2, "big")
    harm(array / "c" / "1" / "0")
    report = verify(path)
    assert places(report) == {("seg/2", "big before")}
    shard = f"shard {array.relative_to(path)}/c/1/0"
    assert {d.chunk for d in report.damages} == {f"chunk ({i}, 0) of {shard}" for i in range(4)}
    with Store.open(path) as store:
        handle = store.records[2].before["big"]
        tensor = wording("store.record-tensor", key="seg/2", tensor="big", when="before")
        with pytest.raises(StoreError, match=tensor + ": .*array .*(missing|damaged)"):
            handle.read()
        # What does not need the file is read all the same.
        assert torch.equal(handle.read_rows(0, 20), randn(*BIG, seed=1)[:20])


def test_a_row_names_only_the_records_in_its_chunk(tmp_path: Path) -> None:
    with StoreWriter(
        tmp_path / "s", kind="capture", segment="seg", chunking=TINY, compression=Compression(None)
    ) as out:
        out.write("0", [record({"q": randn(4, 8, seed=i)}, call=i) for i in range(32)])  # 8 rows a chunk
    array = array_of(tmp_path / "s", 0, "q")
    assert sorted(file.name for file in (array / "c").iterdir()) == ["0"]
    flip(array / "c" / "0" / "0" / "0", 1028 + 1)  # second chunk: each is 1,024 bytes and a checksum
    report = verify(tmp_path / "s")
    assert [d.record for d in report.damages] == [f"seg/{i}" for i in range(8, 16)]
    assert {d.chunk for d in report.damages} == {
        f"chunk (1, 0, 0) of shard {array.relative_to(tmp_path / 's')}/c/0/0/0"
    }


def test_a_well_formed_chunk_of_other_elements(tmp_path: Path) -> None:
    """Whole shards exchanged: every checksum of a chunk holds, and only the digest tells."""
    path = make(tmp_path / "s")
    files = array_of(path, 0, "big") / "c"
    first, second = (files / "0" / "0").read_bytes(), (files / "1" / "0").read_bytes()
    (files / "0" / "0").write_bytes(second)
    (files / "1" / "0").write_bytes(first)
    report = verify(path)
    assert places(report) == {("seg/0", "big before"), ("seg/1", "big before")}
    assert "though every chunk is well-formed" in report.damages[0].what


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    node = json.loads(path.read_text())
    change(node)
    path.write_text(json.dumps(node))


def test_arrays_that_are_not_what_the_record_says(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    rewrite(array_of(path, 2, "big") / "zarr.json", lambda node: node.update(shape=[300, 39]))
    rewrite(array_of(path, 2, "o") / "zarr.json", lambda node: node.update(data_type="int32"))
    shutil.rmtree(array_of(path, 1, "o"))
    said = {(d.record, d.tensor): d.what for d in verify(path).damages}
    assert "should be float32 (300, 40), but" in said["seg/2", "big before"]
    assert "holds int32 (20, 40)" in said["seg/2", "o after"]
    assert said["seg/1", "o after"].endswith("is missing")
    assert len(said) == 3


METADATA_OF = {
    "a blob": lambda path: array_of(path, 0, "big"),
    "a row array": lambda path: array_of(path, 2, "small"),
    "an array without elements": lambda path: array_of(path, 0, "empty"),
    "the records": lambda path: path / "segments" / "seg" / "0" / "records",
}


@pytest.mark.every(2)
@pytest.mark.parametrize(("level", "what"), quick(product([None, 1], METADATA_OF), 0, 1, 3, 6))
@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_an_arrays_metadata_counts(
    tmp_path: Path, level: int | None, what: str, step: int
) -> None:
    """But for the chunk shape of an array that has no elements and so no chunks."""
    path = make(tmp_path / "s", level)
    file = METADATA_OF[what](path) / "zarr.json"
    intact = file.read_bytes()
    text = intact.decode()
    shape = text.index('"chunk_shape": [') if what == "an array without elements" else len(text)
    unseen = []
    for at in range(0, len(intact), step):
        flip(file, at)
        if verify(path).ok:
            unseen.append(at)
        file.write_bytes(intact)
    assert [at for at in unseen if not shape < at < text.index("]", shape - 1)] == []
    assert verify(path).ok


CHANGES = {
    "fill_value": lambda node: node.update(fill_value=1.0),
    "compression level is 3, but 1 in": lambda node: blosc(node).update(clevel=3),
    "codecs are": lambda node: blosc(node).update(blocksize=256),
    "dimension_names are": lambda node: node.update(dimension_names=["a", "b"]),
    "field 'extra' is not one of an array": lambda node: node.update(extra={"must_understand": False}),
    wording(
        "store.says-otherwise", attribute="axes", row=0, found=["d1", "d0"], value=["d0", "d1"]
    ): lambda node: ours(node)["axes"][0].reverse(),
    r"digests\[0\] is": lambda node: ours(node).update(digests=["0" * 64]),
    wording("store.tensors-not-those", attribute="caller_strides", tensors=1): lambda node: ours(node).update(
        caller_strides=[]
    ),
    wording("store.attribute-strange", attribute="note", what="not one of an array"): lambda node: ours(
        node
    ).update(note="x"),
}


def blosc(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = node["codecs"][0]["configuration"]["codecs"][1]["configuration"]
    return found


def ours(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = node["attributes"]["gdnbench"]
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize("said", CHANGES)
def test_metadata_that_no_record_says_names_the_file(tmp_path: Path, said: str) -> None:
    path = make(tmp_path / "s", 1)
    array = array_of(path, 0, "big")
    rewrite(array / "zarr.json", CHANGES[said])
    (damage,) = verify(path).damages
    assert (damage.record, damage.tensor) == ("seg/0", "big before")
    where = re.escape(f"{array.relative_to(path)}/zarr.json: ")
    assert re.match(where + said, damage.what)


def test_metadata_after_a_pruning(tmp_path: Path) -> None:
    """The first record of elements that others share may be gone; what its array says is then not judged."""
    path = make(tmp_path / "s", 1)
    prune(path, lambda record: record.key != "seg/0", durable=False)
    assert verify(path).ok


def test_damaged_records_and_batches_do_not_end_the_check(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    segment = path / "segments" / "seg"
    (segment / "0" / "zarr.json").write_text("{")
    shutil.rmtree(segment / "1" / "records")
    report = verify(path)
    said = [str(damage) for damage in report.damages]
    not_json = re.compile(wording("store.not-json", where="segments/seg/0", metadata="zarr.json"))
    skipped = wording("store.batch-skipped", segment="seg", batch=0, error=not_json)
    assert re.match(skipped, said[0])
    assert "1 record cannot be read" in said[1]
    assert len(said) == 2  # the third record has tensors of its own
    assert (report.records, report.tensors) == (2, 4)
