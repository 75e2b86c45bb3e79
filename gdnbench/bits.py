# SPDX-License-Identifier: Apache-2.0
"""Logical dtypes as plain bit views: what Zarr and numpy have no name for is kept as unsigned integers.

Nothing here converts a value. A tensor's bits go to numpy and come back as they are, so NaN payloads
(signalling ones too), -0.0 and every fp8 code survive. torch is imported by what handles tensors, not by the
table of dtypes: a listing reads the table alone, and the import takes longer than the listing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gdnbench.errors import BadInputError
from gdnbench.record import TensorMeta

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Bits = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class LogicalDtype:
    """A tensor's dtype and the dtype of the same width that its bits are stored as."""

    name: str  # torch's name without the prefix
    storage: np.dtype[np.generic]

    @property
    def torch_dtype(self) -> torch.dtype:
        return _torch_dtype(self.name)

    @property
    def view(self) -> torch.dtype | None:
        """torch's dtype of the storage, where that is not the dtype itself."""
        return None if self.storage.name == self.name else _torch_dtype(self.storage.name)


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


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
    storages = {name: name for name in (*native, *integers)} | viewed
    return {name: LogicalDtype(name, np.dtype(storage)) for name, storage in storages.items()}


DTYPES = _table()
_INTEGER_OF_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def logical(name: str) -> LogicalDtype:
    """The logical dtype called `name`; BadInputError names those there are."""
    try:
        return DTYPES[name]
    except KeyError:
        raise BadInputError(f"dtype {name!r} cannot be stored; there are {', '.join(DTYPES)}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """The stored name of a torch dtype, e.g. "bfloat16"; BadInputError if it cannot be stored."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise BadInputError(f"{dtype} cannot be stored; there are {', '.join(DTYPES)}")
    return name


def to_bits(t: Tensor) -> Bits:
    """The bits of `t` as a C-contiguous CPU array of the same shape, in its dtype's storage dtype.

    Shares memory with `t` where that is already contiguous on the CPU; copies otherwise.
    """
    import torch

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
    import torch

    known = logical(dtype)
    if a.dtype != known.storage:
        raise BadInputError(f"bits of {dtype} are {known.storage.name}, not {a.dtype.name}")
    # "W" too: a torch tensor over read-only memory would let a caller write into it.
    plain = torch.from_numpy(np.require(a, requirements=("C", "W")))
    return plain if known.view is None else plain.view(known.torch_dtype)


def as_integers(values: Tensor) -> Tensor:
    """The bits of `values` as integers of the same size, to compute with; a view."""
    return values.view(_torch_dtype(_INTEGER_OF_SIZE[values.element_size()]))


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
