"""Charts of growing errors: along the chunks of a sequence, and over decode steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gdnbench.judge.grid import Grid
from gdnbench.pictures.canvas import (
    BLUE,
    GREEN,
    NOTHING,
    ORANGE,
    PURPLE,
    SIZES,
    colour_bar,
    log_limits,
    number_log,
    panels,
)
from gdnbench.pictures.labels import drawable_text

MOST_LINES = 4
"""Layers drawn as lines, those with the largest errors; the heatmap below has all."""

RELATIVE = "RMS error /\nRMS of the value"


def has_growth(grid: Grid) -> bool:
    """Whether a tensor with more than one chunk has an error."""
    return sum(region.chunk is not None for region in grid.regions) > 1 and bool((grid.rms > 0).any())


def along_sequence(title: str, tensors: Sequence[tuple[str, Grid]]) -> Figure:
    """The worst head of every chunk, the kernel's beside torch's, for each of `tensors` by name."""
    figure, axes = panels(title, len(tensors), height=1.9)
    for axis, (name, grid) in zip(axes, tensors, strict=True):
        axis.set_title(f"{name}: worst head of each chunk")
        _line(axis, grid, grid.rms, "kernel", BLUE, "o-")
        if grid.torch_rms is not None:
            _line(axis, grid, grid.torch_rms, "torch", ORANGE, "x--")
        axis.set_xlim(-0.5, len(grid.regions) - 0.5)
        _finish(axis, "chunk, one sequence after another")
    return figure


def _line(axis: Axes, grid: Grid, rms: np.ndarray, name: str, colour: str, form: str) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = (rms.astype(np.float64) / grid.rms_reference).max(axis=1)
    x, y = [], []
    for column, region in enumerate(grid.regions):
        if column and region.sequence != grid.regions[column - 1].sequence:
            x.append(column - 0.5)
            y.append(np.nan)  # sequences are independent
        x.append(column)
        y.append(relative[column] if np.isfinite(relative[column]) and relative[column] > 0 else np.nan)
    axis.plot(x, y, form, color=colour, ms=3.5, lw=1.2, label=name)


def over_steps(title: str, matrix: Mapping[str, Any]) -> Figure:
    """The matrix of `gdnbench.report.growth`: the layers with the largest errors as lines, and all as a
    heatmap."""
    error = np.array([[_number(value) for value in row] for row in matrix["error"]], dtype=np.float64)
    torchs = np.array([[_number(value) for value in row] for row in matrix["torch"]], dtype=np.float64)
    steps, layers = matrix["steps"], [drawable_text(layer, 40) for layer in matrix["layers"]]
    figure, axes = panels(title, 2 if len(layers) > 1 else 1, height=2.7)
    largest = np.where(np.isfinite(error), error, 0).max(axis=1)
    order = sorted(np.argsort(-largest, kind="stable")[:MOST_LINES])
    for layer, colour, mark in zip(order, (BLUE, ORANGE, GREEN, PURPLE), "os^D", strict=False):
        values = np.where(error[layer] > 0, error[layer], np.nan)
        axes[0].plot(steps, values, f"{mark}-", color=colour, ms=3.5, lw=1.2, label=layers[layer])
        theirs = np.where(torchs[layer] > 0, torchs[layer], np.nan)
        if np.isfinite(theirs).any():
            axes[0].plot(steps, theirs, "--", color=colour, lw=0.9, label="torch's")
    more = f", the {MOST_LINES} layers of largest errors" if len(layers) > MOST_LINES else ""
    axes[0].set_title(f"by layer{more}")
    _finish(axes[0], "step")
    if len(layers) > 1:
        _by_layer(axes[1], error, steps)
    return figure


def _by_layer(axis: Axes, error: np.ndarray, steps: Sequence[int]) -> None:
    axis.set_title("every layer, in the model's order")
    axis.set_facecolor(NOTHING)
    sizes = np.ma.masked_where(~(np.isfinite(error) & (error > 0)), error)
    if sizes.count():
        ends = log_limits(error)
        drawn = axis.imshow(sizes, colormaps[SIZES], LogNorm(*ends), aspect="auto", interpolation="nearest")
        colour_bar(axis, drawn, *ends, RELATIVE)
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 12)).astype(int))
    axis.set_xticks(shown, [str(steps[at]) for at in shown])
    axis.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axis.set_xlabel("step")
    axis.set_ylabel("layer")


def _finish(axis: Axes, across: str) -> None:
    low, high = log_limits(
        np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axis.lines])
    )
    axis.set_yscale("log")
    axis.set_ylim(low / 1.3, high * 1.3)
    number_log(axis.yaxis, low, high)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.set_xlabel(across)
    axis.set_ylabel(RELATIVE)
    axis.grid(alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
