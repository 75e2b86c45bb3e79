# SPDX-License-Identifier: Apache-2.0
"""A Zarr array to which rows are appended, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore

from gdnbench.store.compression import Compression
from gdnbench.store.layout import KEY


class AppendArray:
    """Rows of one shape. At most one chunk of rows is in memory; `written` rows are in the store. Chunks in
    the store are complete: zarr puts files in place by rename."""

    def __init__(
        self,
        root: Path,
        key: str,
        row: tuple[int, ...],
        dtype: npt.DTypeLike,
        chunk: int,
        attributes: Mapping[str, Any],
    ) -> None:
        kind = np.dtype(dtype)
        self.written = 0
        self._row = row
        self._buffer = np.empty((chunk, *row), kind)
        self._filled = 0
        self._array = zarr.create_array(
            LocalStore(root),
            name=key,
            shape=(0, *row),
            dtype=kind,
            chunks=(chunk, *row),
            compressors=Compression().codecs(),
            filters=None,
            fill_value=kind.type(0),
            attributes={KEY: dict(attributes)},
            # Zarr may leave out an all-zero chunk; the reader could not distinguish that from a lost one.
            config={"write_empty_chunks": True},
            zarr_format=3,
        )

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append an array of shape [count, *row]."""
        while len(rows):
            room = len(self._buffer) - self._filled
            part, rows = rows[:room], rows[room:]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == len(self._buffer):
                self._write()

    def flush(self) -> None:
        """Write the remaining rows. Nothing may be appended afterwards."""
        if self._filled:
            self._write()

    def _write(self) -> None:
        end = self.written + self._filled
        self._array.resize((end, *self._row))
        self._array[self.written : end] = self._buffer[: self._filled]
        self.written, self._filled = end, 0
