# SPDX-License-Identifier: Apache-2.0
"""The states that a call keeps outside its pool, of which capture takes digests.

For example, a verification of 3 drafts of each of 2 requests leaves the pool as it is and fills rows 0 and 1
of a buffer [R, 3, Hv, V, K] with the state after each draft. Once the engine knows which drafts are right it
copies one state into each request's slot. `gdnbench lineage` holds the next read of the slot to the digests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KEPT = "kept/digests"
"""The name of the digests among what a call leaves: int64 [tokens * sequences, 2], by token and then by
sequence. Names of tensors have no slash."""


@dataclass(frozen=True, slots=True)
class KeptStates:
    """A buffer with the states after each token of a call's sequences.

    `buffer`: [R, S, ...], in the dtype and layout of the pool's rows; `buffer[rows[n], t]` is the state of
    sequence n after token t, once the call has run. It lives as long as the pool. `rows`: int32 or int64 [N]
    on the buffer's device.
    """

    buffer: Tensor
    rows: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Of the digests."""
        return (self.buffer.shape[1] * self.rows.numel(), 2)

    def by_token(self) -> Iterator[Tensor]:
        """The states after each token in turn: [R, ...]."""
        for token in range(self.buffer.shape[1]):
            yield self.buffer[:, token]

    def digests(self, sample: int, out: Tensor | None = None) -> Tensor:
        """int64 `shape`; a number in `rows` that is no row gives (0, 0). `out`: contiguous, to fill and
        return."""
        import torch

        from gdnbench.digests import indexed_digests

        if out is None:
            out = torch.empty(self.shape, dtype=torch.int64, device=self.buffer.device)
        parts = out.view(self.buffer.shape[1], -1, 2)
        for states, part in zip(self.by_token(), parts, strict=True):
            indexed_digests(states, self.rows, sample, part)
        return out


def kept_states(
    buffer: Tensor | None, rows: Tensor | None, sequences: int, tokens: int, pool: Tensor
) -> KeptStates | None:
    """The states that a call of `sequences` of `tokens` each keeps in `buffer`; None if it keeps none, or if
    they cannot be compared with rows of `pool` [slots, ...]."""
    if buffer is None or rows is None or rows.ndim != 1 or len(rows) < sequences:
        return None
    if buffer.ndim != pool.ndim + 1 or buffer.shape[1] < tokens or buffer.device != rows.device:
        return None
    if (buffer.dtype, buffer.shape[2:]) != (pool.dtype, pool.shape[1:]):
        return None
    return KeptStates(buffer.detach()[:, :tokens], rows.detach()[:sequences])
