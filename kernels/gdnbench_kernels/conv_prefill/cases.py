# SPDX-License-Identifier: Apache-2.0
"""Synthetic calls that a kernel of conv_prefill must compute correctly; the options are those of `synth`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gdnbench_kernels.cases import Case

LENGTHS = (1, 2, 3, 4, 7, 8, 9, 17, 65)
"""Around the W-1 inputs of a window, and around 8, the tokens that published kernels give a program."""
WIDTHS = (2, 3, 4)
CHANNELS = (1, 3, 256, 300)
"""Published kernels give a program 256 channels."""


def cases() -> Iterator[Case]:
    """All cases; 96 channels unless a case says otherwise."""
    for width in WIDTHS:
        for states in (0.0, 1.0):
            options: dict[str, Any] = {"seqlens": LENGTHS, "width": width, "initial_states": states}
            yield Case(f"width {width}, initial states {states:g}", options, quick=width == 4)
    for channels in CHANNELS:
        yield Case(
            f"{channels} channels", {"seqlens": (5, 9), "channels": channels, "bias": True}, channels == 300
        )
    yield Case("no pool", {"seqlens": LENGTHS, "pool": False})
    yield Case("empty sequences", {"seqlens": (0, 3, 0, 0, 9, 0)}, quick=True)
    yield Case("no tokens", {"seqlens": (0, 0)})
    yield Case("padding", {"seqlens": (4, 9, 2, 3), "padding": 0.5, "initial_states": 1.0}, quick=True)
    yield Case("257 sequences", {"seqlens": tuple(5 * i % 13 for i in range(257)), "channels": 8})
    yield Case("no activation", {"seqlens": (3, 9), "activation": "none", "bias": True})
    yield Case("slots apart", {"seqlens": (3, 9), "slot_gap": 40, "initial_states": 1.0})
    yield Case("float32", {"seqlens": (3, 9), "dtype": "float32", "initial_states": 1.0})
    yield Case("float16", {"seqlens": (3, 9), "dtype": "float16"})
    yield Case("taps in float32", {"seqlens": (3, 9), "weight_dtype": "float32"})
    for scale in (1e-6, 30.0, 1e4):
        yield Case(f"inputs of {scale:g}", {"seqlens": (3, 9), "x_scale": scale})
    yield Case("NaN in a sequence", {"seqlens": (3, 9, 4), "nan_at": (5,), "initial_states": 1.0}, quick=True)
