#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""How fast a kernel of v4_decode is on this machine's GPU, cold, against bytes and against torch.

    python scripts/benchmarks/bench_v4_decode.py [--kernel wgmma] [--batches 1 16 64 256] [--heads 64 128]
        [--layouts fp8_ds_mla] [--kinds csa512 hca1024] [--baseline 1 64] [--compiled 64] [--json FILE]
        [--option NAME=VALUE ...] ...
    python scripts/benchmarks/bench_v4_decode.py --kernel wgmma --option splits=1 --option splits=4 rows=64

A kind says what a query attends to beside its window of 128: `csaN` N slots anywhere in the pool of
compressed rows, as a top-k chooses them; `hcaN` N positions of pages of 64 in a table of pages; `swa`
nothing. Times, rotation of buffers, and the columns are those of bench_swa_decode.py. `copy` is the time
that the bytes of a call take at the rate of torch's device-to-device copy in the same run; `/copy` is the
ratio to it, or to 4 us if that is more. `torch` is the kernel `torch` of the registry, `sdpa` torch.compile,
static shapes, of gather + dequantise + scaled_dot_product_attention without the sink.

`error` is the error of the outputs of a few requests over that of torch's bf16 SDPA on the same rows. Exit
status: 0 if all errors are at most 2, 1 if one is more, 3 without a CUDA GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from bench_swa_decode import (
    BLOCK_SIZE,
    LEAST,
    PAGES,
    ROTATED,
    SCALE,
    Cache,
    ChoiceAction,
    Launch,
    copy_bandwidth,
    empty_launch,
    gathered_rows,
    plain,
    timed,
)
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gdnbench_kernels.swa_decode.kernel_cost import row_bytes
from gdnbench_kernels.swa_decode.layouts import SERVED, CacheLayout
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.v4_decode.contract import KERNELS
from gdnbench_kernels.v4_decode.reference import reference
from gdnbench_kernels.v4_decode.torch_paged import torch_paged

BATCHES = (1, 4, 16, 64, 256)
KINDS = ("csa512", "hca1024")
ERROR = 2.0
POOL_BYTES = 512 << 20
"""Of compressed rows: ten times the L2 cache, so that slots anywhere in it are not found there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a query attends to beside its window."""

    name: str
    entries: int
    of_pages: bool

    @staticmethod
    def parse(text: str) -> Kind:
        found = re.fullmatch(r"(csa|hca)([1-9]\d*)|swa", text)
        if found is None:
            raise argparse.ArgumentTypeError(f"a kind is swa, csaN or hcaN, not {text!r}")
        return Kind(text, int(found[2] or 0), found[1] == "hca")


