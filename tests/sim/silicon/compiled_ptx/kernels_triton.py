# SPDX-License-Identifier: Apache-2.0
"""What Triton makes of usual kernels, and how to have their PTX again:

    TRITON_DISABLE_LINE_INFO=1 python tests/sim/silicon/compiled_ptx/kernels_triton.py
    nvcc -ptx -arch=sm_90a -std=c++17 tests/sim/silicon/compiled_ptx/kernels.cu -o .../compiled_ptx/nvcc.ptx

Needs triton, and no GPU. Each kernel reads x and writes y. `FORMS` says with how many warps and CTAs each is
compiled; its PTX goes to triton_NAME.ptx beside this file and what a launch has to know to triton.json.
Another version of a compiler makes other PTX, which then has to be recorded again.
"""

from __future__ import annotations

import json
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x, y):
    at = tl.program_id(0) * 512 + tl.arange(0, 512)
    row = tl.load(x + at)
    power = tl.exp(row - tl.max(row, 0))
    tl.store(y + at, power / tl.sum(power, 0))


@triton.jit
def norm(x, y):
    place = tl.arange(0, 8)[:, None] * 128 + tl.arange(0, 128)[None, :]
    rows = tl.load(x + place).to(tl.float32)
    mean = tl.sum(rows, 1) / 128
    away = rows - mean[:, None]
    scale = tl.rsqrt(tl.sum(away * away, 1) / 128 + 1e-5)
    out = away * scale[:, None]
    tl.store(y + place, (out * tl.sigmoid(out)).to(tl.bfloat16))


@triton.jit
def product(x, y):
    """64 x 64 of bf16 over K = 128, in steps of 64."""
    row, k = tl.arange(0, 64), tl.arange(0, 64)
    sums = tl.zeros((64, 64), tl.float32)
    for step in range(2):
        left = tl.load(x + row[:, None] * 128 + step * 64 + k[None, :])
        right = tl.load(x + 8192 + (step * 64 + k[:, None]) * 64 + row[None, :])
        sums = tl.dot(left, right, sums)
    tl.store(y + row[:, None] * 64 + row[None, :], sums)


@triton.jit
def product_tf32(x, y):
    row, k = tl.arange(0, 32), tl.arange(0, 32)
    left = tl.load(x + row[:, None] * 32 + k[None, :])
    right = tl.load(x + 1024 + k[:, None] * 32 + row[None, :])
    tl.store(y + row[:, None] * 32 + row[None, :], tl.dot(left, right, input_precision="tf32"))


@triton.jit
def product_fp8(x, y):
    row, k = tl.arange(0, 64), tl.arange(0, 64)
    left = tl.load(x + row[:, None] * 64 + k[None, :])
    right = tl.load(x + 4096 + row[None, :] * 64 + k[:, None])
    tl.store(y + row[:, None] * 64 + row[None, :], tl.dot(left, right))


@triton.jit
def _linear(gate, value, next_gate, next_value):
    return gate * next_gate, value * next_gate + next_value


@triton.jit
def scans(x, y):
    """h[t] = g[t] * h[t - 1] + v[t], and sums, down the columns."""
    place = tl.arange(0, 64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    value = tl.load(x + place)
    gate = 1 / (1 + tl.exp(-value))
    _, out = tl.associative_scan((gate, value), 0, _linear)
    tl.store(y + place, out)
    tl.store(y + 1024 + place, tl.cumsum(value, 0))


@triton.jit
def integers(x, y):
    """argmax, a histogram, a sort, atomics whose sums do not depend on an order, and divisions."""
    at = tl.arange(0, 256)
    value = tl.load(x + tl.program_id(0) * 256 + at)
    tl.store(y + tl.program_id(0) * 256 + at, tl.sort(value))
    tl.atomic_add(y + 1024 + (value & 63), 1)
    tl.atomic_max(y + 1088 + (at & 15), value)
    tl.atomic_xor(y + 1104 + (at & 7), value)
    tl.store(y + 1112 + tl.program_id(0), tl.argmax(value, 0))
    tl.store(y + 1120 + tl.program_id(0) * 64 + tl.arange(0, 64), tl.histogram(value & 63, 64))
    other = (value >> 7) | 1
    tl.store(y + 1376 + tl.program_id(0) * 256 + at, value // other + value % 1013)


@triton.jit
def delta_rule(x, y):
    """Four steps of the gated delta rule on a state of 32 x 32."""
    key, row = tl.arange(0, 32), tl.arange(0, 32)
    state = tl.load(x + row[:, None] * 32 + key[None, :])
    for step in range(4):
        k = tl.load(x + 1024 + step * 64 + key)
        v = tl.load(x + 1056 + step * 64 + row)
        k = k / tl.sqrt(tl.sum(k * k, 0) + 1e-6)
        beta, gate = tl.sigmoid(v), tl.exp(-tl.abs(v))
        state = state * gate[:, None]
        away = (v - tl.sum(state * k[None, :], 1)) * beta
        state += away[:, None] * k[None, :]
        tl.store(y + step * 32 + row, tl.sum(state * k[None, :], 1))
    tl.store(y + 128 + row[:, None] * 32 + key[None, :], state)


@triton.jit
def described(x, y):
    """A transposed tile through tensor maps that the kernel makes."""
    source = tl.make_tensor_descriptor(x, (100, 64), (64, 1), (32, 64))
    target = tl.make_tensor_descriptor(y, (64, 128), (128, 1), (64, 32))
    at = tl.program_id(0) * 32
    target.store([0, at], tl.trans(source.load([at, 0])))


WORD, FLOAT, BF16, FP8 = "*i32", "*fp32", "*bf16", "*fp8e4nv"
# Kernel, types of x and y, warps, CTAs of a cluster.
FORMS = {
    "softmax": (softmax, FLOAT, FLOAT, 4, 1),
    "norm": (norm, BF16, BF16, 4, 1),
    "product": (product, BF16, FLOAT, 4, 1),
    "product_in_pairs": (product, BF16, FLOAT, 4, 2),
    "product_tf32": (product_tf32, FLOAT, FLOAT, 4, 1),
    "product_fp8": (product_fp8, FP8, FLOAT, 4, 1),
    "scans": (scans, FLOAT, FLOAT, 4, 1),
    "integers": (integers, WORD, WORD, 4, 1),
    "delta_rule": (delta_rule, FLOAT, FLOAT, 2, 1),
    "described": (described, WORD, WORD, 4, 1),
}
PTX_VERSION = 87
"""8.7, as the other micro-kernels have it: a driver of CUDA 12.8 takes it."""


def main(folder: Path) -> None:
    facts = {}
    for name, (function, x, y, warps, ctas) in FORMS.items():
        attributes = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}
        source = ASTSource(function, {"x": x, "y": y}, attrs=attributes)
        options = {"num_warps": warps, "num_ctas": ctas, "ptx_version": PTX_VERSION}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        (folder / f"triton_{name}.ptx").write_text(made.asm["ptx"], encoding="utf-8")
        facts[name] = {
            "entry": made.metadata.name,
            "threads": 32 * made.metadata.num_warps,
            "ctas": ctas,
            "shared": made.metadata.shared,
            "scratch": [made.metadata.global_scratch_size, made.metadata.profile_scratch_size],
        }
    told = {"triton": triton.__version__, "kernels": facts}
    (folder / "triton.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).parent)
