# SPDX-License-Identifier: Apache-2.0
"""Errors over decode steps, by layer and step, for every output of every run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def error_growth(records: Sequence[tuple[int, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Matrices of errors by layer and step, of the decode steps in `(run, record)` pairs: `[{run, op, tensor,
    layers: [text], steps: [number], error: [[..]], torch: [[..]], place: [[..]]}]`.

    error, torch: RMS of the error relative to that of the exact value, [layer][step]; None without a record.
    If several processes have a record, the largest error is used. place: that record's index among those
    given. A single step gives no matrix.
    """
    found: dict[tuple[int, str, str], dict[tuple[Any, ...], dict[int, tuple[float, float | None, int]]]] = {}
    for place, (run, record) in enumerate(records):
        if not record.get("decode"):
            continue
        layer = (record.get("layer_index") is None, record.get("layer_index") or 0, str(record["layer"]))
        for tensor in record["tensors"]:
            if tensor["side"] != "kernel" or tensor["stage"] or not tensor["errors"]:
                continue
            steps = found.setdefault((run, record["op"], tensor["tensor"]), {}).setdefault(layer, {})
            error = float(tensor["errors"]["rms_ratio"])
            held = steps.get(record["step"])
            if held is None or not error <= held[0]:
                yardstick = tensor["torch_errors"]
                torch = None if not yardstick else float(yardstick["rms_ratio"])
                steps[record["step"]] = (error, torch, place)
    made = [
        {"run": run, "op": op, "tensor": tensor, **_matrix(layers)}
        for (run, op, tensor), layers in sorted(found.items(), key=lambda item: item[0])
    ]
    return [one for one in made if len(one["steps"]) > 1]


def _matrix(
    layers: Mapping[tuple[Any, ...], Mapping[int, tuple[float, float | None, int]]],
) -> dict[str, Any]:
    steps = sorted({step for by_step in layers.values() for step in by_step})
    rows = [layers[layer] for layer in sorted(layers)]
    return {
        "layers": [layer[2] for layer in sorted(layers)],
        "steps": steps,
        **{
            name: [
                [round_for_chart(by_step[step][part]) if step in by_step else None for step in steps]
                for by_step in rows
            ]
            for part, name in enumerate(("error", "torch", "place"))
        },
    }


def round_for_chart(value: float | None) -> float | str | None:
    """Round to four digits for a picture; a value that is not finite becomes text, as in the JSON. Integers
    are unchanged."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)
