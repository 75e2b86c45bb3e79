# SPDX-License-Identifier: Apache-2.0
"""Stores that are read from a real S3 server, through a proxy that loses connections."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError, CannotRunError, Exit, StoreError
from gdnbench.store.address import redacted_url
from gdnbench.store.merge import merge
from gdnbench.store.objects import Objects, _reason
from gdnbench.store.piece_cache import PieceCache
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from tests.messages import wording
from tests.objects.cutting_proxy import CuttingProxy
from tests.objects.object_samples import as_objects, contents, make_store
from tests.objects.s3_bucket import SECRET, Bucket
from tests.subset import quick


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return make_store(tmp_path / "local.zarr")


def test_a_url_reads_as_the_folder_that_it_was_copied_from(bucket: Bucket, local: Path) -> None:
    as_objects(local, bucket.url)
    with Store.open(local) as folder, Store.open(bucket.url) as store:
        assert contents(store) == contents(folder)
        assert (store.kind, store.problems) == (folder.kind, ())
        whole = folder.records[1].before["state"].read()
        assert store.records[1].before["state"].read_rows(7, 23).equal(whole[7:23])
    report = verify(bucket.url)
    assert (report.ok, report.records, report.tensors) == (True, 4, 16)


def test_listing_takes_few_requests(bucket: Bucket, tmp_path: Path) -> None:
    as_objects(make_store(tmp_path / "local.zarr", batches=8), bucket.url)
    before = bucket.proxy.requests
    with Store.open(bucket.url) as store:
        assert len(list(store.listed())) == 16
    # The root, four folders, and of two segments their folder, metadata and end; one of each batch.
    assert bucket.proxy.requests - before <= 10 + 16


@pytest.mark.parametrize("after", quick([1, 700, 6_000, 13_000], 0, 2))
def test_an_answer_that_breaks_off_is_asked_for_again(bucket: Bucket, local: Path, after: int) -> None:
    as_objects(local, bucket.url)
    bucket.proxy.cut("down", after)
    with Store.open(local) as folder, Store.open(bucket.url) as store:
        assert contents(store) == contents(folder)
    assert bucket.proxy.drops == 1


def test_the_middle_of_a_large_object_breaks_off(bucket: Bucket) -> None:
    content = bytes(range(256)) * (16 << 10)
    objects = Objects(bucket.url)
    objects.put_object("blob", content)
    for after in (300, 1 << 20, 4_000_000):
        bucket.proxy.cut("down", after)
        assert objects.get("blob", 8 << 20) == content
    assert bucket.proxy.drops == 3


def test_elements_are_read_once_from_the_server(bucket: Bucket, local: Path) -> None:
    as_objects(local, bucket.url)
    elements = 2 * 2 * (2 * 40 * 64 * 4)

    def fetched(*, cached: bool = True) -> int:
        before = bucket.proxy.down_bytes
        with Store.open(bucket.url, cached=cached) as store:
            contents(store)
        return bucket.proxy.down_bytes - before

    first = fetched()
    assert first > elements
    assert fetched() < first - elements
    assert fetched(cached=False) > elements
    before = bucket.proxy.down_bytes
    assert verify(bucket.url).ok
    assert bucket.proxy.down_bytes - before > elements  # what is checked is what the server holds


def test_what_was_written_anew_is_not_taken_from_the_cache(bucket: Bucket, local: Path) -> None:
    objects = as_objects(local, bucket.url)
    with Store.open(bucket.url) as store:
        contents(store)
        array = store.records[0].before["state"].location.array
    key = next(key for key, _ in objects.list(array, 100) if key != "zarr.json")
    objects.put_object(f"{array}/{key}", bytes((local / array / key).stat().st_size))
    with Store.open(bucket.url) as store, pytest.raises(StoreError, match=r"state before .* damaged"):
        contents(store)


def test_the_cache_stays_within_its_bound(tmp_path: Path) -> None:
    cache = PieceCache(tmp_path / "cache", 1000)
    for number in range(30):
        cache.store_piece(f"{number}", bytes([number]) * 100)
        assert sum(file.stat().st_size for file in (tmp_path / "cache").iterdir()) <= 1000
    assert cache.load_piece("29", 100) == bytes([29]) * 100
    assert cache.load_piece("29", 99) is None  # cut off
    assert cache.load_piece("0", 100) is None
    cache.store_piece("larger", bytes(1001))
    assert cache.load_piece("larger", 1001) is None
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0


def test_the_variable_of_earlier_releases_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNBENCH_CACHE", "/somewhere")
    with pytest.raises(BadInputError, match="GDNBENCH_CACHE_DIR"):
        Store.open(bucket.url)


def test_damage_is_named_as_in_a_folder(bucket: Bucket, local: Path) -> None:
    shards = [
        sorted(file for file in (local / batch / "blobs").glob("*/c/**/*") if file.is_file())[0]
        for batch in ("segments/0/0000000001", "segments/1/0000000000")
    ]
    damaged = bytearray(shards[0].read_bytes())
    damaged[5] ^= 1
    shards[0].write_bytes(damaged)
    shards[1].unlink()
    as_objects(local, bucket.url)
    here, there = verify(local), verify(bucket.url)
    assert not here.ok
    places = [(damage.record, damage.tensor, damage.chunk) for damage in here.damages]
    assert [(damage.record, damage.tensor, damage.chunk) for damage in there.damages] == places
    assert "missing or empty" in " ".join(damage.what for damage in there.damages)


@pytest.mark.parametrize("ended", [False, True])
def test_a_batch_without_its_last_object(bucket: Bucket, tmp_path: Path, ended: bool) -> None:
    local = make_store(tmp_path / "local.zarr", ended=ended)
    (local / "segments/1/0000000001/zarr.json").unlink()
    as_objects(local, bucket.url)
    with Store.open(bucket.url) as store:
        assert [record.key for record in store.records] == ["0/0", "0/1", "1/0"]
        assert len(store.problems) == 1
    report = verify(bucket.url)
    # While its segment goes on it may still come; then it is lost.
    assert (report.ok, len(report.problems)) == ((False, 0) if ended else (True, 1))


def refusal(url: str) -> tuple[Exit, str]:
    with pytest.raises((BadInputError, CannotRunError, StoreError)) as raised:
        Store.open(url)
    message = str(raised.value)
    assert "\n" not in message
    assert SECRET not in message
    return raised.value.exit_code, message


def test_what_is_refused(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, message = refusal(bucket.url)
    assert code == 2
    assert re.fullmatch(wording("store.not-a-store", path=bucket.url, file="zarr.json"), message)
    assert refusal("s3://nosuchbucket/run.zarr")[0] == 2
    assert refusal("gopher://x/run.zarr")[0] == 2
    code, message = refusal("s3://user:hunter2@bucket/run.zarr?token=hunter3")
    assert (code, "hunter" in message, "environment" in message) == (2, False, True)
    assert redacted_url("https://u:p@host/a?b#c") == "https://host/a"
    objects = as_objects(local, bucket.url)
    for key in ("../x", "a//b", "/a", "a/./b"):
        with pytest.raises(StoreError, match=wording("store.path-escapes")):
            objects.get(key, 10)
    objects.put_object("zarr.json", bytes((64 << 20) + 1))
    assert "more than" in refusal(bucket.url)[1]
    monkeypatch.setitem(sys.modules, "obstore", None)
    code, message = refusal(bucket.url)
    assert code == 3
    assert re.fullmatch(wording("store.obstore-missing", url=bucket.url), message)


def test_credentials_that_the_server_refuses(bucket: Bucket, local: Path) -> None:
    as_objects(local, bucket.url)
    with Store.open(bucket.url) as store:
        bucket.post("moto-api/reset-auth", "POST", b"0")
        try:
            code, message = refusal(bucket.url)
            with pytest.raises(
                CannotRunError, match=wording("store.credentials-refused")
            ):  # of a listing, too
                contents(store)
        finally:
            bucket.post("moto-api/reset-auth", "POST", b"inf")
    assert (code, bool(re.search(wording("store.credentials-refused"), message))) == (3, True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token - HTTP error",
            "no credentials are set (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and this machine has no role",
        ),
        (
            "Error performing GET http://h/b?Signature=s3cr3t in 2ms -\nstatus code: 403: <?xml v?> <E>x</E>",
            "Error performing GET http://h/b in 2ms - status code: 403",
        ),
        ("status code: 501 Not Implemented: <!DOCTYPE HTML> <html>x", "status code: 501 Not Implemented"),
        ("status code: 502 Bad Gateway: <html>\n<p>x</p>", "status code: 502 Bad Gateway"),
        ("Generic error: x\n\nDebug source:\nGeneric { source: secret }", "Generic error: x"),
    ],
)
def test_what_obstore_says_in_one_line(said: str, told: str) -> None:
    assert _reason(RuntimeError(said)) == told


def test_a_server_that_is_gone(bucket: Bucket, local: Path) -> None:
    as_objects(local, bucket.url)
    with Store.open(bucket.url) as store:
        bucket.proxy.refuses = True
        with pytest.raises(CannotRunError, match=wording("store.unreachable")):  # and not: damaged
            contents(store)
    assert refusal(bucket.url)[0] == 3


def test_the_proxy_cuts(bucket: Bucket) -> None:
    """Else nothing above shows anything."""
    import socket

    proxy = CuttingProxy(bucket.server)
    proxy.cut("down", 5)
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        found = b""
        try:
            while content := client.recv(100):
                found += content
        except ConnectionResetError:
            pass
    assert len(found) <= 4
    assert proxy.drops == 1
    proxy.close()


FOLDER_MARKS = ("", "segments/", "segments/0/", "segments/0/0000000000/", "segments/0/0000000000/records/")


def test_objects_that_mark_folders_are_none_of_a_store(bucket: Bucket, local: Path, tmp_path: Path) -> None:
    """Consoles and mounted buckets make them."""
    as_objects(local, bucket.url)
    for key in FOLDER_MARKS:
        bucket.post(f"{bucket.url.removeprefix('s3://')}/{key}", "PUT")
    assert verify(bucket.url).damages == ()
    with Store.open(bucket.url) as store:
        assert merge(tmp_path / "merged.zarr", [store]).refused == []
    with Store.open(tmp_path / "merged.zarr") as merged, Store.open(local) as made:
        assert contents(merged) == contents(made)


@pytest.mark.parametrize(
    "key", ["segments/0/..", "segments//zarr.json", "segments/0/0000000000/../../../../x"]
)
def test_a_key_that_leads_out_is_the_stores_fault_and_not_the_networks(
    bucket: Bucket, local: Path, key: str
) -> None:
    as_objects(local, bucket.url)
    bucket.post(f"{bucket.url.removeprefix('s3://')}/{key}", "PUT")
    with (
        pytest.raises(StoreError, match=wording("store.object-strange", reason=re.compile(".* path"))),
        Store.open(bucket.url) as store,
    ):
        contents(store)
