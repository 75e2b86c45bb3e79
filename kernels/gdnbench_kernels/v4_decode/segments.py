"""The two segments of a query's attention: entries of a table, a length, and the pool that they name.

A query row r = b * S + s is query s of request b. The window's table has slots. The extra segment's has
slots (`indices`, a top-k), or pages in order of position (`block_table`: all compressed positions below the
length count).
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.latent_pool import WINDOW, PoolNames, slots_of_pages
from gdnbench_kernels.swa_decode.layouts import CacheLayout, read_rows
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.window import attended
from gdnbench_kernels.v4_decode.sizes import TILE
from gdnbench_kernels.validate import element_name

EXTRA = PoolNames("extra_cache", "extra_inv_scale", "extra_indices", "extra_lens", "extra_layout")
POOLS = (WINDOW, EXTRA)

INDEX_SHAPES: Mapping[str, tuple[str, ...]] = {
    "BSW": ("B", "S", "W"),
    "TW": ("T", "W"),
    "T1W": ("T", "1", "W"),
}
"""The shapes of index tensors that callers pass; T = B S."""
LENS_SHAPES: Mapping[str, tuple[str, ...]] = {"BS": ("B", "S"), "T": ("T",), "B": ("B",)}
"""The shapes of lengths that callers pass. B: one length for all queries of a request."""


class IndexForm(StrEnum):
    INDICES = "indices"
    BLOCK_TABLE = "block_table"


class MaskedIndices(StrEnum):
    ANY = "any"
    LEGAL = "legal"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of all query rows of a call."""

    names: PoolNames
    cache: Tensor
    inv_scale: Tensor | None
    layout: CacheLayout
    table: Tensor  # [rows, entries] int32
    lens: Tensor  # [rows] int32
    queries: int  # of each request
    index_shape: str
    of_pages: bool  # whether entries are pages
    legal: bool  # whether masked entries are read too

    @property
    def block_size(self) -> int:
        return self.cache.shape[1]

    @property
    def slots(self) -> Tensor:
        """[rows, positions] int64; of any value where a position does not count."""
        table = self.table.long()
        if not self.of_pages:
            return table
        offsets = torch.arange(self.block_size, device=table.device)
        return (table.unsqueeze(2) * self.block_size + offsets).flatten(1)

    @property
    def counts(self) -> Tensor:
        """[rows, positions], which positions are attended to, bool."""
        if not self.of_pages:
            return attended(self.table, self.lens)
        positions = torch.arange(self.table.shape[1] * self.block_size, device=self.lens.device)
        return positions < self.lens.unsqueeze(1)

    @property
    def capacity(self) -> int:
        """The largest length that the table has room for."""
        return self.table.shape[1] * (self.block_size if self.of_pages else 1)

    @property
    def followed(self) -> Tensor:
        """[rows, entries], which entries of the table a kernel may follow, bool: those that count, and with
        legal masked indices those that are masked. Of a table of pages these are the ones up to the next
        multiple of 128 positions after its request's longest row, as FlashInfer's HCA kernel reads them."""
        entries = torch.arange(self.table.shape[1], device=self.table.device)
        if not self.of_pages:
            return torch.ones_like(self.table, dtype=torch.bool) if self.legal else self.counts
        lens = self.lens.long().unsqueeze(1)
        if self.legal:
            longest = lens.view(-1, self.queries).amax(1).repeat_interleave(self.queries).unsqueeze(1)
            lens = -(-longest // TILE) * TILE
        return entries * self.block_size < lens

    def entry_name(self, place: tuple[int, ...]) -> str:
        """An entry of the table, of (row, entry), as messages name it in the caller's shape."""
        row, entry = place
        before = {"BSW": (row // self.queries, row % self.queries), "TW": (row,), "T1W": (row, 0)}
        return element_name(self.names.indices, (*before[self.index_shape], entry))

    def pages(self) -> Tensor:
        """The pages that a kernel may read, sorted, unique, int64."""
        entries = self.table[self.followed].long()
        found: Tensor = torch.unique(entries if self.of_pages else entries // self.block_size)
        return found

    def pool_rows(self) -> dict[str, Tensor]:
        """The rows of the pool's tensors that a kernel may read, by tensor, on the host."""
        pages = self.pages().cpu()
        found = {self.names.cache: pages}
        if self.inv_scale is not None:
            found[self.names.inv_scale] = slots_of_pages(pages, self.block_size)
        return found

    def read(self, slots: Tensor, counts: Tensor, dtype: torch.dtype) -> Tensor:
        """The latent rows at `slots` [n, positions] as `dtype`, 0 where they do not count."""
        if not len(self.cache):  # a record in which no row attends to anything has no pages
            return torch.zeros(*counts.shape, HEAD_DIM, device=counts.device, dtype=dtype)
        # Read slot 0 where a row does not attend, then overwrite the values, which may be NaN.
        wide: Tensor = read_rows(self.cache, self.inv_scale, slots.where(counts, 0), self.layout, dtype)
        return wide.masked_fill(~counts.unsqueeze(-1), 0.0)


def segments_of(tensors: Mapping[str, Any], conventions: Mapping[str, str]) -> tuple[Segment, ...]:
    """The window, and the extra segment if the call has one. Shapes must be those of the conventions."""
    requests, queries = tensors["q"].shape[:2]
    found = []
    for names in POOLS:
        if tensors.get(names.cache) is None:
            continue
        extra = names is EXTRA
        form = conventions.get("extra_index_form", IndexForm.INDICES) if extra else IndexForm.INDICES
        lens = tensors[names.lens]
        if conventions.get("lens_shape", "BS") == "B":
            lens = lens.repeat_interleave(queries)
        found.append(
            Segment(
                names,
                tensors[names.cache],
                tensors.get(names.inv_scale),
                CacheLayout(conventions.get(names.layout, CacheLayout.PER_TOKEN_SCALE)),
                flat_rows(tensors[names.indices], requests * queries),
                lens.reshape(requests * queries),
                queries,
                conventions.get("index_shape", "BSW"),
                form == IndexForm.BLOCK_TABLE,
                conventions.get("masked_indices", MaskedIndices.ANY) == MaskedIndices.LEGAL,
            )
        )
    return tuple(found)


def flat_rows(indices: Tensor, rows: int) -> Tensor:
    """Index tensors of any shape as [rows, entries]."""
    return indices.reshape(rows, indices.shape[-1])


def shaped_rows(table: Tensor, index_shape: str, requests: int, queries: int) -> Tensor:
    """[rows, entries] in one of the callers' shapes."""
    if index_shape == "BSW":
        return table.reshape(requests, queries, table.shape[1])
    return table if index_shape == "TW" else table.unsqueeze(1)
