# SPDX-License-Identifier: Apache-2.0
"""Writes the arrays of a batch through zarr-python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

from gdnbench.bits import Bits
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.layout import KEY
from gdnbench.store.plain_chunks import PlainArray, write_plain

# Shards in flight at once: encoding one takes three copies of it, decoding two.
_IN_FLIGHT = max(2, min(4, os.cpu_count() or 1))


@contextmanager
def array_io() -> Iterator[None]:
    """Run Zarr in parallel within bounded memory; its default is ten shards at a time."""
    with zarr.config.set({"async.concurrency": _IN_FLIGHT}):
        yield


def write_array(
    root: Path,
    key: str,
    bits: Bits,
    attributes: Mapping[str, Any],
    compression: Compression,
    chunking: Chunking,
    durable: bool,
    names: Sequence[str | None] | None = None,
) -> None:
    """Write `bits` as the new array `key` under the folder `root`; `attributes` go under our key.
    `names`: the array's `dimension_names`, None for an axis without one.

    `durable` flushes each chunk file once it is written; the caller flushes the folders.
    """
    chunks, shards = chunking.plan(bits.shape, bits.dtype.itemsize)
    with array_io():
        array = zarr.create_array(
            LocalStore(root),
            name=key,
            shape=bits.shape,
            dtype=bits.dtype,
            chunks=chunks,
            shards=shards,
            compressors=compression.codecs(),
            filters=None,
            fill_value=np.zeros((), bits.dtype)[()],
            attributes={KEY: dict(attributes)},
            dimension_names=names,
            # Write all-zero chunks: a missing one would read as zeros and hide a loss.
            config={"write_empty_chunks": True},
            zarr_format=3,
        )
        if compression.level is None:
            plain = PlainArray(root / key, bits.shape, bits.dtype.itemsize, chunks, shards or chunks)
            write_plain(plain, bits, durable)
        else:
            array[...] = bits
