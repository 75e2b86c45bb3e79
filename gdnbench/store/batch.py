# SPDX-License-Identifier: Apache-2.0
"""Decides where each tensor of a batch is stored: reuse of stored elements, a row of a shared array, or its
own array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from gdnbench.bits import Bits, logical, to_bits
from gdnbench.errors import BadInputError
from gdnbench.record import BitsDraft, JournalDraft, RecordDraft, TensorDraft, TensorMeta
from gdnbench.store.index import IndexDraft
from gdnbench.store.layout import BLOBS, METADATA_LIMIT, ROWS, Location, class_name
from gdnbench.store.record_json import Placed, to_line

# Equal bytes are shared only by tensors of equal dtype and shape.
Content = tuple[str, str, tuple[int, ...]]  # digest, dtype, shape

_PARALLEL_BYTES = 1 << 20  # below this, waking threads takes longer than hashing


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor to write, with the metadata of the first tensor that had these elements."""

    bits: Bits
    meta: TensorMeta
    digest: str


def byte_view(bits: Bits) -> memoryview:
    """The bytes of a C-contiguous array of any rank, not copied."""
    return bits.reshape(-1).view(np.uint8).data


def digest_of(bits: Bits) -> str:
    """BLAKE3 of the contiguous bytes, in hexadecimal."""
    threads = blake3.AUTO if bits.nbytes >= _PARALLEL_BYTES else 1
    return blake3(byte_view(bits), max_threads=threads).hexdigest()


def _bits_of(name: str, draft: TensorDraft | BitsDraft) -> Bits:
    """The draft's bits. BadInputError unless they have the dtype and shape of its metadata."""
    meta = draft.meta
    if isinstance(draft, BitsDraft):
        bits, dtype = draft.bits, str(draft.bits.dtype)
        fits = draft.bits.dtype == logical(meta.dtype).storage
    else:
        bits, dtype = to_bits(draft.data), str(draft.data.dtype)
        fits = dtype == f"torch.{meta.dtype}"
    if not fits or bits.shape != meta.shape:
        raise BadInputError(f"tensor {name} is {dtype} {bits.shape}, described as {meta.dtype} {meta.shape}")
    return bits


@dataclass(slots=True)
class Batch:
    """A batch in the making. `known` maps contents of the segment to locations; `stored` collects what this
    batch adds."""

    segment: str
    name: str
    known: dict[Content, Location]
    small: int  # tensors of at most this many bytes become rows
    on_blob: Callable[[str, Stored], None]  # called with an array's name and its tensor
    lines: list[bytes] = field(default_factory=list)
    index: IndexDraft = field(default_factory=IndexDraft)
    text_bytes: int = 0
    rows: dict[str, list[Stored]] = field(default_factory=dict)  # class -> rows of its array
    stored: dict[Content, Location] = field(default_factory=dict)

    def add(self, draft: RecordDraft | JournalDraft) -> None:
        """Append one record, and pass each new large tensor to `on_blob` at once, while the next one is
        hashed.

        BadInputError if a tensor does not match its metadata, or if the batch's record text exceeds
        METADATA_LIMIT.
        """
        before = {name: self._place(name, tensor) for name, tensor in draft.before.items()}
        after = {name: self._place(name, tensor) for name, tensor in draft.after.items()}
        self.lines.append(to_line(draft.info, before, after))
        self.index.add(draft.info, before, after)
        self.text_bytes += len(self.lines[-1]) + 1
        if self.text_bytes > METADATA_LIMIT:
            rows = sum(len(pool.rows) for pool in draft.info.pools.values())
            raise BadInputError(
                f"the records of a batch take more than {METADATA_LIMIT >> 20} MiB of text; the last of them"
                f" lists {rows} rows of pools"
            )

    def _place(self, name: str, draft: TensorDraft | BitsDraft) -> Placed:
        meta, bits = draft.meta, _bits_of(name, draft)
        if len(meta.axes) != len(meta.shape):
            raise BadInputError(f"tensor {name} has shape {meta.shape} but axes {meta.axes}")
        digest = digest_of(bits)
        content = (digest, meta.dtype, meta.shape)
        location = self.known.get(content) or self.stored.get(content)
        if location is None:
            location = self._assign(Stored(bits, meta, digest))
            self.stored[content] = location
        return Placed(meta, digest, location)

    def _assign(self, stored: Stored) -> Location:
        class_ = class_name(stored.meta.dtype, stored.meta.shape)
        if stored.bits.nbytes > self.small:
            name = f"{class_}.{stored.digest}"
            self.on_blob(name, stored)
            return Location(self.segment, self.name, BLOBS, name, None)
        rows = self.rows.setdefault(class_, [])
        rows.append(stored)
        return Location(self.segment, self.name, ROWS, class_, len(rows) - 1)
