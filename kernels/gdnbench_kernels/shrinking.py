# SPDX-License-Identifier: Apache-2.0
"""Shared by operations: how to make a call smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Axis, Call, Operation, Role, TensorSpec


def take_units(tensor: Tensor, axis: int, units: Sequence[int]) -> Tensor:
    """The `units` of one axis, as a contiguous copy with the same bits."""
    index = torch.tensor(list(units), dtype=torch.long)
    if tensor.element_size() == 1:  # torch cannot index fp8
        return tensor.view(torch.uint8).index_select(axis, index).view(tensor.dtype)
    return tensor.index_select(axis, index)


def select_units(
    call: Call, specs: Sequence[TensorSpec], kept: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """The tensors of `call` with only the kept units of every axis in `kept`."""
    tensors = dict(call.tensors)
    for spec in specs:
        if spec.name not in tensors or spec.role is Role.OUTPUT:
            continue
        for axis, symbol in enumerate(spec.axes_in(call.conventions)):
            if symbol in kept and list(kept[symbol]) != list(range(tensors[spec.name].shape[axis])):
                tensors[spec.name] = take_units(tensors[spec.name], axis, kept[symbol])
    return tensors


def with_tensors(call: Call, tensors: Mapping[str, Tensor]) -> Call:
    return Call(tensors, call.scalars, call.conventions)


def axis_of(operation: Operation, call: Call, name: str, symbol: str, units: int, of_place: str) -> Axis:
    """Units of the axis `symbol` in every tensor that has it; nothing else depends on them. A place of an
    output has their number as `of_place`."""
    return Axis(
        name,
        units,
        lambda kept: with_tensors(call, select_units(call, operation.tensors, {symbol: kept})),
        unit_at=lambda place: place.get(of_place),
    )


def head_axes(operation: Operation, call: Call, key_heads: int, value_heads: int) -> tuple[Axis, Axis]:
    """Key heads with all of their value heads, and value heads at the same position of every group."""
    group = value_heads // key_heads

    def keep_groups(kept: Sequence[int]) -> Call:
        values = [head * group + place for head in kept for place in range(group)]
        return with_tensors(call, select_units(call, operation.tensors, {"H": kept, "Hv": values}))

    def keep_places(kept: Sequence[int]) -> Call:
        values = [head * group + place for head in range(key_heads) for place in kept]
        return with_tensors(call, select_units(call, operation.tensors, {"Hv": values}))

    def group_at(place: Mapping[str, int]) -> int | None:
        return place["head"] // group if "head" in place else None

    def place_at(place: Mapping[str, int]) -> int | None:
        return place["head"] % group if "head" in place else None

    return (
        Axis("key heads", key_heads, keep_groups, unit_at=group_at),
        Axis("value heads a key head", group, keep_places, unit_at=place_at),
    )


def optional_axis(call: Call, tensors: Sequence[str], scalars: Mapping[str, bool]) -> Axis:
    """Those of `tensors` that the call has, and those of `scalars` that request an output; each can be left
    out."""
    parts = [name for name in tensors if name in call.tensors]
    parts += [name for name, default in scalars.items() if call.scalars.get(name, default)]

    def keep(kept: Sequence[int]) -> Call:
        gone = set(parts) - {parts[unit] for unit in kept}
        left = {name: tensor for name, tensor in call.tensors.items() if name not in gone}
        asked = {**call.scalars, **{name: False for name in scalars if name in gone}}
        return Call(left, asked, call.conventions)

    return Axis("optional parts", len(parts), keep, least=0)


def pool_axis(
    operation: Operation,
    call: Call,
    name: str,
    pool: str,
    follow: Callable[[Tensor], dict[str, Tensor]] = lambda rows: {},
) -> Axis:
    """Rows of `pool` that the call does not access. The operation's `renumber` renumbers the rest; `follow`
    names the rows of other pools that belong to rows of this one."""
    renumber = operation.renumber
    assert renumber is not None
    touched = operation.touched(call)[pool]
    idle = torch.ones(len(call.tensors[pool]), dtype=torch.bool)
    idle[touched] = False
    spare = idle.nonzero().squeeze(1)

    def keep(kept: Sequence[int]) -> Call:
        rows = torch.cat([touched, spare[list(kept)]]).sort().values
        stored = {pool: rows, **follow(rows)}
        places = renumber(call, {one: of.tolist() for one, of in stored.items()})
        pools = {one: take_units(call.tensors[one], 0, of.tolist()) for one, of in stored.items()}
        return with_tensors(call, {**call.tensors, **places, **pools})

    return Axis(name, len(spare), keep, least=0, of_pool=True)
