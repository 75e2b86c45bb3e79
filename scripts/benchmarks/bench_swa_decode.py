#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""How fast a kernel of swa_decode is on this machine's GPU, cold, against bytes and against compiled torch.

    python scripts/benchmarks/bench_swa_decode.py [--kernel portable] [--batches 1 64 256] [--heads 64 128]
        [--layouts per_token_scale fp8_ds_mla] [--baseline 1 64 256] [--autotune] [--json FILE]
        [--option NAME=VALUE ...] ...
    python scripts/benchmarks/bench_swa_decode.py --kernel wgmma --option rows=32 workers=66
        --option rows=64 prefetch=0

Every launch of a timed round has queries, pages and outputs of its own, together more than `ROTATED`
bytes, so that none finds its bytes in the L2 cache. A round is one CUDA graph; a time is a round's over its
launches, the median of `--rounds` rounds after two that are not counted. `warm` repeats one launch's buffers
instead and is the control: where a launch's bytes fit in L2 it has to be faster. `plain` is without a graph,
host included.

`floor` is the larger of LEAST and the bytes a call must move (queries, outputs, rows and their scales,
window) over BANDWIDTH; `/floor` may be up to LIMITS[heads]. `copy` is what torch's device-to-device copy
reaches here. The baseline, `sdpa`, is torch.compile, static shapes, of gather + dequantise +
scaled_dot_product_attention; `matmul` is the same with matmul, softmax, matmul. They are spared the sink.

Each `--option` is one choice of whole numbers that the kernel is called with: a shape is timed with each of
them in turn, on the same buffers.

A few requests of every timed shape are held against the fp64 oracle; `error` is their error over that of
torch's bf16 SDPA on the same rows. Exit status: 0 all within their limits, 1 some not, 3 no CUDA GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gdnbench_kernels.swa_decode.contract import KERNELS
from gdnbench_kernels.swa_decode.layouts import (
    DATA_BYTES,
    SCALE_BYTES,
    SERVED,
    CacheLayout,
    ds_mla_parts,
    pack_ds_mla,
    pack_per_token_scale,
)
from gdnbench_kernels.swa_decode.reference import reference
from gdnbench_kernels.swa_decode.sizes import GROUP, GROUPS, HEAD_DIM, MAX_WINDOW, NOPE_DIM
from gdnbench_kernels.swa_decode.torch_paged import torch_paged

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
BANDWIDTH = 4.28e12
"""Bytes a second that a copy on an H200 moves, counted both ways."""
LEAST = 4e-6
LIMITS = {64: 1.5, 128: 2.0}
"""Times the floor."""
SPEEDUP = 5.0
ERROR = 2.0
ROTATED = 192 << 20
"""More than three times the 50 or 60 MB of L2."""
BLOCK_SIZE = 64
PAGES = 3
"""A window of 128 tokens that begins anywhere in a page of 64 lies in three."""
LAUNCHES = 32
"""Of a round, at least."""
SCALE = HEAD_DIM**-0.5

