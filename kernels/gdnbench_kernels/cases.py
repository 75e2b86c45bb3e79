"""A made call that a kernel is proven on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """Options of an operation's `synth`; `quick` ones are a few small ones that between them meet every
    branch."""

    name: str
    options: Mapping[str, Any]
    quick: bool = False
    refused: bool = False  # outside what the compiled kernels are written for: must be said, and not computed
