"""What all PNG files have in common: how they look, and that equal runs give equal bytes.

Colours can be told apart by people who see fewer of them: cividis for sizes, and of the colours of Okabe and
Ito a few for kinds, which differ in form or text too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from gdnbench.printable import printable

DPI = 120
WIDTH = 9.0
"""Inches."""

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8a8a8a"
SIZES = "cividis"
NOTHING = "#ececec"
"""Where there is no error."""

_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "figure.titlesize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a name from a store may have two dollar signs
    "svg.hashsalt": "",
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


def clean(text: str, longest: int = 110) -> str:
    """Text of a store as the font can draw it, cut in its middle where it is too long for a line."""
    found = printable(text).encode("latin-1", "backslashreplace").decode("latin-1")
    half = (longest - 3) // 2
    return found if len(found) <= longest else f"{found[:half]}...{found[-half:]}"


def plain_numbers(axis: Axis) -> None:
    """Ticks of a logarithmic axis as 0.01 and 1e-05."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
