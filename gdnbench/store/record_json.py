# SPDX-License-Identifier: Apache-2.0
"""A record as one line of JSON, and back. Parsing checks every field, since the text is untrusted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import Pool, RecordInfo, Status, TensorMeta
from gdnbench.store.layout import Location

_META_FIELDS: Final = tuple(field.name for field in fields(TensorMeta))
_meta_values: Final = itemgetter(*_META_FIELDS)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FLOAT: Final = "$float"  # strict JSON has no NaN or infinity: {"$float": "nan"}
_MOST_AXES: Final = 32
_MOST_LEVELS: Final = 64  # printing them recurses a few calls for each level
_MOST_ELEMENTS: Final = 1 << 48


@dataclass(frozen=True, slots=True)
class Placed:
    """A stored tensor: its metadata, the BLAKE3 of its contiguous bytes, and its location."""

    meta: TensorMeta
    digest: str
    location: Location


@dataclass(frozen=True, slots=True)
class RecordLine:
    info: RecordInfo
    before: Mapping[str, Placed]
    after: Mapping[str, Placed]


def to_line(info: RecordInfo, before: Mapping[str, Placed], after: Mapping[str, Placed]) -> bytes:
    """The record as UTF-8 JSON without a newline; BadInputError if a field is not plain data."""
    where = f"record of {info.layer or info.target}, call {info.call}"
    described = {
        "op": info.op,
        "target": info.target,
        "layer": info.layer,
        "layer_index": info.layer_index,
        "call": info.call,
        "step": info.step,
        "status": info.status.value,
        "scalars": plain(info.scalars, where),
        "conventions": plain(info.conventions, where),
        "pools": {
            name: {
                "slots": pool.slots,
                "rows": list(pool.rows),
                "untouched_before": pool.untouched_before,
                "untouched_after": pool.untouched_after,
            }
            for name, pool in info.pools.items()
        },
        "dispatch": plain(info.dispatch, where),
        "run": plain(info.run, where),
    }
    record = {"info": described, "before": _tensors(before), "after": _tensors(after)}
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode()


def _tensors(placed: Mapping[str, Placed]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "dtype": tensor.meta.dtype,
            "shape": tensor.meta.shape,
            "axes": tensor.meta.axes,
            "caller_shape": tensor.meta.caller_shape,
            "caller_strides": tensor.meta.caller_strides,
            "caller_offset": tensor.meta.caller_offset,
            "device": tensor.meta.device,
            "digest": tensor.digest,
            "location": str(tensor.location),
        }
        for name, tensor in placed.items()
    }


def plain(value: Any, where: str) -> Any:
    """`value` as strict JSON data; BadInputError names what cannot be converted."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BadInputError(f"{where}: key {key!r} is not text")
        return {key: plain(item, f"{where}, {key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    raise BadInputError(
        f"{where}: {type(value).__name__} is not plain data (text, number, bool, list or dict)"
    )


def unplain(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """The inverse of `plain`, except that tuples become lists. ValueError for too deep nesting."""
    if not levels:
        raise ValueError(f"JSON is nested too deep: at most {_MOST_LEVELS} levels")
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return _float(value[_FLOAT])
        return {key: unplain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [unplain(item, levels - 1) for item in value]
    return value


def _float(text: Any) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{_FLOAT} {text!r} is not nan, inf or -inf")
    return float(text)


def from_line(line: bytes, where: str) -> RecordLine:
    """The record in `line`; StoreError names `where` and the wrong field."""
    try:
        data = _object(json.loads(line), "record")
        return RecordLine(
            _info(_object(_get(data, "info"), "info")),
            _placed(_object(_get(data, "before"), "before"), "before"),
            _placed(_object(_get(data, "after"), "after"), "after"),
        )
    except RecursionError:
        raise StoreError(f"{where}: JSON is nested too deep") from None
    except ValueError as error:
        raise StoreError(f"{where}: {error}") from error


def _info(data: Mapping[str, Any]) -> RecordInfo:
    index = _get(data, "layer_index")
    return RecordInfo(
        op=_text(data, "op"),
        target=_text(data, "target"),
        layer=_text(data, "layer"),
        layer_index=None if index is None else _count(data, "layer_index"),
        call=_count(data, "call"),
        step=_count(data, "step"),
        status=Status(_text(data, "status")),
        scalars=unplain(_object(_get(data, "scalars"), "scalars")),
        conventions=_texts(_object(_get(data, "conventions"), "conventions")),
        pools={
            name: _pool(_object(pool, f"pool {name!r}"))
            for name, pool in _object(_get(data, "pools"), "pools").items()
        },
        dispatch=unplain(_object(_get(data, "dispatch"), "dispatch")),
        run=unplain(_object(_get(data, "run"), "run")),
    )


def _pool(data: Mapping[str, Any]) -> Pool:
    slots, rows = _count(data, "slots"), _counts(data, "rows")
    if rows and max(rows) >= slots:
        raise ValueError(f"pool row {max(rows)} is not one of {slots} slots")
    for one, following in pairwise(rows):
        if following <= one:
            raise ValueError(f"pool row {following} follows row {one}; rows are written in ascending order")
    return Pool(
        slots, rows, _digest_or_none(data, "untouched_before"), _digest_or_none(data, "untouched_after")
    )


def _placed(data: Mapping[str, Any], when: str) -> dict[str, Placed]:
    placed = {}
    for name, described in data.items():
        try:
            placed[name] = _one_placed(_object(described, "description"))
        except ValueError as error:
            raise ValueError(f"tensor {name!r} {when} the call: {error}") from error
    return placed


def _one_placed(data: Mapping[str, Any]) -> Placed:
    digest = data.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"digest {str(digest)[:80]!r} is not 64 hexadecimal digits")
    try:
        meta = _meta(*map(_frozen, _meta_values(data)))
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from None
    except TypeError:  # not hashable: a list in a list, an object
        raise ValueError(f"{', '.join(_META_FIELDS)} are text, numbers or lists of them") from None
    return Placed(meta, digest, Location.parse(_text(data, "location")))


def _frozen(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


# Cached: a layer's tensors repeat their metadata at every step, and parsing it dominates a listing.
@lru_cache(maxsize=4096)
def _meta(*values: Any) -> TensorMeta:
    """TensorMeta of these values of `_META_FIELDS`, with lists as tuples; ValueError if one is wrong."""
    data = dict(zip(_META_FIELDS, values, strict=True))
    dtype, shape = _text(data, "dtype"), _counts(data, "shape")
    axes = _checked(
        data, "axes", lambda v: isinstance(v, tuple) and all(isinstance(i, str) for i in v), "names"
    )
    from gdnbench.bits import DTYPES

    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known")
    if len(shape) > _MOST_AXES or math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"shape {shape} is refused: at most {_MOST_AXES} axes and 2**48 elements")
    if len(axes) != len(shape):
        raise ValueError(f"shape {shape} and axes {axes} differ in length")
    caller_shape, caller_strides = _counts(data, "caller_shape"), _counts(data, "caller_strides")
    if len(caller_shape) > _MOST_AXES or math.prod(caller_shape) > _MOST_ELEMENTS:
        raise ValueError(
            f"caller_shape {caller_shape} is refused: at most {_MOST_AXES} axes and 2**48 elements"
        )
    if len(caller_shape) != len(caller_strides):
        raise ValueError(f"caller_shape {caller_shape} and caller_strides {caller_strides} differ in length")
    return TensorMeta(
        dtype=dtype,
        shape=shape,
        axes=axes,
        caller_shape=caller_shape,
        caller_strides=caller_strides,
        caller_offset=_count(data, "caller_offset"),
        device=_text(data, "device"),
    )


def _get(data: Mapping[str, Any], field: str) -> Any:
    if field not in data:
        raise ValueError(f"{field} is missing")
    return data[field]


def _checked(data: Mapping[str, Any], field: str, holds: Callable[[Any], bool], what: str) -> Any:
    value = _get(data, field)
    if not holds(value):
        raise ValueError(f"{field} is {str(value)[:60]!r}, not {what}")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {str(value)[:60]!r}, not an object")  # noqa: TRY004 - reported as one kind
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value < 1 << 63


def _text(data: Mapping[str, Any], field: str) -> str:
    return str(_checked(data, field, lambda v: isinstance(v, str), "text"))


def _digest_or_none(data: Mapping[str, Any], field: str) -> str | None:
    value = _checked(data, field, lambda v: v is None or isinstance(v, str), "text or null")
    return None if value is None else str(value)


def _count(data: Mapping[str, Any], field: str) -> int:
    return int(_checked(data, field, _is_count, "a count"))


def _counts(data: Mapping[str, Any], field: str) -> tuple[int, ...]:
    holds = _checked(data, field, lambda v: isinstance(v, list | tuple) and all(map(_is_count, v)), "counts")
    return tuple(holds)


def _texts(data: dict[str, Any]) -> dict[str, str]:
    for name, value in data.items():
        if not isinstance(value, str):
            raise ValueError(f"convention {name!r} is {str(value)[:60]!r}, not text")  # noqa: TRY004
    return data
