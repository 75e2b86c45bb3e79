# SPDX-License-Identifier: Apache-2.0
"""Colours of the page, held to WCAG 2.1 and to simulated colour blindness."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

ASSETS = files("gdnbench.page").joinpath("assets")
AA = 4.5
"""WCAG 2.1, success criterion 1.4.3: text."""
GRAPHIC = 3.0
"""The same, 1.4.11: what has to be seen to understand a graphic."""

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def luminance(rgb: np.ndarray) -> float:
    return float(rgb @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted(luminance(linear(colour)) + 0.05 for colour in (one, other))
    return high / low


def themes() -> dict[str, dict[str, str]]:
    """Colours by name of each `:root` of the style: light, dark, print."""
    style = ASSETS.joinpath("style", "base.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks]
    return dict(zip(("light", "dark", "print"), found, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_text_and_pictures_have_contrast(theme: str) -> None:
    colours = themes()[theme]
    for ground in ("ground", "raised"):
        for text in ("ink", "quiet", "accent", "failed"):
            assert contrast(colours[text], colours[ground]) >= AA, (text, ground)
    for kind in ("failed", "missing", "refused", "passed"):
        assert contrast(colours[kind], colours[f"{kind}-ground"]) >= AA, kind
    for series in ("s0", "s1", "s2", "s3"):
        assert contrast(colours[series], colours["ground"]) >= GRAPHIC, series


def test_paper_has_the_colours_of_the_light_theme() -> None:
    light, paper = themes()["light"], themes()["print"]
    assert {**light, "ground": "#fff"} == paper


def stops() -> list[str]:
    script = ASSETS.joinpath("script", "colour.js").read_text(encoding="utf-8")
    found = re.search(r"STOPS = \[(.*?)\]", script)
    assert found is not None
    return re.findall(r"#\w{6}", found[1])


@pytest.mark.parametrize("kind", [None, *BLINDNESS])
def test_the_scale_grows_lighter_for_every_eye(kind: str | None) -> None:
    matrix = np.eye(3) if kind is None else np.array(BLINDNESS[kind])
    seen = [luminance((matrix @ linear(stop)).clip(0, 1)) for stop in stops()]
    # Lightness as CIE 1976 L*: a step of 5 is seen; nine stops from dark to light are some 9 apart.
    lightness = [116 * value ** (1 / 3) - 16 if value > 0.008856 else 903.3 * value for value in seen]
    assert all(after - before > 5 for before, after in pairwise(lightness)), lightness
