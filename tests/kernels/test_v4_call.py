# SPDX-License-Identifier: Apache-2.0
"""What the compiled kernels of v4_decode refuse before anything is launched, and what they take as it lies.
Shapes and addresses alone are looked at, so nothing is compiled."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gdnbench_kernels.swa_decode.layouts import empty_ds_mla
from gdnbench_kernels.v4_decode.launch_args import prepare
from gdnbench_kernels.v4_decode.params import V4BufferParams
from tests.messages import wording

Given = dict[str, Any]
REQUESTS, QUERIES = 2, 3


def given(**changes: Any) -> Given:
    """Two requests of three queries, 8 heads, 3 pages of 16 and 5 of 4."""
    return {
        "q": torch.zeros(REQUESTS, QUERIES, 8, 512).bfloat16(),
        "cache": empty_ds_mla(3, 16),
        "swa_indices": torch.zeros(REQUESTS, QUERIES, 128, dtype=torch.int32),
        "swa_lens": torch.zeros(REQUESTS, QUERIES, dtype=torch.int32),
        "extra_cache": torch.zeros(5, 4, 512, dtype=torch.uint8),
        "extra_inv_scale": torch.ones(20),
        "extra_indices": torch.zeros(REQUESTS, QUERIES, 64, dtype=torch.int32),
        "extra_lens": torch.zeros(REQUESTS, QUERIES, dtype=torch.int32),
        "output_lse": True,
        "cache_layout": "fp8_ds_mla",
        "extra_layout": "per_token_scale",
        **changes,
    }


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


NONE = {"extra_cache": None, "extra_inv_scale": None, "extra_indices": None, "extra_lens": None}
WRONG: list[tuple[str, Given]] = [
    (wording("kernels.v4-q-shape", shape="[2, 8, 512]", size=512), {"q": torch.zeros(2, 8, 512).bfloat16()}),
    (wording("kernels.v4-queries", queries=9, most=8), {"q": torch.zeros(2, 9, 8, 512).bfloat16()}),
    (wording("kernels.heads-range", heads=129, most=128), {"q": torch.zeros(2, 3, 129, 512).bfloat16()}),
    (
        wording(
            "kernels.cache-shape",
            tensor="extra_cache",
            shape="[5, 4, 584]",
            cache_layout="per_token_scale",
            row=512,
        ),
        {"extra_cache": empty_ds_mla(5, 4)},
    ),
    (
        wording("kernels.cache-block-size", tensor="extra_cache", block_size=3),
        {"extra_cache": torch.zeros(5, 3, 512, dtype=torch.uint8)},
    ),
    (
        wording("kernels.cache-empty", tensor="extra_cache"),
        {"extra_cache": torch.zeros(0, 4, 512, dtype=torch.uint8)},
    ),
    (
        wording("kernels.shape-refused", tensor="extra_inv_scale", shape="[19]", wanted="[20]"),
        {"extra_inv_scale": torch.ones(19)},
    ),
    (wording("kernels.v4-extra-part"), {"extra_lens": None}),
    (wording("kernels.v4-extra-scale"), {**NONE, "extra_inv_scale": torch.ones(20)}),
    (
        wording("kernels.indices-shape", tensor="extra_indices", shape="[2, 2, 64]"),
        {"extra_indices": integers(2, 2, 64)},
    ),
    *(
        (wording("kernels.convention-of-synth", name=name, value=layout), {name: layout})
        for name in ("cache_layout", "extra_layout")
        for layout in ("nvfp4", "fp4_mxfp8")
    ),
    (wording("kernels.window-wide", window=129, most=128), {"swa_indices": integers(2, 3, 129)}),
    (wording("kernels.v4-slots", slots=2049, most=2048), {"extra_indices": integers(2, 3, 2049)}),
    (
        wording("kernels.shape-refused", tensor="extra_lens", shape="[6]", wanted="[2, 3]"),
        {"extra_lens": integers(6)},
    ),
    (
        wording("kernels.shape-refused", tensor="lse", shape="[2, 8, 3]", wanted="[2, 3, 8]"),
        {"lse": torch.zeros(2, 8, 3)},
    ),
    (wording("kernels.lse-not-wanted"), {"lse": torch.zeros(2, 3, 8), "output_lse": False}),
    (wording("kernels.v4-form", name="lse_base", value="10"), {"lse_base": "10"}),
    (wording("kernels.convention-of-synth", name="lens_shape", value="S"), {"lens_shape": "S"}),
    (
        wording("kernels.convention-of-synth", name="extra_index_form", value="pages"),
        {"extra_index_form": "pages"},
    ),
]
OTHERS: list[tuple[str, Given]] = [
    (
        wording("kernels.layout-not-served", tensor="extra_cache", cache_layout="bfloat16"),
        {"extra_layout": "bfloat16"},
    ),
    (
        wording("kernels.inv-scale-contiguous", tensor="extra_inv_scale"),
        {"extra_inv_scale": torch.ones(40)[::2]},
    ),
]


@pytest.mark.parametrize(
    ("message", "changes", "error"),
    [
        *((message, changes, ValueError) for message, changes in WRONG),
        *((message, changes, NotImplementedError) for message, changes in OTHERS),
    ],
)
def test_refused_in_one_line(message: str, changes: Given, error: type[Exception]) -> None:
    """ValueError for what no kernel could take, NotImplementedError for what another one could."""
    assert prepare(V4BufferParams(**given())).rows == REQUESTS * QUERIES
    with pytest.raises(error) as refused:
        prepare(V4BufferParams(**given(**changes)))
    assert re.fullmatch(message, str(refused.value))


def test_outputs_have_memory_of_their_own() -> None:
    q = torch.zeros(REQUESTS, QUERIES, 8, 512).bfloat16()
    with pytest.raises(ValueError, match=f"^{wording('kernels.memory-shared', tensor='o', other='q')}$"):
        prepare(V4BufferParams(**given(q=q, o=q)))


def test_pools_are_never_copied_and_the_smallest_page_is_taken() -> None:
    """One row of 584 bytes, alone, has no distance to another page that could be unaligned."""
    call = given(extra_cache=empty_ds_mla(1, 1), extra_layout="fp8_ds_mla", extra_inv_scale=None)
    found = prepare(V4BufferParams(**call))
    assert found.window.pages.data_ptr() == call["cache"].data_ptr()
    assert found.extra is not None
    assert found.extra.pages.data_ptr() == call["extra_cache"].data_ptr()
    assert (found.extra.pages.shape, found.extra.block_shift) == ((1, 584), 0)


@pytest.mark.parametrize(("shape", "lens"), [("BSW", "BS"), ("TW", "T"), ("T1W", "B")])
def test_forms_of_callers_become_rows(shape: str, lens: str) -> None:
    """Lengths of a request are those of each of its queries."""
    of_row = {"BS": torch.tensor([[1, 1, 1], [2, 2, 2]]), "B": torch.tensor([1, 2])}
    of_row["T"] = of_row["BS"].flatten()
    table = torch.arange(REQUESTS * QUERIES * 64, dtype=torch.int32).view(REQUESTS, QUERIES, 64)
    shaped = {"BSW": table, "TW": table.flatten(0, 1), "T1W": table.flatten(0, 1).unsqueeze(1)}[shape]
    lengths = of_row[lens].int()
    found = prepare(
        V4BufferParams(
            **given(
                index_shape=shape,
                lens_shape=lens,
                swa_indices=shaped,
                extra_indices=shaped,
                swa_lens=lengths,
                extra_lens=lengths,
            )
        )
    )
    assert found.extra is not None
    for pool in (found.window, found.extra):
        assert torch.equal(pool.entries, table.flatten(0, 1))
        assert pool.lens.tolist() == [1, 1, 1, 2, 2, 2]


def test_a_table_of_pages_has_room_for_its_pages() -> None:
    found = prepare(V4BufferParams(**given(extra_index_form="block_table")))
    assert found.extra is not None
    assert (found.extra.entry_shift, found.extra.capacity) == (2, 256)
