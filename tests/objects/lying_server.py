# SPDX-License-Identifier: Apache-2.0
"""An S3 server of the files of a folder, which answers some requests wrongly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.objects.serving import QuietHandler, serving

BUCKET = "bucket"
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True)
class Body:
    """What is sent for an object. `length`: as the header states it, None for the true one. `tag` as listings
    and answers name the content; None for its digest."""

    content: bytes
    type: str = "application/octet-stream"
    length: int | None = None
    tag: str | None = None


def _as_is(key: str, body: Body) -> Body | None:
    return body


def _all(keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return keys


@dataclass
class Lies:
    """`body` gets the key and the true answer of a request for an object and returns the one that is sent,
    None for 404. `listed` gets and returns keys with their sizes."""

    body: Callable[[str, Body], Body | None] = _as_is
    listed: Callable[[list[tuple[str, int]]], list[tuple[str, int]]] = _all
    asked: list[str] = field(default_factory=list)


@contextmanager
def lying(folder: Path, lies: Lies) -> Iterator[int]:
    """The port of a server whose bucket holds the files below `folder`."""

    class Handler(QuietHandler):
        wbufsize = -1  # one packet for headers and body
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            key = unquote(asked.path).removeprefix(f"/{BUCKET}").lstrip("/")
            query = parse_qs(asked.query)
            lies.asked.append(key or f"list {query.get('prefix', [''])[0]}")
            if "list-type" in query:
                self._list(query.get("prefix", [""])[0], "delimiter" in query)
            else:
                self._object(key)

        def _object(self, key: str) -> None:
            file = folder / key
            body = lies.body(key, Body(file.read_bytes())) if file.is_file() else None
            if body is None:
                self._send(404, Body(b"<Error><Code>NoSuchKey</Code></Error>", "application/xml"))
                return
            wanted = self.headers.get("Range")
            if wanted is None:
                self._send(200, body)
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, len(body.content))
            part = replace(body, content=body.content[start:stop])
            self._send(206, part, f"bytes {start}-{max(stop, start + 1) - 1}/{len(body.content)}")

        def _list(self, prefix: str, by_folder: bool) -> None:
            found = sorted(
                (file.relative_to(folder).as_posix(), file.stat().st_size)
                for file in folder.rglob("*")
                if file.is_file()
            )
            found = lies.listed([(key, size) for key, size in found if key.startswith(prefix)])
            parts, folders = [], set()
            for key, size in found:
                below = key.removeprefix(prefix)
                if by_folder and "/" in below:
                    folders.add(prefix + below.partition("/")[0] + "/")
                    continue
                true = folder / key
                tag = _tag(true.read_bytes()) if true.is_file() else '"0"'
                parts.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>{escape(tag)}</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
            parts += [
                f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)
            ]
            text = (
                '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
                f"<Prefix>{escape(prefix)}</Prefix>{''.join(parts)}</ListBucketResult>"
            )
            self._send(200, Body(text.encode(), "application/xml"))

        def _send(self, status: int, body: Body, content_range: str | None = None) -> None:
            self.send_response(status)
            length = len(body.content) if body.length is None else body.length
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Type", body.type)
            self.send_header("Last-Modified", DATE)
            self.send_header("ETag", _tag(body.content) if body.tag is None else body.tag)
            if content_range is not None:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            self.wfile.write(body.content[:length])
            self.wfile.flush()
            if length > len(body.content):
                self.close_connection = True

    with serving(Handler) as port:
        yield port


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'
