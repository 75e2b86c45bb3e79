# SPDX-License-Identifier: Apache-2.0
"""Prints what captures hold, as Markdown: a table of the Gated DeltaNet ones (gate spans, beta, how alike the
keys of a chunk are), one of their heads (how long each remembers), one of the Kimi Delta Attention ones (how
far apart the gates of a head's channels are), one of the sliding-window ones (windows, scores, sinks,
scales), and two of DeepSeek-V4's (what its heads attend to; the ranges of its compressor and indexer).

python scripts/captures/describe.py captures/*.zarr.zip
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from gdnbench.judge.calls import compact_call
from gdnbench.ops import operation
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn import log_decay
from gdnbench_kernels.gdn_decode.contract import slots_of
from gdnbench_kernels.gdn_ranges import KeyCosines
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.swa_decode.contract import flat_of, layout_of
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.window import attended
from gdnbench_kernels.v4_decode.segments import segments_of

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
HEAD_HEADER = (
    "capture",
    "head",
    "half-life by the mean of g",
    "by its median",
    "left of a state after the longest sequence",
    "beta, 10 % .. median .. 90 %",
    "key cosine",
    "99 %",
)
KDA_HEADER = (
    "capture, record",
    "gate",
    "tokens",
    "head",
    "least g",
    "least sum of g in 16 tokens",
    "g, 1 % .. median .. 99 %",
    "half-life of channels, 10 % .. median .. 90 %",
    "beta",
)
SWA_HEADER = (
    "capture",
    "records",
    "page size",
    "attended of entries",
    "scores",
    "widest row",
    "sinks",
    "scales",
)

V4_HEADER = (
    "capture, record",
    "rows attended to, window + entries",
    "scores",
    "scales of rows",
    "of entries",
    "weight of the entries in a head",
    "of the sinks",
)
RANGES_HEADER = ("capture, record", "ranges")


def gdn_row(path: Path, calls: Sequence[Call], ranges: Sequence[Found]) -> tuple[object, ...]:
    cosines = key_cosines(calls)
    sums = [found.get("g_chunk", found["g"])["min"] for found in ranges]
    return (
        f"`{path.name}`",
        len(calls),
        ", ".join(map(str, sorted({len(per_token(call, "k")) for call in calls}))),
        f"{min(found['g']['min'] for found in ranges):.3g}",
        f"{min(sums):.4g}",
        span("beta", ranges),
        f"{cosines.mean:.2f}",
        f"{cosines.quantile(0.99):.2f}",
    )


def head_rows(path: Path, calls: Sequence[Call]) -> list[tuple[object, ...]]:
    """A row for each value head. A half-life is in tokens: ln 2 divided by the mean or median of -g."""
    gates = torch.cat([log_gates(call) for call in calls])
    beta = torch.cat([per_token(call, "beta").float() for call in calls])
    group = gates.shape[1] // calls[0].tensors["k"].shape[-2]
    sums = torch.stack([log_gates(call)[tokens].sum(0) for call in calls for tokens in longest(call)])
    rows: list[tuple[object, ...]] = []
    for head in range(gates.shape[1]):
        g = -gates[:, head]
        cosines = key_cosines(calls, head // group)
        rows.append(
            (
                f"`{path.name}`",
                head,
                f"{math.log(2) / float(g.mean()):.3g}",
                f"{math.log(2) / float(g.median()):.3g}",
                f"{math.exp(float(sums[:, head].max())):.2g}",
                " .. ".join(f"{float(beta[:, head].quantile(share)):.2f}" for share in (0.1, 0.5, 0.9)),
                f"{cosines.mean:.2f}",
                f"{cosines.quantile(0.99):.2f}",
            )
        )
    return rows


def kda_rows(path: Path, calls: Sequence[Call]) -> list[tuple[object, ...]]:
    """A row for each head of each record. A channel's half-life is in tokens: ln 2 over its mean of -g."""
    rows: list[tuple[object, ...]] = []
    for number, call in enumerate(calls):
        gates = gates_of_call(call)
        decays = gates.log_decay(per_token(call, "g"), torch.float64)
        beta = gates.step_size(per_token(call, "beta"), torch.float64)
        for head, g in enumerate(decays.unbind(1)):
            sums = [
                part.sum(0).min()
                for start, stop in itertools.pairwise(bounds_of(call))
                for part in g[start:stop].split(16)
            ]
            lives = math.log(2) / -g.mean(0)
            rows.append(
                (
                    f"`{path.name}` {number}",
                    call.conventions["gate"],
                    len(g),
                    head,
                    f"{float(g.min()):.3g}",
                    f"{float(min(sums)):.4g}",
                    quantiles(g, (0.01, 0.5, 0.99)),
                    quantiles(lives, (0.1, 0.5, 0.9)),
                    f"{float(beta[:, head].min()):.2f} .. {float(beta[:, head].max()):.2f}",
                )
            )
    return rows


def quantiles(values: torch.Tensor, shares: tuple[float, ...]) -> str:
    return " .. ".join(f"{float(values.flatten().quantile(share)):.3g}" for share in shares)


