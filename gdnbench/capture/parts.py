# SPDX-License-Identifier: Apache-2.0
"""Which sequences of the step around it a call has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """The sequences of a call, for an adapter that claims a step as a whole and calls that have parts of it.

    `numbers`: of each sequence of the call its number in the step's batch; a number past the batch's end is
    padding. `tokens`: the call has a sequence for each token, and `numbers` are those of the step's tokens.
    `slots`: the pool's row of each sequence, [N] or longer, for states that the caller gathered. `keeps`: the
    call leaves the pool as it is and keeps the state after each token elsewhere; the engine puts one of them
    into the pool once it knows which drafts are right. `drafted`: `numbers` count only the step's sequences
    that verify drafts (True), or only the others (False); None: all.
    """

    numbers: Sequence[int]
    tokens: bool = False
    slots: Tensor | None = None
    keeps: bool = False
    drafted: bool | None = None
