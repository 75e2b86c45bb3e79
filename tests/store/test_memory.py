# SPDX-License-Identifier: Apache-2.0
"""Reading takes a small buffer, not the store's size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gdnbench.store.compression import Compression
from gdnbench.store.writer import StoreWriter
from tests.store.store_samples import record
from tests.subset import quick

MIB = 1 << 20
TENSOR = 320 * MIB

# Peak beyond what imports, and a first small read, have taken already.
READER = """
import resource, sys
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with Store.open(sys.argv[1]) as store:
    handle = store.records[0].before["t"]
    handle.read_rows(0, 1)
    start = peak()
    if sys.argv[2] == "rows":
        step = handle.meta.shape[0] // 20
        total = sum(int(handle.read_rows(i, i + step)[0, 0]) for i in range(0, 20 * step, step))
    else:
        assert verify(sys.argv[1]).ok
    print(peak() - start)
"""


@pytest.fixture(scope="module", params=quick([None, 1], 1, ids=["plain", "zstd"]))
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "s"
    tensor = torch.arange(TENSOR // 2, dtype=torch.int16).reshape(-1, 4096)
    with StoreWriter(path, kind="capture", compression=Compression(request.param), durable=False) as out:
        out.write("0", [record({"t": tensor})])
    return path


@pytest.mark.slow  # large stores
@pytest.mark.parametrize("way", ["rows", "verify"])
def test_memory_is_bounded(store: Path, way: str) -> None:
    command = [sys.executable, "-c", READER, str(store), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    # A block of 32 MiB may lie across two shards of 32 MiB, each of which zarr holds encoded and decoded, and
    # the last block may not be freed yet: 6 x 32 MiB. The tensor is 320 MiB.
    assert int(done.stdout) < 192 * MIB