def key_cosines(calls: Sequence[Call], head: int | None = None) -> KeyCosines:
    """Cosines of pairs of keys of a chunk, of one key head or of all."""
    heads = slice(None) if head is None else slice(head, head + 1)
    keys = [per_token(call, "k")[:, heads] for call in calls]
    cosines = KeyCosines()
    for call, k in zip(calls, keys, strict=True):
        cosines.add(k, bounds_of(call))
    if not cosines.count:
        # Decode: the keys of successive steps stand for a chunk.
        cosines.add(torch.cat(keys), [0, sum(map(len, keys))])
    return cosines


def per_token(call: Call, name: str) -> torch.Tensor:
    """A tensor of a call with all tokens of active sequences on axis 0."""
    tensor = call.tensors[name]
    return tensor[slots_of(call).active].flatten(0, 1) if "state_indices" in call.tensors else tensor


def log_gates(call: Call) -> torch.Tensor:
    return log_decay(per_token(call, "g"), call.conventions.get("gate", "log"), torch.float64)


def bounds_of(call: Call) -> list[int]:
    """The bounds of the sequences among the tokens of a call."""
    if "cu_seqlens" in call.tensors:
        return list(call.tensors["cu_seqlens"].tolist())
    length = call.tensors["k"].shape[1]
    return list(range(0, len(per_token(call, "k")) + 1, length))


def longest(call: Call) -> list[slice]:
    """The sequences of a call that are as long as its longest."""
    pairs = list(itertools.pairwise(bounds_of(call)))
    most = max(stop - start for start, stop in pairs)
    return [slice(start, stop) for start, stop in pairs if stop - start == most]


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
    layouts = [layout_of(call) for call in calls]
    scales = []
    for layout in dict.fromkeys(layouts):
        there = [found for found, one in zip(ranges, layouts, strict=True) if one is layout]
        scales.append(span("scales", there, "2^" if layout is CacheLayout.FP8_DS_MLA else ""))
    return (
        f"`{path.name}`",
        len(calls),
        ", ".join(map(str, dict.fromkeys(call.tensors["cache"].shape[1] for call in calls))),
        ", ".join(windows),
        span("scores", ranges),
        f"{max(found['score_span']['max'] for found in ranges):.3g}",
        span("sinks", ranges),
        ", ".join(scales),
    )


def v4_row(name: str, call: Call, found: Found) -> tuple[object, ...]:
    """Rows are counted of each query of each request. Weights are those of one softmax over window, entries
    and sink, least and largest of all queries that attend to anything, and heads."""
    segments = segments_of(call.tensors, call.conventions)
    rows = zip(*(one.counts.sum(1).tolist() for one in segments), strict=True)
    entries, sinks = [], []
    for row, query in enumerate(call.tensors["q"].flatten(0, 1).double()):
        parts = [
            one.read(one.slots[row], one.counts[row], torch.float64)[one.counts[row]] for one in segments
        ]
        if not sum(map(len, parts)):
            continue
        scores = query @ torch.cat(parts).T * float(call.scalars["scale"])
        weights = torch.cat([scores, call.tensors["attn_sink"].double().unsqueeze(1)], dim=1).softmax(1)
        entries.append(weights[:, len(parts[0]) : -1].sum(1))
        sinks.append(weights[:, -1])
    shares = [f"{float(x.min()):.2g} .. {float(x.max()):.2g}" for x in map(torch.cat, (entries, sinks))]
    if len(segments) == 1:
        shares[0] = ""
    return (
        name,
        ", ".join(" + ".join(map(str, counts)) for counts in rows),
        span("scores", [found]),
        span("scales", [found], "2^"),
        span("extra_scales", [found], "2^"),
        *shares,
    )


def ranges_row(name: str, found: Found) -> tuple[object, ...]:
    spans = (
        f"{what} {ends['min']:.3g} .. {ends['max']:.3g}" for what, ends in found.items() if "min" in ends
    )
    return (name, "; ".join(spans))


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
        if op.name == "swa_decode":
            tables.setdefault(SWA_HEADER, []).append(swa_row(path, calls, ranges))
        elif op.name.startswith("kda_"):
            tables.setdefault(KDA_HEADER, []).extend(kda_rows(path, calls))
        elif path.name.startswith("v4_"):
            for number, (call, found) in enumerate(zip(calls, ranges, strict=True)):
                name = f"`{path.name}` {number}"
                if op.name == "v4_decode":
                    tables.setdefault(V4_HEADER, []).append(v4_row(name, call, found))
                else:
                    tables.setdefault(RANGES_HEADER, []).append(ranges_row(name, found))
        else:
            tables.setdefault(GDN_HEADER, []).append(gdn_row(path, calls, ranges))
            tables.setdefault(HEAD_HEADER, []).extend(head_rows(path, calls))
    for header, rows in tables.items():
        print(line(header), "|" + "---|" * len(header), *map(line, rows), "", sep="\n")


if __name__ == "__main__":
    main()
