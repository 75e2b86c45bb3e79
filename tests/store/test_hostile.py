"""Stores that a stranger made: refused in one line that names what, with nothing outside them read."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import torch
import zarr

from gdnbench.errors import StoreError
from gdnbench.store.compression import Compression
from gdnbench.store.journal.reader import writer_lives
from gdnbench.store.layout import Location
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.verify import verify
from gdnbench.store.writer import StoreWriter
from tests.store.store_samples import PLAIN, TINY, array_path, randn, record, write_one


def make(path: Path) -> Path:
    with StoreWriter(
        path, kind="capture", segment="seg", compression=PLAIN, chunking=TINY, durable=False
    ) as out:
        out.write("0", [record({"t": randn(40, 20), "s": randn(3)})])
    return path


def edit_json(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    node = json.loads(file.read_text())
    change(node)
    file.write_text(json.dumps(node))


def replace_records(path: Path, text: bytes, count: int = 1) -> None:
    """Put `text` where the records of the only batch are, as any zarr-python could."""
    batch = path / "segments" / "seg" / "0"
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


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        ("info", [], "info is '[]', not an object"),
        ("info.op", 3, "op is '3', not text"),
        ("info.call", True, "call is 'True', not a count"),
        ("info.step", -1, "step is '-1', not a count"),
        ("info.layer_index", 0.5, "layer_index is '0.5', not a count"),
        ("info.status", "great", "'great' is not a valid Status"),
        ("info.scalars", None, "scalars is 'None', not an object"),
        ("info.scalars.scale", {"$float": "1e9"}, "$float '1e9' is not nan, inf or -inf"),
        ("info.conventions.gate", 1, "convention 'gate' is '1', not text"),
        ("info.pools.state", 1, "pool 'state' is '1', not an object"),
        ("info.pools.state.rows", [7], "pool row 7 is not one of 7 slots"),
        ("info.pools.state.rows", "2", "rows is '2', not counts"),
        ("info.pools.state.rows", [5, 2], "pool row 2 follows row 5; rows are written in ascending order"),
        ("info.pools.state.rows", [2, 2], "pool row 2 follows row 2; rows are written in ascending order"),
        ("before.t", None, "description is 'None', not an object"),
        ("before.t.dtype", "object", "dtype 'object' is not known"),
        ("before.t.dtype", ["float32"], "dtype is"),
        ("before.t.shape", [40, -20], "shape is '(40, -20)', not counts"),
        ("before.t.shape", [[40], 20], "are text, numbers or lists of them"),
        ("before.t.shape", [1 << 40, 1 << 40], "at most 32 axes and 2**48 elements"),
        ("before.t.shape", [1] * 33, "at most 32 axes and 2**48 elements"),
        ("before.t.axes", ["T"], "shape (40, 20) and axes ('T',) differ in length"),
        ("before.t.axes", [1, 2], "axes is '(1, 2)', not names"),
        ("before.t.caller_strides", [1.5, 1], "caller_strides is '(1.5, 1)', not counts"),
        ("before.t.caller_strides", [-20, 1], "caller_strides is '(-20, 1)', not counts"),
        ("before.t.caller_strides", [1], "caller_shape (40, 20) and caller_strides (1,) differ in length"),
        ("before.t.caller_shape", [1 << 40, 1 << 40], "at most 32 axes and 2**48 elements"),
        ("before.t.caller_offset", "0", "caller_offset is '0', not a count"),
        ("before.t.digest", "../../etc", "digest '../../etc' is not 64 hexadecimal digits"),
        ("before.t.location", 7, "location is '7', not text"),
        ("before.t.location", "seg/0/blobs/../../../../etc/passwd", "is neither <segment>"),
        ("before.t.location", "/etc/passwd", "is neither <segment>"),
        ("before.t.location", "seg/../blobs/x", "is neither <segment>"),
        ("before.t.location", "seg/0/records/x", "is neither <segment>"),
        ("before.t.location", "seg/0/rows/x", "is neither <segment>"),
        ("before.t.location", "seg/0/rows/x#-1", "is neither <segment>"),
        ("before.t.location", "other/0/blobs/x", "refers to other/0/blobs/x, which is in another segment"),
    ],
)
def test_records_with_wrong_fields(tmp_path: Path, keys: str, value: object, said: str) -> None:
    path = make(tmp_path / "s")
    changed = the_record(path)
    put(changed, keys, value)
    replace_records(path, json.dumps(changed).encode() + b"\n")
    with Store.open(path) as store, pytest.raises(StoreError) as refusal:
        store.records[0]
    assert said in str(refusal.value)
    assert "record seg/0" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not verify(path).ok


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\x80\x04N.", "codec can't decode"),  # a pickle
        (b"[1]", "record is '[1]', not an object"),
        (b"{}", "info is missing"),
        (b"{", "Expecting"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"info": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
    ],
)
def test_lines_that_are_no_record(tmp_path: Path, line: bytes, said: str) -> None:
    path = make(tmp_path / "s")
    replace_records(path, line + b"\n")
    with Store.open(path) as store, pytest.raises(StoreError) as refusal:
        store.records[0]
    assert said in str(refusal.value)


def test_more_or_fewer_records_than_said(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    replace_records(path, json.dumps(the_record(path)).encode() + b"\n", count=1 << 40)
    with Store.open(path) as store, pytest.raises(StoreError, match=r"has 1 line, .* says 1099511627776"):
        store.records[5]


def test_locations_that_point_nowhere(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    changed = the_record(path)
    row = changed["before"]["s"]["location"].split("#")[0]
    put(changed, "before.s.location", f"{row}#9")
    put(changed, "before.t.location", "seg/0/blobs/nothing")
    replace_records(path, json.dumps(changed).encode() + b"\n")
    with Store.open(path) as store:
        handles = store.records[0].before
        with pytest.raises(StoreError, match=r"has shape \(1, 3\) and no row 9"):
            handles["s"].read()
        with pytest.raises(StoreError, match="blobs/nothing is missing"):
            handles["t"].read()


def test_a_location_parses_to_itself() -> None:
    for text in ("a/b/rows/c.1x2#12", "a-1/000/blobs/float32.2x3.00ff"):
        assert str(Location.parse(text)) == text


@pytest.mark.parametrize("place", ["segments", "segments/seg", "segments/seg/0", "segments/seg/0/records"])
def test_symbolic_links_to_folders(tmp_path: Path, place: str) -> None:
    path = make(tmp_path / "s")
    target = path / place
    target.rename(tmp_path / "moved")
    target.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreError, match=rf"{place} is a symbolic link"), Store.open(path) as store:
        store.records[0]


def test_symbolic_links_to_files(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    chunk = array_path(path, "t") / "c" / "0" / "0"
    chunk.rename(tmp_path / "chunk")
    chunk.symlink_to(tmp_path / "chunk")
    with Store.open(path) as store, pytest.raises(StoreError, match="c/0/0 is a symbolic link"):
        store.records[0].before["t"].read()
    (path / "zarr.json").rename(tmp_path / "root.json")
    (path / "zarr.json").symlink_to(tmp_path / "root.json")
    with pytest.raises(StoreError, match=r"zarr.json is a symbolic link"):
        Store.open(path)


def test_a_link_to_a_store_is_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(make(tmp_path / "s"))
    with Store.open(tmp_path / "link") as store:
        assert len(store.records) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda node: node.update(zarr_format=2), "is not a Zarr v3 array"),
        (lambda node: node.update(shape=[1 << 40, 20]), "claims shape (1099511627776, 20)"),
        (
            lambda node: node["codecs"].append({"name": "numcodecs.pickle"}),
            "codec 'numcodecs.pickle' is refused",
        ),
        (
            lambda node: node["codecs"][0]["configuration"]["codecs"].append({"name": "gzip"}),
            "codec 'gzip' is",
        ),
        (lambda node: node.update(codecs=[{"name": 3}]), "has no name"),
        (lambda node: node.update(codecs="bytes"), "codecs is not a list"),
        (lambda node: node.update(data_type="string"), "zarr.json is not valid"),
        (lambda node: node.update(chunk_grid=3), "zarr.json is not valid"),
        (lambda node: node.update(attributes=[]), "attributes.gdnbench is not an object"),
        (lambda node: node.update(attributes={"gdnbench": {"dtype": "int32"}}), "says 'int32'"),
    ],
)
def test_arrays_with_wrong_metadata(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    path = make(tmp_path / "s")
    edit_json(array_path(path, "t") / "zarr.json", change)
    with Store.open(path) as store, pytest.raises(StoreError) as refusal:
        store.records[0].before["t"].read()
    assert said in str(refusal.value)
    assert "record seg/0, t before the call" in str(refusal.value)
    assert not verify(path).ok


@pytest.mark.parametrize("entry", [0, 1])
@pytest.mark.parametrize("value", [0, 1 << 62, 2**64 - 1, 2**63 + 5])
def test_shard_indices_that_point_outside(tmp_path: Path, entry: int, value: int) -> None:
    """The index of a shard is changed and its checksum made to fit, as only an attacker would."""
    path = make(tmp_path / "s")
    file = array_path(path, "t") / "c" / "0" / "0"
    content = file.read_bytes()
    table = bytearray(content[-(16 * 4 + 4) : -4])
    table[16 + 8 * entry : 24 + 8 * entry] = struct.pack("<Q", value)
    file.write_bytes(content[: -(16 * 4 + 4)] + table + struct.pack("<I", google_crc32c.value(bytes(table))))
    report = verify(path)
    assert {(d.record, d.tensor) for d in report.damages} == {("seg/0", "t before")}


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
        (lambda out: out.writestr("../escape", "x"), "'../escape' would lead out of the store"),
        (lambda out: out.writestr("segments/../../escape", "x"), "would lead out of the store"),
        (lambda out: out.writestr("/etc/cron.d/x", "x"), "'/etc/cron.d/x' would lead out of the store"),
        (lambda out: out.writestr("C:/x", "x"), "would lead out of the store"),
        (lambda out: out.writestr("a\\..\\b", "x"), "would lead out of the store"),
        (lambda out: out.writestr("a//b", "x"), "would lead out of the store"),
        (add_link, "'segments/link' is a symbolic link"),
        (lambda out: out.writestr("bz", b"x" * 9, zipfile.ZIP_BZIP2), "uses zip method 12"),
    ],
)
def test_zip_members_that_lead_elsewhere(
    tmp_path: Path, change: Callable[[zipfile.ZipFile], None], said: str
) -> None:
    archive = pack(make(tmp_path / "s"), tmp_path / "z.zip", change)
    with pytest.raises(StoreError) as refusal:
        Store.open(archive)
    assert said in str(refusal.value)


def claim(archive: Path, member: str, size: int) -> None:
    """Change what the zip's directory says of a member's size."""
    content = bytearray(archive.read_bytes())
    at = content.rindex(b"PK\x01\x02", 0, content.rindex(member.encode()))
    content[at + 24 : at + 28] = struct.pack("<I", size)
    archive.write_bytes(content)


def test_zip_members_that_claim_more_than_they_hold(tmp_path: Path) -> None:
    archive = pack(make(tmp_path / "s"), tmp_path / "z.zip", lambda out: None)
    claim(archive, "segments/seg/0/records/c/0", 4_000_000_000)
    with pytest.raises(StoreError, match=r"records/c/0' claims 4000000000 bytes, which \d+ cannot hold"):
        Store.open(archive)


def test_a_zip_that_expands_to_more_than_metadata_may_have(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    (path / "zarr.json").unlink()
    archive = pack(
        path,
        tmp_path / "z.zip",
        lambda out: out.writestr("zarr.json", b" " * (65 << 20), zipfile.ZIP_DEFLATED),
    )
    assert archive.stat().st_size < 1 << 20
    with pytest.raises(StoreError, match=r"zarr.json has 68157440 bytes, more than the 67108864"):
        Store.open(archive)


def test_a_zip_with_a_damaged_member(tmp_path: Path) -> None:
    archive = pack(make(tmp_path / "s"), tmp_path / "z.zip", lambda out: None)
    content = bytearray(archive.read_bytes())
    at = content.index(b"segments/seg/0/blobs/float32.40x20") + 200
    content[content.index(b"c/0/0", at) + 20] ^= 1  # past the local header: an element
    archive.write_bytes(content)
    report = verify(archive)
    assert {(d.record, d.tensor) for d in report.damages} == {("seg/0", "t before")}


def test_paths_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    for name, said in {
        "nothing": "does not exist",
        "file": "is not a zip archive that can be read",
        "folder": "is not a gdnbench store: it has no zarr.json",
    }.items():
        with pytest.raises(StoreError) as refusal:
            Store.open(tmp_path / name)
        assert said in str(refusal.value)
        assert str(tmp_path / name) in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
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
    with Store.open(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.records[0].before["t"].read()


@pytest.mark.parametrize("key", ["zarr.json", "{segment}/zarr.json", "{segment}/0/zarr.json"])
def test_pipes_are_refused_and_not_waited_for(tmp_path: Path, key: str) -> None:
    path = tmp_path / "s.zarr"
    write_one(path, {"q": torch.ones(2)})
    segment = next(entry for entry in (path / "segments").iterdir() if entry.is_dir())
    pipe = path / key.format(segment=segment)
    pipe.unlink()
    os.mkfifo(pipe)
    if key != "{segment}/0/zarr.json":
        with pytest.raises(StoreError, match="is neither a file nor a folder"):
            Store.open(path)
        return
    with Store.open(path) as store:
        assert "is neither a file nor a folder" in store.problems[0]


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
    with pytest.raises(StoreError, match="2-2-b is a symbolic link"):
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
