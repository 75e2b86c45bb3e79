"""Synthetic calls that a kernel of gdn_decode must compute correctly; each covers a mistake that a kernel has
made.

The options are those of `synth`. Each case runs with states of both dtypes unless it concerns only one. Cases
in which the number of heads does not matter have few: all heads are computed alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench_kernels.cases import Case

STATES = {"float32": "fp32", "bfloat16": "bf16"}
HEADS = (
    *((16, 16), (8, 8), (4, 4), (2, 2)),
    *((16, 32), (8, 16), (4, 8), (2, 4)),
    *((16, 48), (8, 24), (4, 12), (2, 6)),
    *((16, 64), (8, 32), (4, 16), (2, 8)),
    *((1, 1), (3, 15), (1, 7)),
)
"""The models' numbers of heads, whole and per rank; one head; and two numbers that are not powers of two."""
MOST_TOKENS = 8
"""Tokens per sequence in a call of speculative decode."""

Made = tuple[str, bool, dict[str, Any]]


def cases() -> Iterator[Case]:
    """All cases."""
    for dtype, short in STATES.items():
        for name, quick, options in (*_shapes(), *_slots(), *_gates(), *_values()):
            yield Case(f"{short}, {name}", {"heads": (1, 2), "state_dtype": dtype, **options}, quick)
    few: dict[str, Any] = {"batch": 2, "heads": (1, 2)}
    for name, options in _outside():
        yield Case(f"outside, {name}", {**few, **options}, quick=True, refused=True)


def _shapes() -> Iterator[Made]:
    yield "no sequences", True, {"batch": 0}
    for batch in (1, 2, 3, 7, 17, 64):
        yield f"{batch} sequences", False, {"batch": batch}
    for steps in range(1, MOST_TOKENS + 1):
        yield f"{steps} tokens", steps == 2, {"batch": 2, "steps": steps}
    for heads in HEADS:
        yield f"heads {heads[0]} and {heads[1]}", heads == (2, 4), {"batch": 2, "heads": heads}
    # With equal extents, swapped axes raise no shape error.
    yield "4 of everything", False, {"batch": 4, "steps": 4, "heads": (4, 4)}
    yield "as many heads as elements", False, {"batch": 1, "heads": (1, 128)}


def _slots() -> Iterator[Made]:
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


def _values() -> Iterator[Made]:
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


def _outside() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "9 tokens", {"steps": 9}
    yield "keys of 64", {"head_dim": (64, 128)}
    yield "values of 64", {"head_dim": (128, 64)}
    yield "float16 states", {"state_dtype": "float16"}
    yield "float32 values", {"dtype": "float32"}
    yield "float16 values", {"dtype": "float16"}
