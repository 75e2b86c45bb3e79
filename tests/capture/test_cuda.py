"""On a GPU: copies are queued behind the call and in front of whatever overwrites its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing, record
from gdnbench.store.reader import Store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@record("gdn_decode")
def step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor, o: Tensor
) -> None:
    rows = state_indices.flatten().long()
    state[rows] = state[rows] * 0.5 + v[:, 0, :, :, None]
    o.copy_(v + q.sum() + g.sum() + beta.sum() + k.sum())


def test_reused_buffers_are_recorded_as_they_were(tmp_path: Path) -> None:
    slots, batch, heads, dim = 64, 8, 4, 128
    make = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=make)

    state, o = random(slots, heads, dim, dim), random(batch, 1, heads, dim)
    buffers = {
        "q": random(batch, 1, 2, dim),
        "k": random(batch, 1, 2, dim),
        "v": random(batch, 1, heads, dim),
    }
    buffers |= {"g": -random(batch, 1, heads).abs(), "beta": random(batch, 1, heads).sigmoid()}
    indices = torch.arange(batch, dtype=torch.int32, device="cuda").unsqueeze(1) * 3
    rows = indices.flatten().long()
    seen = []
    with capturing(tmp_path / "run.zarr") as counts:
        for _ in range(20):
            before = {**{name: x.clone() for name, x in buffers.items()}, "state": state[rows].clone()}
            step(**buffers, state=state, state_indices=indices, o=o)
            seen.append((before, {"o": o.clone(), "state": state[rows].clone()}))
            # The next step's inputs land in the same memory, at once.
            for x in buffers.values():
                x.mul_(0.5)
    assert (counts.failures, counts.first_failure, counts.records) == (0, None, 20)
    for stored, (before, after) in zip(Store.open(tmp_path / "run.zarr").records, seen, strict=True):
        for handles, tensors in ((stored.before, before), (stored.after, after)):
            for name, tensor in tensors.items():
                assert torch.equal(handles[name].read(), tensor.cpu()), name
        pool = stored.info.pools["state"]
        assert pool.rows == tuple(rows.tolist())
        assert pool.untouched_before == pool.untouched_after is not None


def test_calls_captured_into_a_cuda_graph_are_counted_and_left_alone(tmp_path: Path) -> None:
    shapes = {"q": (1, 1, 2, 8), "k": (1, 1, 2, 8), "v": (1, 1, 4, 8), "g": (1, 1, 4), "beta": (1, 1, 4)}
    buffers = {name: torch.zeros(shape, device="cuda") for name, shape in shapes.items()}
    buffers |= {"state": torch.ones(2, 4, 8, 8, device="cuda"), "o": torch.zeros(1, 1, 4, 8, device="cuda")}
    indices = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    with capturing(tmp_path / "run.zarr") as counts:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(**buffers, state_indices=indices)
        graph.replay()
        torch.cuda.synchronize()
    assert (counts.records, counts.skipped_compiling, counts.failures) == (0, 1, 0)
    assert float(buffers["state"][0].max()) == 0.5
