"""Logical dtypes as plain bit views: what Zarr and numpy have no name for is kept as unsigned integers.

Nothing here converts a value. A tensor's bits go to numpy and come back as they are, so NaN payloads
(signalling ones too), -0.0 and every fp8 code survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.record import TensorMeta

Bits = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class LogicalDtype:
    """A tensor's dtype and the dtype of the same width that its bits are stored as."""

    name: str  # torch's name without the prefix
    torch_dtype: torch.dtype
    storage: np.dtype[np.generic]
    view: torch.dtype | None  # torch's dtype of the storage, where that is not the dtype itself


def _table() -> dict[str, LogicalDtype]:
    viewed = {
        "bfloat16": "uint16",
        "float8_e4m3fn": "uint8",
        "float8_e4m3fnuz": "uint8",
        "float8_e5m2": "uint8",
        "float8_e5m2fnuz": "uint8",
        "float8_e8m0fnu": "uint8",
    }
    native = ("float16", "float32", "float64", "bool")
    integers = tuple(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64))
    values = {
        name: LogicalDtype(name, getattr(torch, name), np.dtype(name), None) for name in (*native, *integers)
    }
    bits = {
        name: LogicalDtype(name, getattr(torch, name), np.dtype(storage), getattr(torch, storage))
        for name, storage in viewed.items()
    }
    return values | bits


DTYPES = _table()
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BY_TORCH = {dtype.torch_dtype: dtype for dtype in DTYPES.values()}


def logical(name: str) -> LogicalDtype:
    """The logical dtype called `name`; BadInputError names those there are."""
    try:
        return DTYPES[name]
    except KeyError:
        raise BadInputError(f"dtype {name!r} cannot be stored; there are {', '.join(DTYPES)}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """The stored name of a torch dtype, e.g. "bfloat16"; BadInputError if it cannot be stored."""
    if dtype not in _BY_TORCH:
        raise BadInputError(f"{dtype} cannot be stored; there are {', '.join(DTYPES)}")
    return _BY_TORCH[dtype].name


def to_bits(t: Tensor) -> Bits:
    """The bits of `t` as a C-contiguous CPU array of the same shape, in its dtype's storage dtype.

    Shares memory with `t` where that is already contiguous on the CPU; copies otherwise.
    """
    dtype = DTYPES[dtype_name(t.dtype)]
    if t.layout is not torch.strided:
        raise BadInputError(f"a {t.layout} tensor cannot be stored; convert it with .to_dense() first")
    plain = t.detach().cpu().contiguous()
    if dtype.view is not None:
        plain = plain.view(dtype.view)
    return plain.numpy()


def from_bits(a: Bits, dtype: str) -> Tensor:
    """The tensor of logical `dtype` whose bits are `a`, an array of that dtype's storage dtype.

    Shares memory with `a` where that is contiguous and writable; copies otherwise.
    """
    known = logical(dtype)
    if a.dtype != known.storage:
        raise BadInputError(f"bits of {dtype} are {known.storage.name}, not {a.dtype.name}")
    # "W" too: a torch tensor over read-only memory would let a caller write into it.
    plain = torch.from_numpy(np.require(a, requirements=("C", "W")))
    return plain if known.view is None else plain.view(known.torch_dtype)


def as_integers(values: Tensor) -> Tensor:
    """The bits of `values` as integers of the same size, to compute with; a view."""
    return values.view(_INTEGER_OF_SIZE[values.element_size()])


def meta_of(t: Tensor, axes: Sequence[str], caller: Tensor | None = None) -> TensorMeta:
    """Describes `t`, to be stored under symbolic `axes`, and `caller`, by default `t`, as it was held."""
    held = t if caller is None else caller
    if len(axes) != t.dim():
        raise BadInputError(
            f"a tensor of shape {tuple(t.shape)} has {t.dim()} axes, but {tuple(axes)} name {len(axes)}"
        )
    return TensorMeta(
        dtype=dtype_name(t.dtype),
        shape=tuple(t.shape),
        axes=tuple(axes),
        caller_shape=tuple(held.shape),
        caller_strides=tuple(held.stride()),
        caller_offset=int(held.storage_offset()),
        device=str(held.device),
    )
