# SPDX-License-Identifier: Apache-2.0
"""Which tokens an entry is made of, and where they are: in the call, or in the state of earlier calls."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

NOT_KEPT = -1
"""An entry of block_table whose positions have no state."""


@dataclass(frozen=True, slots=True)
class Windows:
    """C entries of S slots each, and the T tokens of a call. All tensors are on the host, int64."""

    row: Tensor  # [C]: the token that closes the window
    sequence: Tensor  # [C]
    position: Tensor  # [C]: of the first token of the window that the entry is named by
    source: Tensor  # [C, S]: positions of the tokens, negative before the sequence
    token: Tensor  # [C, S]: rows of the call; -1 for tokens of earlier calls
    of_token: Tensor  # [T]: each token's sequence
    at: Tensor  # [T]: each token's position

    @property
    def there(self) -> Tensor:
        """bool [C, S]: which slots have a token."""
        return self.source >= 0

    @property
    def earlier(self) -> Tensor:
        """bool [C, S]: which slots are of the state."""
        return self.there & (self.token < 0)


def windows_of(cu_seqlens: Tensor, starts: Tensor, ratio: int, overlap: bool) -> Windows:
    """The windows that the tokens of a call close: those of a position p with (p + 1) % ratio = 0. With
    `overlap` the slots of the window before come first."""
    slots = ratio * (2 if overlap else 1)
    bounds = list(pairwise(cu_seqlens.tolist()))
    of_token = torch.zeros(bounds[-1][1] if bounds else 0, dtype=torch.int64)
    at = torch.zeros_like(of_token)
    for n, ((first, last), start) in enumerate(zip(bounds, starts.tolist(), strict=True)):
        of_token[first:last] = n
        at[first:last] = start + torch.arange(last - first)
    rows = ((at + 1) % ratio == 0).nonzero().squeeze(1)
    source = at[rows].unsqueeze(1) + torch.arange(1 - slots, 1)
    begun = starts.cpu().long()[of_token[rows]].unsqueeze(1)
    token = rows.unsqueeze(1) + torch.arange(1 - slots, 1)
    token = token.where(source >= begun, -1)
    return Windows(rows, of_token[rows], at[rows] + 1 - ratio, source, token, of_token, at)


def pages_of(block_table: Tensor, sequence: Tensor, position: Tensor, block_size: int) -> Tensor:
    """The page of each position of a sequence; -1 where its state is not kept, or before the sequence."""
    table = block_table.cpu().long()
    if not table.shape[1]:
        return torch.full_like(position, NOT_KEPT)
    place = position // block_size
    inside = (position >= 0) & (place < table.shape[1])
    return table[sequence, place.where(inside, 0)].where(inside, NOT_KEPT)
