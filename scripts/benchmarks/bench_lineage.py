#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of `gdnbench lineage` on an access log of consecutive decode steps.

    python scripts/benchmarks/bench_lineage.py [--steps 100000] [--layers 48] [--folder DIR]

Makes a log of one sequence that decodes: each call of each layer reads the state that the call before wrote,
and writes another. Every 500 steps another request begins, in another slot: one in ten with the state of a
prefix that an earlier request left, and one in ten resumes from a state of before the log. The check runs in
a process of its own. Target for the defaults: under 60 s and 2 GB on two cores.

Exit status: 0 the check is right about the log, 1 it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gdnbench.store.access_log import ROW, AccessKind
from gdnbench.store.access_pieces import Piece, draft_of_piece
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.writer import StoreWriter

TOKENS = 500  # of a request
STEPS_A_PIECE = 5000
SLOTS = 256


def rows_of(first: int, layers: int, rng: np.random.Generator, last: np.ndarray) -> np.ndarray:
    """The rows of STEPS_A_PIECE steps from `first`, by step, then layer, then read and write. `last` uint64
    [layers, 2]: what each layer wrote last, which is replaced."""
    rows = np.zeros((STEPS_A_PIECE, layers, 2), dtype=ROW)
    step = np.arange(first, first + STEPS_A_PIECE)
    request = step // TOKENS
    rows["step"] = step[:, None, None]
    rows["layer"] = np.arange(layers)[None, :, None]
    rows["call"] = rows["step"] * layers + rows["layer"]
    rows["kind"] = (AccessKind.READ, AccessKind.WRITE)
    rows["request"] = (request - first // TOKENS)[:, None, None]
    begins_late = request % 10 < 2  # at position TOKENS, not 0
    position = step % TOKENS + np.where(begins_late, TOKENS, 0)
    rows["position"] = position[:, None, None] + np.array([0, 1])
    rows["slot"] = (1 + request % SLOTS)[:, None, None]
    rows["accepted"], rows["tokens"] = -1, 1
    written = rng.integers(1, 1 << 63, size=(STEPS_A_PIECE, layers, 2), dtype=np.uint64)
    read = np.concatenate([last[None], written[:-1]])
    starts = step % TOKENS == 0
    read[starts & ~begins_late] = 0
    fresh = starts & (request % 10 == 1)
    read[fresh] = rng.integers(1, 1 << 63, size=(int(fresh.sum()), layers, 2), dtype=np.uint64)
    rows["digest"][:, :, 0], rows["digest"][:, :, 1] = read, written
    known = starts & (request % 10 == 0)
    rows["prefix"][known, :, 0] = 7
    # The request before left this state at the same position, under the same prefix.
    ends = (step % TOKENS == TOKENS - 1) & (request % 10 == 9)
    rows["prefix"][ends, :, 1] = 7
    last[:] = written[-1]
    return rows.reshape(-1)


def write_log(path: Path, steps: int, layers: int) -> None:
    rng = np.random.default_rng(0)
    last = np.zeros((layers, 2), dtype=np.uint64)
    chain = {
        "name": "state",
        "pooled": True,
        "dtype": "bfloat16",
        "axes": ["Hv", "V", "K"],
        "shape": [32, 128, 128],
    }
    writer = StoreWriter(path, kind="capture", compression=Compression(1), chunking=Chunking(), durable=False)
    with writer:
        for number, first in enumerate(range(0, steps, STEPS_A_PIECE)):
            rows = rows_of(first, layers, rng, last)
            requests = [f"request-{first // TOKENS + one}" for one in range(STEPS_A_PIECE // TOKENS)]
            names = [f"model.layers.{layer}.linear_attn" for layer in range(layers)]
            piece = Piece(rows, names, [chain], requests, sample=1, whole=False)
            writer.write(str(number), [draft_of_piece(piece, first * layers * 2, number)])


CHECK = """
import json, resource, sys, time
start = time.perf_counter()
from gdnbench.lineage.check import check_stores
from gdnbench.store.recover import open_store
with open_store(sys.argv[1]) as store:
    report = check_stores([store])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({
    "seconds": time.perf_counter() - start, "cpu": time.process_time(), "peak": peak,
    "reads": report.total("reads"), "right": report.total("right"), "breaks": report.breaks,
    "unknown": report.unknown.total(),
}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="a multiple of 5000; default 100000")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--folder", type=Path, help="where the log is made; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "log.zarr"
        start = time.perf_counter()
        write_log(path, arguments.steps, arguments.layers)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(
            f"made {size / 1e6:.0f} MB in {time.perf_counter() - start:.1f} s; load {os.getloadavg()[0]:.1f}"
        )
        command = [sys.executable, "-c", CHECK, str(path)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    calls = arguments.steps * arguments.layers
    print(
        f"{calls} calls: {found['seconds']:.1f} s, processors {found['cpu']:.1f} s,"
        f" {found['peak'] / 1e9:.2f} GB; {found['right']} right, {found['breaks']} breaks,"
        f" {found['unknown']} unknown"
    )
    late = len(range(1, arguments.steps // TOKENS, 10)) * arguments.layers
    right = found["breaks"] == 0 and found["right"] + found["unknown"] == calls
    return 0 if right and found["unknown"] >= late else 1


if __name__ == "__main__":
    sys.exit(main())
