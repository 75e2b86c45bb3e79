# SPDX-License-Identifier: Apache-2.0
"""What tests know of the bucket that they are given."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.objects.cutting_proxy import CuttingProxy

SECRET = "b5f0c1secretkeyofthetests"


@dataclass(frozen=True)
class Bucket:
    """`url` of a store that is not there yet, behind `proxy`."""

    url: str
    proxy: CuttingProxy
    server: int
    spools: Path
    cache: Path

    def post(self, path: str, method: str, content: bytes | None = None) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.server}/{path}",
            content,
            {"Content-Type": "text/plain"},
            method=method,
        )
        urllib.request.urlopen(request, timeout=60).close()
