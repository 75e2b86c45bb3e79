"""Synthetic calls that a prefill kernel must compute correctly; each covers a mistake that a kernel has made.

The options are those of `synth`. Head counts are small and have every ratio of the served models. More groups
add nothing: a head enters the kernel only as an index.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdnbench_kernels.cases import Case

LENGTHS = (1, 63, 64, 65, 127, 129, 500)
"""One token; a chunk less one token, a chunk, a chunk and one token; the same for two chunks; many chunks."""
HEADS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 6))
"""(H, Hv) with each ratio of the served models, 1 to 4, and with more than one group."""
STATE_DTYPES = ("float32", "bfloat16")
CORRELATIONS = (0.0, 0.9, 0.99, 1.0)
BETAS: Mapping[str, Any] = {"1": 1.0, "to 1": (0.0, 1.0), "2": 2.0, "to 2": (0.0, 2.0)}
SPANS = (0.06, 100.0, 1e4, 1e5)
"""Expected sums of |g| over a chunk: 0.06 is a gate of 1e-3 per token, 1e5 is beyond any known model."""
RAGGED = (65, 1, 129, 0, 63)
MANY = tuple(13 * i % 71 for i in range(257))
"""Sequences of 0 to 70 tokens, four of them empty."""


def _case(name: str, *, quick: bool = False, refused: bool = False, **options: Any) -> Case:
    return Case(name, {"heads": (1, 2), **options}, quick, refused)


def cases() -> Iterator[Case]:
    """All cases; (H, Hv) = (1, 2) unless a case says otherwise."""
    yield from _shapes()
    yield from _values()
    yield _case("K 64", seqlens=(65,), head_dim=(64, 128), quick=True, refused=True)
    yield _case("V 256", seqlens=(65,), head_dim=(128, 256), refused=True)
    yield _case("float16", seqlens=(65,), dtype="float16", refused=True)


def _shapes() -> Iterator[Case]:
    for heads in HEADS:
        yield _case(f"heads {heads[0]},{heads[1]}", seqlens=LENGTHS, heads=heads)
    for length in LENGTHS:
        yield _case(f"length {length}", seqlens=(length,), initial_state=True)
    yield _case("5 sequences", seqlens=RAGGED)
    yield _case("257 sequences", seqlens=MANY, heads=(1, 1), initial_state=True)
    yield _case("no tokens but one", seqlens=(0, 0, 1, 0), initial_state=True)
    for dtype in STATE_DTYPES:
        quick = dtype == "bfloat16"
        yield _case(f"state {dtype}", seqlens=RAGGED, initial_state=True, state_dtype=dtype, quick=quick)
    other: dict[str, Any] = {"gate": "linear", "state_layout": "KV", "qk": "raw", "offsets_dtype": "int64"}
    yield _case("other conventions", seqlens=RAGGED, initial_state=True, **other)


def _values() -> Iterator[Case]:
    for correlation in CORRELATIONS:
        for name, beta in BETAS.items():
            yield _case(
                f"keys alike {correlation:g}, beta {name}",
                seqlens=(500, 129),
                heads=(1, 1),
                key_correlation=correlation,
                gate_span=SPANS[0],
                beta=beta,
            )
    alike: dict[str, Any] = {"key_correlation": 0.9, "gate_span": SPANS[0]}
    yield _case("beta to 2, a tail", seqlens=(65,), beta=BETAS["to 2"], quick=True, **alike)
    for span in SPANS:
        yield _case(f"gate span {span:g}", seqlens=(500, 65), gate_span=span, initial_state=True)
    spans = (SPANS[0], SPANS[-1])
    yield _case("gate spans by head", seqlens=RAGGED, heads=(1, 4), gate_span=spans, key_correlation=0.9)
    # After a spike the exponents of its chunk are differences of sums of 1e5.
    spike: dict[str, Any] = {"gate_spike": SPANS[-1], "key_correlation": 0.9}
    yield _case("one gate of 1e5 in a chunk", seqlens=(129, 65), quick=True, **spike)
    # Tokens 65 and 194 are the first after a tail of one token, 258 the last of all.
    yield _case("NaN behind a tail", seqlens=(65, 129, 65), initial_state=True, nan_at=(65, 194), quick=True)
    yield _case("NaN before a tail", seqlens=(65, 129, 65), initial_state=True, nan_at=(0, 258))
