# SPDX-License-Identifier: Apache-2.0
"""Replay of v4_decode: both pools kept by pages, wrong kernels, kernels in other forms, and kernels that
gather before they mask."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.record import RecordDraft
from gdnbench.replay import bind
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.synth import draft, synthesise
from tests.messages import wording

StoreOf = Callable[..., Store]

FAULTY = Path(__file__).parents[1] / "kernels" / "faulty_v4.py"
DS_MLA = {"cache_layout": "fp8_ds_mla", "extra_layout": "fp8_ds_mla"}
PAGED = {"extra_index_form": "block_table", "extra_block_size": 2}
OPTIONS: dict[str, Any] = {
    "lens": (20, 0, 9, 31),
    "extra_lens": (12, 3, 0, 16),
    "window": 32,
    "topk": 16,
    "queries": 2,
    "heads": 2,
    "block_size": 16,
    "extra_block_size": 4,
    "spare_pages": 20,
    "holes": 0.2,
    "duplicates": 0.3,
    "sink": 0.0,
}
FORMS: dict[str, dict[str, Any]] = {
    "top-k": {},
    "pages": {**PAGED, **DS_MLA},
    "one allocation": {"packed": True, "extra_layout": "bfloat16", "index_shape": "T1W", "lens_shape": "B"},
    "legal": {"masked_indices": "legal", "holes": 0.0, "stale": "unread", "index_shape": "TW"},
    "lse of FlashInfer": {"lse_base": "2", "lse_sink": "with"},
    "the window alone": {"extra_lens": ()},
    "nothing": {"lens": (0, 0), "extra_lens": (0, 0)},
    "no requests": {"lens": (), "extra_lens": ()},
}


def drafted(**options: Any) -> RecordDraft:
    return draft("v4_decode", synthesise("v4_decode", **{**OPTIONS, **options}))


def run(store: Store, kernel: str, **options: Any) -> Any:
    return replay(store, kernel=kernel, isolate=False, **options)


def faulty(name: str) -> str:
    return f"{FAULTY}:{name}"


def test_right_kernels_pass_on_every_form(store_of: StoreOf) -> None:
    store = store_of([drafted(**options) for options in FORMS.values()])
    for kernel in ("torch", "reference"):
        report = run(store, kernel, against="recorded")
        assert report.exit_code is Exit.PASS, [record.reason for record in report.records]


def test_the_pages_of_both_pools_are_stored_and_put_back(store_of: StoreOf) -> None:
    call = synthesise("v4_decode", **{**OPTIONS, **FORMS["one allocation"]})
    record = store_of([draft("v4_decode", call)]).records[0]
    touched = operation("v4_decode").touched(call)
    for name in ("cache", "inv_scale", "extra_cache"):
        pool = record.info.pools[name]
        assert list(pool.rows) == touched[name].tolist()
        assert 0 < len(pool.rows) < pool.slots
    bound = bind.exact(record, operation("v4_decode"), torch.device("cpu")).call
    for name in ("cache", "extra_cache"):
        rows = touched[name]
        assert bound.tensors[name].shape == call.tensors[name].shape
        assert bound.tensors[name].stride() == call.tensors[name].stride()
        one, other = (tensors[name][rows].view(torch.uint8) for tensors in (bound.tensors, call.tensors))
        assert torch.equal(one, other)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "kernel",
    [
        "forgets_the_extra_segment",
        "adds_two_softmaxes",
        "counts_a_slot_once",
        "takes_the_last_querys_lengths",
        "stops_at_the_first_padding",
        "follows_stale_entries",
        "counts_the_sink_in_lse",
        "gives_lse_of_base_2",
    ],
)
def test_wrong_kernels_fail(store_of: StoreOf, kernel: str) -> None:
    store = store_of([drafted()])
    (record,) = run(store, faulty(kernel)).records
    assert record.outcome is Outcome.MISMATCH, record.reason
    (right,) = run(store, faulty("correct")).records
    assert right.outcome is Outcome.PASS, right.reason


def test_a_kernel_in_flash_mlas_form_is_converted_for(store_of: StoreOf) -> None:
    options = {**DS_MLA, "lens": (32, 0, 32), "extra_lens": (1, 0, 1)}
    same = [drafted(**options), drafted(**options, lens_shape="B", index_shape="TW")]
    *right, differ = run(store_of([*same, drafted(**DS_MLA)]), faulty("in_flash_mlas_form")).records
    assert [record.outcome for record in right] == [Outcome.PASS] * 2, [record.reason for record in right]
    assert differ.outcome is Outcome.UNSUPPORTED
    assert re.search(wording("kernels.lengths-differ", request=0, lengths="20, 21"), differ.reason)


def test_a_kernel_that_gathers_before_it_masks_gets_legal_entries_alone(store_of: StoreOf) -> None:
    """Entries outside the cache and -1 are refused in a line; live stale entries and legal records run."""
    plain = {"holes": 0.0, "duplicates": 0.0}
    illegal, holes, live, legal = (
        drafted(**plain),
        drafted(stale="live"),
        drafted(**plain, stale="live"),
        drafted(**plain, masked_indices="legal", stale="unread"),
    )
    found = run(store_of([illegal, holes, live, legal]), faulty("gathers_before_it_masks")).records
    wanted = [Outcome.UNSUPPORTED, Outcome.UNSUPPORTED, Outcome.PASS, Outcome.PASS]
    assert [record.outcome for record in found] == wanted, [record.reason for record in found]
    for record, value in zip(found, (2130706452, -1), strict=False):
        assert re.search(wording("kernels.masked-illegal", value=value, what="slot"), record.reason)
