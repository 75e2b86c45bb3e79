# SPDX-License-Identifier: Apache-2.0
"""Writes the log of the tiny engine as a store of decode and prefill records, whose states have elements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdnbench.bits import meta_of
from gdnbench.record import Pool, RecordDraft, RecordInfo, Status, TensorDraft
from gdnbench.store.access_log import AccessFlag, AccessKind
from gdnbench.store.compression import Chunking, Compression
from gdnbench.store.writer import StoreWriter
from tests.lineage.logs import Engine

SLOTS = 64
AXES = {
    "q": ("B", "S", "H", "K"), "state_indices": ("B", "S"), "num_accepted": ("B",), "cu_seqlens": ("N+1",),
    "state": ("slots", "Hv", "V", "K"), "initial_state": ("N", "Hv", "V", "K"),
    "final_state": ("N", "Hv", "V", "K"),
}  # fmt: skip

Parts = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Pool]]
"""Tensors before the call and after it, and pools."""


def write_store(path: Path, engine: Engine, segments: int = 1, dtype: torch.dtype = torch.float32) -> None:
    """A store with a record for each call of the engine, by each of `segments` processes. Final states of
    prefills are float32, the pool is `dtype`."""
    rows = engine.table().rows
    for _ in range(segments):
        with StoreWriter(
            path, kind="capture", compression=Compression(None), chunking=Chunking(), durable=False
        ) as writer:
            calls = np.unique(rows["call"]).tolist()
            writer.write("0", [_draft(engine, rows[rows["call"] == call], call, dtype) for call in calls])


def _draft(engine: Engine, rows: Any, call: int, dtype: torch.dtype) -> RecordDraft:
    reads, writes = (rows[rows["kind"] == kind] for kind in (AccessKind.READ, AccessKind.WRITE))
    names = list(engine.names)
    claims = {
        "requests": [None if number < 0 else names[number] for number in reads["request"].tolist()],
        "positions": [None if position < 0 else position for position in reads["position"].tolist()],
        "padding": np.flatnonzero(reads["flags"] & AccessFlag.PADDING).tolist(),
        "prefixes": [f"{prefix:016x}" if prefix else None for prefix in reads["prefix"].tolist()],
    }
    if call in engine.prefills:
        op, (before, after, pools) = "gdn_prefill", _prefill(reads, writes, dtype)
        claims["slots"] = reads["slot"].tolist()
    else:
        op, (before, after, pools) = "gdn_decode", _decode(reads, writes, dtype)
    info = RecordInfo(
        op=op,
        target="engine:call",
        layer="layers.0",
        layer_index=0,
        call=call,
        step=call,
        status=Status.COMPLETE,
        scalars={},
        conventions={},
        pools=pools,
        dispatch={"lineage": claims},
    )
    return RecordDraft(info, _drafts(before), _drafts(after))


def _prefill(reads: Any, writes: Any, dtype: torch.dtype) -> Parts:
    lengths = torch.tensor([0, *reads["tokens"].tolist()], dtype=torch.int32)
    before = {"cu_seqlens": lengths.cumsum(0).int(), "initial_state": _states(reads["digest"]).to(dtype)}
    return before, {"final_state": _states(writes["digest"])}, {}


def _decode(reads: Any, writes: Any, dtype: torch.dtype) -> Parts:
    batch, width = len(reads), int(writes["tokens"].max())
    indices = torch.full((batch, width), -1, dtype=torch.int32)
    for row in writes:
        token = int(row["position"] - reads["position"][row["sequence"]] - 1) if row["position"] >= 0 else 0
        indices[int(row["sequence"]), token] = int(row["slot"])
    stored = sorted({*reads["slot"].tolist(), *writes["slot"].tolist()})
    pool = torch.zeros((len(stored), *_states(reads["digest"][:1]).shape[1:]))
    before, after = pool.clone(), pool.clone()
    for tensor, rows in ((before, reads), (after, reads), (after, writes)):
        for slot, state in zip(rows["slot"].tolist(), _states(rows["digest"]), strict=True):
            tensor[stored.index(slot)] = state
    tensors = {"state_indices": indices, "state": before.to(dtype)}
    if (reads["accepted"] >= 0).any():
        tensors["num_accepted"] = torch.from_numpy(np.maximum(reads["accepted"], 1))
    else:
        tensors["read_indices"] = torch.from_numpy(reads["slot"].astype(np.int32))
    return tensors, {"state": after.to(dtype)}, {"state": Pool(SLOTS, tuple(stored))}


def _states(contents: Any) -> Tensor:
    """float32 [n, 1, 2, 4]: of each content other elements, in (-1, 1); zeros of zeros."""
    words = torch.from_numpy(contents.astype(np.int64)).view(torch.int16).reshape(len(contents), 1, 2, 4)
    return words.float() / 32768


def _drafts(tensors: Mapping[str, Tensor]) -> dict[str, TensorDraft]:
    axes = {**AXES, "read_indices": ("B",)}
    return {name: TensorDraft(tensor, meta_of(tensor, axes[name])) for name, tensor in tensors.items()}
