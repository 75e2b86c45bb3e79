# SPDX-License-Identifier: Apache-2.0
"""A TCP relay in front of a server, which drops connections when it is told to and counts requests."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from typing import Literal

Direction = Literal["up", "down"]
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset, as of a peer that is gone


class CuttingProxy:
    """Relays connections to `port` of this machine. `up` is what clients send, `down` what they get."""

    def __init__(self, port: int) -> None:
        self.drops = 0
        self.requests = 0
        self.down_bytes = 0
        self.refuses = False  # every connection is dropped at its next bytes
        self._behind = port
        self._lock = threading.Lock()
        self._left: dict[Direction, int] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._ends: list[socket.socket] = []  # of all connections, also ended ones
        self._closing = False
        self._threads[0].start()

    def cut(self, direction: Direction, after: int) -> None:
        """Drop the connection over which, from now on, the `after`-th byte goes in this direction."""
        with self._lock:
            self._left[direction] = after

    def close(self) -> None:
        """Ends all connections, also one whose peer does not read what is sent to it."""
        self._closing = True
        self._threads[0].join()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with self._listener:
            self._listener.settimeout(0.05)  # a client that gives up before it is accepted blocks nothing
            while not self._closing:
                try:
                    client, _ = self._listener.accept()
                except TimeoutError:
                    continue
                client.setblocking(True)
                self._threads.append(threading.Thread(target=self._relay, args=(client,), daemon=True))
                self._threads[-1].start()

    def _relay(self, client: socket.socket) -> None:
        """All of one connection, until one side ends it or it is to be dropped."""
        with client, socket.create_connection(("127.0.0.1", self._behind)) as server:
            self._ends += (client, server)
            ways: dict[socket.socket, tuple[socket.socket, Direction]] = {
                client: (server, "up"),
                server: (client, "down"),
            }
            with contextlib.suppress(OSError):
                while not self._closing:
                    for source in select.select(list(ways), [], [], 0.05)[0]:
                        sink, direction = ways[source]
                        content = source.recv(65536)
                        passed = self._passed(content, direction)
                        sink.sendall(passed)
                        if len(passed) < len(content):
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                            return
                        if not content:
                            return

    def _passed(self, content: bytes, direction: Direction) -> bytes:
        """What of `content` may go on; less than all of it ends the connection."""
        with self._lock:
            if direction == "up":
                self.requests += content.count(b" HTTP/1.1\r\n")
            else:
                self.down_bytes += len(content)
            if self.refuses:
                self.drops += bool(content)
                return content[: len(content) // 2]
            if direction not in self._left:
                return content
            self._left[direction] -= len(content)
            if self._left[direction] > 0:
                return content
            self.drops += 1
            kept = self._left.pop(direction) - 1 + len(content)
            return content[: max(0, kept)]
