"""Heatmaps of a record's tensors: the RMS error of each head and chunk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gdnbench.pictures.canvas import NOTHING, ORANGE, SIZES, colour_bar, log_limits, panels
from gdnbench.pictures.cells import Cells, max_pooled

MOST_ROWS, MOST_COLUMNS = 64, 512
LINES = 64
"""Maximum number of sequences separated by lines; more lines would hide the cells."""

DECADES = 1e-4
"""The smallest error with a colour of its own, relative to the largest."""


def error_heatmaps(title: str, tensors: Sequence[tuple[str, Cells]]) -> Figure:
    """A panel for each of `tensors`, by name."""
    figure, axes = panels(title, len(tensors), height=2.3)
    for axis, (name, cells) in zip(axes, tensors, strict=True):
        _heatmap(axis, name, cells)
    return figure


def _heatmap(axis: Axes, name: str, cells: Cells) -> None:
    values, down, across = max_pooled(cells.values, MOST_ROWS, MOST_COLUMNS)
    axis.set_title(_title(name, cells, down, across))
    axis.set_facecolor(NOTHING)
    heads, columns = cells.values.shape
    extent = (-0.5, values.shape[1] * across - 0.5, values.shape[0] * down - 0.5, -0.5)
    sizes = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    if np.isfinite(sizes).any():
        least, largest = log_limits(sizes)
        least = max(least, largest * DECADES)
        drawn = axis.imshow(
            np.ma.masked_invalid(sizes),
            colormaps[SIZES],
            LogNorm(least, largest),
            aspect="auto",
            interpolation="nearest",
            extent=extent,
        )
        colour_bar(axis, drawn, least, largest, cells.label.replace(" / ", " /\n"))
    if np.isinf(values).any():
        wrong = np.ma.masked_where(~np.isinf(values), np.ones(values.shape))
        axis.imshow(wrong, ListedColormap([ORANGE]), aspect="auto", interpolation="nearest", extent=extent)
    axis.set_xlim(-0.5, max(columns, 1) - 0.5)
    axis.set_ylim(max(heads, 1) - 0.5, -0.5)
    _marks(axis, cells)


def _marks(axis: Axes, cells: Cells) -> None:
    """Draw axes, lines between sequences, and a frame around the worst cell."""
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    many = len(cells.sequences) > 1
    axis.set_xlabel("chunk, one sequence after another" if many and cells.column == "chunk" else cells.column)
    axis.set_ylabel("head")
    if 1 < len(cells.sequences) <= LINES and cells.column == "chunk":
        axis.vlines([column - 0.5 for column in cells.sequences[1:]], *axis.get_ylim(), color="white", lw=1.2)
    at = cells.worst()
    if at is not None:
        axis.plot(at[1], at[0], "s", ms=9, mfc="none", mec="white", mew=2.5)
        axis.plot(at[1], at[0], "s", ms=9, mfc="none", mec="black", mew=1)


def _title(name: str, cells: Cells, down: int, across: int) -> str:
    at = cells.worst()
    if at is None:
        return f"{name}: no error"
    value = cells.values[at]
    largest = "not finite (orange)" if np.isinf(value) else f"largest {value:.3g}"
    words = [f"{name}: {largest} in {cells.place(*at)}"]
    if down * across > 1:
        words.append(f"a cell is the largest of {down} x {across}")
    if cells.left_out:
        words.append(f"{cells.left_out} {cells.column}s of smaller errors left out")
    return "; ".join(words)
