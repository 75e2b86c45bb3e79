"""Bar charts: verdicts of runs, ULP histograms, and the error that each stage adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gdnbench.errors import Exit
from gdnbench.judge.ulp import bucket_label
from gdnbench.pictures.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, number_log, panels
from gdnbench.pictures.labels import drawable_text
from gdnbench.report.outcome import Outcome

_KINDS = {
    Exit.PASS: (BLUE, ""),
    Exit.MISMATCH: (ORANGE, "//"),
    Exit.CANNOT_RUN: (GREY, ".."),
    Exit.BAD_INPUT: (PURPLE, "xx"),
}


def verdict_bars(runs: Sequence[tuple[str, Mapping[str, int]]], below: str) -> Figure:
    """The number of records of each run by outcome; `below` is the caption."""
    figure, (axis,) = panels("Records by outcome", 1, height=1.1 + 0.75 * len(runs))
    for row, (name, outcomes) in enumerate(runs):
        start = 0
        for outcome, count in sorted(
            outcomes.items(), key=lambda item: (Outcome(item[0]) != "pass", item[0])
        ):
            colour, hatch = _KINDS[Outcome(outcome).exit_code]
            axis.barh(row, count, 0.5, left=start, color=colour, hatch=hatch, edgecolor="white")
            start += count
        words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        axis.text(0, row - 0.33, drawable_text(f"{name}: {words or 'no record'}", 120), va="bottom")
    axis.set_ylim(len(runs) - 0.5, -0.75)
    axis.set_yticks([])
    axis.spines.left.set_visible(False)
    axis.set_xlabel(f"records\n{below}")
    return figure


def ulp_histogram(title: str, tensors: Sequence[tuple[str, Sequence[int]]]) -> Figure:
    """Histogram of ULP distances for each of `tensors`."""
    figure, axes = panels(title, len(tensors), height=2.0)
    for axis, (name, counts) in zip(axes, tensors, strict=True):
        total = max(1, sum(counts))
        axis.bar(range(len(counts)), [count / total for count in counts], 0.85, color=BLUE)
        axis.set_yscale("log")
        axis.set_ylim(0.5 / total, 2)
        number_log(axis.yaxis, 0.5 / total, 2)
        axis.set_title(f"{name}: {total} elements")
        every = max(1, len(counts) // 9)
        ticks = range(0, len(counts), every)
        axis.set_xticks(ticks, [_distance(bucket) for bucket in ticks])
        axis.set_ylabel("share of elements")
        axis.grid(axis="y", alpha=0.3)
    axes[-1].set_xlabel("units in the last place off")
    return figure


def _distance(bucket: int) -> str:
    """`4-7`; for a large bucket only its lower end."""
    return bucket_label(bucket) if bucket < 10 else f"2^{bucket - 1} .."


def stage_bars(title: str, shares: Sequence[Mapping[str, Any]]) -> Figure:
    """The error that each stage adds and inherits, relative to its exact value."""
    figure, (axis,) = panels(title, 1, height=1.0 + 0.42 * len(shares))
    at = np.arange(len(shares))
    parts = (("added", BLUE, "", -0.2), ("inherited", GREEN, "//", 0.2))
    sizes = {name: [_relative(share, name) for share in shares] for name, *_ in parts}
    there = [size for of_part in sizes.values() for size in of_part if np.isfinite(size) and size > 0]
    least = min(there, default=1e-9) / 10
    for name, colour, hatch, offset in parts:
        shown = [size if np.isfinite(size) and size > 0 else least for size in sizes[name]]
        axis.barh(at + offset, shown, 0.36, color=colour, hatch=hatch, edgecolor="white", label=name)
        for row, size in enumerate(sizes[name]):
            axis.text(shown[row], row + offset, f" {size:.2g}", va="center", fontsize=7.5)
    axis.set_xscale("log")
    largest = 8 * max(there, default=1.0)
    axis.set_xlim(least, largest)
    number_log(axis.xaxis, least, largest)
    names = [f"{share['stage']}  ({share['step']})" for share in shares]
    axis.set_yticks(at, [drawable_text(name, 40) for name in names])
    axis.set_ylim(len(shares) - 0.5, -0.5)
    axis.set_xlabel("RMS error / RMS of the stage's exact value")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _relative(share: Mapping[str, Any], name: str) -> float:
    error, of = float(share[name]), float(share["reference"])
    if error == 0:
        return 0.0
    return error / of if of else float("inf")
