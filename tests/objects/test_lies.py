# SPDX-License-Identifier: Apache-2.0
"""An object store that lies: no answer is a traceback, a hang or an element that nobody wrote. A batch that
is left out of a listing cannot be told from one that was never there; docs/store.md says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gdnbench.errors import GdnbenchError
from gdnbench.store import objects
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from tests.objects.lying_server import BUCKET, Body, Lies, lying
from tests.objects.object_samples import contents, make_store
from tests.objects.s3_bucket import SECRET
from tests.subset import quick

URL = f"s3://{BUCKET}/run.zarr"
Listing = list[tuple[str, int]]
HTML = b"<html><body><h1>Sign in to the network</h1></body></html>"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith(("AWS_", "GDNBENCH_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false")
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(objects._RETRIES, "max_retries", 1)
    monkeypatch.setattr(objects, "_FIRST_WAIT", 0.01)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The folder that the bucket holds; the store is `run.zarr` in it."""
    make_store(tmp_path / "bucket" / "run.zarr")
    return tmp_path / "bucket"


def outcome(port: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, dict[str, bytes]]], str]:
    """The contents of the store as far as they can be read, and what was refused or found damaged."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    found: list[tuple[str, dict[str, bytes]]] = []
    said = []
    try:
        with Store.open(URL) as store:
            said += [str(one) for one in (*store.damaged, *store.problems)]
            for record in store.records:
                tensors = {}
                for when, handles in (("before", record.before), ("after", record.after)):
                    for name, handle in handles.items():
                        try:
                            tensors[f"{name} {when}"] = handle.bits().tobytes()
                        except GdnbenchError as error:
                            said.append(str(error))
                found.append((record.key, tensors))
    except GdnbenchError as error:
        said.append(str(error))
    try:
        report = verify(URL)
    except GdnbenchError as error:
        said.append(str(error))
    else:
        said += [str(one) for one in (*report.damages, *report.problems)]
    assert not any("\n" in one or "<html" in one for one in said)
    return found, "; ".join(said)


def test_the_server_of_these_tests_can_tell_the_truth(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lying(local, Lies()) as port:
        found, said = outcome(port, monkeypatch)
    with Store.open(local / "run.zarr") as store:
        assert (found, said) == (contents(store), "")


def is_chunk(key: str) -> bool:
    return "/c/" in key


def is_metadata(key: str) -> bool:
    return key.endswith("zarr.json")


def is_batch(key: str) -> bool:
    return is_metadata(key) and key.count("/") == 4


def html(key: str, body: Body) -> Body:
    return replace(body, content=HTML, type="text/html")


def cut(key: str, body: Body) -> Body:
    """The connection ends in the middle of the body."""
    return replace(body, content=body.content[: len(body.content) // 2], length=len(body.content))


def short(key: str, body: Body) -> Body:
    """A whole answer of fewer bytes than the object has."""
    return replace(body, content=body.content[:-9])


def empty(key: str, body: Body) -> Body:
    return replace(body, content=b"")


def long(key: str, body: Body) -> Body:
    return replace(body, content=body.content + bytes(64))


def turned(key: str, body: Body) -> Body:
    """Other bytes, and as many."""
    return replace(body, content=bytes(byte ^ 0x55 for byte in body.content))


def gone(key: str, body: Body) -> None:
    return None


LIES: dict[str, Callable[[str, Body], Body | None]] = {
    "a page of HTML": html,
    "half of the body": cut,
    "too few bytes": short,
    "no bytes": empty,
    "too many bytes": long,
    "other bytes": turned,
    "listed and gone": gone,
}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "where", quick([is_chunk, is_metadata, is_batch], 0, 2, ids=("chunks", "all", "batches"))
)
@pytest.mark.parametrize("how", quick(LIES, 0, 2, 5))
def test_a_wrong_body_is_refused_or_damage(
    local: Path, monkeypatch: pytest.MonkeyPatch, how: str, where: Callable[[str], bool]
) -> None:
    with Store.open(local / "run.zarr") as store:
        true = dict(contents(store))
    lies = Lies(body=lambda key, body: LIES[how](key, body) if where(key) else body)
    with lying(local, lies) as port:
        found, said = outcome(port, monkeypatch)
    for key, tensors in found:
        assert all(content == true[key][name] for name, content in tensors.items())
    # Bytes after the end of a chunk are never asked for. A batch without its metadata is one that is being
    # written.
    assert said or how == "too many bytes" or (how == "listed and gone" and where is not is_chunk)


def other_size(keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(key, size + 1000 if is_chunk(key) else size) for key, size in keys]


def smaller(keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(key, size // 2 if is_chunk(key) else size) for key, size in keys]


def without_a_chunk(keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(key, size) for key, size in keys if not key.endswith("c/0/0")]


def nothing(keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return []


@pytest.mark.every(2)
@pytest.mark.parametrize("listed", [other_size, smaller, without_a_chunk, nothing])
def test_a_wrong_listing_gives_no_wrong_element(
    local: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[Listing], Listing]
) -> None:
    with Store.open(local / "run.zarr") as store:
        true = dict(contents(store))
    with lying(local, Lies(listed=listed)) as port:
        found, said = outcome(port, monkeypatch)
    for key, tensors in found:
        assert all(content == true[key][name] for name, content in tensors.items())
    assert said or listed is nothing
    assert not (listed is nothing and found)


def test_verify_finds_the_whole_chunk_of_another_tensor(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server answers that mixes up objects. Its checksum is right, so that a read returns it: only the
    digest, which `verify` computes, is of the tensor."""
    other: dict[str, bytes] = {}

    def stale(key: str, body: Body) -> Body:
        if not is_chunk(key):
            return body
        name = key.rpartition("/c/")[0].rpartition(".")[0] + str(len(body.content))
        return replace(body, content=other.setdefault(name, body.content))

    with lying(local, Lies(body=stale)) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        assert not verify(URL).ok
