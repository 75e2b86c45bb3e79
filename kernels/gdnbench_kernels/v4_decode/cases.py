"""Synthetic calls that a kernel of v4_decode must compute correctly; each covers a mistake that a kernel has
made, or could make where two segments meet.

The options are those of `synth`. Each case runs in both FP8 layouts unless it concerns only one. Cases in
which the number of heads does not matter have 8: a tile is padded to more, and all heads of it are equal.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench_kernels.cases import Case
from gdnbench_kernels.swa_decode.cases import HEADS, SHORT, SINKS
from gdnbench_kernels.swa_decode.layouts import SERVED
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES
from gdnbench_kernels.v4_decode.sizes import EXTRA_BLOCK_SIZES, MAX_QUERIES, MAX_TOPK

LENS = (0, 1, 17, 127, 128, 0, 64)
EXTRA_LENS = (0, 65, 0, 1, 128, 192, 63)
"""Nothing in either segment, in one of them, and lengths around a tile of 64 and of 128."""
PAGES: dict[str, Any] = {"extra_index_form": "block_table"}


def cases() -> Iterator[Case]:
    """All cases."""
    made: dict[str, Any]
    for layout in SERVED:
        for name, quick, options in (*_shapes(), *_tables(), *_pages(), *_values()):
            made = {"heads": 8, "lens": LENS, "extra_lens": EXTRA_LENS, "topk": 192, "sink": 0.0}
            layouts = {"cache_layout": layout.value, "extra_layout": layout.value}
            yield Case(f"{SHORT[layout]}, {name}", {**made, **layouts, **options}, quick)
    few: dict[str, Any] = {"heads": 8, "lens": (128, 17), "extra_lens": (70, 9), "topk": 96}
    one, other = (layout.value for layout in SERVED)
    for window, extra in ((one, other), (other, one)):
        made = {**few, "cache_layout": window, "extra_layout": extra}
        yield Case(f"{window} beside {extra}", made, quick=True)
    yield Case("per token, bfloat16 scales", {**few, "scale_dtype": "bfloat16"}, quick=True)
    for name in ("cache_layout", "extra_layout"):
        yield Case(f"{name} bfloat16", {**few, name: "bfloat16"}, quick=True, refused=True)


Made = tuple[str, bool, dict[str, Any]]


def _shapes() -> Iterator[Made]:
    made: dict[str, Any]
    yield "lengths around tiles", True, {}
    yield "no requests", True, {"lens": (), "extra_lens": ()}
    yield "no extra segment", True, {"extra_lens": ()}
    yield "the extra segment alone", False, {"lens": (0, 0), "extra_lens": (192, 3)}
    yield "nothing at all", False, {"lens": (0, 0), "extra_lens": (0, 0)}
    yield "one request", False, {"lens": (128,), "extra_lens": (192,)}
    yield (
        "32 requests",
        False,
        {
            "lens": tuple((7 * i) % 129 for i in range(32)),
            "extra_lens": tuple((11 * i) % 193 for i in range(32)),
        },
    )
    for heads in HEADS:
        made = {"heads": heads, "lens": (128, 17), "extra_lens": (70, 9)}
        yield f"{heads} heads", heads == 64, made
    for queries in range(2, MAX_QUERIES + 1):
        made = {"queries": queries, "lens": (126, 0, 3), "extra_lens": (70, 0, 9)}
        yield f"{queries} queries", queries == 3, made
    # With as many queries as heads, or rows as heads, swapped axes raise no shape error.
    made = {"queries": 4, "heads": 4, "lens": (128, 31), "extra_lens": (70, 9)}
    yield "4 queries, 4 heads", False, made
    yield "8 rows, 8 heads", False, {**made, "heads": 8}
    for index, lens in (("TW", "T"), ("T1W", "B"), ("BSW", "B"), ("TW", "BS")):
        made = {"queries": 2, "index_shape": index, "lens_shape": lens}
        yield f"indices as {index}, lengths as {lens}", index == "T1W", made
    yield "no lse", False, {"output_lse": False}
    for base, sink, empty in (("2", "with", "minus_inf"), ("e", "without", "plus_inf")):
        made = {"lse_base": base, "lse_sink": sink, "lse_empty": empty}
        yield f"lse of base {base}, {sink} the sink, {empty}", False, made


def _tables() -> Iterator[Made]:
    made: dict[str, Any]
    for topk in (1, 100, 512):
        lens = (topk, topk // 2, 0)
        made = {"topk": topk, "lens": (128, 17, 0), "extra_lens": lens}
        yield f"top-k of {topk}", False, made
    made = {"topk": MAX_TOPK, "lens": (128,), "extra_lens": (MAX_TOPK,)}
    yield f"top-k of {MAX_TOPK}", False, made
    for block_size in BLOCK_SIZES:
        made = {"block_size": block_size, "lens": (128, 50), "extra_lens": (70, 9)}
        yield f"window pages of {block_size}", False, made
    for block_size in EXTRA_BLOCK_SIZES:
        made = {"extra_block_size": block_size, "lens": (128, 50), "extra_lens": (70, 9)}
        yield f"extra pages of {block_size}", block_size == 2, made
    for holes in (0.25, 0.9, 1.0):
        yield f"-1 in {holes:.0%} of a row", holes == 0.25, {"holes": holes}
    yield "slots several times", True, {"duplicates": 0.5}
    yield "one allocation", True, {"packed": True, "queries": 2}
    yield "stale entries that are live", True, {"stale": "live"}
    yield "stale entries that are unread", False, {"stale": "unread"}
    yield "legal entries", False, {"masked_indices": "legal"}
    yield "pages far apart", False, {"spare_pages": 300, "block_size": 16, "extra_block_size": 2}
    yield "nothing is NaN", False, {"poison": False}


def _pages() -> Iterator[Made]:
    made: dict[str, Any]
    for block_size in EXTRA_BLOCK_SIZES:
        made = {**PAGES, "extra_block_size": block_size}
        yield f"tables of pages of {block_size}", block_size in (2, 64), made
    made = {**PAGES, "extra_block_size": 2, "queries": 3, "lens": (128, 0), "extra_lens": (131, 5)}
    yield "tables of pages, drafts", False, made
    made = {**PAGES, "extra_block_size": 64, "lens": (128,), "extra_lens": (3000,)}
    yield "tables of pages, 3000 positions", False, made
    yield "tables of pages, legal", True, {**PAGES, "extra_block_size": 4, "masked_indices": "legal"}


def _values() -> Iterator[Made]:
    for name, sink in SINKS.items():
        yield f"sink {name}", name in ("huge", "+inf"), {"sink": sink}
    yield "no sink", False, {"sink": None}
    for spread in (100.0, 1e4):
        yield f"spread {spread:g}", spread == 1e4, {"spread": spread}
    yield "spread 1e4, holes", False, {"spread": 1e4, "holes": 0.5}
    yield "magnitudes over 2^10", True, {"scale_range": 1024.0}
    yield "magnitudes over 2^30", False, {"scale_range": 2.0**30}
    for magnitude in (1e-30, 1e-6, 1e6, 1e30):
        yield f"values of {magnitude:g}", False, {"magnitude": magnitude}
    yield "scale -0.1", False, {"scale": -0.1}
    nan = {"lens": (128, 17, 64), "extra_lens": (70, 9, 0)}
    yield "NaN in the window", True, {**nan, "nan_at": (1,)}
    yield "NaN in the extra segment", True, {**nan, "nan_extra_at": (0,)}
    yield "NaN in a scale", False, {**nan, "nan_scale_at": (0, 2)}
