"""Synthetic calls that a KDA prefill kernel must compute correctly; each covers a mistake that a kernel has
made.

The options are those of `synth`. Head counts are small: a head enters a kernel only as an index.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdnbench_kernels.cases import Case

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 129, 300)
"""One token; a chunk of 16 less one token, a chunk, a chunk and one token; the same for chunks of 64, which
some kernels divide into parts of 16; many chunks."""
HEADS = ((1, 1), (1, 2), (2, 2), (2, 6))
"""(H, Hv): the served models have H = Hv; the contract allows groups."""
STATE_DTYPES = ("float32", "bfloat16")
CORRELATIONS = (0.0, 0.9, 0.99, 1.0)
BETAS: Mapping[str, Any] = {"1": 1.0, "to 1": (0.0, 1.0), "2": 2.0, "to 2": (0.0, 2.0)}
SERVED_SPAN = 320.0
"""Expected sum of |g| over 64 tokens at -5 a token, the least that served models allow."""
SPANS = (0.06, 100.0, SERVED_SPAN, 2 * SERVED_SPAN, 1e4, 1e5)
"""0.06 is a gate of 1e-3 a token. Over 16 tokens a span of 320 sums to -80 and twice that to -160: exp(80) is
finite in fp32, exp(160) is not. 1e5 is beyond any known model."""
RAGGED = (17, 1, 65, 0, 15)
MANY = tuple(13 * i % 41 for i in range(257))
"""Sequences of 0 to 40 tokens."""


def _case(name: str, *, quick: bool = False, refused: bool = False, **options: Any) -> Case:
    return Case(name, {"heads": (1, 1), **options}, quick, refused)


def cases() -> Iterator[Case]:
    """All cases; (H, Hv) = (1, 1) unless a case says otherwise."""
    yield from _shapes()
    yield from _forms()
    yield from _gates()
    yield from _values()
    yield from _served()
    yield _case("K 64", seqlens=(33,), head_dim=(64, 128), quick=True, refused=True)
    yield _case("V 256", seqlens=(33,), head_dim=(128, 256), refused=True)
    yield _case("float16", seqlens=(33,), dtype="float16", refused=True)


def _shapes() -> Iterator[Case]:
    for heads in HEADS:
        yield _case(f"heads {heads[0]},{heads[1]}", seqlens=(1, 15, 17, 65), heads=heads)
    for length in LENGTHS:
        yield _case(f"length {length}", seqlens=(length,), initial_state=True, quick=length == 17)
    yield _case("5 sequences", seqlens=RAGGED)
    yield _case("257 sequences", seqlens=MANY, initial_state=True)
    yield _case("no tokens but one", seqlens=(0, 0, 1, 0), initial_state=True)
    for dtype in STATE_DTYPES:
        yield _case(f"state {dtype}", seqlens=RAGGED, initial_state=True, state_dtype=dtype)


def _forms() -> Iterator[Case]:
    """What g and beta hold."""
    for gate in ("raw", "bounded"):
        for beta_form in ("value", "logit"):
            name = f"gate {gate}, beta {beta_form}"
            yield _case(name, seqlens=RAGGED, gate=gate, beta_form=beta_form, initial_state=True)
    other: dict[str, Any] = {"state_layout": "KV", "qk": "raw", "offsets_dtype": "int64", "heads": (1, 2)}
    yield _case("other conventions", seqlens=RAGGED, initial_state=True, gate="raw", **other)


def _gates() -> Iterator[Case]:
    for span in SPANS:
        quick = span == 2 * SERVED_SPAN
        yield _case(f"gate span {span:g}", seqlens=(129, 17), gate_span=span, initial_state=True, quick=quick)
    spans = (SPANS[0], SPANS[-1])
    alike: dict[str, Any] = {"seqlens": RAGGED, "key_correlation": 0.9, "initial_state": True}
    yield _case("gate spans by channel", gate_span=spans, quick=True, **alike)
    yield _case("gate spans by head", heads=(1, 4), gate_span=spans, gate_span_of="head", **alike)
    # After a spike the exponents of its chunk are differences of sums of 1e5.
    spike: dict[str, Any] = {"gate_spike": SPANS[-1], "key_correlation": 0.9}
    yield _case("one gate of 1e5 in a block of a channel", seqlens=(65, 33), **spike)
    yield _case("one gate of 100 in a block of a channel", seqlens=(65, 33), gate_spike=100.0, gate_span=0.06)
    yield _case("closed gates", seqlens=(65, 33), closed_gates=0.02, initial_state=True, quick=True)
    yield _case("all gates closed", seqlens=(33,), closed_gates=1.0, initial_state=True)


def _values() -> Iterator[Case]:
    for correlation in CORRELATIONS:
        for name, beta in BETAS.items():
            yield _case(
                f"keys alike {correlation:g}, beta {name}",
                seqlens=(129, 33),
                key_correlation=correlation,
                gate_span=SPANS[0],
                beta=beta,
            )
    alike: dict[str, Any] = {"key_correlation": 0.9, "gate_span": SPANS[0]}
    yield _case("beta to 2, a tail", seqlens=(17,), beta=BETAS["to 2"], quick=True, **alike)
    # Tokens 17 and 50 are the first after a tail of one token, 66 the last of all.
    yield _case("NaN behind a tail", seqlens=(17, 33, 17), initial_state=True, nan_at=(17, 50), quick=True)
    # A kernel's own chunk may have 64 tokens, all of which a NaN may reach: token 258 is alone in its chunk.
    yield _case("NaN before a tail", seqlens=(65, 129, 65), initial_state=True, nan_at=(0, 258))


def _served() -> Iterator[Case]:
    """What servers' layers pass: kernels of other packages take few of the cases above."""
    layer: dict[str, Any] = {"seqlens": (40, 24), "heads": (4, 4), "initial_state": True, "qk": "raw"}
    logit: dict[str, Any] = {**layer, "beta_form": "logit"}
    yield _case("as served, bounded, 8 heads", **{**logit, "heads": (8, 8)}, gate="bounded")
    yield _case("as served, bounded, bf16 states", **logit, gate="bounded", state_dtype="bfloat16")
    yield _case("as served, raw", **logit, gate="raw")
    yield _case("as served, raw, beta given", **layer, gate="raw")
