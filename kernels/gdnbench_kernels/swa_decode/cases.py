"""Synthetic calls that a kernel of swa_decode must compute correctly; each covers a mistake that a kernel has
made.

The options are those of `synth`. Each case runs in both FP8 layouts unless it concerns only one. Cases in
which the number of heads does not matter have 8: a tile is padded to more, and all heads of it are equal.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench_kernels.cases import Case
from gdnbench_kernels.swa_decode.layouts import SERVED, CacheLayout
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES

SHORT = {CacheLayout.PER_TOKEN_SCALE: "per token", CacheLayout.FP8_DS_MLA: "ds_mla"}
LENS = (0, 1, 17, 127, 128)
"""Nothing, one slot, part of a tile, a window less one, a window."""
HEADS = (1, 8, 16, 32, 64, 100, 128)
"""The models' numbers of heads, whole and per rank; one head; and a number that no tile divides."""
SINKS = {"on": 0.0, "huge": 1e6, "-1e6": -1e6, "-inf": float("-inf"), "+inf": float("inf")}


def cases() -> Iterator[Case]:
    """All cases."""
    for layout in SERVED:
        for name, quick, options in (*_shapes(), *_windows(), *_values()):
            made = {"heads": 8, "lens": LENS, "cache_layout": layout.value, **options}
            yield Case(f"{SHORT[layout]}, {name}", made, quick)
    few: dict[str, Any] = {"heads": 8, "lens": (128, 17)}
    yield Case("per token, bfloat16 scales", {**few, "scale_dtype": "bfloat16"}, quick=True)
    yield Case("bfloat16 cache", {**few, "cache_layout": "bfloat16"}, quick=True, refused=True)


Made = tuple[str, bool, dict[str, Any]]


def _shapes() -> Iterator[Made]:
    for length in LENS:
        yield f"one request of {length}", False, {"lens": (length,)}
    yield "no requests", True, {"lens": ()}
    yield "3 requests", False, {"lens": (128, 0, 65)}
    yield "64 requests", False, {"lens": tuple((7 * i) % 129 for i in range(64))}
    for heads in HEADS:
        yield f"{heads} heads", heads == 64, {"heads": heads, "lens": (128, 17)}
    # With as many tokens as heads, swapped axes raise no shape error.
    for count in (8, 16):
        yield f"{count} requests, {count} heads", False, {"heads": count, "lens": (128, 31) * (count // 2)}
    for shape in ("T1W", "1TW"):
        yield f"indices as {shape}", False, {"index_shape": shape, "lens": (5, 128, 0)}
    yield "one request, indices as 1TW", False, {"index_shape": "1TW", "lens": (128,)}
    yield "no lse", False, {"output_lse": False}


def _windows() -> Iterator[Made]:
    for window in (1, 16, 100, 127):
        yield f"window {window}", False, {"window": window, "lens": (window, window // 2, 0)}
    for block_size in BLOCK_SIZES:
        yield f"pages of {block_size}", block_size == 16, {"block_size": block_size, "lens": (128, 50)}
    for holes in (0.25, 0.9, 1.0):
        yield f"-1 in {holes:.0%} of a row", holes == 0.25, {"holes": holes}
    yield "one page for all", False, {"shared_page": True, "lens": (128, 0, 64, 3)}
    yield "pages far apart", False, {"spare_pages": 300, "block_size": 16}
    yield "pages far apart, holes", False, {"spare_pages": 300, "block_size": 16, "holes": 0.5}
    yield "nothing is NaN", False, {"poison": False}


def _values() -> Iterator[Made]:
    for name, sink in SINKS.items():
        yield f"sink {name}", name in ("on", "huge"), {"sink": sink}
    for spread in (100.0, 1e4):
        yield f"spread {spread:g}", spread == 1e4, {"spread": spread, "sink": 0.0}
    yield "spread 1e4, holes", False, {"spread": 1e4, "holes": 0.5}
    yield "magnitudes over 2^10", True, {"scale_range": 1024.0}
    yield "magnitudes over 2^30", False, {"scale_range": 2.0**30}
    # Far below 1e-4 the codes of fp8_ds_mla are 0, and only the rope of a row is not.
    for magnitude in (1e-30, 1e-6, 1e6, 1e30):
        yield f"values of {magnitude:g}", False, {"magnitude": magnitude}
    yield "magnitudes over 2^10, spread 1e4", False, {"scale_range": 1024.0, "spread": 1e4}
    yield "scale 1", False, {"scale": 1.0}
    yield "scale -0.1", False, {"scale": -0.1}
    yield "NaN in a row", True, {"lens": (128, 17, 64), "nan_at": (1,)}
    yield "NaN in a scale", False, {"lens": (128, 17, 64), "nan_scale_at": (0, 2)}
