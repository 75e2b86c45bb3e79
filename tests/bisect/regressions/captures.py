# SPDX-License-Identifier: Apache-2.0
"""The calls that the regressions show on, made and small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.record import RecordDraft
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.run import run_kernel

STEPS = 192
SLOT = 1
LOG_GATE = -1e-4


def prefill(path: Path, **options: Any) -> Path:
    """One call of gdn_prefill, by options of its synth."""
    return _write(path, [draft("gdn_prefill", synthesise("gdn_prefill", **options))])


def alike(path: Path) -> Path:
    """Two sequences of two chunks, two heads, one of the chunks short; keys that are alike, slow gates."""
    return prefill(
        path, seqlens=(128, 100), heads=(1, 2), key_correlation=0.97, beta=(0.8, 1.0), gate_span=0.1, seed=1
    )


def unlike(path: Path) -> Path:
    """The same with random keys."""
    return prefill(path, seqlens=(128, 100), heads=(1, 2), beta=(0.8, 1.0), gate_span=0.1, seed=1)


def chunks(path: Path) -> Path:
    """A sequence of three whole chunks."""
    return prefill(path, seqlens=(192,), heads=(1, 1), seed=2)


def spoilt(path: Path) -> Path:
    """Four sequences, of which the third begins with tokens of NaN, behind a chunk that is not whole."""
    return prefill(path, seqlens=(64, 40, 70, 20), heads=(1, 2), nan_at=(104, 105), seed=4)


def steps(path: Path, count: int = STEPS) -> Path:
    """A sequence decoded token by token by torch's kernel, each call on the state that the last one left.
    Gates are slow, so that what a call does to a state stays."""
    state = torch.zeros(2, 2, 64, 64)
    drafts: list[RecordDraft] = []
    for step in range(count):
        made = synthesise("gdn_decode", batch=1, heads=(1, 2), head_dim=(64, 64), slots=2, seed=step)
        tensors: dict[str, Tensor] = {
            **made.tensors,
            "state": state,
            "state_indices": torch.tensor([[SLOT]], dtype=torch.int32),
            "g": torch.full_like(made.tensors["g"], LOG_GATE),
        }
        call = Call(tensors, made.scalars, made.conventions)
        one = draft("gdn_decode", call, index=step)
        info = replace(one.info, layer="layers.0", layer_index=0, step=step)
        drafts.append(replace(one, info=info))
        state = run_kernel(DECODE, "torch", call)["state"]
    return _write(path, drafts)


def _write(path: Path, drafts: list[RecordDraft]) -> Path:
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", drafts)
    return path
