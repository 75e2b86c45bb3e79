# SPDX-License-Identifier: Apache-2.0
"""Small captures to be shared, and kernels that fail on them in one way each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.record import RecordDraft
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.delta_prefill.chunked import ChunkedPrefill, PrefillInputs
from gdnbench_kernels.gdn_prefill.chunked import MATH, GdnGates
from gdnbench_kernels.rounding import tensor_core_arithmetic

PREFILL: dict[str, Any] = {
    "seqlens": (70,),
    "heads": (1, 2),
    "head_dim": (32, 32),
    "initial_state": True,
    "beta": (1.0, 1.0),
    "gate_span": 0.1,
}
LARGE = 5
"""The feature that `trips_on_a_feature` fails for."""


def prefill(correlation: float, seed: int = 0) -> RecordDraft:
    call = synthesise("gdn_prefill", key_correlation=correlation, seed=seed, **PREFILL)
    return draft("gdn_prefill", call, index=seed)


def decode(**options: Any) -> RecordDraft:
    return draft("gdn_decode", synthesise("gdn_decode", batch=3, heads=(1, 2), head_dim=(32, 32), **options))


def with_a_large_feature(record: RecordDraft) -> RecordDraft:
    """The record with queries along one axis."""
    q = record.before["q"]
    along = torch.zeros_like(q.data)
    along[..., LARGE] = 1
    return replace(record, before={**record.before, "q": replace(q, data=along)})


def keep(
    path: Path,
    drafts: Sequence[RecordDraft],
    *,
    kind: str = "capture",
    segment: str | None = None,
    process: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    with StoreWriter(
        path, kind=kind, segment=segment, process=process, provenance=provenance, durable=False
    ) as writer:
        writer.write("0", drafts)
    return path


class _Newton(ChunkedPrefill):
    """Torch's kernel, its inverses by three rounds of Newton-Schulz: X <- 2 X - X (I + A) X."""

    def invert(self) -> None:
        a = self.stages["A"].float()
        identity = torch.eye(a.shape[-1])
        x = identity - a
        for _ in range(3):
            x = 2 * x - x @ ((identity + a) @ x)
        self.stages["Ai"].copy_(x)


def _inputs(call: Mapping[str, Any]) -> PrefillInputs:
    return PrefillInputs(
        *(call[name] for name in ("q", "k", "v", "g", "beta", "initial_state")),
        plan_chunks(call["cu_seqlens"], 64),
        call["k"].shape[-1] ** -0.5,
        GdnGates(),
        MATH,
    )


def newton(**call: Any) -> dict[str, Tensor]:
    run = _Newton(_inputs(call), tensor_core_arithmetic(call["v"].dtype))
    return {"o": run.run_steps(), "final_state": run.state}


def trips_on_a_feature(**call: Any) -> dict[str, Tensor]:
    """Torch's kernel, wrong where one feature of a query is large."""
    run = ChunkedPrefill(_inputs(call), tensor_core_arithmetic(call["v"].dtype))
    o = run.run_steps()
    o += (call["q"][..., LARGE].abs().amax(-1) > 0.9)[:, None, None].to(o.dtype)
    return {"o": o, "final_state": run.state}


def raises_by_feature(**call: Any) -> dict[str, Tensor]:
    """One exception where a feature of a query is large, and another elsewhere."""
    large = bool((call["q"][..., LARGE].abs() > 0.9).any())
    raise KeyError("large") if large else ValueError("small")
