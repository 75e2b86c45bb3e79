# SPDX-License-Identifier: Apache-2.0
"""A decode loop of gated delta rule layers in a CUDA graph, as an engine has it; used by bench_capture.py.

A step of a served model takes 8 to 10 ms, of which the layers here are a part: the rest of it is in the graph
as matrix products with weights of `HIDDEN` x `WIDE`, as many as it takes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gdnbench.capture import record, runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.transformers import ADAPTER

H, HV, DIM, HIDDEN, WIDE, SLOTS = 16, 32, 128, 2048, 32768, 16
REST = 4
"""Weights of the rest, 256 MiB each pair: more than any cache holds."""
TRIALS = 32


@record("gdn_decode", conventions={"qk": "normalised"})
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, state_indices: Tensor
) -> Tensor:
    """q, k [B, 1, H, K] and v [B, 1, Hv, V] bf16, g, beta [B, 1, Hv] fp32; `state` [slots, Hv, V, K] fp32 is
    updated in place. Returns o [B, 1, Hv, V] bf16."""
    rows = state_indices.flatten().long()
    keys, queries = (x[:, 0].float().repeat_interleave(HV // H, dim=1) for x in (k, q))
    decayed = state.index_select(0, rows) * g[:, 0].exp()[..., None, None]
    fresh = beta[:, 0, :, None] * (v[:, 0].float() - (decayed @ keys[..., None])[..., 0])
    decayed += fresh[..., None] * keys[:, :, None, :]
    state.index_copy_(0, rows, decayed)
    return (decayed @ queries[..., None]).transpose(2, 3).transpose(1, 2).to(v.dtype) * DIM**-0.5


class Layer(nn.Module):
    """Projections, the delta rule, and an MLP; random weights."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index
        self.project = nn.Linear(HIDDEN, (2 * H + HV) * DIM + 2 * HV, bias=False)
        self.out = nn.Linear(HV * DIM, HIDDEN, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN, bias=False), nn.SiLU(), nn.Linear(4 * HIDDEN, HIDDEN, bias=False)
        )

    def forward(self, x: Tensor, state: Tensor, indices: Tensor) -> Tensor:
        sizes = [H * DIM, H * DIM, HV * DIM, HV, HV]
        q, k, v, a, b = self.project(x).split(sizes, dim=-1)
        q, k = (nn.functional.normalize(y.unflatten(-1, (H, DIM)), dim=-1)[:, None] for y in (q, k))
        gate, beta = -nn.functional.softplus(a.float()), b.float().sigmoid()
        v = v.unflatten(-1, (HV, DIM))[:, None]
        o = delta_rule(q, k, v, gate[:, None], beta[:, None], state, indices)
        x = x + self.out(o.flatten(1))
        return x + self.mlp(x)


class GraphLoop:
    """Decode steps by replays of a graph, of which there is one for each capture, and one for none."""

    def __init__(self, layers: int, batch: int, step_ms: float) -> None:
        torch.manual_seed(0)
        with torch.device("cuda"):
            self._layers = nn.ModuleList(Layer(index) for index in range(layers)).to(torch.bfloat16)
            self._rest = nn.ModuleList(
                nn.Sequential(nn.Linear(HIDDEN, WIDE, bias=False), nn.Linear(WIDE, HIDDEN, bias=False))
                for _ in range(REST)
            ).to(torch.bfloat16)
            self._states = [torch.zeros(batch + SLOTS, HV, DIM, DIM) for _ in range(layers)]
            self._indices = torch.arange(batch, dtype=torch.int32)[:, None] + SLOTS // 2
            self._x = torch.randn(batch, HIDDEN).to(torch.bfloat16)
            self._token = torch.zeros(batch, dtype=torch.int64)
        self.products = 0
        bare = self._milliseconds(self.graph(None))
        self.products = REST
        a_product = (self._milliseconds(self.graph(None)) - bare) / REST
        self.products = max(0, round((step_ms - bare) / a_product))

    def graph(self, capture: runtime.Capture | None) -> torch.cuda.CUDAGraph:
        """Captured while `capture` runs, or nothing does."""
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        plain = Layer.forward
        if capture is not None:
            # What an adapter's table of layers does: each counts its own steps.
            scope = Target(Layer.__module__, "Layer.forward")
            Layer.forward = capture.session.wrap_scope(ADAPTER, scope, plain)  # type: ignore[method-assign]
            runtime.running.append(capture)
        try:
            with torch.no_grad(), torch.cuda.graph(graph):
                self._step()
        finally:
            if capture is not None:
                runtime.running.remove(capture)
                Layer.forward = plain  # type: ignore[method-assign]
        return graph

    def run(self, graph: torch.cuda.CUDAGraph) -> None:
        """A step, until its token is on the host."""
        graph.replay()
        self._token.tolist()

    def _step(self) -> None:
        x = self._x
        for layer, state in zip(self._layers, self._states, strict=True):
            x = layer(x, state, self._indices)
        for number in range(self.products):
            x = x + self._rest[number % REST](x)
            x = x / x.float().norm(dim=-1, keepdim=True).to(x.dtype)
        self._x.copy_(x / x.float().norm(dim=-1, keepdim=True))
        self._token.copy_(x.argmax(dim=-1))

    def _milliseconds(self, graph: torch.cuda.CUDAGraph) -> float:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begun.record()
        for _ in range(TRIALS):
            graph.replay()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / TRIALS
