# SPDX-License-Identifier: Apache-2.0
"""Encodes a journal's headers and payloads, records as JSON and bytes, cheaply enough for the hot path."""

from __future__ import annotations

import ctypes
import json
import marshal
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gdnbench.bits import Bits, logical
from gdnbench.errors import BadInputError
from gdnbench.record import Pool, RecordInfo, Status, TensorDraft, TensorMeta

if TYPE_CHECKING:
    from torch import Tensor

_to_json = json.JSONEncoder(separators=(",", ":")).encode

Buffer = ctypes.Array[ctypes.c_char]


def buffer_of(name: str, tensor: Tensor) -> Buffer:
    """The bytes of a contiguous CPU tensor, not copied; the tensor must outlive the view.

    Uses ctypes, which takes 0.4 us and supports every dtype and rank; `Tensor.numpy` lacks bf16 and takes 2
    us.
    """
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise BadInputError(
            f"tensor {name} is on {tensor.device} or not contiguous: a draft takes a contiguous CPU copy"
        )
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


@lru_cache(maxsize=4096)
def meta_json(meta: TensorMeta) -> str:
    """A tensor's metadata as JSON without its closing brace. Cached: a layer repeats it at every step."""
    text = _to_json(
        {
            "dtype": meta.dtype,
            "shape": meta.shape,
            "axes": meta.axes,
            "caller_shape": meta.caller_shape,
            "caller_strides": meta.caller_strides,
            "caller_offset": meta.caller_offset,
            "device": meta.device,
        }
    )
    return text[:-1]


def meta_from_json(data: Mapping[str, Any]) -> TensorMeta:
    return TensorMeta(
        dtype=data["dtype"],
        shape=tuple(data["shape"]),
        axes=tuple(data["axes"]),
        caller_shape=tuple(data["caller_shape"]),
        caller_strides=tuple(data["caller_strides"]),
        caller_offset=data["caller_offset"],
        device=data["device"],
    )


_alike: dict[bytes, str] = {}  # JSON of an info without call and step, by its content
_ALIKE_LIMIT = 1024
_POOL_FIELDS = ("slots", "rows", "untouched_before", "untouched_after")


def info_json(info: RecordInfo) -> str:
    """The info as JSON. BadInputError names what JSON cannot hold.

    Only call and step differ between steps of a layer: the rest is encoded once.
    """
    try:
        # Unlike ==, these bytes distinguish 1 from 1.0 and True. Version 2 has no references to earlier
        # objects, so equal content gives equal bytes.
        key = marshal.dumps(
            (
                info.op,
                info.target,
                info.layer,
                info.layer_index,
                info.status.value,
                dict(info.scalars),
                dict(info.conventions),
                dict(info.dispatch),
                dict(info.run),
                [(name, *_pool_fields(pool)) for name, pool in info.pools.items()],
            ),
            2,
        )
    except ValueError:  # the JSON encoder has the better message for these types
        return f'{{"call":{info.call},"step":{info.step},{_rest_json(info)}'
    rest = _alike.get(key)
    if rest is None:
        rest = _rest_json(info)
        if len(_alike) >= _ALIKE_LIMIT:
            _alike.clear()
        _alike[key] = rest
    return f'{{"call":{info.call},"step":{info.step},{rest}'


def _pool_fields(pool: Pool) -> tuple[Any, ...]:
    return pool.slots, pool.rows, pool.untouched_before, pool.untouched_after


def _rest_json(info: RecordInfo) -> str:
    """The fields except `call` and `step`, and the closing brace."""
    fields = {
        "op": info.op,
        "target": info.target,
        "layer": info.layer,
        "layer_index": info.layer_index,
        "status": info.status.value,
        "scalars": dict(info.scalars),
        "conventions": dict(info.conventions),
        "pools": {
            name: dict(zip(_POOL_FIELDS, _pool_fields(pool), strict=True))
            for name, pool in info.pools.items()
        },
        "dispatch": dict(info.dispatch),
        "run": dict(info.run),
    }
    try:
        return _to_json(fields)[1:]
    except (TypeError, ValueError) as error:
        raise BadInputError(f"record of {info.layer or info.target}, call {info.call}: {error}") from error


def info_from_json(data: Mapping[str, Any]) -> RecordInfo:
    pools = {
        name: Pool(pool["slots"], tuple(pool["rows"]), pool["untouched_before"], pool["untouched_after"])
        for name, pool in data["pools"].items()
    }
    return RecordInfo(**{**data, "status": Status(data["status"]), "pools": pools})


def plain_json(data: Mapping[str, Any]) -> bytes:
    """`data` as JSON. BadInputError if JSON cannot hold it."""
    try:
        return _to_json(data).encode()
    except (TypeError, ValueError) as error:
        raise BadInputError(f"journal header: {error}") from error


@dataclass(frozen=True, slots=True)
class Carried:
    """A tensor whose bytes are already in the same file, at offset `at`, with payload checksum `sum`."""

    at: int
    sum: int


def tensors_json(drafts: Mapping[str, TensorDraft], carried: Mapping[str, Carried]) -> str:
    """The metadata of `drafts` by name; those in `carried` refer to earlier bytes."""
    return "{" + ",".join(_tensor_items(drafts, carried)) + "}"


def _tensor_items(drafts: Mapping[str, TensorDraft], carried: Mapping[str, Carried]) -> Iterator[str]:
    for name, draft in drafts.items():
        reference = carried.get(name)
        tail = "}" if reference is None else f',"at":{reference.at},"sum":{reference.sum}}}'
        yield f"{_to_json(name)}:{meta_json(draft.meta)}{tail}"


def nbytes_of(meta: TensorMeta) -> int:
    """Size of the tensor in bytes. BadInputError if the dtype is unknown."""
    return logical(meta.dtype).storage.itemsize * math.prod(meta.shape)


def bits_at(buffer: Any, offset: int, meta: TensorMeta) -> Bits:
    """The bits of the tensor of `meta` whose bytes start at `offset` of `buffer`, not copied."""
    storage, count = logical(meta.dtype).storage, math.prod(meta.shape)
    if count == 0:
        return np.empty(meta.shape, storage)
    return np.frombuffer(buffer, storage, count, offset).reshape(meta.shape)
