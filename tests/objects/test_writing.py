# SPDX-License-Identifier: Apache-2.0
"""Captures into, and uploads to, a real S3 server, through a proxy that loses connections."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdnbench.capture import capturing
from gdnbench.capture.launch import run_captured
from gdnbench.capture.options import OPTIONS_VARIABLE, STORE_VARIABLE, CaptureOptions
from gdnbench.capture.runtime import start_from_environment
from gdnbench.cli.upload import upload
from gdnbench.errors import BadInputError, GdnbenchError, StoreError
from gdnbench.store.objects import Objects, ObjectsUnreachableError
from gdnbench.store.reader import Store
from gdnbench.store.spool import Spool
from gdnbench.store.upload import Uploader, UploadThread
from gdnbench.store.verify import verify
from tests.messages import wording
from tests.objects.object_samples import contents, make_store
from tests.objects.s3_bucket import SECRET, Bucket
from tests.subset import quick

PROGRAM = """
import sys
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as chunk

def run(calls):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 70, 2, 16) for _ in range(3))
    g, beta = -torch.rand(1, 70, 2), torch.rand(1, 70, 2)
    for _ in range(calls):
        chunk(q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True)

if __name__ == "__main__":
    run(3)
"""


def gdnbench(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gdnbench", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A script with three prefills, which can be imported too."""
    script = tmp_path / "prefilling.py"
    script.write_text(PROGRAM)
    return script


@pytest.mark.slow  # a program of its own
def test_capture_into_a_url(bucket: Bucket, program: Path) -> None:
    bucket.proxy.cut("up", 20_000)  # an object of the first batch
    ran = gdnbench("capture", bucket.url, "--zstd", "off", "--", sys.executable, program)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "gdnbench: 3 records, " in ran.stderr
    assert f" in {bucket.url}" in ran.stderr
    assert bucket.proxy.drops == 1
    with Store.open(bucket.url) as store:
        assert [record.info.op for record in store.records] == ["gdn_prefill"] * 3
        assert store.problems == ()
        assert store.segments[0].end is not None
    assert verify(bucket.url).ok
    assert {path.name for spool in bucket.spools.iterdir() for path in spool.iterdir()} == {"address", "lock"}
    objects = Objects(bucket.url)
    for key, info in objects.list("segments", 1000):
        assert SECRET.encode() not in (objects.get(f"segments/{key}", info.size) or b"")


@pytest.mark.slow
def test_a_network_that_is_gone_at_the_end(bucket: Bucket, program: Path) -> None:
    """It goes when the command has been started, before the program records."""
    program.write_text(f"print('here', flush=True)\nimport sys\nsys.stdin.readline()\n{PROGRAM}")
    command = [sys.executable, "-m", "gdnbench", "capture", bucket.url, "--", sys.executable, program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        bucket.proxy.refuses = True
        _, told = process.communicate("\n")
    assert process.returncode == 3
    left = next(iter(bucket.spools.iterdir()))
    lines = [line for line in told.splitlines() if "not arrived" in line]
    assert len(lines) == 1, told
    assert lines[0].startswith("gdnbench: 1 batch has not arrived: s3://")
    assert lines[0].endswith(f"gdnbench upload {left}")
    bucket.proxy.refuses = False
    with Store.open(bucket.url) as store:
        assert (len(store.records), store.damaged) == (0, ())
    ran = gdnbench("upload", left)
    assert (ran.returncode, ran.stdout) == (0, f"1 batch uploaded to {bucket.url}\n")
    assert not left.exists()
    with Store.open(bucket.url) as store:
        assert (len(store.records), store.problems) == (3, ())
    assert verify(bucket.url).ok


class DyingObjects(Objects):
    """Objects of which no more than `lives` can be put."""

    def __init__(self, url: str, lives: int) -> None:
        super().__init__(url)
        self._lives = iter(range(lives))  # which threads share

    def put_object(self, key: str, content: bytes | Path) -> None:
        if next(self._lives, None) is None:
            raise ObjectsUnreachableError(f"{self.url} is gone")
        super().put_object(key, content)


@pytest.mark.slow
def test_nothing_half_written_is_visible_wherever_an_upload_ends(bucket: Bucket, tmp_path: Path) -> None:
    local = make_store(tmp_path / "local.zarr", batches=1)
    with Store.open(local) as store:
        whole = contents(store)
    seen = []
    for lives in itertools.count(1):  # each goes on where the one before it ended
        try:
            Uploader(local, DyingObjects(bucket.url, lives)).step()
        except ObjectsUnreachableError:
            with Store.open(bucket.url) as store:
                found = contents(store)
                assert store.damaged == ()
            assert found == whole[: len(found)]
            seen.append(len(found))
        else:
            break
    assert set(seen) >= {0, 1}
    assert seen == sorted(seen)
    with Store.open(bucket.url) as store:
        assert (contents(store), store.problems) == (whole, ())


@pytest.mark.slow  # starts processes
def test_an_upload_that_is_killed_is_continued(bucket: Bucket, tmp_path: Path) -> None:
    """By SIGKILL, as soon as so many objects have arrived. What can be read by then is whole."""
    local = make_store(tmp_path / "local.zarr", batches=8)
    with Store.open(local) as store:
        whole = contents(store)
    command = [sys.executable, "-m", "gdnbench", "upload", str(local), bucket.url]
    for arrived in (1, 20, 60, 100):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            objects = Objects(bucket.url)
            while process.poll() is None and sum(1 for _ in objects.list("segments", 10_000)) < arrived:
                time.sleep(0.01)
            process.kill()
        try:
            with Store.open(bucket.url) as store:
                found, damaged = contents(store), store.damaged
        except StoreError:  # killed before the root was written
            continue
        assert damaged == ()
        assert all(one in whole for one in found)
    ran = gdnbench("upload", local, bucket.url)
    assert ran.returncode == 0, ran.stderr
    with Store.open(bucket.url) as store:
        assert (contents(store), store.problems) == (whole, ())
    assert verify(bucket.url).ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "local.zarr"]


