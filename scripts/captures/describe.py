"""Prints what captures hold, as Markdown: a table of the Gated DeltaNet ones (gate spans, beta, how alike the
keys of a chunk are) and one of the sliding-window ones (windows, scores, sinks, scales).

python scripts/captures/describe.py captures/*.zarr.zip
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from gdnbench.judge.calls import compact
from gdnbench.ops import operation
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.contract import flat_of, layout_of
from gdnbench_kernels.swa_decode.layouts import SCALE_BIAS, CacheLayout, ds_mla_parts, read_rows
from gdnbench_kernels.swa_decode.sizes import GROUPS
from gdnbench_kernels.swa_decode.window import attended

CHUNK = 64
GDN_HEADER = (
    "capture",
    "records",
    "tokens of each",
    "least g",
    "least sum of g in a chunk",
    "beta",
    "key cosine",
    "99 %",
)
SWA_HEADER = ("capture", "records", "attended of entries", "scores", "widest row", "sinks", "scales")


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


def gdn_row(path: Path, records: Sequence[StoredRecord]) -> tuple[object, ...]:
    lengths = sorted({flat(record, "k").shape[0] for record in records})
    gates = torch.cat([flat(record, "g").flatten() for record in records])
    betas = torch.cat([flat(record, "beta").float().flatten() for record in records])
    sums = [low for record in records for low in chunk_sums(flat(record, "g"), sequences(record))]
    cosines = torch.cat([key_cosines(flat(record, "k"), sequences(record)) for record in records])
    if cosines.numel() == 0:
        # Decode: the keys of successive steps stand for a chunk.
        keys = torch.cat([flat(record, "k") for record in records])
        cosines = key_cosines(keys, [0, len(keys)])
    return (
        f"`{path.name}`",
        len(records),
        ", ".join(map(str, lengths)),
        f"{gates.min():.3g}",
        f"{min(sums):.4g}",
        span(betas),
        f"{cosines.mean():.2f}",
        f"{cosines.quantile(0.99):.2f}",
    )


def span(values: torch.Tensor, prefix: str = "") -> str:
    return f"{prefix}{values.min():.3g} .. {prefix}{values.max():.3g}"


def window_scales(call: Call, slots: torch.Tensor) -> torch.Tensor | None:
    """The scales of the rows at `slots`: inv_scale, or the exponents of fp8_ds_mla; None of bfloat16."""
    cache = call.tensors["cache"]
    if "inv_scale" in call.tensors:
        return call.tensors["inv_scale"].float()[slots]
    if cache.dtype != torch.uint8:
        return None
    _, scales = ds_mla_parts(cache)
    return scales[slots // cache.shape[1], slots % cache.shape[1], :GROUPS].float() - SCALE_BIAS


def swa_row(path: Path, records: Sequence[StoredRecord]) -> tuple[object, ...]:
    windows, widths, scores, sinks, scales = [], [], [], [], []
    calls = [compact(record, operation("swa_decode"), torch.device("cpu")) for record in records]
    (layout,) = {layout_of(call) for call in calls}
    for call in calls:
        indices, lens = flat_of(call), call.tensors["swa_lens"]
        counts = attended(indices, lens)
        windows += [f"{row.sum()} of {length}" for row, length in zip(counts, lens, strict=True)]
        cache, inv_scale = call.tensors["cache"], call.tensors.get("inv_scale")
        for query, row, chosen in zip(call.tensors["q"], indices, counts, strict=True):
            keys = read_rows(cache, inv_scale, row[chosen], layout, torch.float64)
            of_heads = query.double() @ keys.mT * float(call.scalars["scale"])
            scores.append(of_heads.flatten())
            widths.append(of_heads.amax(1) - of_heads.amin(1))
        sinks.append(call.tensors["attn_sink"])
        found = window_scales(call, indices[counts].long())
        if found is not None:
            scales.append(found.flatten())
    prefix = "2^" if layout is CacheLayout.FP8_DS_MLA else ""
    return (
        f"`{path.name}`",
        len(records),
        ", ".join(windows),
        span(torch.cat(scores)),
        f"{torch.cat(widths).max():.3g}",
        span(torch.cat(sinks)),
        span(torch.cat(scales), prefix) if scales else "",
    )


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    tables: dict[tuple[str, ...], list[tuple[object, ...]]] = {}
    for path in map(Path, sys.argv[1:]):
        with Store.open(path) as store:
            records = list(store.records)
            header, row = (
                (SWA_HEADER, swa_row) if records[0].info.op == "swa_decode" else (GDN_HEADER, gdn_row)
            )
            tables.setdefault(header, []).append(row(path, records))
    for header, rows in tables.items():
        print(line(header), "|" + "---|" * len(header), *map(line, rows), "", sep="\n")


if __name__ == "__main__":
    main()
