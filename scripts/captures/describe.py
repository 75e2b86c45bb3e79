"""Prints what GDN captures hold, as Markdown: gate spans, beta and how alike the keys of a chunk are.

python scripts/captures/describe.py captures/*.zarr.zip
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch

from gdnbench.store.reader import Store, StoredRecord

CHUNK = 64
HEADER = (
    "| capture | records | tokens of each | least g | least sum of g in a chunk | beta | key cosine | 99 % |"
)


def key_cosines(k: torch.Tensor, bounds: list[int]) -> torch.Tensor:
    """Cosines of all pairs of different keys of one head within a chunk; `k` is [T, H, K]."""
    unit = torch.nn.functional.normalize(k.double(), dim=-1)
    found = []
    for start, stop in itertools.pairwise(bounds):
        for first in range(start, stop, CHUNK):
            chunk = unit[first : min(first + CHUNK, stop)].movedim(1, 0)
            rows, columns = torch.tril_indices(chunk.shape[1], chunk.shape[1], -1)
            found.append((chunk @ chunk.mT)[:, rows, columns].flatten())
    return torch.cat(found) if found else torch.empty(0)


def chunk_sums(g: torch.Tensor, bounds: list[int]) -> list[float]:
    """The least sum of g over each chunk, over heads; `g` is [T, Hv]."""
    pairs = itertools.pairwise(bounds)
    return [
        g[first : min(first + CHUNK, stop)].double().sum(0).min().item()
        for start, stop in pairs
        for first in range(start, stop, CHUNK)
    ]


def flat(record: StoredRecord, name: str) -> torch.Tensor:
    """A per-token tensor of a record as [tokens, ...]."""
    tensor = record.before[name].read()
    return tensor.flatten(0, 1) if record.info.op == "gdn_decode" else tensor


def sequences(record: StoredRecord) -> list[int]:
    """Where its sequences begin and end, in tokens."""
    if "cu_seqlens" in record.before:
        bounds: list[int] = record.before["cu_seqlens"].read().tolist()
        return bounds
    return list(range(record.before["k"].meta.shape[0] + 1))


def row(path: Path) -> str:
    with Store.open(path) as store:
        records = list(store.records)
        lengths = sorted({flat(record, "k").shape[0] for record in records})
        gates = torch.cat([flat(record, "g").flatten() for record in records])
        betas = torch.cat([flat(record, "beta").float().flatten() for record in records])
        sums = [low for record in records for low in chunk_sums(flat(record, "g"), sequences(record))]
        cosines = torch.cat([key_cosines(flat(record, "k"), sequences(record)) for record in records])
        if cosines.numel() == 0:
            # Decode: the keys of successive steps stand for a chunk.
            keys = torch.cat([flat(record, "k") for record in records])
            cosines = key_cosines(keys, [0, len(keys)])
    cells = (
        f"`{path.name}`",
        len(records),
        ", ".join(map(str, lengths)),
        f"{gates.min():.3g}",
        f"{min(sums):.4g}",
        f"{betas.min():.3g} .. {betas.max():.3g}",
        f"{cosines.mean():.2f}",
        f"{cosines.quantile(0.99):.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for name in sys.argv[1:]:
        print(row(Path(name)))
