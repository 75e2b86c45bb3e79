#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Store against raw files, torch.save and safetensors, side by side; and the cost of 10,000 decode records.

    python scripts/benchmarks/bench_store.py [--gib 1] [--repeats 3] [--records 10000] [--folder DIR]

Every way is timed once per repeat, in turn and beginning with another each time, so that a machine that
slows down slows them all. Printed are medians; "of raw" is the median of the ratios within each repeat.
Writes end when the bytes are on the device (fsync). Reads come twice, after one that is not timed: from the
page cache, and after posix_fadvise has dropped the pages. Targets: write 0.7 of raw + fsync without
compression; read 0.7 of raw unsharded, 0.35 sharded; 10,000 records listed in under 2 s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from gdnbench.bits import meta_of
from gdnbench.record import RecordDraft, RecordInfo, Status, TensorDraft
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.durable import sync
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter

TENSORS = 4  # a prefill's q, k, v and o, say: large, but not one block


@dataclass(slots=True)
class Way:
    """One way to keep tensors: how it writes and reads a path, and the seconds that each took."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], list[torch.Tensor]]
    writes: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)


def make_tensors(nbytes: int) -> dict[str, torch.Tensor]:
    """Random bf16 tensors `[T, 32, 128]`; incompressible, as activations nearly are."""
    generator = torch.Generator().manual_seed(0)
    tokens = nbytes // TENSORS // (32 * 128 * 2)
    return {
        f"t{i}": torch.randn(tokens, 32, 128, generator=generator, dtype=torch.float32).bfloat16()
        for i in range(TENSORS)
    }


def draft(
    tensors: dict[str, torch.Tensor], call: int = 0, after: dict[str, torch.Tensor] | None = None
) -> RecordDraft:
    """A record that holds `tensors`."""
    info = RecordInfo("gdn_prefill", "bench:call", "layer", 0, call, call, Status.COMPLETE, {}, {})
    return RecordDraft(info, _drafts(tensors), _drafts(after or {}))


def _drafts(tensors: dict[str, torch.Tensor]) -> dict[str, TensorDraft]:
    return {
        name: TensorDraft(tensor, meta_of(tensor, [f"d{i}" for i in range(tensor.dim())]))
        for name, tensor in tensors.items()
    }


def raw_way(tensors: dict[str, torch.Tensor]) -> Way:
    """One file of nothing but the bytes."""

    def write(path: Path) -> None:
        path.mkdir()
        with open(path / "raw", "wb", buffering=0) as file:
            for tensor in tensors.values():
                left = tensor.view(torch.uint8).numpy().reshape(-1).data
                while left:
                    left = left[file.write(left) :]
            os.fsync(file.fileno())

    def read(path: Path) -> list[torch.Tensor]:
        found = []
        with open(path / "raw", "rb", buffering=0) as file:
            for tensor in tensors.values():
                buffer = np.empty(tensor.nbytes, np.uint8)
                left = buffer.data
                while left:
                    left = left[file.readinto(left) :]
                found.append(torch.from_numpy(buffer).view(torch.bfloat16).reshape(tensor.shape))
        return found

    return Way("raw + fsync", write, read)


def file_ways(tensors: dict[str, torch.Tensor]) -> list[Way]:
    """torch.save and safetensors, each followed by fsync."""

    def write_torch(path: Path) -> None:
        path.mkdir()
        torch.save(tensors, path / "t.pt")
        sync(path / "t.pt")

    def read_torch(path: Path) -> list[torch.Tensor]:
        return list(torch.load(path / "t.pt", weights_only=True).values())

    def write_safetensors(path: Path) -> None:
        path.mkdir()
        safetensors.torch.save_file(tensors, path / "t.safetensors")
        sync(path / "t.safetensors")

    def read_safetensors(path: Path) -> list[torch.Tensor]:
        # Its tensors are mapped, not read: cloned, so that every way ends with the elements in memory.
        return [tensor.clone() for tensor in safetensors.torch.load_file(path / "t.safetensors").values()]

    return [
        Way("torch.save", write_torch, read_torch),
        Way("safetensors", write_safetensors, read_safetensors),
    ]


def store_way(name: str, tensors: dict[str, torch.Tensor], level: int | None, chunking: Chunking) -> Way:
    """Our store, durable."""

    def write(path: Path) -> None:
        with StoreWriter(path, kind="capture", compression=Compression(level), chunking=chunking) as writer:
            writer.write("0", [draft(tensors)])

    def read(path: Path) -> list[torch.Tensor]:
        with Store.open(path) as store:
            return [handle.read() for handle in store.records[0].before.values()]

    return Way(name, write, read)


def drop_pages(path: Path) -> None:
    """Have the next read of the files under `path` come from the device."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(ways: list[Way], tensors: dict[str, torch.Tensor], repeats: int, folder: Path) -> None:
    """Time every way `repeats` times in turn, and check that it gave the bits back."""
    for repeat in range(repeats):
        first = repeat % len(ways)
        for way in ways[first:] + ways[:first]:
            path = folder / "bench"
            way.writes.append(timed(partial(way.write, path)))
            # Not timed: it also brings in the memory that all reads land in, which a virtual machine may
            # lack.
            for found, tensor in zip(way.read(path), tensors.values(), strict=True):
                if not torch.equal(found.view(torch.int16), tensor.view(torch.int16)):
                    sys.exit(f"{way.name}: the bits that were read are not those written")
            del found
            way.warm.append(timed(partial(way.read, path)))
            drop_pages(path)
            way.cold.append(timed(partial(way.read, path)))
            shutil.rmtree(path)
            print(f"\rrepeat {repeat + 1} of {repeats}: {way.name:32}", end="", file=sys.stderr)
    print(file=sys.stderr)


