"""Style and file output shared by all PNG charts; equal runs give equal bytes.

The colours are safe for colour-blind readers: cividis for magnitudes, and some of Okabe and Ito's for
categories, which also differ in shape or text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gdnbench.pictures.labels import drawable_text

DPI = 120
WIDTH = 9.0
"""Inches."""

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8a8a8a"
SIZES = "cividis"
NOTHING = "#ececec"
"""Colour for no error."""

_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "figure.titlesize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a store's name may contain two dollar signs
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Context in which figures look the same whatever the user's matplotlib settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def panels(title: str, count: int, height: float, across: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, each `height` inches high."""
    rows = -(-count // across)
    figure = Figure(figsize=(WIDTH, 0.7 + rows * height), dpi=DPI, layout="constrained")
    figure.suptitle(drawable_text(title), x=0.01, ha="left")
    axes = [figure.add_subplot(rows, across, number + 1) for number in range(count)]
    return figure, axes


def save_png(figure: Figure, path: Path) -> Path:
    """Save `figure` as a PNG without time and software name."""
    figure.savefig(path, format="png", metadata={"Software": None})
    return path


def log_limits(values: np.ndarray) -> tuple[float, float]:
    """Limits of a logarithmic axis for the finite positive `values`, at least a decade apart so that small
    differences look small; 1 to 10 without values."""
    there = values[np.isfinite(values) & (values > 0)]
    if not there.size:
        return 1.0, 10.0
    least, largest = float(there.min()), float(there.max())
    return min(least, largest / 10), largest


def number_log(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis from `low` to `high`, such as 0.01 and 1e-05; on a short axis also at 2 and
    5."""
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def colour_bar(axis: Axes, drawn: AxesImage, low: float, high: float, label: str) -> None:
    """Draw the colour bar of an image with logarithmic colours from `low` to `high`."""
    bar = axis.figure.colorbar(drawn, ax=axis)
    number_log(bar.ax.yaxis, low, high)
    bar.set_label(label)
