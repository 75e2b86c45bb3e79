"""The forms in which kernels return lse.

| kernel | base | sink | over nothing |
|---|---|---|---|
| FlashMLA, sparse decode | e | without | +inf |
| FlashInfer, SM120 | 2 | with | the sink |
| FlashInfer, HCA | 2 | with | the sink; -inf without one |

An lse that includes the sink is, over nothing, the sink itself.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BASES = {"e": 1.0, "2": 1 / math.log(2)}
"""The factor of a natural logarithm."""
MINUS, PLUS = "minus_inf", "plus_inf"
WITHOUT, WITH = "without", "with"


@dataclass(frozen=True, slots=True)
class LseForm:
    """The form in which a kernel writes lse."""

    base: str  # a key of BASES
    sink: str  # WITHOUT or WITH
    empty: str  # MINUS or PLUS

    def __post_init__(self) -> None:
        for name, value, known in (
            ("lse_base", self.base, tuple(BASES)),
            ("lse_sink", self.sink, (WITHOUT, WITH)),
            ("lse_empty", self.empty, (MINUS, PLUS)),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; it is {' or '.join(known)}")


def in_form(lse: Tensor, sink: Tensor | None, *, base: str, with_sink: str, empty: str) -> Tensor:
    """A natural `lse` [..., H] without the sink, -inf over nothing, in another form."""
    if with_sink == WITH and sink is not None:
        lse = torch.logaddexp(lse, sink.to(lse.dtype))
    lse = lse * BASES[base]
    return lse.masked_fill(lse == -torch.inf, torch.inf) if empty == PLUS else lse


def rebased(lse: Tensor, source: str, target: str) -> Tensor:
    """lse in another base."""
    return lse if source == target else lse * (BASES[target] / BASES[source])


def with_empty(lse: Tensor, o: Tensor | None, source: str, target: str) -> Tensor:
    """lse with another value over nothing. Of +inf only that is changed whose `o` is a number: a score of
    +inf makes lse +inf too, and o NaN."""
    if source == target:
        return lse
    if source == MINUS:
        return lse.masked_fill(lse == -torch.inf, torch.inf)
    nothing = lse == torch.inf
    if o is not None:
        nothing &= ~o.isnan().any(-1)
    return lse.masked_fill(nothing, -torch.inf)
