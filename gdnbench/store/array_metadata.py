# SPDX-License-Identifier: Apache-2.0
"""Checks the zarr.json of a stored array field by field.

Decoding an array looks at a part of its zarr.json only: a changed fill value, compression level or
description of a tensor changes no element. The digests of the elements do not cover these fields. They are
compared with what the writer always writes, with the records, and with the other arrays of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gdnbench.bits import logical
from gdnbench.store.layout import KEY
from gdnbench.store.record_json import Placed
from gdnbench.store.stored_array import StoredArray

RECORDS_ATTRIBUTES = {"encoding": "UTF-8 JSON, one record a line"}
RECORDS_NAMES = ["byte"]

_FIELDS = {
    *("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "attributes"),
    *("zarr_format", "node_type", "storage_transformers"),
}
_NAMES = "dimension_names"  # stores of earlier releases have none
_KEY_ENCODING = {"name": "default", "configuration": {"separator": "/"}}
_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC = {"name": "crc32c"}
_LEVELS = range(1, 10)


def dimension_names(axes: Sequence[Sequence[str]], *, rows: bool) -> list[str | None]:
    """The `dimension_names` of an array that holds tensors with these axes, which have the same shape.

    With `rows` the first axis counts the tensors. An axis has no name if the tensors disagree. A name that a
    tensor has twice gets a number, because xarray takes each name once.
    """
    names: list[str | None] = ["row"] if rows else []
    common = [found[0] if len(set(found)) == 1 else None for found in zip(*axes, strict=True)]
    for place, name in enumerate(common):
        again = common[:place].count(name)
        names.append(name if name is None or not again else f"{name}_{again + 1}")
    return names


def layout_flaw(array: StoredArray) -> str | None:
    """What is wrong with the fields that say how an array is stored, in one line; None if nothing is.

    The compression level may be any; the chunk shapes show when the elements are read.
    """
    node = array.node
    if strange := sorted((node.keys() ^ _FIELDS) - {_NAMES}):
        return f"field {strange[0]!r} is {'not one of an array' if strange[0] in node else 'missing'}"
    expected: dict[str, Any] = {
        "fill_value": False if array.dtype.kind == "b" else 0,
        "chunk_key_encoding": _KEY_ENCODING,
        "storage_transformers": [],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(array.file)}},
    }
    for name, value in expected.items():
        if node[name] != value:
            return f"{name} is {_shown(node[name])}, not {_shown(value)}"
    codecs = [_without_defaults(codec) for codec in node["codecs"]]
    level = compression_level(array)
    if any(codec["name"] == "zstd" for codec in _elementwise(node["codecs"])):
        return None  # another program's compression, whose options mean nothing here
    written = _codecs(array, level)
    if codecs != written:
        return f"codecs are {_shown(codecs)}, not {_shown(written)}"
    if node["attributes"].keys() != {KEY}:
        return f"attributes are of {_shown(sorted(node['attributes']))}, not of {KEY}"
    if array.attributes == RECORDS_ATTRIBUTES and node.get(_NAMES, RECORDS_NAMES) != RECORDS_NAMES:
        return f"{_NAMES} are {_shown(node[_NAMES])}, not {RECORDS_NAMES}"
    return None


def description_flaw(
    array: StoredArray, described: Mapping[int | None, Placed]
) -> tuple[int | None, str] | None:
    """The first row, and the reason in one line, of which the array's attributes say something else than the
    first record with these elements; None if there is no such row.

    `described` holds, by row (None: the array is one tensor), that record's description.
    """
    first = next(iter(described.values())).meta
    columns: dict[str, Callable[[Placed], Any]] = {
        "digests": lambda placed: placed.digest,
        "axes": lambda placed: list(placed.meta.axes),
        "caller_shapes": lambda placed: list(placed.meta.caller_shape),
        "caller_strides": lambda placed: list(placed.meta.caller_strides),
        "caller_offsets": lambda placed: placed.meta.caller_offset,
    }
    said = array.attributes
    own = {"dtype": first.dtype, "stored_as": logical(first.dtype).storage.name}
    if strange := sorted(said.keys() ^ (own.keys() | columns.keys())):
        return (
            None,
            f"attribute {strange[0]!r} is {'not one of an array' if strange[0] in said else 'missing'}",
        )
    for name, value in own.items():
        if said[name] != value:
            return None, f"{name} is {_shown(said[name])}, not {_shown(value)}"
    rows = 1 if None in described else array.shape[0]
    for name, column in columns.items():
        if not isinstance(said[name], list) or len(said[name]) != rows:
            return None, f"{name} are not those of {rows} tensors"
        for row, placed in described.items():
            found, value = said[name][row or 0], column(placed)
            if found != value or type(found) is not type(value):
                return row, f"{name}[{row or 0}] is {_shown(found)}, but its record says {_shown(value)}"
    return _names_flaw(array, rows=None not in described)


def _names_flaw(array: StoredArray, *, rows: bool) -> tuple[None, str] | None:
    """What is wrong with the array's dimension names, which follow from the axes of its tensors."""
    if _NAMES not in array.node:
        return None
    try:
        written = dimension_names(array.attributes["axes"], rows=rows)
    except (TypeError, ValueError):  # no record says what axes a row without a record has
        return None, "axes are not those of tensors of one shape"
    named = array.node[_NAMES]
    return None if named == written else (None, f"{_NAMES} are {_shown(named)}, not {_shown(written)}")


def compression_level(array: StoredArray) -> Any:
    """The level of Blosc as the array's zarr.json has it; None for an array without Blosc."""
    for codec in _elementwise(array.node["codecs"]):
        if codec["name"] == "blosc":
            return codec.get("configuration", {}).get("clevel")
    return None


def _elementwise(codecs: Any) -> Iterator[dict[str, Any]]:
    """The codecs of chunks, which are inside the sharding codec if there is one."""
    for codec in codecs:
        if codec["name"] == "sharding_indexed":
            yield from codec["configuration"]["codecs"]
        else:
            yield codec


def _codecs(array: StoredArray, level: Any) -> list[dict[str, Any]]:
    """The codecs that the writer writes for such an array."""
    size = array.dtype.itemsize
    chain: list[dict[str, Any]] = [{"name": "bytes"} if size == 1 else _LITTLE]
    if level is not None:
        options = {"typesize": size, "cname": "zstd", "clevel": level if level in _LEVELS else "1 to 9"}
        chain.append({"name": "blosc", "configuration": {**options, "shuffle": "bitshuffle", "blocksize": 0}})
    chain.append(_CRC)
    if array.file == array.chunk:
        return chain
    sharding = {"chunk_shape": list(array.chunk), "codecs": chain, "index_codecs": [_LITTLE, _CRC]}
    return [{"name": "sharding_indexed", "configuration": {**sharding, "index_location": "end"}}]


def _without_defaults(codec: Any) -> Any:
    """A codec without an empty configuration, which releases of Zarr write or leave out."""
    if isinstance(codec, dict):
        kept = {name: value for name, value in codec.items() if (name, value) != ("configuration", {})}
        return {name: _without_defaults(value) for name, value in kept.items()}
    return [_without_defaults(item) for item in codec] if isinstance(codec, list) else codec


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:297]}..."
