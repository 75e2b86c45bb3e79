# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 2^31 elements: a kernel does at their end what it does at the start of small ones.

Only the pages that are touched exist. Counters and offsets of 32 bits would wrap to other places, or to none.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench import sim
from gdnbench_kernels.gdn_prefill.sources import build_output, build_state, build_uw

TOKENS = 65
"""Of the one sequence: a full chunk, and one whose rows are stored one by one."""
HEADS = 2
COUNTED = 2**31
MAP_NORESERVE = 0x4000
"""Linux's, on x86-64 and AArch64; Python 3.11 does not name it."""
FIRST_TOKEN = COUNTED // (HEADS * 128) + 3
FIRST_CHUNK = COUNTED // (64 * 128) + 1

Inputs = dict[str, Tensor]


def sparse(*shape: int) -> Tensor:
    """bf16 zeros, of which no memory is reserved."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, 2 * prod(shape), flags=flags), dtype=torch.bfloat16).view(shape)


def at_end(tensor: Tensor, first: int) -> Tensor:
    """bf16 zeros [first + rows, ...] that end in `tensor`."""
    large = sparse(first + len(tensor), *tensor.shape[1:])
    assert large[:first].numel() >= COUNTED
    large[first:] = tensor
    return large


def compiled(build: Callable[..., Any], *options: Any) -> Any:
    host, arguments = build(*options)
    return sim.compile(host, *arguments, arch="sm_100a")


@pytest.fixture
def inputs() -> Inputs:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows = {name: (normal(128, 1, 128) / 8).bfloat16() for name in ("u", "w")}
    for tensor in rows.values():
        tensor[TOKENS:] = 0
    q, k, v = ((normal(TOKENS, HEADS, 128) / 11).bfloat16() for _ in range(3))
    g = -torch.rand(TOKENS, HEADS, generator=generator) / 64
    g_cu = torch.cat([g[:64].cumsum(0), g[64:].cumsum(0)])
    return {**rows, "q": q, "k": k, "v": v, "g": g, "g_cu": g_cu, "beta": -8 * g}


def tables(first: int) -> tuple[Tensor, Tensor, Tensor]:
    """cu_seqlens, chunk_indices, total_chunks of a sequence that begins at that token."""
    bounds = torch.tensor([first, first + TOKENS], dtype=torch.int32)
    return bounds, torch.tensor([[0, 0], [0, 1]], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)


def at_token(tensor: Tensor, first: int) -> Tensor:
    """f32 [first + T, Hv] that ends in `tensor`."""
    return torch.cat([tensor.new_zeros(first, *tensor.shape[1:]), tensor])


@pytest.mark.slow  # several GB of addresses; chunk_output has the same test
def test_chunk_uw_far_behind(inputs: Inputs) -> None:
    program = compiled(build_uw, HEADS, HEADS, "none", 1)

    def run(first: int, k: Tensor, v: Tensor) -> list[Tensor]:
        g, beta = (at_token(inputs[name], first) for name in ("g", "beta"))
        g_cu, u, w = torch.zeros_like(g), *(torch.zeros(128, HEADS, 128).bfloat16() for _ in range(2))
        assert not sim.launch(program, k, v, g, beta, *tables(first), g_cu, u, w, None, None, 3).findings
        return [g_cu[first:], u, w]

    near = run(0, inputs["k"], inputs["v"])
    far = run(FIRST_TOKEN, *(at_end(inputs[name], FIRST_TOKEN) for name in ("k", "v")))
    assert all(map(torch.equal, far, near))
    assert all(tensor[:TOKENS].any(-1).all() for tensor in near[1:])


@pytest.mark.slow
def test_chunk_state_far_behind(inputs: Inputs) -> None:
    program = compiled(build_state, 1, 1, None, "float32")
    k, g_cu = inputs["k"][:, :1].contiguous(), inputs["g_cu"][:, :1].contiguous()
    bounds = tables(0)[0]

    def run(first: int, u: Tensor, w: Tensor, h: Tensor, v_new: Tensor) -> list[Tensor]:
        final, offsets = torch.zeros(1, 1, 128, 128), torch.tensor([first, first + 2], dtype=torch.int32)
        assert not sim.launch(program, k, u, w, g_cu, bounds, offsets, None, h, v_new, final).findings
        return [h[first:], v_new[64 * first :], final]

    outputs = torch.zeros(2, 1, 128, 128).bfloat16(), torch.zeros(128, 1, 128).bfloat16()
    far = run(
        FIRST_CHUNK,
        *(at_end(inputs[name], 64 * FIRST_CHUNK) for name in ("u", "w")),
        at_end(outputs[0], FIRST_CHUNK),
        at_end(outputs[1], 64 * FIRST_CHUNK),
    )
    near = run(0, inputs["u"], inputs["w"], *outputs)
    assert all(map(torch.equal, far, near))
    h, v_new, final = near
    assert h[1].any()
    assert v_new[:TOKENS].any(-1).all()
    assert final.any()


@pytest.mark.slow
def test_chunk_output_far_behind(inputs: Inputs) -> None:
    program = compiled(build_output, HEADS, HEADS)
    v_new = torch.cat([inputs["v"], inputs["v"].new_zeros(128 - TOKENS, HEADS, 128)])
    h = (torch.randn(2, HEADS, 128, 128, generator=torch.Generator().manual_seed(1)) / 8).bfloat16()

    def run(first: int, q: Tensor, k: Tensor, o: Tensor) -> Tensor:
        g_cu = at_token(inputs["g_cu"], first)
        assert not sim.launch(program, q, k, v_new, h, g_cu, *tables(first), o, 1.0, 3).findings
        return o[first:]

    o = torch.zeros_like(inputs["q"])
    far = run(FIRST_TOKEN, *(at_end(tensor, FIRST_TOKEN) for tensor in (inputs["q"], inputs["k"], o)))
    near = run(0, inputs["q"], inputs["k"], o)
    assert torch.equal(far, near)
    assert near.any(-1).all()
