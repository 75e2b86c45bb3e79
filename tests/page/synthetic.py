# SPDX-License-Identifier: Apache-2.0
"""Runs that nobody replayed, for the tests and the benchmark of the report: plausible ones, of any size.

Values are drawn with NumPy and compared with NumPy; none of the judge's code is here.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdnbench.report.runs import Run

CHUNK = 64
HEADER = {
    "command": "replay",
    "store": "run.zarr",
    "kernel": "mine.py:kernel",
    "against": "reference",
    "on": "sim",
    "rule": "error <= 2 x torch's + rounding",
}


def packed(values: np.ndarray) -> str:
    kind = "<i4" if values.dtype.kind == "i" else "<f4"
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else float("nan")


def grid(x: np.ndarray, y: np.ndarray, torchs: np.ndarray | None, lengths: Sequence[int]) -> dict[str, Any]:
    """The grid of x against y, [T, Hv, V], of packed sequences of `lengths` tokens in chunks of 64."""
    regions = []
    first = 0
    for sequence, length in enumerate(lengths):
        for chunk, start in enumerate(range(0, length, CHUNK)):
            regions.append([sequence, chunk, first + start, min(CHUNK, length - start)])
        first += length
    shape = (len(regions), x.shape[1])
    cells: dict[str, np.ndarray] = {
        name: np.zeros(shape) for name in ("rms", "rms_reference", "torch_rms", "max_abs", "x", "y")
    }
    worst = np.full((*shape, 3), -1, dtype=np.int32)
    wrong = np.zeros(shape, dtype=np.int32)
    for number, (_, _, start, rows) in enumerate(regions):
        for head in range(shape[1]):
            a, b = x[start : start + rows, head], y[start : start + rows, head]
            finite = np.isfinite(a) & np.isfinite(b)
            wrong[number, head] = np.count_nonzero(~finite)
            cells["rms"][number, head] = rms((a - b)[finite])
            cells["rms_reference"][number, head] = rms(b[finite])
            if torchs is not None:
                cells["torch_rms"][number, head] = rms((torchs[start : start + rows, head] - b)[finite])
            off = np.where(finite, np.abs(a - b), -1.0)
            token, dim = np.unravel_index(off.argmax(), off.shape)
            worst[number, head] = (start + token, head, dim)
            for name, value in (("max_abs", off.max()), ("x", a[token, dim]), ("y", b[token, dim])):
                cells[name][number, head] = value
    return {
        "regions": regions,
        "heads": shape[1],
        "axes": ["T", "Hv", "V"],
        "left_out": 0,
        **{
            name: packed(values)
            for name, values in cells.items()
            if torchs is not None or name != "torch_rms"
        },
        "worst": packed(worst),
        "nonfinite": packed(wrong),
        **({} if torchs is not None else {"torch_rms": None}),
    }


def tensor(
    x: np.ndarray, y: np.ndarray, torchs: np.ndarray, lengths: Sequence[int], name: str = "o", **more: Any
) -> dict[str, Any]:
    """The result of one tensor, held to twice torch's largest error."""
    error, limit = float(np.nanmax(np.abs(x - y))), 2 * float(np.abs(torchs - y).max())
    reasons = [] if error <= limit else [f"largest error {error:.3g} over {limit:.3g}"]
    bits = np.frexp(np.nan_to_num(np.abs(x - y) / np.spacing(np.abs(y).astype(np.float32))))[1].clip(0, 65)
    return {
        "tensor": name,
        "when": "after",
        "stage": False,
        "side": "kernel",
        "dtype": "bfloat16",
        "shape": list(x.shape),
        "judged": True,
        "passed": not reasons,
        "reasons": reasons,
        "elements": x.size,
        "unequal": int((x != y).sum()),
        "excluded": 0,
        "errors": errors(x, y),
        "torch_errors": errors(torchs, y),
        "nonfinite": None,
        "ulp_histogram": np.bincount(bits.ravel(), minlength=66).tolist(),
        "worst": None,
        "worst_groups": [],
        "held": [
            {"what": "largest", "error": error, "limit": limit, "sequence": 0, "chunk": 0, "head": 0},
        ],
        "grid": grid(x, y, torchs, lengths),
        **more,
    }


