# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors of one record to a file of another program's format: safetensors, npz or pt.

A file holds the tensors before the call as `before.NAME` and those after it as `after.NAME`, contiguous, in
the contract's axes and bit for bit. Each format also has the record's description, one JSON object with `op`,
`target`, `layer`, `step`, `call`, `key`, `scalars`, `conventions`, `dtypes` and `axes` by tensor.

    safetensors   bfloat16 and fp8 as such, but for the two fnuz formats: U8 with the bits. Description: the
                  text `gdnbench` of `__metadata__`. Needs no package.
    npz           NumPy has no bfloat16 and no fp8: uint16 and uint8 with the bits. Description: the array
                  `gdnbench`, a text; `dtypes` has the dtype to view a tensor as, by its name in ml_dtypes.
    pt            torch tensors of their own dtypes, and `gdnbench`, the description as a dict; loads with
                  `torch.load(path, weights_only=True)`. Needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from gdnbench.bits import logical
from gdnbench.errors import BadInputError
from gdnbench.export_format import Format
from gdnbench.store.record_json import plain
from gdnbench.whole_file import new_file

if TYPE_CHECKING:
    from gdnbench.bits import Bits
    from gdnbench.store.reader import StoredRecord, TensorHandle

DESCRIPTION: Final = "gdnbench"
"""The name of the record's description in a file."""


# Names of https://github.com/huggingface/safetensors#format.
_SAFETENSORS: Final = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "bool": "BOOL",
    **{
        f"{sign}int{width}": f"{'U' if sign else 'I'}{width}"
        for sign in ("", "u")
        for width in (8, 16, 32, 64)
    },
}
_ALIGNMENT: Final = 8  # of the header, so that elements of 8 bytes can be mapped


def export_record(record: StoredRecord, path: Path, to: Format | str, *, force: bool = False) -> None:
    """Write `record` to the new file `path`; `force` replaces a file that is there.

    The file appears whole or not at all. BadInputError if it exists, or cannot be written; StoreError for a
    damaged tensor; ModuleNotFoundError for pt without torch.
    """
    known = {str(one): one for one in Format}
    if str(to) not in known:
        raise BadInputError(f"format {str(to)!r} is none of {', '.join(known)}")
    handles = {f"{when}.{name}": handle for when, name, handle in _tensors(record)}
    write = {
        Format.SAFETENSORS: _write_safetensors,
        Format.NPZ: _write_npz,
        Format.PT: _write_pt,
    }[known[str(to)]]
    described = description(record, handles)
    try:
        with new_file(path, replace=force) as file:
            write(file, handles, described)
    except FileExistsError:
        hint = "choose another name" + ("" if force else ", or replace a file with --force")
        raise BadInputError(f"{path} is there already; {hint}") from None
    except OSError as error:
        if error.errno is None:  # of the store, which says what it is about
            raise
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from None


def description(record: StoredRecord, handles: Mapping[str, TensorHandle]) -> dict[str, Any]:
    """What a file says of the record, as JSON values; NaN is {"$float": "nan"}, as in the store."""
    info = record.info
    where = f"record {record.key}"
    return {
        "op": info.op,
        "target": info.target,
        "layer": info.layer,
        "step": info.step,
        "call": info.call,
        "key": record.key,
        "scalars": plain(info.scalars, where),
        "conventions": plain(info.conventions, where),
        "dtypes": {name: handle.meta.dtype for name, handle in handles.items()},
        "axes": {name: list(handle.meta.axes) for name, handle in handles.items()},
    }


def _tensors(record: StoredRecord) -> Iterator[tuple[str, str, TensorHandle]]:
    for when, handles in (("before", record.before), ("after", record.after)):
        for name, handle in handles.items():
            yield when, name, handle


def _write_safetensors(
    file: IO[bytes], handles: Mapping[str, TensorHandle], described: Mapping[str, Any]
) -> None:
    """The length of the header as uint64, the header as JSON, and the elements of one tensor after another,
    little-endian: those with the widest elements first, so that each begins at a multiple of its width."""
    width = {name: logical(handle.meta.dtype).storage.itemsize for name, handle in handles.items()}
    ordered = sorted(handles, key=lambda name: (-width[name], name))
    header: dict[str, Any] = {"__metadata__": {DESCRIPTION: json.dumps(described)}}
    at = 0
    for name in ordered:
        meta, nbytes = handles[name].meta, handles[name].nbytes
        dtype = _SAFETENSORS.get(meta.dtype, "U8")
        header[name] = {"dtype": dtype, "shape": list(meta.shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in ordered:
        file.write(_little_endian(handles[name].bits()).reshape(-1).view(np.uint8).data)


def _write_npz(file: IO[bytes], handles: Mapping[str, TensorHandle], described: Mapping[str, Any]) -> None:
    arrays = {name: _little_endian(handle.bits()) for name, handle in handles.items()}
    np.savez(file, **arrays, **{DESCRIPTION: np.array(json.dumps(described))})  # type: ignore[arg-type]


def _write_pt(file: IO[bytes], handles: Mapping[str, TensorHandle], described: Mapping[str, Any]) -> None:
    import torch

    tensors = {name: handle.read() for name, handle in handles.items()}
    try:
        torch.save({**tensors, DESCRIPTION: described}, file)
    except (
        RuntimeError
    ) as error:  # of torch's writer at its end, after what the file said, such as a full disk
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _little_endian(bits: Bits) -> Bits:
    """The same values, least significant byte first: as they are on every machine that torch runs on."""
    return bits.astype(bits.dtype.newbyteorder("<"), copy=False)
