# SPDX-License-Identifier: Apache-2.0
"""Replaces inputs by synthetic ones that keep what makes a gated delta rule hard: gates, step sizes, key
similarity.

The inverse of a chunk depends only on beta, g and K K^T (`gdn_prefill`'s stages A and Ai). Keys are rotated,
by one rotation for each record and key head, which keeps K K^T up to the rounding of their dtype. With a gate
for each channel the terms of K K^T decay apart: channels of keys are permuted and negated instead, and their
gates permuted with them. Queries and
values are random directions with the recorded norms, by head and token; states are random with the recorded
Frobenius norm of each head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.share.anonymize import CHANNEL_GATES, DELTA_RULES, KDA, of_delta_rule
from gdnbench.share.transforms import Bases, normal
from gdnbench.store.reader import StoredRecord

_LENGTHS = {"q": "K", "v": "V"}
_STATES = ("initial_state", "state")


def synthetic_inputs(record: StoredRecord, bases: Bases) -> dict[str, Tensor]:
    """Synthetic inputs for the record. BadInputError for another operation."""
    if record.info.op not in DELTA_RULES:
        raise BadInputError(
            f"record {record.key} is of {record.info.op}: --hide synthetic knows {' and '.join(DELTA_RULES)}"
        )

    def drawn(x: Tensor, name: str) -> Tensor:
        return normal(bases.numbers(x.numel(), record.key, name)).view(x.shape)

    by_channel = record.info.op in KDA and "k" in record.before
    if by_channel:
        keys = record.before["k"].meta
        key_heads = keys.shape[keys.axes.index("H")]
        permuted = of_delta_rule(bases, (record.key,), key_heads, by_channel=True)
    found = {}
    for name, handle in record.before.items():
        x, axes = handle.read(), handle.meta.axes
        if by_channel and name in ("k", *CHANNEL_GATES):
            found[name] = permuted(name, axes, x).contiguous()
        elif name == "k":
            found[name] = _rotated(x, axes, bases, record.key)
        elif name in _LENGTHS:
            found[name] = _of_norm(x, (axes.index(_LENGTHS[name]),), drawn(x, name))
        elif name in _STATES:
            found[name] = _of_norm(x, (axes.index("V"), axes.index("K")), drawn(x, name))
        else:
            found[name] = x
    return found


def _rotated(k: Tensor, axes: Sequence[str], bases: Bases, key: str) -> Tensor:
    heads, features = axes.index("H"), axes.index("K")
    moved = k.movedim((heads, features), (0, -1))
    if not len(moved):
        return k
    changed = [
        bases.basis(k.shape[features], key, "k", head).transform(one) for head, one in enumerate(moved)
    ]
    return torch.stack(changed).movedim((0, -1), (heads, features)).contiguous()


def _of_norm(x: Tensor, over: tuple[int, ...], drawn: Tensor) -> Tensor:
    """`drawn`, of x's shape, scaled to x's norms over these axes. Elements stay as in x where its norm is 0
    or not finite."""
    wide = x.double()
    norms, lengths = (torch.linalg.vector_norm(one, dim=over, keepdim=True) for one in (wide, drawn))
    made = drawn * (norms / lengths.clamp(min=torch.finfo(torch.float64).tiny))
    keep = ~norms.isfinite() | (norms == 0)
    return torch.where(keep, wide, made).to(x.dtype)
