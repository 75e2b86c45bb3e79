"""Finds transformers' own torch implementations of the gated delta rule and of the convolution before it;
imported on demand."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

MODELING = "transformers.models.qwen3_next.modeling_qwen3_next"


def transformers_function(name: str, former: str = "") -> Callable[..., Any]:
    """The function `name` of `MODELING` without the wrappers that transformers or a hook added, or the one
    that earlier releases call `former`.

    A wrapper would call flash-linear-attention or causal-conv1d if it is installed; this kernel uses torch
    only.
    """
    try:
        modeling = importlib.import_module(MODELING)
    except ImportError as error:
        raise ImportError(
            f"the kernel hf needs transformers ({error}): pip install 'gdnbench[hf]'"
        ) from error
    found = getattr(modeling, former, None) if former else None
    function: Callable[..., Any] = inspect.unwrap(found or getattr(modeling, name))
    return function


def check_scale(scale: float | None, key_dim: int) -> None:
    """Raises NotImplementedError for any scale but K ** -0.5, the only one that transformers' functions use.

    The comparison allows a relative error of 2^-24, for a scale that went through fp32.
    """
    if scale is not None and not math.isclose(scale, key_dim**-0.5, rel_tol=2**-23):
        raise NotImplementedError(
            f"transformers scales by K ** -0.5 = {key_dim**-0.5:.9g}, the call by {scale:.9g}"
        )
