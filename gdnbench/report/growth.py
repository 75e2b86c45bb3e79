"""Errors over decode steps: by layer and step, of every output of every run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def growth(records: Sequence[tuple[int, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """`[{run, op, tensor, layers: [text], steps: [number], error: [[..]], torch: [[..]], place: [[..]]}]` of
    `(run, record)` of decode steps, in the order given.

    error, torch: RMS of the error relative to that of the exact value, [layer][step], None where there is no
    record; of several records, processes each with their own, that of the largest error. place: its place
    among the records given. One step alone is no growth and makes nothing.
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
                [rounded(by_step[step][part]) if step in by_step else None for step in steps]
                for by_step in rows
            ]
            for part, name in enumerate(("error", "torch", "place"))
        },
    }


def rounded(value: float | None) -> float | str | None:
    """To what a picture can show; text where it is not finite, as JSON has it here. A whole number stays."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)
