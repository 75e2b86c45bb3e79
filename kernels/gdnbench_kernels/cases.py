# SPDX-License-Identifier: Apache-2.0
"""A synthetic call on which a kernel is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """Options of an operation's `synth`. The `quick` cases are a few small ones that together reach every
    branch."""

    name: str
    options: Mapping[str, Any]
    quick: bool = False
    refused: bool = False  # not supported by the compiled kernels: they must refuse it, not compute it
