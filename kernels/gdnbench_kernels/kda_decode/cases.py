"""Synthetic calls that a kernel of kda_decode must compute correctly: those of `delta_decode.cases`, and its
gates."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench_kernels.cases import Case
from gdnbench_kernels.delta_decode.cases import Made, decode_cases

HEADS = (*((32, 32), (16, 16), (8, 8), (4, 4), (2, 2)), *((16, 32), (2, 4)), *((1, 1), (3, 15), (1, 7)))
"""Kimi Linear's number of heads, whole and per rank; two of value heads that share keys; one head; and two
numbers that are not powers of two."""
FASTEST = 320.0
"""Sum of |g| over 64 tokens at the -5 a token that bounded gates allow."""


def cases() -> Iterator[Case]:
    """All cases."""
    return decode_cases(HEADS, (*_gates(), *_served()), ())


def _gates() -> Iterator[Made]:
    raw: dict[str, Any] = {"batch": 2, "gate": "raw", "beta_form": "logit"}
    yield "raw", True, {**raw, "qk": "raw"}
    yield "raw, 4 tokens", False, {**raw, "steps": 4}
    yield "raw, fp32 x and b", False, {**raw, "gate_dtype": "float32", "beta_dtype": "float32"}
    yield "raw, fp16 x and b", False, {**raw, "gate_dtype": "float16", "beta_dtype": "float16"}
    yield "raw, bf16 dt_bias", True, {**raw, "dt_bias_dtype": "bfloat16", "beta": (0.0, 2.0)}
    # Small x: a softplus that computes 1 + exp(x) loses all digits.
    yield "raw, faint gates", False, {**raw, "gate_span": 1e-5, "gate_dtype": "float32"}
    yield "raw, gates of 0", False, {**raw, "gate_span": 0.0}
    yield "raw, closed gates", False, {**raw, "gate_span": 6e4}
    yield "raw, beta given", False, {"batch": 2, "gate": "raw"}
    bounded: dict[str, Any] = {**raw, "gate": "bounded"}
    yield "bounded", True, {**bounded, "qk": "raw", "gate_span": FASTEST}
    yield "bounded, 4 tokens", False, {**bounded, "steps": 4, "gate_span": (0.1, FASTEST)}
    yield "bounded, bf16 dt_bias", False, {**bounded, "dt_bias_dtype": "bfloat16"}
    yield "bounded by -1, fp32 x", False, {**bounded, "lower_bound": -1.0, "gate_dtype": "float32"}
    for beta in (0.0, 1.0):  # b of -inf and +inf
        yield f"logit, beta {beta:g}", False, {"batch": 2, "beta_form": "logit", "beta": beta}
    yield "bf16 g and beta", False, {"batch": 2, "gate_dtype": "bfloat16", "beta_dtype": "bfloat16"}
    yield "fp16 g and beta", False, {"batch": 2, "gate_dtype": "float16", "beta_dtype": "float16"}
    # A fast channel beside a slow one: what shares a gate among channels fails.
    yield "channels far apart", True, {"batch": 2, "steps": 2, "gate_span": (1e-3, 6e4)}
    for span in (0.0, 1e-5, 50.0, FASTEST, 6e4):
        yield f"gate span {span:g}", False, {"batch": 2, "steps": 2, "gate_span": span}
    for beta in (0.0, 1.0, 2.0):
        yield f"beta {beta:g}", False, {"batch": 2, "steps": 2, "beta": beta}
    yield "beta to 2", False, {"batch": 2, "steps": 4, "beta": (0.0, 2.0)}


def _served() -> Iterator[Made]:
    """What servers' layers pass: kernels of other packages take few of the cases above."""
    layer: dict[str, Any] = {"batch": 3, "heads": (2, 2), "padding": 0.34, "beta_form": "logit", "qk": "raw"}
    layer |= {"gate_dtype": "bfloat16", "beta_dtype": "bfloat16"}
    yield "as served, bounded", False, {**layer, "gate": "bounded"}
    yield "as served, raw", False, {**layer, "gate": "raw"}
    yield "as served, raw, bf16 dt_bias", False, {**layer, "gate": "raw", "dt_bias_dtype": "bfloat16"}
    yield "as served, drafts", False, {**layer, "gate": "bounded", "steps": 3, "speculative": True}
    yield "as served, 12 heads", False, {**layer, "gate": "bounded", "heads": (12, 12)}
