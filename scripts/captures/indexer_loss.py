# SPDX-License-Identifier: Apache-2.0
"""The loss of DeepSeek-V4's indexers, as DeepSeek-V3.2's report defines it (arXiv 2512.02556, 2.1).

An indexer's scores only select, so no gradient of the language model's loss reaches them. Its own loss is the
divergence KL(p || softmax of the scores), p being the attention of all heads to a query's compressed entries,
summed and normalised. Nothing else is trained by it: the indexer's inputs are detached, and so is p. While
`dense` the layers attend to all entries; afterwards to the selected ones, and both distributions are over
these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel


class IndexerLoss:
    """Hooks on the CSA layers of a model that collect the loss of each forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.indexers = []
        self.top_k = model.config.index_topk
        self._scores: dict[Any, Tensor] = {}
        self._losses: list[Tensor] = []
        for layer in model.model.layers:
            attention = layer.self_attn
            indexer = getattr(attention.compressor, "indexer", None)
            if indexer is None:
                continue
            self.indexers.append(indexer)
            indexer.register_forward_pre_hook(detached)
            indexer.scorer.register_forward_hook(
                lambda _, __, scores, at=attention: self._scores.update({at: scores})
            )
            attention.register_forward_hook(self._collect)

    def dense(self, dense: bool) -> None:
        for indexer in self.indexers:
            indexer.index_topk = 1 << 30 if dense else self.top_k

    def total(self) -> Tensor:
        """The sum over layers of the mean over queries, of the last forward pass."""
        found = torch.stack(self._losses).sum()
        self._losses.clear()
        return found

    def _collect(self, attention: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        scores = self._scores.pop(attention).float()
        attended = output[1].detach()[..., -scores.shape[-1] :].float().sum(1)  # over heads
        there = attended > 0
        some = there.any(-1)
        wanted = attended[some] / attended[some].sum(-1, keepdim=True)
        found = scores[some].masked_fill(~there[some], -torch.inf).log_softmax(-1)
        terms = wanted * (wanted.clamp(min=1e-30).log() - found)
        self._losses.append(terms.masked_fill(~there[some], 0.0).sum(-1).mean())


def detached(indexer: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The positional arguments of an indexer, its hidden states and query latents without gradient."""
    hidden, latents, *rest = inputs
    return (hidden.detach(), latents.detach(), *rest)
