# SPDX-License-Identifier: Apache-2.0
"""On a GPU: digests of the states that SGLang's verification keeps outside its pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing, runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.sglang import KERNELS, SglangAdapter
from gdnbench.capture.claims import Claims
from gdnbench.digests import row_digests
from gdnbench.store.access_log import AccessFlag, AccessKind
from gdnbench.store.access_pieces import piece_of
from gdnbench.store.reader import Store
from tests.capture.test_claims import in_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

LAYERS, HV, D, DRAFTS, ROWS = 3, 4, 64, 3, (2, 0)


def target_verify(
    self: Any, A_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, *,
    ssm_states: Tensor, cache_indices: Tensor, query_start_loc: Tensor, intermediate_states_buffer: Tensor,
    intermediate_state_indices: Tensor, cache_steps: int, retrieve_parent_token: Tensor | None,
) -> Tensor:  # fmt: skip
    """Leaves some state after each draft, without waiting for the device."""
    read, rows = ssm_states[cache_indices.long()], intermediate_state_indices.long()
    for token in range(cache_steps):
        read = read * 0.5 + token
        intermediate_states_buffer[rows, token] = read
    return v.clone()


class Layers:
    """Two requests in slots 4 and 7 of layers that have their own pools and buffers."""

    def __init__(self) -> None:
        capture = runtime.innermost()
        assert capture is not None
        adapter = SglangAdapter()
        target = Target(f"{KERNELS}.gdn_triton", "TritonGDNKernel.target_verify")
        target_verify.__qualname__ = "TritonGDNKernel.target_verify"
        self.verify = capture.session.wrap_target(adapter, target, target_verify)
        drawn = torch.Generator("cuda").manual_seed(3)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, device="cuda", generator=drawn)

        def ints(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        self.pools = [random(9, HV, D, D) for _ in range(LAYERS)]
        self.buffers = [random(5, DRAFTS + 1, HV, D, D) for _ in range(LAYERS)]
        tokens = 2 * DRAFTS
        shared = {
            **{name: random(1, tokens, HV, D).bfloat16() for name in ("q", "k", "v")},
            "a": random(tokens, HV).bfloat16(),
            "b": random(tokens, HV).bfloat16(),
            "A_log": random(HV),
            "dt_bias": random(HV),
            "cache_indices": ints(4, 7),
            "query_start_loc": ints(0, DRAFTS, tokens),
            "intermediate_state_indices": ints(*ROWS),
            "cache_steps": DRAFTS,
            "retrieve_parent_token": None,
        }
        self.calls = [
            {**shared, "ssm_states": held, "intermediate_states_buffer": kept}
            for held, kept in zip(self.pools, self.buffers, strict=True)
        ]

    def forward(self) -> None:
        for call in self.calls:
            self.verify(None, **call)

    def digests(self, sample: int) -> list[tuple[int, ...]]:
        """By layer, request and draft."""
        kept = torch.cat([one[row, :DRAFTS] for one in self.buffers for row in ROWS])
        return [tuple(one) for one in row_digests(kept.cpu(), sample).tolist()]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("sample", [1, 3])
def test_an_access_log_has_the_digests(tmp_path: Path, in_graph: bool, sample: int) -> None:
    options = CaptureOptions(digests=True, digest_sample=sample)
    expected = []
    with capturing(tmp_path / "run.zarr", options) as counts:
        layers = Layers()
        layers.forward()  # what a graph needs to have been made
        expected += layers.digests(sample)
        run = layers.forward
        if in_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                layers.forward()
            run = graph.replay
        for step in range(3):
            for held in layers.pools:
                held += step + 1
            claims = Claims(["a", "b"], [9 + step, 5 + step], kept=[0, 1])
            in_step(run, claims)
            expected += layers.digests(sample)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    rows = np.concatenate([piece_of(one).rows for one in Store.open(tmp_path / "run.zarr").records])
    writes = rows[rows["kind"] == AccessKind.WRITE]
    assert not (writes["flags"] & AccessFlag.DIGEST_UNKNOWN).any()
    found = [tuple(one) for one in writes["digest"].view(np.int64).tolist()]
    assert found == expected[LAYERS * len(ROWS) * DRAFTS :]  # the first calls are of no step


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_record_has_the_digests(tmp_path: Path, in_graph: bool) -> None:
    with capturing(tmp_path / "run.zarr") as counts:
        layers = Layers()
        run = layers.forward
        if in_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                layers.forward()
            run = graph.replay
        in_step(run, Claims(["a", "b"], [9, 5], kept=[0, 1]))
        expected = layers.digests(1)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    found = [
        tuple(np.array([int(one[:16], 16), int(one[16:], 16)], dtype=np.uint64).view(np.int64).tolist())
        for record in Store.open(tmp_path / "run.zarr").records
        for of_sequence in record.info.dispatch["lineage"]["kept_digests"]
        for one in of_sequence
    ]
    assert found == expected
