"""A decode loop of gated delta rule layers in a CUDA graph, as an engine has it; used by bench_capture.py."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from gdnbench.capture import record, runtime

H, HV, DIM, HIDDEN, SLOTS = 16, 32, 128, 2048, 16


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

    def __init__(self) -> None:
        super().__init__()
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
    """Decode steps by replays of one graph, captured while `capture` runs, or nothing does."""

    def __init__(self, layers: int, batch: int, capture: runtime.Capture | None) -> None:
        torch.manual_seed(0)
        with torch.device("cuda"):
            self._layers = nn.ModuleList(Layer() for _ in range(layers)).to(torch.bfloat16)
            self._states = [torch.zeros(batch + SLOTS, HV, DIM, DIM) for _ in range(layers)]
            self._indices = torch.arange(batch, dtype=torch.int32)[:, None] + SLOTS // 2
            self._x = torch.randn(batch, HIDDEN).to(torch.bfloat16)
        self._graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        if capture is not None:
            runtime.running.append(capture)
        try:
            with torch.no_grad(), torch.cuda.graph(self._graph):
                self._step()
        finally:
            if capture is not None:
                runtime.running.remove(capture)

    def _step(self) -> None:
        x = self._x
        for layer, state in zip(self._layers, self._states, strict=True):
            x = layer(x, state, self._indices)
        self._x.copy_(x / x.float().norm(dim=-1, keepdim=True))

    def seconds(self, steps: int) -> float:
        """Of `steps` replays, until the device is through with them and with our copies."""
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            self._graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - begun
