# SPDX-License-Identifier: Apache-2.0
"""States that SGLang's verification keeps outside its pool: their digests, of a device and in CUDA graphs.

The expected digests are of clones of the buffer after each verification.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.sglang import KERNELS, SglangAdapter
from gdnbench.capture.claims import Claims
from gdnbench.capture.kept_states import kept_states
from gdnbench.digests import row_digests
from gdnbench.errors import StoreError
from gdnbench.lineage.claims import claims_of
from gdnbench.store.access_log import AccessFlag, AccessKind
from gdnbench.store.access_pieces import piece_of
from gdnbench.store.reader import Store
from tests.capture.frameworks import framework
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_claims import in_step
from tests.capture.test_sglang import ints, kernel_of, pool, raw
from tests.subset import quick

DRAFTS, ROWS = 3, (2, 0)
METHOD = "TritonGDNKernel.target_verify"


@pytest.fixture(autouse=True)
def sglang() -> Iterator[None]:
    with framework():
        yield


class Layers:
    """Verifies three drafts of each of two requests in slots 4 and 7, in layers that have their own pools and
    buffers."""

    def __init__(self, count: int) -> None:
        session = runtime.running[-1]._session
        assert session is not None
        kernel = kernel_of("triton")
        target = Target(f"{KERNELS}.gdn_triton", METHOD)
        verify = session.wrap_target(SglangAdapter(), target, type(kernel).target_verify)

        def forward(layer: Any, call: dict[str, Any]) -> None:
            verify(kernel, **call)

        adapter = SglangAdapter()
        self.scoped = session.wrap_scope(adapter, adapter.scopes[0], forward)
        self.pools = [pool() * (n + 1) for n in range(count)]
        self.buffers = [torch.zeros(5, DRAFTS + 1, *self.pools[0].shape[1:]) for _ in range(count)]
        layer = import_module("sglang.srt.layers.radix_linear_attention").RadixLinearAttention
        self.calls = []
        for number, (held, kept) in enumerate(zip(self.pools, self.buffers, strict=True)):
            call = raw(
                2 * DRAFTS,
                cache_indices=ints(4, 7),
                query_start_loc=ints(0, DRAFTS, 2 * DRAFTS),
                ssm_states=held,
                intermediate_states_buffer=kept,
                intermediate_state_indices=ints(*ROWS),
                cache_steps=DRAFTS,
                retrieve_parent_token=None,
            )
            self.calls.append((layer(number, None), call))

    def forward(self) -> None:
        for layer, call in self.calls:
            self.scoped(layer, call)

    def digests(self, sample: int) -> list[list[tuple[int, ...]]]:
        """Of each layer, by request and then by draft."""
        return [
            [tuple(one) for row in ROWS for one in row_digests(kept[row, :DRAFTS].clone(), sample).tolist()]
            for kept in self.buffers
        ]


def verified(path: Path, options: CaptureOptions, in_graph: bool) -> list[list[tuple[int, ...]]]:
    """Two steps of two layers; the expected digests of each call."""
    expected = []
    with capturing_stand_in(path, StandInStreams(), options) as counts:
        layers, graph = Layers(2), StandInGraph()
        if in_graph:
            with graph_of(graph):
                layers.forward()
        for step in range(2):
            for held in layers.pools:
                held += step
            claims = Claims(["a", "b"], [9 + step, 5 + step], kept=[0, 1])
            in_step(graph.replay if in_graph else layers.forward, claims)
            expected += layers.digests(options.digest_sample)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert len({one for call in expected for one in call} - {(0, 0)}) == 4 * len(ROWS) * DRAFTS
    return expected


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("sample", quick((1, 3), 1))
def test_an_access_log_has_the_digests(tmp_path: Path, in_graph: bool, sample: int) -> None:
    options = CaptureOptions(digests=True, digest_sample=sample)
    expected = verified(tmp_path / "run.zarr", options, in_graph)
    rows = np.concatenate([piece_of(one).rows for one in Store.open(tmp_path / "run.zarr").records])
    writes = rows[rows["kind"] == AccessKind.WRITE]
    assert not (writes["flags"] & AccessFlag.DIGEST_UNKNOWN).any()
    found = [tuple(one) for one in writes["digest"].view(np.int64).tolist()]
    assert found == [one for call in expected for one in call]
    assert writes["position"].tolist() == [10, 11, 12, 6, 7, 8] * 2 + [11, 12, 13, 7, 8, 9] * 2
    assert writes["slot"].tolist() == [4, 4, 4, 7, 7, 7] * 4


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_record_has_the_digests(tmp_path: Path, in_graph: bool) -> None:
    expected = verified(tmp_path / "run.zarr", CaptureOptions(), in_graph)
    records = Store.open(tmp_path / "run.zarr").records
    claims = [claims_of(one.info.dispatch, one.key) for one in records]
    words = [np.array([one.kept_digests[0], one.kept_digests[1]], dtype=np.uint64) for one in claims]
    found = [[tuple(one) for one in of_call.view(np.int64).reshape(-1, 2).tolist()] for of_call in words]
    assert found == expected


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_trigger_follows_what_is_kept(tmp_path: Path, in_graph: bool) -> None:
    """In the third step a has the state after a draft that was rejected."""
    with capturing_stand_in(
        tmp_path / "run.zarr", StandInStreams(), CaptureOptions(on_lineage=True)
    ) as counts:
        layers, graph = Layers(1), StandInGraph()
        (held,), (kept,) = layers.pools, layers.buffers
        if in_graph:
            with graph_of(graph):
                layers.forward()
        for number, accepted in enumerate((1, 2, 1)):
            claims = Claims(["a", "b"], [9 + number, 5 + number], kept=[0, 1])
            in_step(graph.replay if in_graph else layers.forward, claims)
            held[4], held[7] = kept[ROWS[0], accepted - 1], kept[ROWS[1], 0]
    assert (counts.failures, counts.first_failure, counts.looked_at) == (0, None, 3)
    assert counts.triggered == 1
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert (record.info.step, record.info.dispatch["trigger"]) == (2, "lineage:rejected-draft")


def test_a_buffer_that_cannot_be_compared() -> None:
    held, kept, rows = torch.zeros(9, 4, 8, 8), torch.zeros(5, 3, 4, 8, 8), ints(0, 1)
    assert kept_states(kept, rows, 2, 3, held) is not None

    def refused(buffer: Tensor | None, rows: Any, tokens: int = 3) -> bool:
        return kept_states(buffer, rows, 2, tokens, held) is None

    assert refused(None, rows)
    assert refused(kept, None)
    assert refused(kept.bfloat16(), rows)
    assert refused(kept[..., :4], rows)
    assert refused(kept, rows[:1])
    assert refused(kept, rows, tokens=4)


@pytest.mark.parametrize("digests", ["00", [["0" * 32]], [["0" * 31], ["0" * 32]], [[7], ["0" * 32]]])
def test_digests_of_another_form_are_one_line(digests: Any) -> None:
    claims = {"requests": ["a", "b"], "positions": [1, 2], "kept": [0, 1], "kept_digests": digests}
    with pytest.raises(StoreError, match=r"record 7: lineage: kept_digests (are|is) "):
        claims_of({"lineage": claims}, "record 7")
