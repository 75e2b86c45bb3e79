# SPDX-License-Identifier: Apache-2.0
"""Other people's kernels, each called on small inputs that take every path: what is run under the checker
beside the records that some of them take.

A call runs in a process of its own, with the environment that the packages need.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

FOLDER = "GDNBENCH_THIRD_PARTY"
ENGINES = {"sglang": "GDNBENCH_SGLANG", "vllm": "GDNBENCH_VLLM"}
"""Of the environment: where the packages were installed to, and the engines with what they need."""
DIM = 128


def folder_of(package: str) -> str | None:
    """Where `package` was installed to, None if that is not told."""
    folder = os.environ.get(ENGINES.get(package, FOLDER))
    return os.path.join(folder, "with-triton") if folder and package == "fla" else folder


def environment(package: str) -> dict[str, str]:
    """What a process that imports `package` needs in its environment."""
    path = [path for path in (folder_of(package), os.environ.get("PYTHONPATH")) if path]
    return {**_cases("apart").ARCHITECTURE, "PYTHONPATH": os.pathsep.join(path)}


Calls = Callable[[str], dict[str, Tensor]]
"""Makes its inputs anew, runs the kernel under a schedule, and returns its tensors."""


def _cases(module: str) -> Any:
    return importlib.import_module(f"tests.sim.third_party.{module}")


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _bf16(seed: int, *shape: int) -> Tensor:
    return _normal(seed, *shape).to(torch.bfloat16)


def _nan(like: Tensor) -> Tensor:
    return torch.full_like(like, torch.nan)


def softmax(schedule: str) -> dict[str, Tensor]:
    x = _bf16(1, 5, 1000)
    out = _nan(x)
    _cases("quack_cases").softmax(x=x, out=out)
    return {"out": out}


def rmsnorm(schedule: str) -> dict[str, Tensor]:
    x = _bf16(2, 5, 1000)
    out, rstd = _nan(x), torch.full((5,), torch.nan)
    _cases("quack_cases").rmsnorm(x=x, weight=_normal(3, 1000), out=out, rstd=rstd, eps=1e-6)
    return {"out": out, "rstd": rstd}


def gemm(schedule: str) -> dict[str, Tensor]:
    """Two batches, no extent a multiple of the tile, three CTAs for eight tiles."""
    a, b = _bf16(10, 2, 200, 72), _bf16(20, 2, 104, 72)
    d = torch.full((2, 200, 104), torch.nan, dtype=torch.bfloat16)
    _cases("quack_cases").gemm(a=a, b=b, d=d, bias=_bf16(30, 2, 104), ctas=3)
    return {"d": d}


def _hopper_gemm(schedule: str, pingpong: bool) -> dict[str, Tensor]:
    a, b = _bf16(40, 2, 200, 200), _bf16(41, 2, 104, 200)
    d = torch.full((2, 200, 104), torch.nan, dtype=torch.bfloat16)
    cases = _cases("quack_cases")
    cases.hopper_gemm(a=a, b=b, d=d, ctas=3, pingpong=pingpong, engine="compiled", schedule=schedule)
    return {"d": d}


def cooperative(schedule: str) -> dict[str, Tensor]:
    return _hopper_gemm(schedule, pingpong=False)


def pingpong(schedule: str) -> dict[str, Tensor]:
    return _hopper_gemm(schedule, pingpong=True)


def decode(schedule: str) -> dict[str, Tensor]:
    batch, heads, value_heads = 2, 2, 4
    state = _normal(1, batch * value_heads, DIM, DIM)
    out = torch.full((batch, 1, value_heads, DIM), torch.nan, dtype=torch.bfloat16)
    _cases("flashinfer_cases").decode(
        state=state,
        a_log=0.3 * _normal(2, value_heads),
        a=_bf16(3, batch, 1, value_heads),
        dt_bias=0.3 * _normal(4, value_heads),
        q=_bf16(5, batch, 1, heads, DIM),
        k=_bf16(6, batch, 1, heads, DIM),
        v=_bf16(7, batch, 1, value_heads, DIM),
        b=_bf16(8, batch, 1, value_heads),
        out=out,
        scale=DIM**-0.5,
    )
    return {"state": state, "out": out}


def fold(schedule: str) -> dict[str, Tensor]:
    """Three, eight, no and five tokens of two layers are committed; one sequence has no slot."""
    layers, slots, value_heads, length = 2, 5, 2, 8
    rows = layers * slots
    state = _normal(1, rows, value_heads, DIM, DIM)
    _cases("flashinfer_cases").fold(
        state=state,
        rawv=_bf16(2, rows, value_heads, length, DIM),
        rawk=_bf16(3, rows, 1, length, DIM),
        log_g=-_normal(4, rows, value_heads, length).abs(),
        beta=torch.sigmoid(_normal(5, rows, value_heads, length)),
        slots=torch.tensor([4, 0, 2, -1], dtype=torch.int32),
        accepted=torch.tensor([3, 8, 0, 5], dtype=torch.int32),
        layers=layers,
    )
    return {"state": state}


CALLS: Mapping[str, Calls] = {
    "quack softmax": softmax,
    "quack rmsnorm": rmsnorm,
    "quack gemm": gemm,
    "quack wgmma gemm, cooperative": cooperative,
    "quack wgmma gemm, pingpong": pingpong,
    "flashinfer decode, one step": decode,
    "flashinfer fold": fold,
}
