"""Synthetic calls that a kernel of gdn_decode must compute correctly: those of `delta_decode.cases`, and its
gates."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench_kernels.cases import Case
from gdnbench_kernels.delta_decode.cases import Made, decode_cases

HEADS = (
    *((16, 16), (8, 8), (4, 4), (2, 2)),
    *((16, 32), (8, 16), (4, 8), (2, 4)),
    *((16, 48), (8, 24), (4, 12), (2, 6)),
    *((16, 64), (8, 32), (4, 16), (2, 8)),
    *((1, 1), (3, 15), (1, 7)),
)
"""The models' numbers of heads, whole and per rank; one head; and two numbers that are not powers of two."""


def cases() -> Iterator[Case]:
    """All cases."""
    return decode_cases(HEADS, _gates(), ())


def _gates() -> Iterator[Made]:
    raw: dict[str, Any] = {"batch": 2, "gate": "raw"}
    yield "raw", True, {**raw, "qk": "raw"}
    yield "raw, 4 tokens", False, {**raw, "steps": 4}
    yield "raw, fp32 a and b", False, {**raw, "gate_dtype": "float32"}
    yield "raw, fp16 a and b", False, {**raw, "gate_dtype": "float16"}
    yield "raw, bf16 dt_bias", True, {**raw, "dt_bias_dtype": "bfloat16", "beta": (0.0, 2.0)}
    # Small a: a softplus that computes 1 + exp(x) loses all digits.
    yield "raw, faint gates", False, {**raw, "gate_span": 1e-5, "gate_dtype": "float32"}
    yield "raw, gates of 0", False, {**raw, "gate_span": 0.0}
    yield "raw, closed gates", False, {**raw, "gate_span": 6e4}
    for beta in (0.0, 1.0):  # b of -inf and +inf
        yield f"raw, beta {beta:g}", False, {**raw, "beta": beta}
    yield "linear", True, {"batch": 2, "gate": "linear"}
    yield "linear, closed gates", False, {"batch": 2, "gate": "linear", "gate_span": 6e4}
    yield "bf16 g and beta", False, {"batch": 2, "gate_dtype": "bfloat16"}
    yield "fp16 g and beta", False, {"batch": 2, "gate_dtype": "float16"}
    for span in (0.0, 1e-5, 50.0, 6e4):
        yield f"gate span {span:g}", False, {"batch": 2, "steps": 2, "gate_span": span}
    for beta in (0.0, 1.0, 2.0):
        yield f"beta {beta:g}", False, {"batch": 2, "steps": 2, "beta": beta}
    yield "beta to 2", False, {"batch": 2, "steps": 4, "beta": (0.0, 2.0)}
