# SPDX-License-Identifier: Apache-2.0
"""HTTP servers on this machine for tests: a handler that is quiet, and one way to start and stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing, and takes a client that does not wait for its answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Not on stderr."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # who asked did not wait
            self.close_connection = True


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], before_stop: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """The port of a server whose requests `handler` answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        before_stop()
        server.shutdown()
        thread.join()
        server.server_close()
