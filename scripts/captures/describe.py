"""Prints what captures hold, as Markdown: a table of the Gated DeltaNet ones (gate spans, beta, how alike the
keys of a chunk are) and one of the sliding-window ones (windows, scores, sinks, scales).

python scripts/captures/describe.py captures/*.zarr.zip
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from gdnbench.judge.calls import compact_call
from gdnbench.ops import operation
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_ranges import KeyCosines
from gdnbench_kernels.swa_decode.contract import flat_of, layout_of
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.window import attended

Found = Mapping[str, Mapping[str, float]]
"""Ranges of a call by name."""

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


def gdn_row(path: Path, calls: Sequence[Call], ranges: Sequence[Found]) -> tuple[object, ...]:
    keys = [call.tensors["k"].flatten(0, -3) for call in calls]  # [T, H, K]; of decode [B, S, H, K]
    cosines = KeyCosines()
    if any("key_cosine" in found for found in ranges):
        for call, k in zip(calls, keys, strict=True):
            cosines.add(k, call.tensors["cu_seqlens"].tolist())
    else:
        # Decode: the keys of successive steps stand for a chunk.
        cosines.add(torch.cat(keys), [0, sum(map(len, keys))])
    sums = [found.get("g_chunk", found["g"])["min"] for found in ranges]
    return (
        f"`{path.name}`",
        len(calls),
        ", ".join(map(str, sorted({len(k) for k in keys}))),
        f"{min(found['g']['min'] for found in ranges):.3g}",
        f"{min(sums):.4g}",
        span("beta", ranges),
        f"{cosines.mean:.2f}",
        f"{cosines.quantile(0.99):.2f}",
    )


def span(name: str, ranges: Sequence[Found], prefix: str = "") -> str:
    there = [found[name] for found in ranges if name in found]
    if not there:
        return ""
    least, most = min(one["min"] for one in there), max(one["max"] for one in there)
    return f"{prefix}{least:.3g} .. {prefix}{most:.3g}"


def swa_row(path: Path, calls: Sequence[Call], ranges: Sequence[Found]) -> tuple[object, ...]:
    windows = []
    for call in calls:
        lens = call.tensors["swa_lens"]
        counts = attended(flat_of(call), lens)
        windows += [f"{row.sum()} of {length}" for row, length in zip(counts, lens, strict=True)]
    (layout,) = {layout_of(call) for call in calls}
    return (
        f"`{path.name}`",
        len(calls),
        ", ".join(windows),
        span("scores", ranges),
        f"{max(found['score_span']['max'] for found in ranges):.3g}",
        span("sinks", ranges),
        span("scales", ranges, "2^" if layout is CacheLayout.FP8_DS_MLA else ""),
    )


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    tables: dict[tuple[str, ...], list[tuple[object, ...]]] = {}
    for path in map(Path, sys.argv[1:]):
        with Store.open(path) as store:
            records = list(store.records)
            op = operation(records[0].info.op)
            assert op.ranges is not None
            calls = [compact_call(record, op, torch.device("cpu")) for record in records]
        ranges = [{one.name: one.values for one in op.ranges(call)} for call in calls]
        header, row = (SWA_HEADER, swa_row) if op.name == "swa_decode" else (GDN_HEADER, gdn_row)
        tables.setdefault(header, []).append(row(path, calls, ranges))
    for header, rows in tables.items():
        print(line(header), "|" + "---|" * len(header), *map(line, rows), "", sep="\n")


if __name__ == "__main__":
    main()