def errors(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    finite = np.isfinite(x) & np.isfinite(y)
    a, b = x[finite], y[finite]
    return {
        "count": int(finite.sum()),
        "max_abs": float(np.abs(a - b).max()),
        "mean_abs": float(np.abs(a - b).mean()),
        "rms": rms(a - b),
        "rms_reference": rms(b),
        "rms_ratio": rms(a - b) / rms(b),
        "relative_l2": rms(a - b) / rms(b),
        "cosine": 0.0,
        "max_ulp": 77,
    }


def record(number: int, tensors: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    failed = any(tensor["reasons"] for tensor in tensors)
    return {
        "number": number,
        "key": f"1700000000000-17-abcd/{number}",
        "other": None,
        "op": "gdn_prefill",
        "layer": f"model.layers.{number % 4}.linear_attn",
        "layer_index": number % 4,
        "step": number // 4,
        "decode": False,
        "outcome": "numeric mismatch" if failed else "pass",
        "reason": "",
        "imported": True,
        "faults": [],
        "notes": ["qk raw -> normalised"],
        "findings": None,
        "seconds": 0.25,
        "timing": None,
        "tensors": list(tensors),
        "waterfall": None,
        "capture": [
            {"name": "g", "label": "gate g, log decay", "values": {"min": -3.5, "max": -0.01}, "unit": ""}
        ],
        "segment": "a",
        **more,
    }


def drawn(
    seed: int, lengths: Sequence[int], heads: int, dims: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, torch's): y of magnitude 1, the others some 1e-3 off."""
    random = np.random.default_rng(seed)
    y = random.standard_normal((sum(lengths), heads, dims))
    return y + 1e-3 * random.standard_normal(y.shape), y, y + 1e-3 * random.standard_normal(y.shape)


def run(records: Sequence[dict[str, Any]], path: str = "result.zarr", **more: Any) -> Run:
    given: dict[str, Any] = {
        "header": HEADER,
        "provenance": {
            "git": {"sha": "a" * 40, "dirty": False},
            "packages": {"torch": "2.13.0"},
            "python": "3.11.7",
        },
        "process": {"argv": ["gdnbench", "replay", "run.zarr"], "host": "laptop", "cwd": "/home/a", "pid": 7},
        "captured": {
            "a": {
                "provenance": {
                    "git": {"sha": "b" * 40, "dirty": False},
                    "packages": {"torch": "2.11.0"},
                    "python": "3.11.7",
                },
                "process": {
                    "host": "gpu-7",
                    "time": "2026-03-01T00:00:00Z",
                    "argv": ["python", "serve.py"],
                    "pid": 8,
                },
            }
        },
        "expected": len(records),
        **more,
    }
    return Run(path, records=tuple(records), **given)


def large(count: int, failures: int, lengths: Sequence[int] = (1024,), heads: int = 8) -> Run:
    """A run of `count` records with two tensors each, `failures` of them wrong in one chunk and head."""
    drawings = [drawn(seed, lengths, heads, 16) for seed in range(8)]  # drawing all would take minutes
    passing = [tensor(x, y, torchs, lengths) for x, y, torchs in drawings]
    records = []
    for number in range(count):
        one = passing[number % len(passing)]
        if number < failures:
            x, y, torchs = drawings[number % len(drawings)]
            x = x.copy()
            x[number % len(x), number % heads] += 0.5
            one = tensor(x, y, torchs, lengths)
        # Grids of no two records are alike: what compresses well because it repeats would measure nothing.
        tensors = [
            {**one, "tensor": name, "grid": _noisy(one["grid"], seed)}
            for name, seed in (("o", number), ("final_state", number + count))
        ]
        records.append(record(number, tensors))
    return run(records)


def _noisy(grid: dict[str, Any], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    made = dict(grid)
    for name in ("rms", "torch_rms", "max_abs", "x", "y"):
        values = np.frombuffer(base64.b64decode(grid[name]), "<f4")
        made[name] = packed(values * random.uniform(0.5, 1.5, values.shape).astype(np.float32))
    return made
