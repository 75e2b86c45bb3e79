# SPDX-License-Identifier: Apache-2.0
"""Stores that a stranger made: refused in one line that names what, with nothing outside them read."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
import torch
import zarr

from gdnbench.bits import Bits
from gdnbench.capture.launch import check_store
from gdnbench.errors import StoreError
from gdnbench.store.bounded_codecs import zstd_bytes
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.grid import Slices
from gdnbench.store.journal.reader import writer_lives
from gdnbench.store.layout import MOST_RECORDS, Location
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.stored_array import StoredArray
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.messages import wording
from tests.store.store_samples import array_path, make_store, randn, write_one


def edit_json(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    node = json.loads(file.read_text())
    change(node)
    file.write_text(json.dumps(node))


def replace_records(path: Path, text: bytes, count: int = 1) -> None:
    """Put `text` where the records of the only batch are, as any zarr-python could."""
    batch = next((path / "segments").glob("*/0"))
    shutil.rmtree(batch / "records")
    array = zarr.create_array(batch / "records", shape=(len(text),), dtype="u1", chunks=(max(1, len(text)),))
    array[...] = np.frombuffer(text, np.uint8)
    edit_json(batch / "zarr.json", lambda node: node["attributes"]["gdnbench"].update(count=count))


def the_record(path: Path) -> dict[str, Any]:
    with Store.open(path) as store:
        found: dict[str, Any] = json.loads(store.contents.record_lines(store.batches[0])[0])
        return found


def put(record: dict[str, Any], keys: str, value: object) -> None:
    *above, last = keys.split(".")
    for key in above:
        record = record[key]
    record[last] = value


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        ("info", [], wording("store.not-object", field="info", value="[]")),
        ("info.op", 3, wording("store.field-type", field="op", value="3", wanted="text")),
        ("info.call", True, wording("store.count-wrong", field="call", value="True")),
        ("info.step", -1, wording("store.count-wrong", field="step", value="-1")),
        ("info.layer_index", 0.5, wording("store.count-wrong", field="layer_index", value="0.5")),
        ("info.status", "great", "'great' is not a valid Status"),
        ("info.scalars", None, wording("store.not-object", field="scalars", value="None")),
        ("info.scalars.scale", {"$float": "1e9"}, wording("store.float-wrong", key="$float", text="1e9")),
        ("info.conventions.gate", 1, wording("store.not-text", field="gate", value="1")),
        ("info.pools.state", 1, wording("store.not-object", field="pool 'state'", value="1")),
        ("info.pools.state.rows", [7], wording("store.pool-row-outside", row=7, slots=7)),
        ("info.pools.state.rows", "2", wording("store.field-type", field="rows", value="2", wanted="counts")),
        ("info.pools.state.rows", [5, 2], wording("store.pool-rows-unsorted", row=2, previous=5)),
        ("info.pools.state.rows", [2, 2], wording("store.pool-rows-unsorted", row=2, previous=2)),
        ("before.t", None, wording("store.not-object", field="description", value="None")),
        ("before.t.dtype", "object", "dtype 'object' is not known"),
        ("before.t.dtype", ["float32"], "dtype is"),
        (
            "before.t.shape",
            [40, -20],
            wording("store.field-type", field="shape", value="(40, -20)", wanted="counts"),
        ),
        ("before.t.shape", [[40], 20], wording("store.metadata-type")),
        ("before.t.shape", [1 << 40, 1 << 40], wording("store.shape-refused", axes=32)),
        ("before.t.shape", [1] * 33, wording("store.shape-refused", axes=32)),
        ("before.t.axes", ["T"], wording("store.axes-differ", shape="(40, 20)", axes="('T',)")),
        ("before.t.axes", [1, 2], wording("store.field-type", field="axes", value="(1, 2)", wanted="names")),
        (
            "before.t.caller_strides",
            [1.5, 1],
            wording("store.field-type", field="caller_strides", value="(1.5, 1)", wanted="counts"),
        ),
        (
            "before.t.caller_strides",
            [-20, 1],
            wording("store.field-type", field="caller_strides", value="(-20, 1)", wanted="counts"),
        ),
        (
            "before.t.caller_strides",
            [1],
            wording("store.strides-differ", caller_shape="(40, 20)", caller_strides="(1,)"),
        ),
        ("before.t.caller_shape", [1 << 40, 1 << 40], wording("store.shape-refused", axes=32)),
        ("before.t.caller_offset", "0", wording("store.count-wrong", field="caller_offset", value="0")),
        ("before.t.digest", "../../etc", wording("store.digest-wrong", value="../../etc")),
        ("before.t.location", 7, wording("store.field-type", field="location", value="7", wanted="text")),
        ("before.t.location", "seg/0/blobs/../../../../etc/passwd", wording("store.location-wrong")),
        ("before.t.location", "/etc/passwd", wording("store.location-wrong")),
        ("before.t.location", "seg/../blobs/x", wording("store.location-wrong")),
        ("before.t.location", "seg/0/records/x", wording("store.location-wrong")),
        ("before.t.location", "seg/0/rows/x", wording("store.location-wrong")),
        ("before.t.location", "seg/0/rows/x#-1", wording("store.location-wrong")),
        (
            "before.t.location",
            "other/0/blobs/x",
            wording("store.location-elsewhere", location="other/0/blobs/x"),
        ),
    ],
)
def test_records_with_wrong_fields(tmp_path: Path, keys: str, value: object, said: str) -> None:
    path = make_store(tmp_path / "s")
    changed = the_record(path)
    put(changed, keys, value)
    replace_records(path, json.dumps(changed).encode() + b"\n")
    with Store.open(path) as store, pytest.raises(StoreError) as refusal:
        store.records[0]
    assert re.search(said, str(refusal.value))
    assert "record seg/0" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not verify(path).ok


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\x80\x04N.", "codec can't decode"),  # a pickle
        (b"[1]", wording("store.not-object", field="record", value="[1]")),
        (b"{}", wording("store.field-missing", field="info")),
        (b"{", "Expecting"),
        (b"[" * 100_000, wording("store.json-nested")),
        (b'{"info": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
    ],
)
def test_lines_that_are_no_record(tmp_path: Path, line: bytes, said: str) -> None:
    path = make_store(tmp_path / "s")
    replace_records(path, line + b"\n")
    with Store.open(path) as store, pytest.raises(StoreError) as refusal:
        store.records[0]
    assert re.search(said, str(refusal.value))


def test_more_or_fewer_records_than_said(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    replace_records(path, json.dumps(the_record(path)).encode() + b"\n", count=MOST_RECORDS)
    said = wording("store.lines-wrong", lines="1 line", records=MOST_RECORDS)
    with Store.open(path) as store, pytest.raises(StoreError, match=said):
        store.records[5]
    seen: list[tuple[int, int]] = []
    report = verify(path, lambda done, total: seen.append((done, total)))
    assert [re.search(said, damage.what) is not None for damage in report.damages] == [True]
    assert seen == [(MOST_RECORDS, MOST_RECORDS)]  # one step, and not one for each record that is not there


def test_a_count_that_no_batch_can_have(tmp_path: Path) -> None:
    """It would be looped over before anything is read."""
    path = make_store(tmp_path / "s")
    for count in (MOST_RECORDS + 1, 1_000_000_000):
        edit_json(
            path / "segments" / "seg" / "0" / "zarr.json",
            lambda node: node["attributes"]["gdnbench"].update(count=count),  # noqa: B023
        )
        said = wording("store.count-beyond", key="segments/seg/0", file="zarr.json", count=count)
        with Store.open(path) as store:
            assert len(store.records) == 0
            assert re.search(said, store.damaged[0])
        assert [re.search(said, str(damage)) is not None for damage in verify(path).damages] == [True]


def test_locations_that_point_nowhere(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    changed = the_record(path)
    row = changed["before"]["s"]["location"].split("#")[0]
    put(changed, "before.s.location", f"{row}#9")
    put(changed, "before.t.location", "seg/0/blobs/nothing")
    replace_records(path, json.dumps(changed).encode() + b"\n")
    with Store.open(path) as store:
        handles = store.records[0].before
        with pytest.raises(StoreError, match=wording("store.row-missing", shape="(1, 3)", row=9)):
            handles["s"].read()
        with pytest.raises(StoreError, match=wording("store.file-missing", key="blobs", file="nothing")):
            handles["t"].read()


def test_a_location_parses_to_itself() -> None:
    for text in ("a/b/rows/c.1x2#12", "a-1/000/blobs/float32.2x3.00ff"):
        assert str(Location.parse(text)) == text


@pytest.mark.parametrize("place", ["segments", "segments/seg", "segments/seg/0", "segments/seg/0/records"])
def test_symbolic_links_to_folders(tmp_path: Path, place: str) -> None:
    path = make_store(tmp_path / "s")
    target = path / place
    target.rename(tmp_path / "moved")
    target.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreError, match=wording("store.symlink", path=place)), Store.open(path) as store:
        store.records[0]


def test_symbolic_links_to_files(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    chunk = array_path(path, "t") / "c" / "0" / "0"
    chunk.rename(tmp_path / "chunk")
    chunk.symlink_to(tmp_path / "chunk")
    with Store.open(path) as store, pytest.raises(StoreError, match=wording("store.symlink", path="c/0/0")):
        store.records[0].before["t"].read()
    (path / "zarr.json").rename(tmp_path / "root.json")
    (path / "zarr.json").symlink_to(tmp_path / "root.json")
    with pytest.raises(StoreError, match=wording("store.symlink", path="zarr.json")):
        Store.open(path)


def test_a_link_to_a_store_is_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(make_store(tmp_path / "s"))
    with Store.open(tmp_path / "link") as store:
        assert len(store.records) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda node: node.update(zarr_format=2), wording("store.not-zarr", node_type="array")),
        (
            lambda node: node.update(shape=[1 << 40, 20]),
            wording("store.claims-shape", shape="(1099511627776, 20)"),
        ),
        (
            lambda node: node["codecs"].append({"name": "numcodecs.pickle"}),
            wording("store.codec-refused", name="numcodecs.pickle"),
        ),
        (
            lambda node: node["codecs"][0]["configuration"]["codecs"].append({"name": "gzip"}),
            wording("store.codec-refused", name="gzip"),
        ),
        (lambda node: node.update(codecs=[{"name": 3}]), wording("store.codec-nameless")),
        (lambda node: node.update(codecs="bytes"), wording("store.codecs-not-list")),
        (lambda node: node.update(data_type="string"), wording("store.metadata-invalid", file="zarr.json")),
        (lambda node: node.update(chunk_grid=3), wording("store.metadata-invalid", file="zarr.json")),
        (lambda node: node.update(attributes=[]), wording("store.attributes-wrong", key="gdnbench")),
        (lambda node: node.update(attributes={"gdnbench": {"dtype": "int32"}}), "says 'int32'"),
    ],
)
def test_arrays_with_wrong_metadata(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    path = make_store(tmp_path / "s")
    edit_json(array_path(path, "t") / "zarr.json", change)
    with Store.open(path) as store, pytest.raises(StoreError) as refusal:
        store.records[0].before["t"].read()
    assert re.search(said, str(refusal.value))
    assert re.search(
        wording("store.record-tensor", key="seg/0", tensor="t", when="before"), str(refusal.value)
    )
    assert not verify(path).ok


@pytest.mark.parametrize("entry", [0, 1])
@pytest.mark.parametrize("value", [0, 1 << 62, 2**64 - 1, 2**63 + 5])
def test_shard_indices_that_point_outside(tmp_path: Path, entry: int, value: int) -> None:
    """The index of a shard is changed and its checksum made to fit, as only an attacker would."""
    path = make_store(tmp_path / "s")
    file = array_path(path, "t") / "c" / "0" / "0"
    content = file.read_bytes()
    table = bytearray(content[-(16 * 4 + 4) : -4])
    table[16 + 8 * entry : 24 + 8 * entry] = struct.pack("<Q", value)
    file.write_bytes(content[: -(16 * 4 + 4)] + table + struct.pack("<I", google_crc32c.value(bytes(table))))
    report = verify(path)
    assert {(d.record, d.tensor) for d in report.damages} == {("seg/0", "t before")}


def test_paths_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, said in {
        "nothing": wording("store.missing"),
        "file": wording("store.zip-unreadable"),
        "folder": wording("store.not-a-store", file="zarr.json"),
    }.items():
        with pytest.raises(StoreError) as refusal:
            Store.open(tmp_path / name)
        assert re.search(said, str(refusal.value))
        assert str(tmp_path / name) in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    with Store.open(path) as store:
        store.records[0].before["t"].read()
    verify(path)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_a_compressed_chunk_that_claims_the_moon(tmp_path: Path) -> None:
    """A Blosc frame whose header promises 2**32 - 1 bytes, with a checksum that fits."""
    path = tmp_path / "s"
    write_one(path, {"t": randn(3)}, Compression(1))
    file = next((array_path(path, "t") / "c").rglob("0/0"))
    # Blosc 1: versions of format and codec, flags, element size, then bytes, block bytes, frame bytes.
    frame = struct.pack("<4B3I4x", 2, 1, 0x84, 4, (1 << 32) - 1, 1 << 20, 20)
    file.write_bytes(frame + struct.pack("<I", google_crc32c.value(frame)))
    with Store.open(path) as store, pytest.raises(StoreError, match=wording("store.damaged")):
        store.records[0].before["t"].read()


def refused_by_verify(path: Path, said: str) -> None:
    """`verify` names the damage, in the one tensor, at once."""
    begin = time.monotonic()
    damages = [damage for damage in verify(path).damages if damage.tensor == "t before"]
    assert any(re.search(said, damage.what) for damage in damages), damages
    assert time.monotonic() - begin < 30  # a fraction of a second, on a machine however busy


BOMBS = {
    # A frame of 880 bytes that holds 1 MiB of zeros, as its header says.
    "blosc": (numcodecs.Blosc("zstd", 1, 2).encode(bytes(1 << 20)), 1 << 20),
    "zstd": (numcodecs.Zstd(1).encode(bytes(1 << 20)), 1 << 20),
    "blosc that lies": (struct.pack("<4B3I4x", 2, 1, 0x84, 4, (1 << 32) - 1, 1 << 20, 20), (1 << 32) - 1),
    "zstd that lies": (bytes.fromhex("28b52ffd c0 00 0000000001000000") + b"x" * 9, 1 << 32),
}


@pytest.mark.parametrize("what", BOMBS)
def test_chunks_that_inflate_past_what_their_array_says(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decompressor, which would allocate what the chunk says, is not called."""
    frame, claimed = BOMBS[what]
    path = tmp_path / "s"
    write_one(path, {"t": randn(3)}, Compression(1))
    array = array_path(path, "t")
    codec = what.partition(" ")[0]
    if codec == "zstd":
        zstd = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
        edit_json(array / "zarr.json", lambda node: node["codecs"].__setitem__(1, zstd))
    (file,) = (entry for entry in (array / "c").rglob("*") if entry.is_file())
    file.write_bytes(frame + struct.pack("<I", google_crc32c.value(bytes(frame))))

    def decode(*_: object) -> None:
        pytest.fail("it was decompressed")

    with Store.open(path) as store:
        handle = store.records[0].before["t"]
        for name in ("BloscCodec", "ZstdCodec"):
            monkeypatch.setattr(f"zarr.codecs.{name}._decode_sync", decode)
        with pytest.raises(StoreError, match=wording("store.chunk-beyond", claimed=claimed, expected=12)):
            handle.read()


