# SPDX-License-Identifier: Apache-2.0
"""The kernels that both checkers look at: those whose mutants are judged, on inputs that SentryWard takes in
time. It follows each thread for itself, so the operations of this project get little to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutation.subjects import SUBJECTS, Subject

# Two sequences of a chunk each, so that no table of chunks is zeros alone or has rows left over.
_PREFILL = {"seqlens": (20, 21), "heads": (1, 1), "initial_state": True}
_DECODE_ATTENTION = {"heads": 8, "lens": (128,), "cache_layout": "per_token_scale", "sink": 0.0}
_TWO_SEGMENTS = {**_DECODE_ATTENTION, "extra_lens": (100,), "topk": 100}
_CALLS: dict[str, dict[str, Any]] = {
    "gdn_prefill": _PREFILL,
    "gdn_prefill_fused": _PREFILL,
    "gdn_prefill_fused_rounds": {**_PREFILL, "seqlens": (20, 65, 1), "cuts": {"cut": 64}},
    "gdn_prefill_cp": {**_PREFILL, "seqlens": (65,), "cuts": {"segment": 64}},
    "gdn_prefill_sm90": _PREFILL,
    "gdn_prefill_sm90_prepared": {**_PREFILL, "seqlens": (65,), "cuts": {"segment": 64}},
    "kda_prefill_fused": _PREFILL,
    "swa_decode_portable": _DECODE_ATTENTION,
    "swa_decode_sm100": _DECODE_ATTENTION,
    "swa_decode_wgmma": _DECODE_ATTENTION,
    "v4_decode_sm100": _TWO_SEGMENTS,
}


def _small(name: str, subject: Subject) -> Subject:
    call: Any = subject.call
    return replace(subject, call=replace(call, calls=(_CALLS[name],))) if name in _CALLS else subject


CASES = {name: _small(name, subject) for name, subject in SUBJECTS.items()}
