# SPDX-License-Identifier: Apache-2.0
"""Claims of calls below a step of a serving engine, made of what the step knows of its whole batch.

An adapter says in `Observation.part` which sequences of the batch a call has. A number past the end of the
batch is a sequence that only fills the call up to the size of a CUDA graph.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gdnbench.capture.claims import Claims
from gdnbench.capture.parts import Part

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = -1
"""A position that nobody knows, in a tensor."""
PAST_END = 1 << 31
"""A number of a sequence that is past the end of any batch."""


@dataclass(slots=True)
class Batch:
    """The sequences of one step of an engine, in its order.

    `positions`: [n] or longer, of each sequence's first token, on the device where only that knows them.
    `prefixes`: hashes as `Claims.prefixes`. `offsets`: the number of each sequence's first token in the step,
    and of all tokens; None if the host does not know them. `token_positions`: [T] or longer. `elsewhere`: as
    `Claims.elsewhere`. `drafted`: whether each sequence verifies drafts; None if that is unknown.
    """

    requests: tuple[str, ...]
    positions: Tensor
    prefixes: tuple[str | None, ...] | None = None
    offsets: Sequence[int] | None = None
    token_positions: Tensor | None = None
    elsewhere: bool = False
    drafted: tuple[bool, ...] | None = None
    _made: dict[tuple[bool, Sequence[int]], Claims | None] = field(default_factory=dict, repr=False)

    def claims(self, part: Part | None) -> Claims | None:
        """The claims of a call with these sequences; None if nothing is known of them."""
        if part is None:
            return None
        numbers = part.numbers if part.drafted is None else self._among(part.numbers, part.drafted)
        if numbers is None:
            return None
        numbers = numbers if isinstance(numbers, range) else tuple(numbers)
        key = (part.tokens, numbers)
        if key not in self._made:  # the layers of a step share it
            self._made[key] = self._of_tokens(numbers) if part.tokens else self._of_sequences(numbers)
        found = self._made[key]
        if found is None:
            return None
        slots = part.slots
        if slots is not None:
            slots = slots[: len(numbers)] if len(slots) >= len(numbers) else None
        kept = [place for place in range(len(numbers)) if place not in found.padding] if part.keeps else ()
        return replace(found, slots=slots, kept=kept, elsewhere=self.elsewhere)

    def _among(self, numbers: Sequence[int], drafted: bool) -> Sequence[int] | None:
        """The numbers in the batch of those among the sequences that verify drafts, or do not."""
        if self.drafted is None:
            return None
        rows = [row for row, mask in enumerate(self.drafted) if mask == drafted]
        return [rows[number] if number < len(rows) else PAST_END for number in numbers]

    def _of_sequences(self, numbers: Sequence[int]) -> Claims:
        here = len(self.requests)
        prefixes = self.prefixes
        return Claims(
            [self.requests[number] if number < here else None for number in numbers],
            chosen(self.positions[:here], numbers),
            [place for place, number in enumerate(numbers) if number >= here],
            None if prefixes is None else [prefixes[number] if number < here else None for number in numbers],
        )

    def _of_tokens(self, numbers: Sequence[int]) -> Claims | None:
        if self.offsets is None or self.token_positions is None:
            return None
        here = self.offsets[-1]
        owners = [
            self.requests[bisect_right(self.offsets, number) - 1] if number < here else None
            for number in numbers
        ]
        return Claims(
            owners,
            chosen(self.token_positions[:here], numbers),
            [place for place, number in enumerate(numbers) if number >= here],
        )


def chosen(values: Tensor, numbers: Sequence[int]) -> Tensor:
    """values[numbers], UNKNOWN for numbers past the end. Waits for no device."""
    import torch

    here = len(values)
    if isinstance(numbers, range) and numbers.step == 1:
        found = values[numbers.start : numbers.stop]
        missing = len(numbers) - len(found)
        return torch.cat([found, found.new_full((missing,), UNKNOWN)]) if missing else found
    index = torch.tensor([min(number, here) for number in numbers], dtype=torch.int64)
    if values.is_cuda:
        index = index.pin_memory().to(values.device, non_blocking=True)
    return torch.cat([values, values.new_full((1,), UNKNOWN)])[index]
