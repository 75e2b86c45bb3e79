# SPDX-License-Identifier: Apache-2.0
"""A store, its records and their tensors, for Python programs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import StringIO
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from gdnbench.api.errors import one_line_errors
from gdnbench.api.html import MOST_ROWS, record_html, store_html
from gdnbench.api.tables import data_frame
from gdnbench.errors import NoRecordError, NoTensorError
from gdnbench.printable import printable
from gdnbench.store import reader
from gdnbench.store.address import Address
from gdnbench.store.index import Listed
from gdnbench.store.recover import open_store
from gdnbench.units import counted

if TYPE_CHECKING:
    import pandas
    import torch

    from gdnbench.bits import Bits
    from gdnbench.record import RecordInfo

LISTED = ("record", "key", "op", "layer", "step", "call", "sizes", "bytes", "status")


class StoredTensor:
    """A tensor of a record, read when asked for. `shape` is in elements, `axes` are the contract's."""

    __slots__ = ("_handle", "name")

    def __init__(self, name: str, handle: reader.TensorHandle) -> None:
        self.name = name
        self._handle = handle

    @property
    def dtype(self) -> str:
        """torch's name without the prefix, such as bfloat16."""
        return self._handle.meta.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._handle.meta.shape

    @property
    def axes(self) -> tuple[str, ...]:
        return self._handle.meta.axes

    @property
    def nbytes(self) -> int:
        return self._handle.nbytes

    @property
    def digest(self) -> str:
        """BLAKE3 of the contiguous bytes, hexadecimal."""
        return self._handle.digest

    def torch(self) -> torch.Tensor:
        """A new contiguous CPU tensor, bit for bit. StoreError if it is damaged, CannotRunError without
        torch."""
        with one_line_errors():
            return self._handle.read()

    def bits(self) -> Bits:
        """A new array of the storage dtype: uint16 for bfloat16, uint8 for fp8, itself for others."""
        with one_line_errors():
            return self._handle.bits()

    def numpy(self) -> NDArray[Any]:
        """A new array of the same dtype; bfloat16 and fp8 are those of ml_dtypes. CannotRunError without
        it."""
        bits = self.bits()
        if bits.dtype.name == self.dtype:
            return bits
        with one_line_errors():
            import ml_dtypes

        return bits.view(getattr(ml_dtypes, self.dtype))

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.numpy(), dtype=dtype)

    def __repr__(self) -> str:
        return printable(f"<StoredTensor {self.name} {self.dtype}{list(self.shape)}>")


class Tensors(Mapping[str, StoredTensor]):
    """The tensors of a record by name; NoTensorError, which is a KeyError, names those there are."""

    def __init__(self, where: str, handles: Mapping[str, reader.TensorHandle]) -> None:
        self._where = where
        self._handles = handles

    def __getitem__(self, name: str) -> StoredTensor:
        if name not in self._handles:
            there = ", ".join(self._handles) or "none"
            raise NoTensorError(f"{self._where} has no tensor {name!r}; there are {there}")
        return StoredTensor(name, self._handles[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        return printable(f"<Tensors {', '.join(self._handles)}>")


class Record:
    """A recorded call: `before` has inputs, and mutated tensors before the call; `after` has outputs, and
    mutated tensors after it."""

    def __init__(self, stored: reader.StoredRecord) -> None:
        self._stored = stored

    @property
    def number(self) -> int:
        return self._stored.number

    @property
    def key(self) -> str:
        """Identifies the record in its store permanently; its number moves when earlier ones are pruned."""
        return self._stored.key

    @property
    def info(self) -> RecordInfo:
        """All of the call but its tensors: target, status, pools, dispatch, ..."""
        return self._stored.info

    @property
    def op(self) -> str:
        return self.info.op

    @property
    def layer(self) -> str:
        return self.info.layer

    @property
    def step(self) -> int:
        return self.info.step

    @property
    def scalars(self) -> Mapping[str, Any]:
        return self.info.scalars

    @property
    def conventions(self) -> Mapping[str, str]:
        return self.info.conventions

    @cached_property
    def before(self) -> Tensors:
        return Tensors(f"record {self.number}, before the call,", self._stored.before)

    @cached_property
    def after(self) -> Tensors:
        return Tensors(f"record {self.number}, after the call,", self._stored.after)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same call: keys are unique."""
        return isinstance(other, Record) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return printable(f"<Record {self.number} {self.op} {self.layer} step {self.step}>")

    def _repr_html_(self) -> str:
        return record_html(self._stored)


class Store(Sequence[Record]):
    """The records of a store, in the order and with the numbers of `gdnbench ls`. Close it, or use it in a
    `with` block; a closed one reads nothing more. `notes` are the lines that opening it printed in a command:
    what was recovered, what is still being written."""

    def __init__(self, opened: reader.Store, notes: Sequence[str] = ()) -> None:
        self.opened = opened  # what the functions of the package take
        self.notes = tuple(notes)

    @property
    def path(self) -> str:
        return str(self.opened.path)

    @property
    def kind(self) -> str:
        """capture, run or synth."""
        return self.opened.kind

    @property
    def problems(self) -> tuple[str, ...]:
        """What was skipped: damaged and unfinished parts."""
        return self.opened.problems

    def __len__(self) -> int:
        return len(self.opened.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            held = f"records 0 to {len(self) - 1}" if len(self) else "no records"
            raise NoRecordError(f"there is no record {index}; the store has {held}")
        with one_line_errors():
            return Record(self.opened.records[index])

    def __iter__(self) -> Iterator[Record]:
        return (self[number] for number in range(len(self)))

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each record, as `gdnbench ls` lists them. CannotRunError without pandas."""
        return data_frame([listed_row(one) for one in self.opened.listed()], LISTED)

    def close(self) -> None:
        self.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return printable(f"<Store {self.path}: {counted(len(self), 'record')}, {self.kind}>")

    def _repr_html_(self) -> str:
        first = itertools.islice(self.opened.listed(), MOST_ROWS)
        return store_html(repr(self)[1:-1], [listed_row(one) for one in first], len(self), self.problems)


def listed_row(listed: Listed) -> dict[str, Any]:
    """A record of a listing, by the names of `LISTED`."""
    kind = listed.kind
    values = (listed.number, listed.key, kind.op, kind.layer, listed.step, listed.call, kind.sizes)
    return dict(zip(LISTED, (*values, kind.nbytes, kind.status), strict=True))


def open(store: Address) -> Store:
    """The store at `store`: a folder, a .zip or a URL. Journals of dead processes are sealed first, as the
    commands do. StoreError if there is none, BadInputError for a path that cannot be read."""
    notes = StringIO()
    with one_line_errors():
        opened = open_store(store, notes=notes)
    return Store(opened, [line.removeprefix("gdnbench: ") for line in notes.getvalue().splitlines()])