def print_table(ways: list[Way], nbytes: int) -> None:
    """Medians in GB/s, and of the ratios to the first way."""
    print(
        f"{'':28}{'write GB/s':>12}{'of raw':>8}{'read warm':>12}{'of raw':>8}{'read cold':>12}{'of raw':>8}"
    )
    base = ways[0]
    for way in ways:
        cells = ""
        for mine, raw in ((way.writes, base.writes), (way.warm, base.warm), (way.cold, base.cold)):
            of_raw = statistics.median(a / b for a, b in zip(raw, mine, strict=True))
            cells += f"{nbytes / statistics.median(mine) / 1e9:12.2f}{of_raw:8.2f}"
        print(f"{way.name:28}{cells}")


def bench_decode(records: int, folder: Path) -> None:
    """Write, open and list decode records of a small model: 2 key and 4 value heads, state 64 KiB a head."""
    generator = torch.Generator().manual_seed(0)
    path = folder / "decode"
    seconds = 0.0
    states = {layer: torch.randn(1, 4, 128, 128, generator=generator) for layer in range(4)}
    with StoreWriter(path, kind="capture") as writer:
        for first in range(0, records, 256):
            batch = []
            for call in range(first, min(records, first + 256)):
                small = {
                    "q": torch.randn(1, 2, 128, generator=generator).bfloat16(),
                    "k": torch.randn(1, 2, 128, generator=generator).bfloat16(),
                    "v": torch.randn(1, 4, 128, generator=generator).bfloat16(),
                    "g": torch.randn(1, 4, generator=generator),
                    "beta": torch.rand(1, 4, generator=generator),
                }
                before, after = states[call % 4], states[call % 4] * 0.99
                states[call % 4] = after
                batch.append(draft({**small, "state": before}, call, {"o": small["v"] * 2, "state": after}))
            seconds += timed(partial(writer.write, f"{first:010d}", batch, first))

    def list_all() -> None:
        with Store.open(path) as store:
            listed = [
                (record.key, record.info.layer, [handle.meta.shape for handle in record.before.values()])
                for record in store.records
            ]
            if len(listed) != records:
                sys.exit(f"{len(listed)} records are listed, not {records}")

    seconds_to_list = statistics.median(timed(list_all) for _ in range(5))
    files = [file for file in path.rglob("*") if file.is_file()]
    nbytes = sum(file.stat().st_size for file in files)
    print(
        f"\n{records} decode records with a {4 * 64} KiB state: {nbytes / 1e9:.2f} GB in {len(files)} files"
    )
    print(f"write {seconds:.2f} s ({seconds / records * 1e3:.2f} ms a record), list {seconds_to_list:.2f} s")
    shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the tensors in all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--records", type=int, default=10_000, help="decode records; 0 leaves that part out")
    parser.add_argument("--folder", type=Path, help="where to write; default the system's temporary folder")
    args = parser.parse_args()
    tensors = make_tensors(int(args.gib * (1 << 30)))
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        ways = [
            raw_way(tensors),
            *file_ways(tensors),
            store_way("store", tensors, None, Chunking()),
            store_way("store, unsharded", tensors, None, Chunking(chunk=16 << 20, shard=None)),
            store_way("store, zstd 1", tensors, 1, Chunking()),
        ]
        print(f"{TENSORS} bf16 tensors, {nbytes / 1e9:.2f} GB; {args.repeats} repeats; {os.cpu_count()} CPUs")
        measure(ways, tensors, args.repeats, folder)
        print_table(ways, nbytes)
        if args.records:
            bench_decode(args.records, folder)


if __name__ == "__main__":
    main()
