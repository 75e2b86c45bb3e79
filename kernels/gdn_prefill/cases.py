"""Made calls that a prefill kernel must get right, each for a way in which one has gone wrong.

The options are those of `synth`. Head counts are small and have every ratio that is served; a kernel that is
right for one head of a group is right for the next, being given nothing but an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LENGTHS = (1, 63, 64, 65, 127, 129, 500)
"""One token, a chunk but one, a chunk, a chunk and one, and the same of two; and many chunks."""
HEADS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 6))
"""(H, Hv) with each ratio of the served models, 1 to 4, and with more than one group."""
STATE_DTYPES = ("float32", "bfloat16")
CORRELATIONS = (0.0, 0.9, 0.99, 1.0)
SPANS = (0.06, 100.0, 1e4, 1e5)
"""Expected sums of |g| over a chunk: 0.06 is a gate of 1e-3 a token, 1e5 more than any model is known for."""
RAGGED = (65, 1, 129, 0, 63)
MANY = tuple(13 * i % 71 for i in range(257))
"""Of 0 to 70 tokens each, four of them empty."""


@dataclass(frozen=True, slots=True)
class Case:
    """Options of `synth`; `quick` ones are a few small ones that between them meet every branch."""

    name: str
    options: Mapping[str, Any]
    quick: bool = False
    refused: bool = False  # outside what the SM100 kernels are written for: must be said, and not computed


def cases() -> Iterator[Case]:
    """All of them."""
    for heads in HEADS:
        options = {"seqlens": LENGTHS, "heads": heads}
        yield Case(f"heads {heads[0]},{heads[1]}", options)
    for length in LENGTHS:
        yield Case(f"length {length}", {"seqlens": (length,), "heads": (1, 2), "initial_state": True})
    yield Case("5 sequences", {"seqlens": RAGGED, "heads": (1, 2)})
    yield Case("257 sequences", {"seqlens": MANY, "heads": (1, 1), "initial_state": True})
    yield Case("no tokens but one", {"seqlens": (0, 0, 1, 0), "heads": (1, 1), "initial_state": True})
    for dtype in STATE_DTYPES:
        options = {"seqlens": RAGGED, "heads": (1, 2), "initial_state": True, "state_dtype": dtype}
        yield Case(f"state {dtype}", options, quick=dtype == "bfloat16")
    for correlation in CORRELATIONS:
        options = {"seqlens": (500, 129), "heads": (1, 1), "key_correlation": correlation}
        yield Case(f"keys alike {correlation:g}", options | {"beta": 1.0, "gate_span": SPANS[0]})
        options = {"seqlens": (500, 129), "heads": (1, 1), "key_correlation": correlation}
        yield Case(f"keys alike {correlation:g}, beta to 1", options | {"gate_span": SPANS[0]})
    for span in SPANS:
        options = {"seqlens": (500, 65), "heads": (1, 2), "gate_span": span, "initial_state": True}
        yield Case(f"gate span {span:g}", options)
    # What follows a spike in its chunk has exponents that are differences of sums of 1e5.
    spiked = {"seqlens": (129, 65), "heads": (1, 2), "gate_spike": SPANS[-1], "key_correlation": 0.9}
    yield Case("one gate of 1e5 in a chunk", spiked, quick=True)
    spans = {"seqlens": RAGGED, "heads": (1, 4), "gate_span": (SPANS[0], SPANS[-1]), "key_correlation": 0.9}
    yield Case("gate spans by head", spans)
    # Tokens 65 and 194 are the first after a tail of one token, 258 the last of all.
    nan = {"seqlens": (65, 129, 65), "heads": (1, 2), "initial_state": True}
    yield Case("NaN behind a tail", nan | {"nan_at": (65, 194)}, quick=True)
    yield Case("NaN before a tail", nan | {"nan_at": (0, 258)})
    other = {"gate": "linear", "state_layout": "KV", "qk": "raw", "offsets_dtype": "int64"}
    yield Case("other conventions", {"seqlens": RAGGED, "heads": (1, 2), "initial_state": True} | other)
    small = {"seqlens": (65,), "heads": (1, 1)}
    yield Case("beta to 2", small | {"beta": (0.0, 2.0)}, quick=True, refused=True)
    yield Case("K 64", small | {"head_dim": (64, 128)}, quick=True, refused=True)
    yield Case("V 256", small | {"head_dim": (128, 256)}, refused=True)
    yield Case("float16", small | {"dtype": "float16"}, refused=True)
