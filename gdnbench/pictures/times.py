"""Chart of kernel times on a record: every sample, and the interval of each ratio."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from gdnbench.pictures.canvas import BLUE, GREY, ORANGE, panels
from gdnbench.pictures.labels import drawable_text
from gdnbench.timing.result import RecordTiming

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"), (1e-9, "ns"))
_SPREAD = 7
"""Samples drawn side by side, so that equal ones are visible."""


def time_chart(title: str, timing: RecordTiming) -> Figure | None:
    """Samples with median and quartiles of each kernel, and ratios to the first with intervals; None without
    times."""
    timed = [kernel for kernel in timing.kernels if kernel.summary is not None]
    if not timed:
        return None
    pairs = [pair for pair in timing.pairs if pair.interval is not None]
    figure, axes = panels(title, 2 if pairs else 1, height=0.9 + 0.5 * len(timed))
    longest = max(max(kernel.samples) for kernel in timed)
    scale, unit = next(((size, name) for size, name in _UNITS if longest >= size), _UNITS[-1])
    for row, kernel in enumerate(timed):
        samples = np.array(kernel.samples) / scale
        spread = row + (np.arange(len(samples)) % _SPREAD - _SPREAD // 2) * 0.07
        axes[0].plot(samples, spread, ".", color=BLUE, ms=3, alpha=0.5)
        assert kernel.summary is not None
        low, middle, high = (
            value / scale for value in (kernel.summary.lower, kernel.summary.median, kernel.summary.upper)
        )
        axes[0].plot([low, high], [row, row], "-", color=ORANGE, lw=3, solid_capstyle="butt")
        axes[0].plot(middle, row, "D", color="black", ms=5)
    axes[0].set_title("every sample; quartiles as a bar, the median as a diamond")
    axes[0].set_yticks(range(len(timed)), [drawable_text(kernel.name, 40) for kernel in timed])
    axes[0].set_ylim(len(timed) - 0.5, -0.5)
    axes[0].set_xlabel(f"{unit} a launch")
    axes[0].grid(axis="x", alpha=0.3)
    if pairs:
        axis = axes[1]
        axis.axvline(1.0, color=GREY)
        for row, pair in enumerate(pairs):
            assert pair.interval is not None
            axis.axvspan(1 - pair.margin, 1 + pair.margin, color=GREY, alpha=0.15)
            axis.plot([pair.interval.low, pair.interval.high], [row, row], "-", color=BLUE, lw=2.5)
            axis.plot(pair.interval.ratio, row, "D", color="black", ms=5)
            axis.text(pair.interval.high, row - 0.3, f" {pair.verdict}", va="center", fontsize=8)
        confidence = pairs[0].interval.confidence if pairs[0].interval is not None else 0.0
        axis.set_title(f"time over that of {drawable_text(pairs[0].first, 40)}; {confidence:.0%} intervals")
        axis.set_yticks(range(len(pairs)), [drawable_text(pair.other, 40) for pair in pairs])
        axis.set_ylim(len(pairs) - 0.5, -0.7)
        axis.set_xlabel("ratio; grey: no difference that could be told")
        axis.grid(axis="x", alpha=0.3)
    return figure
