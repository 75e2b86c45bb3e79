# SPDX-License-Identifier: Apache-2.0
"""Simpler values: what a tensor may be filled with, and which of its rows then keep their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.shrinking import with_tensors

SMALL = 8.0
"""Integers up to this are small: their sums and products stay exact in any of the dtypes."""
MOST_PARTS = 16
"""An axis of a tensor is cut into so many parts at most where its rows are simplified one part after another:
each costs a probe, and what is gained is easier reading alone."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A way to simplify: its name, and the simple tensor of a tensor and its operation's constant."""

    name: str
    of: Callable[[Tensor, float], Tensor]
    keeps_zeros: bool = False


def _powers(x: Tensor, level: float) -> Tensor:
    """Every element to the nearest power of two in the logarithm: norms grow by at most sqrt 2, so that a
    step of a normalised key, 1 - beta |k|^2 >= -1, contracts as before. Zero, NaN and infinity stay."""
    wide = x.double()
    sound = torch.isfinite(wide) & (wide != 0)
    rounded = wide.sign() * torch.exp2(wide.abs().where(sound, 1.0).log2().round())
    return rounded.where(sound, wide).to(x.dtype)


ZEROS = Filling("zeros", lambda x, level: torch.zeros_like(x))
FILLINGS = (
    ZEROS,
    Filling("one value", lambda x, level: torch.full_like(x, level)),
    Filling("equal rows", lambda x, level: _first_row(x)),
    Filling("powers of two", _powers, True),
    Filling("small integers", lambda x, level: x.double().round().clamp(-SMALL, SMALL).to(x.dtype), True),
)
"""Simplest first."""
AS_BYTES = (ZEROS,)
"""Those for what a cache holds as bytes."""


def _first_row(x: Tensor) -> Tensor:
    return as_integers(x)[:1].expand(x.shape).contiguous().view(x.dtype) if len(x) else x


def fillable(operation: Operation, call: Call) -> Iterator[tuple[str, tuple[Filling, ...]]]:
    """The tensors whose values may be simplified, largest first, and how."""
    pools = {spec.name for spec in operation.tensors if spec.pool_index is not None}
    for name, tensor in sorted(call.tensors.items(), key=lambda item: -item[1].numel()):
        if tensor.numel() and tensor.is_floating_point():
            yield name, FILLINGS
        elif tensor.numel() and name in pools and tensor.dtype == torch.uint8:
            yield name, AS_BYTES


def filled(operation: Operation, call: Call, name: str, filling: Filling) -> Tensor:
    """The whole tensor, simplified."""
    assert operation.shrinking is not None
    level = operation.shrinking.level(call).get(name, 1.0)
    tensor = call.tensors[name]
    return _wide(filling, tensor, level)


def _wide(filling: Filling, tensor: Tensor, level: float) -> Tensor:
    """Of fp8, in fp32: torch computes with no element of it."""
    if tensor.element_size() > 1 or not tensor.is_floating_point():
        return filling.of(tensor, level)
    return filling.of(tensor.float(), level).to(tensor.dtype)


def with_rows_kept(call: Call, name: str, simple: Tensor, axis: int, kept: Sequence[int]) -> Call:
    """The call with `simple` as `name`, but for the rows `kept` of one axis."""
    mixed = simple.clone()
    rows = torch.tensor(list(kept), dtype=torch.long)
    bits = as_integers(mixed)
    bits.index_copy_(axis, rows, as_integers(call.tensors[name]).index_select(axis, rows))
    return with_tensors(call, {**call.tensors, name: mixed})


def same_bits(call: Call, name: str, simple: Tensor) -> bool:
    return torch.equal(as_integers(call.tensors[name]), as_integers(simple))
