# SPDX-License-Identifier: Apache-2.0
"""Checks shapes, strides and dtypes of a call against its operation's contract, without reading an element.

Reading one would wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from gdnbench.capture.adapter import Seen

if TYPE_CHECKING:
    import torch

    from gdnbench_kernels.contract import Scalar

Form = tuple[str, tuple[int, ...], tuple[int, ...], "torch.dtype"]


def check_forms(
    op: str,
    seen: Mapping[str, Seen],
    conventions: Mapping[str, str],
    zeros: tuple[str, ...],
    scalars: tuple[tuple[str, Scalar], ...] = (),
) -> None:
    """ContractError for shapes, strides or dtypes that violate the contract of `op`. `zeros`: lengths and
    indices, which are taken as zeros. `scalars`: those that shapes depend on."""
    forms = tuple((name, *_form(one)) for name, one in seen.items())
    _check(op, forms, tuple(conventions.items()), zeros, scalars)


def _form(seen: Seen) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    if seen.shape is None:
        return tuple(seen.tensor.shape), seen.tensor.stride(), seen.tensor.dtype
    return seen.shape, (), seen.tensor.dtype  # a view of it: its strides do not matter


@lru_cache(maxsize=256)  # a layer's calls repeat their shapes from step to step
def _check(
    op: str,
    forms: tuple[Form, ...],
    conventions: tuple[tuple[str, str], ...],
    zeros: tuple[str, ...],
    scalars: tuple[tuple[str, Scalar], ...],
) -> None:
    import torch

    from gdnbench.ops import operation
    from gdnbench_kernels.contract import Call

    tensors = {}
    for name, shape, strides, dtype in forms:
        if name in zeros:
            tensors[name] = torch.zeros(shape, dtype=dtype)
        elif strides:
            tensors[name] = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        else:
            tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
    operation(op).validate(Call(tensors, dict(scalars), dict(conventions)))
