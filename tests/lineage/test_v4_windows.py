# SPDX-License-Identifier: Apache-2.0
"""Windows of v4_decode: a decode loop with drafts over fp8_ds_mla pages, whose stores have no break; and rows
that change under a running request, in any part of a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdnbench.lineage.check import LineageReport, check_stores
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft_inputs
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.layouts import ds_mla_parts, pack_ds_mla
from gdnbench_kernels.v4_decode.contract import OPERATION

PAGE, WINDOW, STEPS = 16, 20, 12
PAGES = torch.tensor([3, 0, 4, 1])
"""Of positions 0 to 15, 16 to 31, and so on."""


def slots(positions: Tensor) -> Tensor:
    return PAGES[positions // PAGE] * PAGE + positions % PAGE


def call_at(first: int, queries: int, cache: Tensor) -> Call:
    """The call of one request whose first query is at position `first`; a padded request beside it."""
    table = torch.full((2, queries, WINDOW), -1, dtype=torch.int32)
    lens = torch.zeros(2, queries, dtype=torch.int32)
    for query in range(queries):
        last = first + query
        positions = torch.arange(max(0, last - WINDOW + 1), last + 1)
        table[0, query, : len(positions)] = slots(positions).int()
        lens[0, query] = len(positions)
    q = torch.zeros(2, queries, 1, 512, dtype=torch.bfloat16)
    tensors = {"q": q, "cache": cache, "swa_indices": table, "swa_lens": lens}
    return Call(tensors, {}, {"cache_layout": "fp8_ds_mla", "extra_layout": "fp8_ds_mla"})


def checked(path: Path, queries: int, spoilt: str = "") -> LineageReport:
    """The report on a loop in which every call accepts one or two of its queries, computes their rows and
    those of rejected drafts anew. Before step 7 a byte of an older row changes in `spoilt`."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(5, PAGE, 512, generator=generator)
    first, drafts = 12, []
    cache = pack_ds_mla(rows)
    for step in range(STEPS):
        fresh = slots(torch.arange(first, first + queries))
        rows.view(-1, 512)[fresh] = torch.randn(queries, 512, generator=generator)
        packed = pack_ds_mla(rows)
        for old, new in zip(ds_mla_parts(cache), ds_mla_parts(packed), strict=True):
            old[fresh // PAGE, fresh % PAGE] = new[fresh // PAGE, fresh % PAGE]
        if spoilt and step == 7:
            page, place = divmod(int(slots(torch.tensor(first - 5))), PAGE)
            data, scales = ds_mla_parts(cache)
            if spoilt == "scales":
                scales[page, place, 3] += 1
            else:
                data[page, place, {"codes": 5, "rope": 570}[spoilt]] ^= 1
        call = call_at(first, queries, cache.clone())
        call.tensors["cache"].copy_(cache)
        OPERATION.validate(call)
        made = draft_inputs("v4_decode", call, "layers.0", step)
        claims = {"requests": ["r", None], "positions": [first, None], "padding": [1]}
        info = replace(made.info, call=step, step=step, layer_index=0, dispatch={"lineage": claims})
        drafts.append(replace(made, info=info))
        first += 1 + (step % 2 if queries > 1 else 0)
    with StoreWriter(
        path, kind="capture", compression=Compression(None), chunking=Chunking(), durable=False
    ) as writer:
        writer.write("0", drafts)
    with Store.open(path) as store:
        return check_stores([store])


@pytest.mark.parametrize("queries", [1, 2])
def test_a_right_loop_is_not_accused(tmp_path: Path, queries: int) -> None:
    report = checked(tmp_path / "run.zarr", queries)
    assert report.breaks == 0
    assert report.total("right") > 100


@pytest.mark.parametrize("spoilt", ["codes", "rope", "scales"])
def test_a_row_that_changed_is_a_stale_page(tmp_path: Path, spoilt: str) -> None:
    report = checked(tmp_path / "run.zarr", 1, spoilt)
    (chain,) = report.processes[0].chains
    (finding,) = chain.findings
    assert (finding.kind.value, finding.damage.step, finding.found.position) == ("stale-page", 7, 12 + 7 - 5)
