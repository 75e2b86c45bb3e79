"""What all PNG files have in common: how they look, and that equal runs give equal bytes.

Colours can be told apart by people who see fewer of them: cividis for sizes, and of the colours of Okabe and
Ito a few for kinds, which differ in form or text too.
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

from gdnbench.pictures.labels import clean

DPI = 120
WIDTH = 9.0
"""Inches."""

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8a8a8a"
SIZES = "cividis"
NOTHING = "#ececec"
"""Where there is no error."""

_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "figure.titlesize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a name from a store may have two dollar signs
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures made and saved inside look the same whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def panels(title: str, count: int, height: float, across: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, each `height` inches high."""
    rows = -(-count // across)
    figure = Figure(figsize=(WIDTH, 0.7 + rows * height), dpi=DPI, layout="constrained")
    figure.suptitle(clean(title), x=0.01, ha="left")
    axes = [figure.add_subplot(rows, across, number + 1) for number in range(count)]
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """`figure` as a PNG without a time or the name of what made it."""
    figure.savefig(path, format="png", metadata={"Software": None})
    return path


def decade(values: np.ndarray) -> tuple[float, float]:
    """Ends of a logarithmic axis of those of `values` that are finite and above zero, at least a decade apart
    so that what hardly differs looks so; one to ten without any."""
    there = values[np.isfinite(values) & (values > 0)]
    if not there.size:
        return 1.0, 10.0
    least, largest = float(there.min()), float(there.max())
    return min(least, largest / 10), largest


def number_log(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis from `low` to `high` as 0.01 and 1e-05; of a short one 2 and 5 as well."""
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def colour_bar(axis: Axes, drawn: AxesImage, low: float, high: float, label: str) -> None:
    """The scale of an image whose colours are logarithmic from `low` to `high`, beside its axes."""
    bar = axis.figure.colorbar(drawn, ax=axis)
    number_log(bar.ax.yaxis, low, high)
    bar.set_label(label)
