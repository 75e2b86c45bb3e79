# SPDX-License-Identifier: Apache-2.0
"""The memory of a diff does not grow with the stores, nor with a tensor in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gdnbench.record import RecordDraft, RecordInfo, Status, TensorDraft, TensorMeta
from gdnbench.store.writer import StoreWriter

ROW_BYTES = 32 * 128 * 2  # Hv x V of bf16

MEASURE = """
import re, sys
from gdnbench.diff.compare import diff
from gdnbench.store.reader import Store
report = diff(Store.open(sys.argv[1]), Store.open(sys.argv[2]))
assert report.exit_code == 1, report.exit_code
assert len(report.records) == int(sys.argv[3])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def record(rows: int, seed: int, wrong: bool) -> RecordDraft:
    """One prefill's output of `rows` tokens; no two share elements, or the store would hold them once."""
    generator = torch.Generator().manual_seed(seed)
    o = torch.randint(-(2**15), 2**15, (rows, 32, 128), dtype=torch.int16, generator=generator)
    o &= 0x3FFF  # finite bf16 values below 2
    o[-1, 0, 0] += wrong
    info = RecordInfo("gdn_prefill", "test:test", "layer", 0, seed, seed, Status.COMPLETE, {}, {})
    offsets = torch.tensor([0, rows], dtype=torch.int32)
    return RecordDraft(
        info,
        {"cu_seqlens": described(offsets, ("N+1",))},
        {"o": described(o.view(torch.bfloat16), ("T", "Hv", "V"))},
    )


def described(tensor: torch.Tensor, axes: tuple[str, ...]) -> TensorDraft:
    name = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    return TensorDraft(tensor, TensorMeta(name, shape, axes, shape, tensor.stride(), 0, "cpu"))


def peak(folder: Path, records: int, megabytes: int) -> int:
    """Peak RSS in bytes of a diff of two stores of `records` outputs of `megabytes` each.

    From VmHWM: getrusage would also count what this process held before it forked.
    """
    rows = megabytes * 2**20 // ROW_BYTES
    paths = []
    for side in (0, 1):
        paths.append(str(folder / f"{records}x{megabytes}.{side}.zarr"))
        with StoreWriter(paths[-1], kind="capture", durable=False) as writer:
            for number in range(records):
                writer.write(f"{number:04d}", [record(rows, number, bool(side))], first=number)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths, str(records)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024


@pytest.mark.slow
def test_peak_memory_is_bounded(tmp_path: Path) -> None:
    small = peak(tmp_path, 2, 16)
    # Eight times the records, or one tensor sixteen times as large, on each side: 448 and 480 MiB more
    # to compare. What may differ between two runs is how many shards happen to be decoded at once: up to 4
    # (fewer on 2 cores) of 16 MiB, in two copies each, makes 128 MiB.
    assert peak(tmp_path, 16, 16) - small < 128 << 20
    assert peak(tmp_path, 1, 256) - small < 128 << 20
    assert small < 1 << 30
