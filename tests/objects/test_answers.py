# SPDX-License-Identifier: Apache-2.0
"""Servers that refuse, in the statuses and codes that S3's reference names: one line each, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gdnbench.errors import GdnbenchError, StoreError
from gdnbench.store import objects
from gdnbench.store.objects import Objects
from gdnbench.store.reader import Store
from gdnbench.store.upload import Uploader
from tests.messages import wording
from tests.objects.answering import Answer, answering
from tests.objects.object_samples import make_store
from tests.objects.s3_bucket import SECRET

URL = "s3://bucket/run.zarr"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith(("AWS_", "GDNBENCH_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(objects._RETRIES, "max_retries", 1)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return make_store(tmp_path / "local.zarr", batches=1)


def refusals(port: int, local: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, str]]:
    """Of reading and of writing: exit status and line."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    for request in (
        lambda: Store.open(URL),
        lambda: Uploader(local, Objects(URL)).step(),
        lambda: Objects(URL).put_object("a", b"content"),
        lambda: Objects(URL).folders("segments"),
        lambda: list(Objects(URL).list("segments", 10)),
    ):
        with pytest.raises(GdnbenchError) as raised:
            request()
        message = str(raised.value)
        assert message.startswith((f"{URL} is ", f"{URL} cannot be reached: "))
        assert not [one for one in ("\n", SECRET, "AKIATESTS", "for your eyes", "Debug") if one in message]
        yield int(raised.value.exit_code), message


DENIED = wording("store.credentials-refused")
REGION = "set AWS_REGION to the bucket's"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (Answer(403, "AccessDenied"), 3, DENIED),
        (Answer(403), 3, DENIED),
        (Answer(400, "ExpiredToken"), 3, DENIED),
        (Answer(404, "NoSuchBucket"), 2, wording("store.bucket-missing")),
        (Answer(301, "PermanentRedirect"), 3, REGION),
        (Answer(400, "AuthorizationHeaderMalformed"), 3, REGION),
        (Answer(503, "SlowDown"), 3, "after 1 retries"),
        (Answer(500), 3, "after 1 retries"),
    ],
    ids=lambda value: value.code or str(value.status) if isinstance(value, Answer) else "",
)
def test_an_answer_is_told_in_one_line(
    answer: Answer, code: int, said: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(answer) as port:
        for status, message in refusals(port, local, monkeypatch):
            assert (status, bool(re.search(said, message))) == (code, True), message


def test_a_server_that_does_not_answer(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "100 ms")
    with answering(Answer(200, hangs=True)) as port:
        for code, message in refusals(port, local, monkeypatch):
            assert (code, bool(re.search(wording("store.unreachable"), message))) == (3, True), message


def test_plain_http_has_to_be_asked_for(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    for code, message in refusals(1, local, monkeypatch):
        assert (code, bool(re.search(wording("store.plain-http"), message))) == (3, True), message


def test_of_a_listing_without_end_no_more_is_asked_for_than_a_store_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Objects(URL)
    asked = []

    def pages(*_: object) -> Iterator[list[dict[str, object]]]:
        for page in range(1000):
            asked.append(page)
            yield [{"path": f"run.zarr/a/{page}.{one}", "size": 1, "e_tag": None} for one in range(50)]

    monkeypatch.setattr(found, "_obstore", SimpleNamespace(list=pages))
    with pytest.raises(StoreError, match=wording("store.too-many-objects", key="segments", limit=1000)):
        list(found.list("segments", 1000))
    assert len(asked) == 1000 // 50 + 1
