# SPDX-License-Identifier: Apache-2.0
"""Synthetic calls that a kernel of conv_decode must compute correctly; the options are those of `synth`."""

from __future__ import annotations

from collections.abc import Iterator

from gdnbench_kernels.cases import Case

WIDTHS = (2, 3, 4)
CHANNELS = (1, 3, 256, 300)
"""Published kernels give a program 256 channels."""


def cases() -> Iterator[Case]:
    """All cases; 96 channels unless a case says otherwise."""
    for width in WIDTHS:
        yield Case(f"width {width}", {"width": width}, quick=width == 4)
        yield Case(f"width {width}, rolling", {"width": width, "steps": 3, "windows": "rolling"}, width == 4)
        yield Case(f"width {width}, several tokens", {"width": width, "steps": 3})
    for channels in CHANNELS:
        yield Case(f"{channels} channels", {"channels": channels, "bias": True}, channels == 300)
    for batch in (0, 1, 2, 7, 64):
        yield Case(f"{batch} sequences", {"batch": batch}, batch == 0)
    for steps in range(1, 9):
        yield Case(f"{steps} tokens, rolling", {"batch": 3, "steps": steps, "windows": "rolling"})
    yield Case("fewer tokens, rolling", {"batch": 7, "steps": 4, "windows": "rolling", "ragged": True}, True)
    yield Case("a slot a token", {"batch": 3, "steps": 4, "windows": "each"})
    yield Case("a slot a token, accepted", {"batch": 3, "steps": 4, "windows": "each", "speculative": True})
    yield Case("slots that are read alone", {"batch": 3, "read_indices": True})
    yield Case("padding", {"batch": 5, "padding": 0.4}, True)
    yield Case("padding, rolling", {"batch": 5, "padding": 0.4, "steps": 3, "windows": "rolling"})
    yield Case("no activation", {"activation": "none", "bias": True})
    yield Case("slots apart", {"slot_gap": 40})
    yield Case("float32", {"dtype": "float32"})
    yield Case("float16", {"dtype": "float16"})
    yield Case("taps in float32", {"weight_dtype": "float32"})
    for scale in (1e-6, 30.0, 1e4):
        yield Case(f"inputs of {scale:g}", {"x_scale": scale})
    yield Case("NaN in a sequence", {"batch": 3, "steps": 2, "windows": "rolling", "nan_at": (3,)}, True)