@dataclass(frozen=True, slots=True)
class Shape:
    layout: CacheLayout
    kind: Kind
    heads: int
    batch: int

    @property
    def bytes(self) -> int:
        """What a call has to move at least."""
        rows = (MAX_WINDOW + self.kind.entries) * row_bytes(self.layout)
        table = self.kind.entries * 4 // (BLOCK_SIZE if self.kind.of_pages else 1)
        queries = self.heads * HEAD_DIM * 2
        return self.batch * (rows + table + (MAX_WINDOW + 2) * 4 + 2 * queries)

    @property
    def sets(self) -> int:
        """Buffer sets that calls take in turn."""
        return max(4, -(-ROTATED // self.bytes))


@dataclass(frozen=True, slots=True)
class Pools:
    """The pages of both caches, for all calls of a layout."""

    window: Cache
    extra: Cache

    @property
    def tensors(self) -> dict[str, Any]:
        own, extra = self.window, self.extra
        return {
            "cache": own.pages,
            "inv_scale": own.inv_scale,
            "extra_cache": extra.pages,
            "extra_inv_scale": extra.inv_scale,
            "cache_layout": own.layout.value,
            "extra_layout": extra.layout.value,
        }


@dataclass(frozen=True, slots=True)
class Buffers:
    """What one call is given for itself."""

    q: Tensor
    indices: Tensor
    lens: Tensor
    extra: Tensor
    extra_lens: Tensor
    o: Tensor


def buffers(shape: Shape, pools: Pools) -> list[Buffers]:
    """`shape.sets` of them. No two requests share a page of windows; slots of a top-k are drawn from the
    whole pool of compressed rows, pages of a table one after the other from an order of their own."""
    sets, batch, entries = shape.sets, shape.batch, shape.kind.entries
    own = torch.randperm(len(pools.window.pages), device="cuda")[: sets * batch * PAGES]
    start = torch.randint(BLOCK_SIZE, (sets, batch, 1), device="cuda")
    position = start + torch.arange(MAX_WINDOW, device="cuda")
    own = own.view(sets, batch, PAGES).gather(2, position // BLOCK_SIZE) * BLOCK_SIZE + position % BLOCK_SIZE
    blocks = len(pools.extra.pages)
    if shape.kind.of_pages:
        pages = -(-entries // BLOCK_SIZE)
        order = torch.randperm(blocks, device="cuda")
        extra = order[torch.arange(sets * batch * pages, device="cuda") % blocks].view(sets, batch, pages)
    else:
        extra = torch.randint(blocks * BLOCK_SIZE, (sets, batch, entries), device="cuda")
    found = []
    for indices, more in zip(own.to(torch.int32), extra.to(torch.int32), strict=True):
        q = torch.randn(batch, 1, shape.heads, HEAD_DIM, device="cuda").to(torch.bfloat16)
        lens = torch.full((batch, 1), MAX_WINDOW, dtype=torch.int32, device="cuda")
        found.append(
            Buffers(
                q,
                indices.unsqueeze(1).contiguous(),
                lens,
                more.unsqueeze(1).contiguous(),
                torch.full_like(lens, entries),
                torch.full_like(q, torch.nan),
            )
        )
    return found


def arguments_of(shape: Shape, pools: Pools, own: Buffers) -> dict[str, Any]:
    """A call's inputs but for the sink."""
    found = {"q": own.q, **pools.tensors, "swa_indices": own.indices, "swa_lens": own.lens}
    if not shape.kind.entries:
        return {name: value for name, value in found.items() if not name.startswith("extra")}
    form = "block_table" if shape.kind.of_pages else "indices"
    extra = {"extra_indices": own.extra, "extra_lens": own.extra_lens, "extra_index_form": form}
    return {**found, **extra}


def slots(entries: Tensor, of_pages: bool) -> Tensor:
    """[T, positions] of a table [T, 1, entries]."""
    table = entries.flatten(0, 1)
    if not of_pages:
        return table
    offsets = torch.arange(BLOCK_SIZE, device=table.device, dtype=table.dtype)
    return (table.unsqueeze(2) * BLOCK_SIZE + offsets).flatten(1)


def baseline(
    q: Tensor,
    window: tuple[Tensor, Tensor],
    extra: tuple[Tensor, Tensor],
    indices: Tensor,
    more: Tensor,
    layout: CacheLayout,
    of_pages: bool,
) -> Tensor:
    """Gather + dequantise + attention over full tables, without a sink."""
    rows = gathered_rows(*window, indices.flatten(0, 1), layout)
    if more.shape[-1]:
        rows = torch.cat([rows, gathered_rows(*extra, slots(more, of_pages), layout)], dim=1)
    one = rows.unsqueeze(1)
    return scaled_dot_product_attention(q, one, one, scale=SCALE)


def compiled_baseline(shape: Shape, pools: Pools, given: Sequence[Buffers]) -> list[Launch]:
    torch.compiler.reset()
    compiled = torch.compile(baseline, dynamic=False, fullgraph=True)
    parts, form = (pools.window.parts, pools.extra.parts), (shape.layout, shape.kind.of_pages)
    return [partial(compiled, own.q, *parts, own.indices, own.extra, *form) for own in given]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; seconds."""

    layout: str
    kind: str
    heads: int
    batch: int
    median: float
    lower: float
    upper: float
    copy: float
    of_copy: float
    warm: float
    plain: float
    error: float
    baselines: dict[str, float]
    choice: dict[str, int]

    @property
    def passes(self) -> bool:
        return self.error <= ERROR


HEADER = "layout           kind     heads batch        us (quartiles)      copy  /copy    warm   plain  error"


def line(row: Row) -> str:
    def us(seconds: float) -> str:
        return f"{seconds * 1e6:.2f}"

    spread = f"({us(row.lower)}-{us(row.upper)})"
    others = "".join(
        f"  {name} {us(seconds)} ({seconds / row.median:.1f}x)" for name, seconds in row.baselines.items()
    )
    chosen = "".join(f"  {name}={value}" for name, value in row.choice.items())
    return (
        f"{row.layout:16} {row.kind:8} {row.heads:5} {row.batch:5} {us(row.median):>8} {spread:17}"
        f" {us(row.copy):>7} {row.of_copy:6.2f} {us(row.warm):>7} {us(row.plain):>7} {row.error:6.2f}"
        f"{'' if row.passes else '  MISSED'}{others}{chosen}"
    )


def measured(
    kernel: Callable[..., Any], shape: Shape, pools: Pools, bandwidth: float, options: argparse.Namespace
) -> list[Row]:
    """A row for each choice; the baselines once, beside the first."""
    sink = torch.randn(shape.heads, device="cuda")
    given = buffers(shape, pools)
    others = {}
    if shape.batch in options.baseline:
        calls: list[Launch] = [
            partial(torch_paged, **arguments_of(shape, pools, own), attn_sink=sink) for own in given[:4]
        ]
        others["torch"] = timed(calls, options.rounds).median
    if shape.batch in options.compiled:
        others["sdpa"] = timed(compiled_baseline(shape, pools, given), options.rounds).median
    found = []
    for choice in options.option or [{}]:
        for own in given:
            own.o.fill_(torch.nan)
        calls = [
            partial(kernel, **choice, **arguments_of(shape, pools, own), attn_sink=sink, o=own.o)
            for own in given
        ]
        timing = timed(calls, options.rounds)
        copy = shape.bytes / bandwidth
        found.append(
            Row(
                layout=shape.layout.value,
                kind=shape.kind.name,
                heads=shape.heads,
                batch=shape.batch,
                median=timing.median,
                lower=timing.lower,
                upper=timing.upper,
                copy=copy,
                of_copy=timing.median / max(copy, LEAST),
                warm=timed(calls[:1], options.rounds).median,
                plain=plain(calls),
                error=max(error_ratio(shape, pools, own, sink) for own in (given[0], given[-1])),
                baselines={} if found else others,
                choice=choice,
            )
        )
    return found


def error_ratio(shape: Shape, pools: Pools, own: Buffers, sink: Tensor) -> float:
    """Error of the outputs of some requests over that of torch in bfloat16."""
    rows = sorted({0, len(own.q) // 2, len(own.q) - 1})
    inputs = (own.q, own.indices, own.lens, own.extra, own.extra_lens, own.o)
    few = Buffers(*(x[rows] for x in inputs))
    given = arguments_of(shape, pools, few)
    exact = reference(**given, attn_sink=sink)["o"]
    torch_o = torch_paged(**given, attn_sink=sink)["o"]
    return float((few.o.double() - exact).norm() / (torch_o.double() - exact).norm())


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = [name for name in KERNELS if name != "reference"]
    parser.add_argument("--kernel", choices=names, default="wgmma")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--heads", type=int, nargs="+", default=(64, 128))
    parser.add_argument("--layouts", nargs="+", type=CacheLayout, choices=SERVED, default=SERVED)
    parser.add_argument("--kinds", nargs="+", type=Kind.parse, default=[Kind.parse(kind) for kind in KINDS])
    parser.add_argument("--baseline", type=int, nargs="*", default=(1, 64), metavar="BATCH")
    parser.add_argument("--compiled", type=int, nargs="*", default=(64,), metavar="BATCH")
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
        shapes = [
            Shape(layout, kind, heads, batch)
            for kind in options.kinds
            for heads in options.heads
            for batch in options.batches
        ]
        window = Cache.made(layout, max(shape.sets * shape.batch * PAGES for shape in shapes))
        pools = Pools(window, Cache.made(layout, POOL_BYTES // (BLOCK_SIZE * row_bytes(layout))))
        for shape in shapes:
            for row in measured(kernel, shape, pools, bandwidth, options):
                rows.append(row)
                print(line(row), flush=True)
        del window, pools
        torch.cuda.empty_cache()
    if options.json:
        about = {"gpu": name, "torch": torch.__version__, "copy": bandwidth, "empty": empty}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**about, "rows": [asdict(row) for row in rows]}, file, indent=1)
    missed = sum(not row.passes for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} within {ERROR:g} times torch's error")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
