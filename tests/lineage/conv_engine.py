# SPDX-License-Identifier: Apache-2.0
"""Serves the convolution of one layer: requests have a slot each, which keeps the windows after all tokens of
a step with drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gdnbench.capture import record
from gdnbench_kernels.conv_decode.torch_conv import torch_conv as decode_kernel
from gdnbench_kernels.conv_prefill.torch_conv import torch_conv as prefill_kernel

CHANNELS, TAPS, TOKENS, SLOTS = 4, 4, 3, 8
CLAIMS = {"requests": "requests", "positions": "positions"}


@record("conv_prefill", lineage=CLAIMS, layer="layer")
def conv_prefill(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor, conv_state: Tensor, state_indices: Tensor,
    has_initial_state: Tensor, requests: list[str], positions: list[int], layer: str,
) -> dict[str, Tensor]:  # fmt: skip
    found: dict[str, Tensor] = prefill_kernel(
        x=x, weight=weight, cu_seqlens=cu_seqlens, conv_state=conv_state, state_indices=state_indices,
        has_initial_state=has_initial_state,
    )  # fmt: skip
    return found


@record("conv_decode", lineage=CLAIMS, layer="layer")
def conv_decode(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor, conv_state: Tensor, state_indices: Tensor,
    num_accepted: Tensor | None, requests: list[str], positions: list[int], layer: str,
) -> dict[str, Tensor]:  # fmt: skip
    found: dict[str, Tensor] = decode_kernel(
        x=x, weight=weight, cu_seqlens=cu_seqlens, conv_state=conv_state, state_indices=state_indices,
        num_accepted=num_accepted,
    )  # fmt: skip
    return found


@dataclass
class Request:
    name: str
    slot: int
    done: int = 0
    accepted: int = 1


@dataclass
class ConvEngine:
    """`drafts`: whether a step has drafts. `calls`: how many there were."""

    drafts: bool = True
    calls: int = 0
    requests: dict[str, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(5)
        self.embedding = torch.randn(32, CHANNELS, generator=made).bfloat16()
        self.weight = torch.randn(CHANNELS, TAPS, generator=made).bfloat16()
        columns = TAPS - 1 + (TOKENS - 1 if self.drafts else 0)
        self.pool = torch.zeros(SLOTS, CHANNELS, columns).bfloat16()

    def prefill(self, name: str, slot: int, ids: Sequence[int]) -> None:
        """The next chunk of a prompt."""
        one = self.requests.setdefault(name, Request(name, slot))
        conv_prefill(
            self.embedding[list(ids)], self.weight, torch.tensor([0, len(ids)], dtype=torch.int32),
            self.pool[..., : TAPS - 1], torch.tensor([slot], dtype=torch.int32),
            torch.tensor([one.done > 0]), [name], [one.done], "layers.0",
        )  # fmt: skip
        one.done += len(ids)
        one.accepted = 1
        self.calls += 1

    def step(self, ids: dict[str, Sequence[int]], accepted: dict[str, int] | None = None) -> None:
        """The next tokens of some requests, of which so many are accepted; without counts the first."""
        batch = [self.requests[name] for name in ids]
        lengths = [0, *map(len, ids.values())]
        counts = torch.tensor([one.accepted for one in batch], dtype=torch.int32) if self.drafts else None
        conv_decode(
            self.embedding[[token for tokens in ids.values() for token in tokens]], self.weight,
            torch.tensor(lengths).cumsum(0).int(), self.pool,
            torch.tensor([[one.slot] for one in batch], dtype=torch.int32), counts,
            list(ids), [one.done for one in batch], "layers.0",
        )  # fmt: skip
        for one in batch:
            one.accepted = (accepted or {}).get(one.name, 1)
            one.done += one.accepted
        self.calls += 1
