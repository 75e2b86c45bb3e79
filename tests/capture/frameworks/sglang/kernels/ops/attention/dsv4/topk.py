# SPDX-License-Identifier: Apache-2.0
"""Top-k of an indexer that gives slots of pages."""

from tests.capture.indexer_engine import select, slots_of


def topk_transform_paged(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices=None):
    found = select(scores, [0] * len(scores), seq_lens.flatten().tolist(), out_page_indices.shape[1])
    if out_raw_indices is not None:
        out_raw_indices.copy_(found)
    out_page_indices.copy_(found if page_tables is None else slots_of(found, page_tables, page_size))


def topk_transform_paged_v2(
    scores, seq_lens, page_tables, out_page_indices, page_size, metadata, out_raw_indices=None
):
    topk_transform_paged(scores, seq_lens, page_tables, out_page_indices, page_size, out_raw_indices)
