# SPDX-License-Identifier: Apache-2.0
"""Pools too large to poison and to copy: bound in memory that is not there, and watched all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from gdnbench.ops import operation
from gdnbench.record import Pool, RecordDraft, TensorDraft
from gdnbench.replay import bind
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.synth import draft, synthesise
from tests.messages import wording

StoreOf = Callable[..., Store]
CPU = torch.device("cpu")


def drafted(**options: Any) -> RecordDraft:
    given = {"lens": (20, 0, 9, 32), "heads": 2, "block_size": 16, "spare_pages": 100, **options}
    return draft("swa_decode", synthesise("swa_decode", **given))


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "POISONED_POOL_BYTES", 0)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("layout", ["per_token_scale", "fp8_ds_mla", "bfloat16"])
def test_stored_rows_are_at_their_slots_and_zeros_elsewhere(store_of: StoreOf, layout: str) -> None:
    given = drafted(cache_layout=layout)
    (record,) = store_of([given]).records
    bound = bind.exact(record, operation("swa_decode"), CPU)
    cache = bound.call.tensors["cache"]
    meta, pool = given.before["cache"].meta, given.info.pools["cache"]
    assert bound.notes == ()
    assert cache.shape == (pool.slots, *meta.shape[1:])
    assert cache.stride() == meta.caller_strides
    bits, rows = cache.view(torch.uint8), list(pool.rows)
    assert torch.equal(bits[rows], given.before["cache"].data.view(torch.uint8))
    others = [slot for slot in range(pool.slots) if slot not in pool.rows]
    assert len(others) >= 100
    assert not bits[others].any()
    assert cache.data_ptr() % 256 == 0


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("op", ["swa_decode", "gdn_decode"])
def test_a_right_kernel_passes(store_of: StoreOf, op: str) -> None:
    options = {"batch": 3, "heads": (2, 4), "head_dim": (32, 32), "slots": 9, "padding": 0.3}
    given = drafted() if op == "swa_decode" else draft(op, synthesise(op, **options))
    (record,) = replay(store_of([given]), kernel="torch", against="recorded").records
    assert (record.outcome, record.reason) == (Outcome.PASS, "")


WRITER = """
import torch
from gdnbench_kernels.swa_decode.torch_paged import torch_paged
def kernel(q, cache, inv_scale, swa_indices, swa_lens):
    found = torch_paged(q=q, cache=cache, inv_scale=inv_scale, swa_indices=swa_indices, swa_lens=swa_lens)
    cache.view(torch.uint8)[{slot}, -1, -1] ^= 1
    return found["o"]
"""


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("stored", [True, False])
def test_a_kernel_that_writes_to_a_cache_is_told_on(store_of: StoreOf, stored: bool, tmp_path: Path) -> None:
    given = drafted(output_lse=False)
    rows = given.info.pools["cache"].rows
    slot = rows[2] if stored else next(slot for slot in range(50, 104) if slot not in rows)
    (tmp_path / "writer.py").write_text(WRITER.format(slot=slot))
    (record,) = replay(store_of([given]), kernel=f"{tmp_path}/writer.py:kernel", isolate=False).records
    assert record.outcome is Outcome.MISMATCH
    assert re.fullmatch(
        wording("replay.input-slots-written", tensor="cache", count=1, slot=slot), record.reason
    )


def test_a_cache_of_gigabytes_takes_the_memory_of_its_stored_pages(store_of: StoreOf) -> None:
    """The record says 200,000 pages of 37,440 bytes, 7.5 GB, of which a few are stored."""
    given = drafted(cache_layout="fp8_ds_mla", block_size=64, spare_pages=0)
    slots, held = 200_000, given.before["cache"]
    pool = Pool(slots, given.info.pools["cache"].rows)
    meta = replace(held.meta, caller_shape=(slots, *held.meta.shape[1:]))
    large = replace(
        given,
        info=replace(given.info, pools={"cache": pool}),
        before={**given.before, "cache": TensorDraft(held.data, meta)},
    )
    (record,) = store_of([large]).records
    before = psutil.Process().memory_info().rss
    call = bind.exact(record, operation("swa_decode"), CPU).call
    grown = psutil.Process().memory_info().rss - before
    assert call.tensors["cache"].shape == (slots, 64, 584)
    assert call.tensors["cache"].stride() == (37440, 584, 1)
    assert grown < 64 << 20, grown


@pytest.mark.usefixtures("all_large")
def test_what_of_a_large_pool_is_not_rebuilt_is_said(store_of: StoreOf) -> None:
    given = drafted(cache_layout="bfloat16", spare_pages=4)
    held = given.before["cache"]
    far = replace(held.meta, caller_offset=1000)
    apart = replace(held.meta, caller_strides=(2 * 16 * 512, 1024, 2))
    for meta, said in (
        (far, wording("replay.offset-reduced", offset=1000, reduced=232)),
        (
            apart,
            wording(
                "replay.strides-not-rebuilt",
                strides=[16384, 1024, 2],
                reason=re.compile(wording("replay.rows-apart")),
            ),
        ),
    ):
        changed = replace(given, before={**given.before, "cache": TensorDraft(held.data, meta)})
        (record,) = store_of([changed], name=f"{meta.caller_offset}.zarr").records
        bound = bind.exact(record, operation("swa_decode"), CPU)
        (note,) = bound.notes
        assert re.fullmatch(f"cache: {said}", note)
        rows = list(given.info.pools["cache"].rows)
        found = bound.call.tensors["cache"][rows]
        assert torch.equal(found.view(torch.int16), held.data.view(torch.int16))  # some of it is NaN
