# SPDX-License-Identifier: Apache-2.0
"""Records of decode loops over fp8_ds_mla pages: compressed rows of v4_decode, as slots or as pages in order,
and windows of swa_decode. No right loop is accused; a row that changes is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdnbench.lineage.check import LineageReport, check_stores
from gdnbench.lineage.detect import ChainResult
from gdnbench.record import RecordDraft
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft_inputs
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.layouts import ds_mla_parts, pack_ds_mla

PAGE, WINDOW, RATIO, FIRST, STEPS = 16, 20, 4, 12, 12
PAGES, EXTRA_PAGES = torch.tensor([3, 0, 4, 1]), torch.tensor([2, 5, 1])
"""Of positions 0 to 15, 16 to 31 and so on, and of compressed rows 0 to 3, 4 to 7 and so on."""
EXTRA_SIZE, ROOM = 4, 10


def pool(pages: int, size: int, seed: int) -> Tensor:
    return pack_ds_mla(torch.randn(pages, size, 512, generator=torch.Generator().manual_seed(seed)))


def write(cache: Tensor, slot: int, seed: int) -> None:
    """A new row."""
    page, place = divmod(slot, cache.shape[1])
    for old, new in zip(ds_mla_parts(cache), ds_mla_parts(pool(1, 1, seed)), strict=True):
        old[page, place] = new[0, 0]


def slot_of(position: int, pages: Tensor, size: int) -> int:
    return int(pages[position // size]) * size + position % size


def kept(cache: Tensor) -> Tensor:
    """A copy with the pages as far apart."""
    return cache.as_strided((len(cache), cache.stride(0)), (cache.stride(0), 1)).clone().as_strided(
        cache.shape, cache.stride()
    )  # fmt: skip


def call_at(op: str, position: int, window: Tensor, extra: Tensor, form: str) -> Call:
    """The call of one request whose query is at `position`."""
    table = torch.full((1, WINDOW), -1, dtype=torch.int32)
    seen = [slot_of(one, PAGES, PAGE) for one in range(max(0, position - WINDOW + 1), position + 1)]
    table[0, : len(seen)] = torch.tensor(seen)
    lens = torch.tensor([len(seen)], dtype=torch.int32)
    q = torch.zeros(1, 1, 512, dtype=torch.bfloat16)
    if op == "swa_decode":
        tensors = {"q": q, "cache": kept(window), "swa_indices": table, "swa_lens": lens}
        return Call(tensors, {}, {"cache_layout": "fp8_ds_mla", "index_shape": "TW"})
    count = (position + 1) // RATIO
    if form == "block_table":
        entries = EXTRA_PAGES.int().view(1, 1, -1)
    else:
        entries = torch.full((1, 1, ROOM), -1, dtype=torch.int32)
        entries[0, 0, :count] = torch.tensor(
            [slot_of(row, EXTRA_PAGES, EXTRA_SIZE) for row in range(count)], dtype=torch.int32
        )
    tensors = {
        "q": q.unsqueeze(1),
        "cache": kept(window),
        "swa_indices": table.unsqueeze(1),
        "swa_lens": lens,
        "extra_cache": kept(extra),
        "extra_indices": entries,
        "extra_lens": torch.tensor([count], dtype=torch.int32),
    }
    conventions = {"cache_layout": "fp8_ds_mla", "extra_layout": "fp8_ds_mla", "lens_shape": "T"}
    return Call(tensors, {}, {**conventions, "extra_index_form": form})


def checked(path: Path, op: str, form: str, stale: bool = False) -> LineageReport:
    """The report on a loop of one token a call. With `stale` an older row changes in step 7."""
    window, extra = pool(5, PAGE, 1), pool(6, EXTRA_SIZE, 2)
    drafts: list[RecordDraft] = []
    for step in range(STEPS):
        position = FIRST + step
        write(window, slot_of(position, PAGES, PAGE), 100 + step)
        if (position + 1) % RATIO == 0:
            write(extra, slot_of(position // RATIO, EXTRA_PAGES, EXTRA_SIZE), 200 + step)
        if stale and step == 7:
            cache, at = (
                (window, slot_of(position - 5, PAGES, PAGE))
                if op == "swa_decode"
                else (extra, slot_of(1, EXTRA_PAGES, EXTRA_SIZE))
            )
            write(cache, at, 300)
        made = draft_inputs(op, call_at(op, position, window, extra, form), "layers.0", step)
        claims = {"requests": ["r"], "positions": [position], "padding": []}
        dispatch = {"lineage": claims}
        drafts.append(replace(made, info=replace(made.info, call=step, step=step, dispatch=dispatch)))
    with StoreWriter(
        path, kind="capture", compression=Compression(None), chunking=Chunking(), durable=False
    ) as writer:
        writer.write("0", drafts)
    with Store.open(path) as store:
        return check_stores([store])


def chain_of(report: LineageReport, name: str) -> ChainResult:
    (found,) = (chain for chain in report.processes[0].chains if chain.name == name)
    return found


WAYS = [("swa_decode", ""), ("v4_decode", "indices"), ("v4_decode", "block_table")]


@pytest.mark.parametrize(("op", "form"), WAYS)
def test_a_right_loop_is_not_accused(op: str, form: str, tmp_path: Path) -> None:
    report = checked(tmp_path / "run.zarr", op, form)
    assert report.breaks == 0
    assert chain_of(report, "window").right > 100
    if op == "v4_decode":
        # A row is seen first in the call of its last token, and then in every call.
        rows = [(FIRST + step + 1) // RATIO for step in range(STEPS)]
        chain = chain_of(report, "compressed")
        assert (chain.reads, chain.right) == (sum(rows), sum(rows) - rows[-1])


@pytest.mark.parametrize(("op", "form"), WAYS)
def test_a_row_that_changed_is_a_stale_page(op: str, form: str, tmp_path: Path) -> None:
    report = checked(tmp_path / "run.zarr", op, form, stale=True)
    (finding,) = chain_of(report, "window" if op == "swa_decode" else "compressed").findings
    assert (finding.kind.value, finding.found.step) == ("stale-page", 7)
    slot = slot_of(FIRST + 7 - 5, PAGES, PAGE) if op == "swa_decode" else slot_of(1, EXTRA_PAGES, EXTRA_SIZE)
    assert finding.found.slot == slot
    assert finding.own is not None
    assert finding.own.step == 6
