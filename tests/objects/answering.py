"""A server that answers every request alike, as an S3 does that refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    status: int
    code: str = ""  # of S3, in the document that says what is wrong
    hangs: bool = False  # no answer comes


@contextmanager
def answering(answer: Answer) -> Iterator[int]:
    """The port of a server on this machine."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

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

        def log_message(self, *_: object) -> None:
            """Not on stderr."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # who asked did not wait
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        done.set()
        server.shutdown()
        thread.join()
        server.server_close()
