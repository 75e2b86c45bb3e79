"""Synthetic calls that a kernel of gdn_decode or kda_decode must compute correctly; each covers a mistake
that a kernel has made.

The options are those of both `synth`. Each case runs with states of both dtypes unless it concerns only one.
Cases in which the number of heads does not matter have few: all heads are computed alike.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gdnbench_kernels.cases import Case

STATES = {"float32": "fp32", "bfloat16": "bf16"}
MOST_TOKENS = 8
"""Tokens per sequence in a call of speculative decode."""

Made = tuple[str, bool, dict[str, Any]]
"""Name, whether it is one of the quick cases, options of `synth`."""


def decode_cases(
    heads: Sequence[tuple[int, int]], gates: Iterable[Made], refused: Iterable[tuple[str, dict[str, Any]]]
) -> Iterator[Case]:
    """All cases of an operation, with its models' numbers of `heads`, its own `gates` and what its compiled
    kernels refuse."""
    own = list(gates)
    for dtype, short in STATES.items():
        for name, quick, options in (*shapes(heads), *slots(), *own, *values()):
            yield Case(f"{short}, {name}", {"heads": (1, 2), "state_dtype": dtype, **options}, quick)
    few: dict[str, Any] = {"batch": 2, "heads": (1, 2)}
    for name, options in (*outside(), *refused):
        yield Case(f"outside, {name}", {**few, **options}, quick=True, refused=True)


def shapes(heads: Sequence[tuple[int, int]]) -> Iterator[Made]:
    """Numbers of sequences, tokens and heads, of `heads` among them."""
    yield "no sequences", True, {"batch": 0}
    for batch in (1, 2, 3, 7, 17, 64):
        yield f"{batch} sequences", False, {"batch": batch}
    for steps in range(1, MOST_TOKENS + 1):
        yield f"{steps} tokens", steps == 2, {"batch": 2, "steps": steps}
    for some in heads:
        yield f"heads {some[0]} and {some[1]}", some == (2, 4), {"batch": 2, "heads": some}
    # With equal extents, swapped axes raise no shape error.
    yield "4 of everything", False, {"batch": 4, "steps": 4, "heads": (4, 4)}
    yield "as many heads as elements", False, {"batch": 1, "heads": (1, 128)}


def slots() -> Iterator[Made]:
    """Padding, gaps, drafts, and slots to read."""
    yield "padding throughout", True, {"batch": 3, "padding": 1.0}
    yield "half is padding", False, {"batch": 6, "padding": 0.5}
    yield "far apart in the pool", False, {"batch": 3, "slots": 300}
    for gap in (8, 1024, 100_000):  # 16 bytes of bfloat16; sizes of other tensors in a page of states
        yield f"{gap} elements between slots", gap == 8, {"batch": 3, "slots": 9, "slot_gap": gap}
    drafts: dict[str, Any] = {"batch": 5, "steps": 4, "speculative": True}
    yield "drafts", True, {**drafts, "batch": 3, "steps": 3}
    yield "drafts, some padding", False, {**drafts, "padding": 0.4}
    yield "drafts, holes", False, {**drafts, "holes": 0.5}
    yield "drafts, nothing kept but what is read", False, {**drafts, "holes": 1.0}
    yield "8 drafts, holes, gaps, padding", False, {**drafts, "steps": 8, "holes": 0.3, "slot_gap": 64}
    for reads in ("own", "first", "last", "shared"):
        apart: dict[str, Any] = {"batch": 3, "read_indices": reads}
        yield f"reads {reads}", reads == "shared", {**apart, "padding": 0.34}
        yield f"reads {reads}, 3 tokens, holes", False, {**apart, "steps": 3, "holes": 0.5}
    yield "reads shared, writes nothing", False, {"batch": 3, "read_indices": "shared", "holes": 1.0}


def values() -> Iterator[Made]:
    """Conventions of q, k and the states, and numbers."""
    yield "qk raw", False, {"batch": 2, "steps": 2, "qk": "raw"}
    yield "offsets int64", False, {"batch": 2, "offsets_dtype": "int64"}
    yield "states as KV", False, {"batch": 2, "state_layout": "KV"}
    # A repeated key: S k = v, so the update is a difference of nearly equal numbers.
    yield "one key throughout", True, {"batch": 2, "steps": 4, "key_correlation": 1.0, "beta": 1.0}
    yield "near keys", False, {"batch": 2, "steps": 8, "key_correlation": 0.99}
    for size in (0.0, 1e-30, 1e-6, 1e4, 1e30):
        yield f"states of {size:g}", size == 1e30, {"batch": 2, "steps": 2, "state_scale": size}
    yield "scale 1", False, {"batch": 2, "scale": 1.0}
    yield "scale -0.1", False, {"batch": 2, "scale": -0.1}
    yield "NaN in a sequence", True, {"batch": 3, "nan_at": (1,)}
    yield "NaN in raw gates", False, {"batch": 3, "nan_at": (0, 2), "gate": "raw", "qk": "raw"}
    yield "NaN in drafts", False, {"batch": 3, "nan_at": (1,), "steps": 3, "speculative": True}


def outside() -> Iterator[tuple[str, dict[str, Any]]]:
    """What compiled kernels refuse."""
    yield "9 tokens", {"steps": 9}
    yield "keys of 64", {"head_dim": (64, 128)}
    yield "values of 64", {"head_dim": (128, 64)}
    yield "float16 states", {"state_dtype": "float16"}
    yield "float32 values", {"dtype": "float32"}
    yield "float16 values", {"dtype": "float16"}
