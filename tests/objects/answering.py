# SPDX-License-Identifier: Apache-2.0
"""A server that answers every request alike, as an S3 does that refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.objects.serving import QuietHandler, serving


@dataclass(frozen=True)
class Answer:
    status: int
    code: str = ""  # of S3, in the document that says what is wrong
    hangs: bool = False  # no answer comes


@contextmanager
def answering(answer: Answer) -> Iterator[int]:
    """The port of a server on this machine."""
    done = threading.Event()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if answer.hangs:
                done.wait()
            said = f"<Error><Code>{answer.code}</Code><Message>for your eyes</Message></Error>"
            content = f'<?xml version="1.0"?>{said}'.encode() if answer.code else b""
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_GET

    with serving(Handler, done.set) as port:
        yield port