@pytest.mark.parametrize("after", quick([1, 400, 3_000, 9_000, 20_000], 0, 3))
def test_a_request_that_breaks_off_is_made_again(bucket: Bucket, tmp_path: Path, after: int) -> None:
    local = make_store(tmp_path / "local.zarr")
    bucket.proxy.cut("up", after)
    uploader = Uploader(local, Objects(bucket.url))
    uploader.step()
    assert (uploader.batches, uploader.missing_batches(), bucket.proxy.drops) == (4, [], 1)
    with Store.open(local) as here, Store.open(bucket.url) as there:
        assert contents(there) == contents(here)


def spooled(bucket: Bucket, tmp_path: Path, *, ended: bool = True) -> Spool:
    spool = Spool.planned(bucket.url)
    spool.make()
    shutil.copytree(make_store(tmp_path / "local.zarr", ended=ended), spool.store)
    return spool


def test_a_spool_lets_go_of_what_has_arrived(bucket: Bucket, tmp_path: Path) -> None:
    spool = spooled(bucket, tmp_path, ended=False)
    Uploader.of_spool(spool).step()
    assert not list(spool.store.glob("segments/*/*/blobs"))
    assert not spool.clear()  # its segments go on
    fresh = Uploader.of_spool(spool)  # after a crash: what has arrived is known, though its arrays are gone
    fresh.step()
    assert (fresh.batches, fresh.missing_batches()) == (0, [])
    with Store.open(tmp_path / "local.zarr") as here, Store.open(bucket.url) as there:
        assert contents(there) == contents(here)


def test_what_waits_is_found_by_its_url(bucket: Bucket, tmp_path: Path) -> None:
    assert Spool.waiting(bucket.url) == []
    spool = spooled(bucket, tmp_path)
    (elsewhere := Spool.planned(f"{bucket.url}2")).make()
    elsewhere.store.mkdir()
    assert Spool.waiting(bucket.url) == [spool]
    upload(bucket.url)
    assert Spool.waiting(bucket.url) == []
    assert not spool.folder.exists()
    assert elsewhere.folder.exists()
    assert verify(bucket.url).records == 4


@pytest.mark.slow  # waits for retries
def test_the_network_comes_back(bucket: Bucket, tmp_path: Path) -> None:
    spool = spooled(bucket, tmp_path)
    bucket.proxy.refuses = True
    thread = UploadThread(spool)
    thread.start()
    deadline = time.monotonic() + 60
    while thread.error is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert isinstance(thread.error, ObjectsUnreachableError)
    bucket.proxy.refuses = False
    thread.finish()
    assert thread.not_arrived() is None
    assert spool.clear()
    assert verify(bucket.url).records == 4