def test_a_zstd_chunk_that_does_not_say_how_much_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=wording("store.zstd-unsized")):
        zstd_bytes(bytes.fromhex("28b52ffd 00 58"))
    for length in (1, 255, 256, 65_791, 65_792, 1 << 20):
        assert zstd_bytes(numcodecs.Zstd(1).encode(bytes(length))[:32]) == length


def test_zarr_of_others_keeps_its_codecs(tmp_path: Path) -> None:
    """Ours are for arrays of stores alone: the program that a store is opened in may use Zarr itself."""
    path = make_store(tmp_path / "s")
    verify(path)
    array = zarr.create_array(tmp_path / "own", shape=(4,), dtype="f4", compressors=zarr.codecs.BloscCodec())
    assert [type(one) for one in array.metadata.codecs[1:]] == [zarr.codecs.BloscCodec]  # type: ignore[union-attr]
    assert zarr.open_array(tmp_path / "own").compressors == array.compressors


def with_shape(path: Path, shape: list[int], chunk: list[int], inner: list[int] | None = None) -> Path:
    """Claim another shape for the tensor "t" of `path`, in its array and its record."""
    array = array_path(path, "t")

    def change(node: dict[str, Any]) -> None:
        node["shape"] = shape
        node["chunk_grid"]["configuration"]["chunk_shape"] = chunk
        chain = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        if inner is None:
            node["codecs"] = chain
        else:
            sharding = {"chunk_shape": inner, "codecs": chain, "index_codecs": chain, "index_location": "end"}
            node["codecs"] = [{"name": "sharding_indexed", "configuration": sharding}]

    edit_json(array / "zarr.json", change)
    changed = the_record(path)
    axes = [f"d{i}" for i in range(len(shape))]
    changed["before"]["t"] |= {"shape": shape, "axes": axes}
    replace_records(path, json.dumps(changed).encode() + b"\n")
    return array


