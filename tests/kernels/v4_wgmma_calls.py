# SPDX-License-Identifier: Apache-2.0
"""Calls for the tests of v4_decode's kernel `wgmma`, simulated and on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from gdnbench_kernels.contract import Call
from gdnbench_kernels.v4_decode.contract import convert
from tests.kernels.v4_calls import with_tensors

CALLS: dict[str, dict[str, Any]] = {
    "holes": {"holes": 0.25},
    "nothing but holes": {"holes": 1.0, "lens": (128, 3), "extra_lens": (130, 0)},
    "a huge sink, lse with it": {"sink": 1e6, "lse_sink": "with"},
    "a sink of -inf": {"sink": -torch.inf, "lse_sink": "with", "lse_empty": "plus_inf"},
    "a sink of +inf": {"sink": torch.inf, "lse_base": "2"},
    "scores spread over 1e4": {"spread": 1e4, "holes": 0.1},
    "magnitudes over 2^10": {"scale_range": 1024.0},
    "magnitudes over 2^30": {"scale_range": 2.0**30},
    "a negative scale": {"scale": -0.1},
    "drafts": {"queries": 3, "lens": (126, 0, 3), "extra_lens": (170, 1, 0)},
    "pages of 2": {"extra_index_form": "block_table", "extra_block_size": 2},
    "no extra segment": {"extra_lens": ()},
    "slots several times": {"duplicates": 0.5},
    "one allocation": {"packed": True},
    "stale entries that are live": {"stale": "live"},
    "NaN in either segment": {"nan_at": (0,), "nan_extra_at": (2,)},
}
"""Of 8 heads."""


def of_layout(layout: str) -> dict[str, str]:
    return {"cache_layout": layout, "extra_layout": layout}


def requests_of(call: Call, end: int, start: int = 0) -> Call:
    """Requests `start` .. `end` - 1 of a call with index_shape BSW and lens_shape BS."""
    names = ("q", "swa_indices", "swa_lens", "extra_indices", "extra_lens")
    return with_tensors(call, **{name: call.tensors[name][start:end] for name in names})


def as_slots(call: Call) -> Call:
    """The call with the slots of its tables of pages."""
    return convert(call, {**call.conventions, "extra_index_form": "indices"})
