# SPDX-License-Identifier: Apache-2.0
"""How a store holds an access log: pieces of rows, each a record of the pseudo-operation `access_log`.

Capture writes a piece each second, or when it has enough rows. The journal, `merge`, `prune`,
`verify` and `upload` handle a piece as they handle any record. It has a tensor for each column of
`gdnbench.store.access_log.ROW`, and in `dispatch` the names that its rows refer to by number. Its `call` is
the number of its first row in its process, its `step` the number of the piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gdnbench.errors import StoreError
from gdnbench.record import ACCESS_LOG, RecordDraft, RecordInfo, Status, TensorDraft, TensorMeta
from gdnbench.store.access_log import ROW, UNKNOWN, AccessKind

if TYPE_CHECKING:
    from gdnbench.store.reader import StoredRecord

__all__ = ["ACCESS_LOG", "MOST_ROWS", "Piece", "draft_of_piece", "is_piece", "piece_of", "rows_of_piece"]

MOST_ROWS: Final = 1 << 20  # of a piece
_NAMED: Final = ("layers", "chains", "requests")


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one process. `layers` and `requests` are names, `chains` objects with name, dtype, axes, shape
    and pooled; rows refer to all three by number.

    `whole`: the process called nothing before its first row, and everything that it called until this piece's
    end is in the log. `lost`: how many calls were not logged until then, as far as capture knows.
    `elsewhere`: the engine also wrote states in other ways than by calls.
    """

    rows: NDArray[np.void]
    layers: Sequence[str]
    chains: Sequence[Mapping[str, Any]]
    requests: Sequence[str]
    sample: int
    whole: bool
    lost: int = 0
    elsewhere: bool = False


def draft_of_piece(piece: Piece, first: int, number: int) -> RecordDraft:
    """The record to store for a piece: number `number` of its process, whose rows begin with row `first`."""
    import torch

    columns = {}
    for name in ROW.names or ():
        values = np.ascontiguousarray(piece.rows[name])
        axes = ("rows", "2")[: values.ndim]
        shape = tuple(values.shape)
        strides = (2, 1) if values.ndim == 2 else (1,)
        meta = TensorMeta(values.dtype.name, shape, axes, shape, strides, 0, "cpu")
        columns[name] = TensorDraft(torch.from_numpy(values), meta)
    described = {
        **{name: list(getattr(piece, name)) for name in _NAMED},
        "sample": piece.sample,
        "whole": piece.whole,
        "lost": piece.lost,
        "elsewhere": piece.elsewhere,
    }
    info = RecordInfo(
        op=ACCESS_LOG,
        target=ACCESS_LOG,
        layer="",
        layer_index=None,
        call=first,
        step=number,
        status=Status.COMPLETE,
        scalars={"rows": len(piece.rows)},
        conventions={},
        dispatch=described,
    )
    return RecordDraft(info, columns, {})


def is_piece(record: StoredRecord) -> bool:
    return record.info.op == ACCESS_LOG


def rows_of_piece(record: StoredRecord) -> int:
    """How many rows a piece has. StoreError if it says no such number."""
    count = record.info.scalars.get("rows")
    if not is_piece(record) or type(count) is not int or not 0 <= count <= MOST_ROWS:
        raise StoreError(f"record {record.key} is no piece of an access log")
    return count


def piece_of(record: StoredRecord) -> Piece:
    """The piece that a record holds. StoreError if it is damaged or has another form."""
    where = f"record {record.key}"
    described = record.info.dispatch
    count = rows_of_piece(record)
    rows = np.zeros(count, dtype=ROW)
    for name in ROW.names or ():
        handle = record.before.get(name)
        wanted = rows[name]
        if handle is None or handle.meta.shape != wanted.shape or handle.meta.dtype != wanted.dtype.name:
            raise StoreError(f"{where}: column {name} is not {wanted.dtype.name} {wanted.shape}")
        rows[name] = handle.bits()
    found = {name: described.get(name) for name in _NAMED}
    for name, listed in found.items():
        kind = dict if name == "chains" else str
        if not isinstance(listed, list) or not all(isinstance(one, kind) for one in listed):
            raise StoreError(f"{where}: {name} is no list of {'objects' if kind is dict else 'names'}")
        column = rows[name.removesuffix("s")]
        if name == "chains":  # a call without an access has no pool, and the number 0
            column = column[(rows["kind"] != AccessKind.NONE) | (column != 0)]
        least = UNKNOWN if name == "requests" else 0
        if len(column) and not (column.min() >= least and column.max() < len(listed)):
            raise StoreError(f"{where}: a row has a number that {name} do not have")
    sample, whole, lost = described.get("sample"), described.get("whole"), described.get("lost", 0)
    if type(sample) is not int or sample < 1 or not isinstance(whole, bool) or type(lost) is not int:
        raise StoreError(f"{where}: sample, whole and lost are {(sample, whole, lost)!r}")
    elsewhere = described.get("elsewhere", False) is not False
    return Piece(rows, **found, sample=sample, whole=whole, lost=lost, elsewhere=elsewhere)  # type: ignore[arg-type]
