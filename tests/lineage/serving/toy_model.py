# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a model: two layers of the recurrence with 4 x 4 states, whose inputs come from tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.lineage.serving.calls import gdn_prefill
from tests.lineage.serving.schedule import VOCABULARY
from tests.lineage.serving.states import Batch, States

SIZE = 4


class ToyModel:
    layers = 2

    def __init__(self, seed: int = 0) -> None:
        drawn = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=drawn)

        each = (self.layers, VOCABULARY, 1)
        self.q = normalize(table(*each, SIZE), dim=-1)
        self.k = normalize(table(*each, SIZE), dim=-1)
        self.v = table(*each, SIZE)
        self.g = -table(*each).abs() / 4
        self.beta = table(*each).sigmoid()
        self.out = table(SIZE, VOCABULARY)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"state": (1, SIZE, SIZE)}

    def prefill(self, states: States, batch: Batch) -> list[Tensor]:
        tokens = torch.tensor([token for fed in batch.tokens for token in fed])
        hidden = torch.zeros(len(tokens), 1, SIZE)
        for layer in range(self.layers):
            hidden = states.prefill(layer, batch, *self._inputs(layer, tokens, hidden))
        return list((hidden[:, 0] @ self.out).split([len(fed) for fed in batch.tokens]))

    def decode(self, states: States, batch: Batch) -> Tensor:
        width = batch.width
        tokens = torch.tensor([fed + [0] * (width - len(fed)) for fed in batch.tokens])
        hidden = torch.zeros(*tokens.shape, 1, SIZE)
        for layer in range(self.layers):
            hidden = states.decode(layer, batch, *self._inputs(layer, tokens, hidden))
        return hidden[:, :, 0] @ self.out

    def generate(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        known = list(prompt)
        states: list[Tensor | None] = [None] * self.layers
        fed = known
        while len(known) < len(prompt) + new_tokens:
            tokens = torch.tensor(fed)
            hidden = torch.zeros(len(tokens), 1, SIZE)
            for layer in range(self.layers):
                inputs = self._inputs(layer, tokens, hidden)
                offsets = torch.tensor([0, len(tokens)])
                hidden, states[layer] = gdn_prefill.__wrapped__(*inputs, offsets, states[layer])  # unrecorded
            known.append(int((hidden[-1, 0] @ self.out).argmax()))
            fed = known[-1:]
        return known[len(prompt) :]

    def _inputs(self, layer: int, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        v = self.v[layer, tokens] + hidden
        return (
            self.q[layer, tokens],
            self.k[layer, tokens],
            v,
            self.g[layer, tokens],
            self.beta[layer, tokens],
        )