Launch = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Shape:
    layout: CacheLayout
    heads: int
    batch: int

    @property
    def bytes(self) -> int:
        """What a call has to move at least."""
        row = DATA_BYTES + SCALE_BYTES if self.layout is CacheLayout.FP8_DS_MLA else HEAD_DIM + 4
        window = MAX_WINDOW * (row + 4) + 4
        return self.batch * (window + 2 * self.heads * HEAD_DIM * 2)

    @property
    def floor(self) -> float:
        return max(self.bytes / BANDWIDTH, LEAST)

    @property
    def sets(self) -> int:
        """Buffer sets that calls take in turn."""
        return max(4, -(-ROTATED // self.bytes))


@dataclass(frozen=True, slots=True)
class Cache:
    """One pool of pages for all calls of a layout."""

    layout: CacheLayout
    pages: Tensor
    inv_scale: Tensor | None

    @staticmethod
    def made(layout: CacheLayout, blocks: int) -> Cache:
        """Normal rows, packed a thousand pages at a time."""
        parts, scales = [], []
        for first in range(0, blocks, 1024):
            size = (min(1024, blocks - first), BLOCK_SIZE, HEAD_DIM)
            rows = torch.randn(size, device="cuda").to(torch.bfloat16)
            if layout is CacheLayout.FP8_DS_MLA:
                # As strided pages: a concatenation of the views would lose the padding between them.
                packed = pack_ds_mla(rows)
                parts.append(packed.as_strided((len(packed), packed.stride(0)), (packed.stride(0), 1)))
            else:
                codes, scale = pack_per_token_scale(rows)
                parts.append(codes)
                scales.append(scale)
        pages = torch.cat(parts)
        if layout is CacheLayout.FP8_DS_MLA:
            row = DATA_BYTES + SCALE_BYTES
            pages = pages.as_strided((blocks, BLOCK_SIZE, row), (pages.stride(0), row, 1))
        return Cache(layout, pages, torch.cat(scales) if scales else None)

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """(codes, uint8, with what lies in their rows; scales)."""
        if self.inv_scale is None:
            return ds_mla_parts(self.pages)
        return self.pages.view(torch.uint8), self.inv_scale

    @property
    def tensors(self) -> dict[str, Any]:
        return {"cache": self.pages, "inv_scale": self.inv_scale}


@dataclass(frozen=True, slots=True)
class Buffers:
    """What one call is given for itself."""

    q: Tensor
    indices: Tensor
    lens: Tensor
    o: Tensor


def buffers(shape: Shape, cache: Cache) -> list[Buffers]:
    """`shape.sets` of them; no two requests of any share a page."""
    sets, batch = shape.sets, shape.batch
    pages = torch.randperm(len(cache.pages), device="cuda")[: sets * batch * PAGES].view(sets, batch, PAGES)
    assert pages.numel() == sets * batch * PAGES
    start = torch.randint(BLOCK_SIZE, (sets, batch, 1), device="cuda")
    position = start + torch.arange(MAX_WINDOW, device="cuda")
    slots = pages.gather(2, position // BLOCK_SIZE) * BLOCK_SIZE + position % BLOCK_SIZE
    found = []
    for indices in slots.to(torch.int32):
        q = torch.randn(batch, shape.heads, HEAD_DIM, device="cuda").to(torch.bfloat16)
        lens = torch.full((batch,), MAX_WINDOW, dtype=torch.int32, device="cuda")
        found.append(Buffers(q, indices.contiguous(), lens, torch.full_like(q, torch.nan)))
    return found


def launches(
    kernel: Callable[..., Any],
    cache: Cache,
    sink: Tensor,
    given: Sequence[Buffers],
    choice: Mapping[str, int],
) -> list[Launch]:
    return [
        partial(
            kernel,
            **choice,
            q=own.q,
            **cache.tensors,
            swa_indices=own.indices,
            swa_lens=own.lens,
            attn_sink=sink,
            cache_layout=cache.layout.value,
            o=own.o,
        )
        for own in given
    ]


def gathered_rows(data: Tensor, scales: Tensor, slots: Tensor, layout: CacheLayout) -> Tensor:
    """The rows at `slots` [T, W] as bfloat16 [T, W, 512], each value rounded once from fp32."""
    if layout is CacheLayout.PER_TOKEN_SCALE:
        codes = data.view(-1, HEAD_DIM)[slots].view(torch.float8_e4m3fn)
        return (codes.float() * scales[slots].unsqueeze(-1)).to(torch.bfloat16)
    block, offset = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    codes = data[..., :NOPE_DIM][block, offset].view(torch.float8_e4m3fn)
    power = (scales[..., :GROUPS][block, offset].to(torch.int32) << 23).view(torch.float32)
    nope = codes.float().unflatten(-1, (GROUPS, GROUP)) * power.unsqueeze(-1)
    rope = data.view(torch.bfloat16)[..., NOPE_DIM // 2 :][block, offset]
    return torch.cat([nope.flatten(-2).to(torch.bfloat16), rope], dim=-1)


def baseline(
    q: Tensor,
    data: Tensor,
    scales: Tensor,
    indices: Tensor,
    lens: Tensor,
    layout: CacheLayout,
    fused: bool,
) -> Tensor:
    """Gather + dequantise + attention, without a sink; `fused` through torch's SDPA."""
    position = torch.arange(indices.shape[1], device=indices.device, dtype=torch.int32)
    counts = (position < lens.unsqueeze(1)) & (indices >= 0)
    rows = gathered_rows(data, scales, indices.where(counts, 0), layout)
    if fused:
        one = rows.unsqueeze(1)
        mask = counts[:, None, None, :]
        return scaled_dot_product_attention(q.unsqueeze(1), one, one, mask, scale=SCALE).squeeze(1)
    scores = torch.bmm(q, rows.transpose(1, 2)).float() * SCALE
    weights = torch.softmax(scores.masked_fill(~counts.unsqueeze(1), -torch.inf), dim=-1)
    return torch.bmm(weights.to(torch.bfloat16), rows)


def baselines(
    shape: Shape, cache: Cache, given: Sequence[Buffers], autotune: bool
) -> dict[str, list[Launch]]:
    """Compiled forms of the baseline by name."""
    modes: list[str | None] = [None, *(["max-autotune-no-cudagraphs"] if autotune else [])]
    found = {}
    for mode in modes:
        for fused in (True, False):
            torch.compiler.reset()
            compiled = torch.compile(baseline, dynamic=False, mode=mode, fullgraph=True)
            calls: list[Launch] = [
                partial(compiled, own.q, *cache.parts, own.indices, own.lens, shape.layout, fused)
                for own in given
            ]
            answer, exact = calls[0](), oracle(cache, given[0], [0], None)
            assert isinstance(answer, Tensor)
            # bf16 scores and weights: 2^-8 of values of the rows' magnitude, a few such roundings.
            torch.testing.assert_close(answer[:1].double(), exact, rtol=0, atol=8 * 2**-8)
            name = f"{'sdpa' if fused else 'matmul'}{' autotuned' if mode else ''}"
            found[name] = calls
    return found


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a launch: quartiles over rounds."""

    lower: float
    median: float
    upper: float


def timed(calls: Sequence[Launch], rounds: int) -> Timing:
    """Of `calls` in turn, repeated to LAUNCHES, in one CUDA graph."""
    order = list(calls) * -(-LAUNCHES // len(calls))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in order[: min(len(order), 3)]:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in order:
            call()
    found = []
    for number in range(rounds + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if number >= 2:
            found.append(begin.elapsed_time(end) / 1e3 / len(order))
    graph.reset()
    return Timing(*statistics.quantiles(found, n=4))


def plain(calls: Sequence[Launch]) -> float:
    """Seconds a call without a graph, from the host's clock."""
    order = (list(calls) * -(-LAUNCHES // len(calls)))[:256]
    for call in order[:8]:
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for call in order:
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(order)


def copy_bandwidth(rounds: int) -> float:
    """Bytes a second of torch's device-to-device copy, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    target.copy_(source)
    found = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.nbytes / statistics.median(found)


def empty_launch(rounds: int) -> float:
    """Seconds that a graph takes for a launch that does next to nothing."""
    one = torch.zeros(1, device="cuda")
    return timed([partial(one.add_, 1.0)], rounds).median


def oracle(cache: Cache, own: Buffers, rows: list[int], sink: Tensor | None) -> Tensor:
    return reference(**_some(cache, own, rows), attn_sink=sink)["o"]


def _some(cache: Cache, own: Buffers, rows: list[int]) -> dict[str, Any]:
    return {
        "q": own.q[rows],
        **cache.tensors,
        "swa_indices": own.indices[rows],
        "swa_lens": own.lens[rows],
        "cache_layout": cache.layout.value,
    }


def error_ratio(cache: Cache, own: Buffers, sink: Tensor) -> float:
    """Error of the outputs of some requests over that of torch in bfloat16."""
    rows = sorted({0, len(own.q) // 2, len(own.q) - 1})
    exact = oracle(cache, own, rows, sink)
    torch_o = torch_paged(**_some(cache, own, rows), attn_sink=sink)["o"]
    ours = (own.o[rows].double() - exact).norm()
    return float(ours / (torch_o.double() - exact).norm())


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; seconds."""

    layout: str
    heads: int
    batch: int
    median: float
    lower: float
    upper: float
    floor: float
    of_floor: float
    limit: float
    warm: float
    plain: float
    error: float
    baselines: dict[str, float]
    choice: dict[str, int]

    @property
    def speedup(self) -> float | None:
        return self.baselines["sdpa"] / self.median if self.baselines else None

    @property
    def passes(self) -> bool:
        slow = self.speedup is not None and self.speedup < SPEEDUP
        return self.of_floor <= self.limit and self.error <= ERROR and not slow


HEADER = (
    "layout           heads batch      us (quartiles)       floor  /floor limit   warm  plain  error"
    "    sdpa    x  matmul"
)


def line(row: Row) -> str:
    def us(seconds: float) -> str:
        return f"{seconds * 1e6:.2f}"

    spread = f"({us(row.lower)}-{us(row.upper)})"
    best = (
        f" {us(row.baselines['sdpa']):>7} {row.speedup:4.1f} {us(row.baselines['matmul']):>7}"
        if row.baselines
        else ""
    )
    chosen = "".join(f"  {name}={value}" for name, value in row.choice.items())
    return (
        f"{row.layout:16} {row.heads:5} {row.batch:5} {us(row.median):>7} {spread:15} {us(row.floor):>7}"
        f" {row.of_floor:7.2f} {row.limit:5.1f} {us(row.warm):>6} {us(row.plain):>6} {row.error:6.2f}"
        f"{best}{'' if row.passes else '  MISSED'}{chosen}"
    )


def measured(
    kernel: Callable[..., Any], shape: Shape, cache: Cache, options: argparse.Namespace
) -> Iterator[Row]:
    """A row for each choice; the baselines once, beside the first."""
    sink = torch.randn(shape.heads, device="cuda")
    given = buffers(shape, cache)
    others = {}
    if shape.batch in options.baseline:
        for name, forms in baselines(shape, cache, given, options.autotune).items():
            others[name] = timed(forms, options.rounds).median
    for choice in options.option or [{}]:
        yield timed_row(kernel, shape, cache, given, sink, choice, options.rounds, others)


def timed_row(
    kernel: Callable[..., Any],
    shape: Shape,
    cache: Cache,
    given: Sequence[Buffers],
    sink: Tensor,
    choice: dict[str, int],
    rounds: int,
    others: dict[str, float],
) -> Row:
    for own in given:
        own.o.fill_(torch.nan)
    calls = launches(kernel, cache, sink, given, choice)
    timing = timed(calls, rounds)
    error = max(error_ratio(cache, given[0], sink), error_ratio(cache, given[-1], sink))
    warm = timed(calls[:1], rounds).median
    unaided = plain(calls)
    return Row(
        layout=shape.layout.value,
        heads=shape.heads,
        batch=shape.batch,
        median=timing.median,
        lower=timing.lower,
        upper=timing.upper,
        floor=shape.floor,
        of_floor=timing.median / shape.floor,
        limit=LIMITS[shape.heads],
        warm=warm,
        plain=unaided,
        error=error,
        baselines=others,
        choice=choice,
    )


class ChoiceAction(argparse.Action):
    """NAME=VALUE ... of one `--option` as a dict, one after the other."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        choice = {}
        for text in values:
            name, _, value = text.partition("=")
            if not name.isidentifier() or not value.isdecimal():
                parser.error(f"--option takes NAME=VALUE, a whole number, not {text!r}")
            choice[name] = int(value)
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), choice])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = [name for name in KERNELS if name != "reference"]
    parser.add_argument("--kernel", choices=names, default="portable")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--heads", type=int, nargs="+", choices=tuple(LIMITS), default=tuple(LIMITS))
    parser.add_argument("--layouts", nargs="+", type=CacheLayout, choices=SERVED, default=SERVED)
    parser.add_argument("--baseline", type=int, nargs="*", default=(1, 16, 64, 256), metavar="BATCH")
    parser.add_argument("--autotune", action="store_true", help="the baseline with max-autotune as well")
    parser.add_argument("--option", nargs="+", action=ChoiceAction, metavar="NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if not torch.cuda.is_available():
        print("cannot measure: no CUDA GPU", file=sys.stderr)
        return 3
    torch.manual_seed(0)
    module, function = KERNELS[options.kernel].target.split(":")
    kernel = getattr(importlib.import_module(module), function)
    bandwidth, empty = copy_bandwidth(options.rounds), empty_launch(options.rounds)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; kernel {options.kernel}")
    print(f"copy {bandwidth / 1e12:.2f} TB/s, a launch of nothing {empty * 1e6:.2f} us", flush=True)
    print(HEADER)
    rows = []
    for layout in options.layouts:
        shapes = [Shape(layout, heads, batch) for heads in options.heads for batch in options.batches]
        cache = Cache.made(layout, max(shape.sets * shape.batch * PAGES for shape in shapes))
        for shape in shapes:
            for row in measured(kernel, shape, cache, options):
                rows.append(row)
                print(line(row), flush=True)
        del cache
        torch.cuda.empty_cache()
    if options.json:
        about = {"gpu": name, "torch": torch.__version__, "copy": bandwidth, "empty": empty}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**about, "rows": [asdict(row) for row in rows]}, file, indent=1)
    missed = sum(not row.passes for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} within their limits")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
