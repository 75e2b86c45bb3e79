# SPDX-License-Identifier: Apache-2.0
"""Records for the tests of the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gdnbench.bits import meta_of
from gdnbench.record import Pool, RecordDraft, RecordInfo, Status, TensorDraft
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter

# Small enough that tensors of a few KiB have several shards of several chunks.
TINY = Chunking(small=256, chunk=1024, shard=4096)
PLAIN = Compression(None)


def info(call: int = 0) -> RecordInfo:
    return RecordInfo(
        op="gdn_decode",
        target="package.module:function",
        layer="model.layers.1.linear_attn",
        layer_index=1,
        call=call,
        step=call,
        status=Status.COMPLETE,
        scalars={"scale": 0.125, "use_qk_l2norm": True, "chunk_size": None},
        conventions={"gate": "log", "state_layout": "VK"},
        pools={"state": Pool(slots=7, rows=(2, 5), untouched_before="ab", untouched_after="ab")},
        dispatch={"batch": 2},
        run={},
    )


def drafts_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorDraft]:
    """Drafts as a capture makes them: contiguous, described as the caller held them."""
    return {
        name: TensorDraft(
            tensor.contiguous(), meta_of(tensor.contiguous(), [f"d{i}" for i in range(tensor.dim())], tensor)
        )
        for name, tensor in tensors.items()
    }


def record(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor] | None = None, call: int = 0
) -> RecordDraft:
    return RecordDraft(info(call), drafts_of(before), drafts_of(after or {}))


def write_one(
    path: Path, tensors: Mapping[str, Tensor], compression: Compression = PLAIN, chunking: Chunking = TINY
) -> None:
    """A store of one record with these tensors before the call."""
    with StoreWriter(
        path, kind="capture", compression=compression, chunking=chunking, durable=False
    ) as writer:
        writer.write("0", [record(tensors)])


def read_all(path: Path) -> dict[str, Tensor]:
    """The tensors before the call of the store's first record."""
    with Store.open(path) as store:
        return {name: handle.read() for name, handle in store.records[0].before.items()}


def array_path(path: Path, name: str) -> Path:
    """The folder of the array that holds a tensor of the first record."""
    with Store.open(path) as store:
        return path / store.records[0].before[name].location.array


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_store(path: Path) -> Path:
    """A store at `path` of one record with two tensors."""
    with StoreWriter(
        path, kind="capture", segment="seg", compression=PLAIN, chunking=TINY, durable=False
    ) as out:
        out.write("0", [record({"t": randn(40, 20), "s": randn(3)})])
    return path
