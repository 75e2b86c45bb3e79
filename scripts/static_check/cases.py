"""The kernels that both checkers look at: those whose mutants are judged, on inputs that SentryWard takes in
time. It follows each thread for itself, so the operations of this project get one short sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mutation.subjects import SUBJECTS

_CALLS: dict[str, dict[str, Any]] = {
    "gdn_prefill": {"seqlens": (20, 21), "heads": (1, 1), "initial_state": True},
    "gdn_prefill_fused": {"seqlens": (20, 21), "heads": (1, 1), "initial_state": True},
    "swa_decode_portable": {"heads": 8, "lens": (128,), "cache_layout": "per_token_scale", "sink": 0.0},
    "swa_decode_sm100": {"heads": 8, "lens": (128,), "cache_layout": "per_token_scale", "sink": 0.0},
    "swa_decode_wgmma": {"heads": 8, "lens": (128,), "cache_layout": "per_token_scale", "sink": 0.0},
}


def call(name: str) -> Callable[[], None]:
    """The subject's own call, or a smaller one."""
    own: Any = SUBJECTS[name].call
    return replace(own, calls=(_CALLS[name],)) if name in _CALLS else own
