"""Finds transformers' own torch implementations of the delta rules and of the convolution before them;
imported on demand."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

MODELING = "transformers.models.qwen3_next.modeling_qwen3_next"
KIMI = "transformers.models.kimi_linear.modeling_kimi_linear"


def transformers_function(name: str, former: str = "", modeling: str = MODELING) -> Callable[..., Any]:
    """The function `name` of the module `modeling` without the wrappers that transformers or a hook added, or
    the one that earlier releases call `former`.

    A wrapper would call flash-linear-attention or causal-conv1d if it is installed; this kernel uses torch
    only.
    """
    try:
        module = importlib.import_module(modeling)
    except ImportError as error:
        raise ImportError(
            f"the kernel hf needs transformers ({error}): pip install 'gdnbench[hf]'"
        ) from error
    found = getattr(module, former, None) if former else None
    function: Callable[..., Any] = inspect.unwrap(found or getattr(module, name))
    return function


def check_scale(scale: float | None, key_dim: int) -> None:
    """Raises NotImplementedError for any scale but K ** -0.5, the only one that transformers' functions use.

    The comparison allows a relative error of 2^-24, for a scale that went through fp32.
    """
    if scale is not None and not math.isclose(scale, key_dim**-0.5, rel_tol=2**-23):
        raise NotImplementedError(
            f"transformers scales by K ** -0.5 = {key_dim**-0.5:.9g}, the call by {scale:.9g}"
        )