def test_whatever_ends_an_upload_nothing_counts_as_arrived(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spooled(bucket, tmp_path)
    monkeypatch.setattr(Objects, "put_object", lambda *_: 1 // 0)
    thread = UploadThread(spool)
    thread.start()
    thread.finish()
    assert (thread.not_arrived() or "").startswith("4 batches have not arrived: ZeroDivisionError: ")
    assert not spool.clear()


def test_uploads_that_are_refused(bucket: Bucket, tmp_path: Path) -> None:
    local = make_store(tmp_path / "local.zarr")
    Uploader(local, Objects(bucket.url)).step()
    metadata = local / "segments/0/0000000000/zarr.json"
    metadata.write_bytes(metadata.read_bytes() + b" ")
    with pytest.raises(StoreError, match=wording("store.upload-differs", key="segments/0/0000000000")):
        Uploader(local, Objects(bucket.url)).step()
    root = local / "zarr.json"
    root.write_text(root.read_text().replace('"capture"', '"run"'))
    with pytest.raises(StoreError, match=wording("store.upload-kind", found="capture", kind="run")):
        Uploader(local, Objects(bucket.url)).step()


def test_capturing_into_a_url(bucket: Bucket, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(program.parent)
    with capturing(bucket.url):
        importlib.import_module("prefilling").run(2)
    del sys.modules["prefilling"]
    with Store.open(bucket.url) as store:
        assert [record.info.op for record in store.records] == ["gdn_prefill"] * 2
        assert store.segments[0].end is not None


@pytest.mark.slow
def test_a_program_started_with_the_variable(bucket: Bucket, program: Path) -> None:
    """No command beside it: the sealer that its first record starts uploads too."""
    environment = {**os.environ, "GDNBENCH_CAPTURE": bucket.url}
    subprocess.run([sys.executable, program], env=environment, check=True)
    deadline = time.monotonic() + 120
    found: list[str] = []
    while not found and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            with Store.open(bucket.url) as store:
                found = [record.info.op for record in store.records if store.segments[0].end is not None]
        except StoreError:
            continue
    assert found == ["gdn_prefill"] * 3


def test_captures_that_are_refused_before_they_begin(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"

    def refusal(url: str, options: CaptureOptions | None = None) -> tuple[int, str]:
        with pytest.raises(GdnbenchError) as raised:
            run_captured(url, ["touch", str(mark)], options or CaptureOptions())
        message = str(raised.value)
        assert not any(secret in message for secret in ("\n", SECRET, "hunter2"))
        return int(raised.value.exit_code), message

    code, message = refusal(bucket.url, CaptureOptions(max_bytes=1 << 20, when_over="drop-oldest"))
    assert (code, "drop-oldest" in message) == (2, True)
    variables = {
        STORE_VARIABLE: bucket.url,
        OPTIONS_VARIABLE: '{"max_bytes": 1048576, "when_over": "drop-oldest"}',
    }
    with pytest.raises(BadInputError, match="drop-oldest deletes batches"):
        start_from_environment(variables)
    code, message = refusal("s3://me:hunter2@bucket/run.zarr")
    assert (code, "environment" in message) == (2, True)
    bucket.post("moto-api/reset-auth", "POST", b"0")
    try:
        code, message = refusal(bucket.url)
    finally:
        bucket.post("moto-api/reset-auth", "POST", b"inf")
    assert (code, bool(re.search(wording("store.credentials-refused"), message))) == (3, True)
    monkeypatch.setitem(sys.modules, "obstore", None)
    code, message = refusal(bucket.url)
    assert (code, bool(re.search(wording("store.obstore-missing"), message))) == (3, True)
    assert not mark.exists()
    assert not bucket.spools.exists()


@pytest.mark.parametrize("link", ["zarr.json", "records/zarr.json", "blobs/a.0"])
def test_no_link_of_a_store_is_followed_into_an_upload(bucket: Bucket, tmp_path: Path, link: str) -> None:
    """A store of a stranger's may name a key file of whoever uploads it."""
    secret = tmp_path / "secret"
    secret.write_text('{"zarr_format": 3, "node_type": "group"}')
    local = make_store(tmp_path / "local.zarr")
    place = local / "segments/0/0000000000" / link
    place.unlink(missing_ok=True)
    place.symlink_to(secret)
    with pytest.raises(StoreError, match=wording("store.symlink")):
        Uploader(local, Objects(bucket.url)).step()
    assert Objects(bucket.url).get(f"segments/0/0000000000/{link}", 1 << 20) is None


@pytest.mark.slow
def test_what_is_no_whole_store_is_not_said_to_be_uploaded(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = gdnbench("upload", tmp_path / "empty", bucket.url)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert re.search(wording("store.not-a-store"), ran.stderr)
    local = make_store(tmp_path / "local.zarr")
    (local / "segments/0/0000000000/zarr.json").unlink()
    ran = gdnbench("upload", local, bucket.url)
    assert (ran.returncode, ran.stdout) == (1, f"3 batches uploaded to {bucket.url}\n")
    assert re.match(wording("cli.not-uploaded", what="batch 0/0000000000 is skipped: "), ran.stderr)


def test_a_file_called_address_makes_no_spool(tmp_path: Path) -> None:
    address = tmp_path / "address"
    for content in (b"\xff\xfe street", b"12 Main Street\n", b"see https://example.org\n"):
        address.write_bytes(content)
        assert Spool.of_store(tmp_path / "store") is None
    address.write_text("s3://bucket/run.zarr\n")
    assert Spool.of_store(tmp_path / "store") is not None


def test_a_url_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(
        BadInputError, match="^" + wording("store.url-invalid", scheme="s3", reason="Invalid IPv6 URL")
    ) as refused:
        Objects("s3://user:hidden@[::1/run.zarr")
    assert "hidden" not in str(refused.value)