def test_a_shape_of_more_chunks_than_can_be_listed(tmp_path: Path) -> None:
    """Within what could be compressed so far, each element a file: there are two of them."""
    path = make_store(tmp_path / "s")
    array = with_shape(path, [1 << 28, 1], [1, 1])
    for number in range(2):
        (array / "c" / str(number)).mkdir(exist_ok=True)
        (array / "c" / str(number) / "0").write_bytes(bytes(1 << 14))
    refused_by_verify(path, wording("store.chunk-missing", chunk="c/2/0"))


def test_a_file_that_is_too_short_for_its_elements(tmp_path: Path) -> None:
    """Uncompressed elements take as many bytes as there are: 4 GiB are allocated only for a file of 4 GiB."""
    path = make_store(tmp_path / "s")
    array = with_shape(path, [1 << 26, 1], [1 << 26, 1])
    shutil.rmtree(array / "c")
    (array / "c" / "0").mkdir(parents=True)
    (array / "c" / "0" / "0").write_bytes(bytes(1 << 14))
    refused_by_verify(path, wording("store.file-short", file="c/0/0", size=1 << 14, expected=1 << 28))


def test_shards_of_more_chunks_than_any_store_has(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    with_shape(path, [1 << 20, 1], [1 << 20, 1], [1, 1])
    refused_by_verify(path, wording("store.shard-chunks", chunks=1 << 20, most=4096))


def test_shards_in_shards(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")

    def change(node: dict[str, Any]) -> None:
        inner = json.loads(json.dumps(node["codecs"][0]))
        node["codecs"][0]["configuration"]["codecs"] = [inner]

    edit_json(array_path(path, "t") / "zarr.json", change)
    refused_by_verify(path, wording("store.array-nested", codec="sharding_indexed"))


def test_an_empty_array_of_a_huge_shape(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s")
    array = with_shape(path, [1 << 40, 0], [1, 1])
    shutil.rmtree(array / "c")
    with Store.open(path) as store:
        assert store.records[0].before["t"].read().shape == (1 << 40, 0)
    assert not verify(path).ok


def test_elements_that_many_records_claim_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each claims another digest, and if rows of two arrays alternate."""
    path = make_store(tmp_path / "s")
    line = the_record(path)
    lines = []
    for number in range(50):
        for name in ("t", "s"):
            line["before"][name]["digest"] = f"{number:064x}"
        lines.append(json.dumps(line).encode() + b"\n")
    replace_records(path, b"".join(lines), count=len(lines))
    reads: list[str] = []
    read = StoredArray.read

    def counted(array: StoredArray, selection: Slices | None = None) -> Bits:
        reads.append(array.key)
        return read(array, selection)

    monkeypatch.setattr(StoredArray, "read", counted)
    report = verify(path)
    assert len({(damage.record, damage.tensor) for damage in report.damages if damage.record}) == 100
    assert max(Counter(reads).values()) == 1


def test_zeros_that_are_packed_twice(tmp_path: Path) -> None:
    """Shards of zeros, deflated again: 32 MiB to some 400 bytes. What claims more than that is refused."""
    path = tmp_path / "s"
    write_one(path, {"t": torch.zeros(96 << 20, dtype=torch.uint8)}, Compression(1), Chunking())
    archive = Path(shutil.make_archive(str(tmp_path / "z"), "zip", path))
    assert archive.stat().st_size < 1 << 13
    assert verify(archive).ok
    array = array_path(path, "t")
    edit_json(array / "zarr.json", lambda node: node.update(shape=[(96 << 20) * 8]))
    changed = the_record(path)
    changed["before"]["t"]["shape"] = [(96 << 20) * 8]
    replace_records(path, json.dumps(changed).encode() + b"\n")
    refused_by_verify(
        Path(shutil.make_archive(str(tmp_path / "z2"), "zip", path)),
        wording("store.claims-shape", shape=((96 << 20) * 8,)),
    )


@pytest.mark.parametrize("key", ["zarr.json", "{segment}/zarr.json", "{segment}/0/zarr.json"])
def test_pipes_are_refused_and_not_waited_for(tmp_path: Path, key: str) -> None:
    path = tmp_path / "s.zarr"
    write_one(path, {"q": torch.ones(2)})
    segment = next(entry for entry in (path / "segments").iterdir() if entry.is_dir())
    pipe = path / key.format(segment=segment)
    pipe.unlink()
    os.mkfifo(pipe)
    if key != "{segment}/0/zarr.json":
        with pytest.raises(StoreError, match="is " + wording("store.special-file")):
            Store.open(path)
        return
    with Store.open(path) as store:
        assert re.search("is " + wording("store.special-file"), store.problems[0])


@pytest.mark.parametrize(
    ("process", "said"),
    [({"$float": [1]}, "is not nan, inf or -inf"), ([[[]]] * 1, None), ("deep", "nested too deep")],
)
def test_a_segment_with_odd_json_is_skipped(tmp_path: Path, process: object, said: str | None) -> None:
    path = tmp_path / "s.zarr"
    write_one(path, {"q": torch.ones(2)})
    node = next((path / "segments").glob("*/zarr.json"))
    if process == "deep":
        process = []
        for _ in range(400):
            process = [process]
    content = json.loads(node.read_text())
    content["attributes"]["gdnbench"]["process"] = {"a": process}
    node.write_text(json.dumps(content))
    with Store.open(path) as store:
        assert len(store.records) == (1 if said is None else 0)
        assert said is None or said in store.problems[0]


def test_links_in_a_journal_lead_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "s.zarr"
    write_one(path, {"q": torch.ones(2)})
    journal = path / ".journal" / "1-1-a"
    journal.mkdir(parents=True)
    (journal / "sealer.lock").symlink_to(tmp_path / "victim")
    (path / ".journal" / "2-2-b").symlink_to(tmp_path)
    os.mkfifo(journal / "00000000.log")
    with pytest.raises(StoreError, match=wording("store.symlink", path="2-2-b")):
        open_store(path)
    assert not (tmp_path / "victim").exists()
    assert (path / ".journal" / "2-2-b").is_symlink()


@pytest.mark.parametrize("made", ["link to a lock", "link to a pipe", "pipe"])
def test_a_writers_lock_that_no_writer_made_is_none(tmp_path: Path, made: str) -> None:
    """A lock of somebody else's is neither asked for nor held, and no pipe waited for."""
    journal = tmp_path / "s.zarr" / ".journal" / "1-1-a"
    journal.mkdir(parents=True)
    other = tmp_path / "other"
    with open(other, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if made == "pipe":
            os.mkfifo(journal / "writer.lock")
        else:
            if made == "link to a pipe":
                other.unlink()
                os.mkfifo(other)
            (journal / "writer.lock").symlink_to(other)
        assert not writer_lives(journal)


@pytest.mark.parametrize("place", [".incoming", ".incoming/made", "segments", "segments/made"])
def test_a_writer_clears_and_writes_nothing_behind_a_link(place: str, tmp_path: Path) -> None:
    """The folder of unfinished batches is cleared, and a stranger's store chooses its name."""
    store, outside = tmp_path / "run.zarr", tmp_path / "outside"
    (outside / "made" / "photos").mkdir(parents=True)
    (outside / "photos").mkdir()
    (outside / "diary").write_text("precious")
    before = sorted(outside.rglob("*"))
    with StoreWriter(store, kind="capture", segment="other"):
        pass
    link = store / place
    link.parent.mkdir(exist_ok=True)
    if link.is_dir():
        link.rename(tmp_path / "moved")
    link.symlink_to(outside)
    with pytest.raises(StoreError, match=wording("store.symlink", path=place)):
        StoreWriter(store, kind="capture", segment="made")
    assert sorted(outside.rglob("*")) == before
    if "/" not in place:
        with pytest.raises(StoreError, match=wording("store.symlink")):
            check_store(store)
