# SPDX-License-Identifier: Apache-2.0
"""A local S3 server, a bucket of each test's own, and a proxy in between that drops connections."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.objects.cutting_proxy import CuttingProxy
from tests.objects.s3_bucket import SECRET, Bucket


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """The port of an S3 server."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("s3_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield int(process.stdout.readline())
        process.stdin.close()


@pytest.fixture
def bucket(
    server: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    proxy = CuttingProxy(server)
    for variable in [name for name in os.environ if name.startswith(("AWS_", "GDNBENCH_"))]:
        monkeypatch.delenv(variable)
    variables = {
        "AWS_ACCESS_KEY_ID": "AKIATESTS",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
        "GDNBENCH_SPOOL": str(tmp_path / "spools"),
        "GDNBENCH_CACHE_DIR": str(tmp_path / "cache"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    name = f"bucket{zlib.crc32(request.node.nodeid.encode())}"
    made = Bucket(f"s3://{name}/run.zarr", proxy, server, tmp_path / "spools", tmp_path / "cache")
    made.post(name, "PUT")
    yield made
    proxy.close()
