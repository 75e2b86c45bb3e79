# SPDX-License-Identifier: Apache-2.0
"""A local S3 server in a process of its own: prints its port, and ends with standard input."""

from __future__ import annotations

import logging
import sys

from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
