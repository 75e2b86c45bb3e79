# SPDX-License-Identifier: Apache-2.0
"""A Qwen3-Next model of transformers with random weights in the serving loop: its own projections, norms and
feed-forward layers; convolution, recurrence and attention over the loop's pools and caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_next.modeling_qwen3_next import apply_rotary_pos_emb

from tests.lineage.serving.schedule import VOCABULARY
from tests.lineage.serving.states import Batch, Request, States

CONFIG = Qwen3NextConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=3,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    mlp_only_layers=[0, 1, 2],
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    max_position_embeddings=128,
)


class QwenModel:
    layers = 2

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Qwen3NextForCausalLM(CONFIG).float().eval()
        with torch.no_grad():  # the library's 0.02 leaves logits that hardly depend on the tokens
            for weight in self.model.parameters():
                if weight.dim() == 2:
                    weight.normal_(std=weight.shape[1] ** -0.5)
        self.linear = [i for i, kind in enumerate(CONFIG.layer_types) if kind == "linear_attention"]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        one = self.model.model.layers[self.linear[0]].linear_attn
        return {
            "state": (one.num_v_heads, one.head_v_dim, one.head_k_dim),
            "conv_state": (one.conv_dim, one.conv_kernel_size - 1),
        }

    def prefill(self, states: States, batch: Batch) -> list[Tensor]:
        lengths = [len(fed) for fed in batch.tokens]
        logits = self._forward(states, batch, batch.tokens)
        return list(logits.split(lengths))

    def decode(self, states: States, batch: Batch) -> Tensor:
        width = batch.width
        rows = [fed + [0] * (width - len(fed)) for fed in batch.tokens]
        return self._forward(states, batch, rows).view(len(rows), width, -1)

    @torch.no_grad()
    def generate(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """By transformers' own cache and generate."""
        tokens = torch.tensor([list(prompt)])
        given = self.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),  # without it, a token 0 would be taken for padding
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=VOCABULARY,  # none
        )
        return given[0, len(prompt) :].tolist()

    @torch.no_grad()
    def _forward(self, states: States, batch: Batch, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logits [tokens, vocabulary] of the sequences' tokens, one after another."""
        model = self.model.model
        lengths = [len(row) for row in rows]
        positions = [
            start + t for start, length in zip(batch.positions, lengths, strict=True) for t in range(length)
        ]
        hidden = model.embed_tokens(torch.tensor([[token for row in rows for token in row]]))
        rotary = model.rotary_emb(hidden, torch.tensor([positions]))
        for number, layer in enumerate(model.layers):
            normed = layer.input_layernorm(hidden)
            if number in self.linear:
                mixed = self._linear(layer.linear_attn, states, self.linear.index(number), batch, normed)
            else:
                mixed = self._attention(layer.self_attn, number, batch, lengths, normed, rotary)
            hidden = hidden + mixed
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        logits: Tensor = self.model.lm_head(model.norm(hidden))[0]
        return logits

    def _linear(
        self, module: torch.nn.Module, states: States, layer: int, batch: Batch, hidden: Tensor
    ) -> Tensor:
        prefill = bool(batch.fresh)
        sequences = (1, hidden.shape[1]) if prefill else (len(batch.requests), batch.width)
        q, k, v, z, b, a = module.fix_query_key_value_ordering(
            module.in_proj_qkvz(hidden), module.in_proj_ba(hidden)
        )
        mixed = torch.cat([one.flatten(2) for one in (q, k, v)], -1).view(*sequences, -1)
        weight = module.conv1d.weight[:, 0]
        if prefill:
            mixed = states.conv_prefill(layer, batch, mixed[0], weight)[None]
        else:
            mixed = states.conv_decode(layer, batch, mixed, weight)
        q, k, v = mixed.split([module.key_dim, module.key_dim, module.value_dim], -1)
        q = _normalised(q.unflatten(-1, (-1, module.head_k_dim)))
        k = _normalised(k.unflatten(-1, (-1, module.head_k_dim)))
        v = v.unflatten(-1, (-1, module.head_v_dim))
        g = -module.A_log.exp() * torch.nn.functional.softplus(a + module.dt_bias).view(*sequences, -1)
        beta = b.sigmoid().view(*sequences, -1)
        if prefill:
            o = states.prefill(layer, batch, q[0], k[0], v[0], g[0], beta[0])
        else:
            o = states.decode(layer, batch, q, k, v, g, beta)
        o = module.norm(o.reshape(-1, module.head_v_dim), z.reshape(-1, module.head_v_dim))
        return module.out_proj(o.view(*hidden.shape[:2], -1))

    def _attention(
        self,
        module: torch.nn.Module,
        layer: int,
        batch: Batch,
        lengths: Sequence[int],
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
    ) -> Tensor:
        heads = (*hidden.shape[:2], -1, module.head_dim)
        q, gate = module.q_proj(hidden).view(*heads[:3], 2 * module.head_dim).chunk(2, -1)
        q = module.q_norm(q).transpose(1, 2)
        k = module.k_norm(module.k_proj(hidden).view(heads)).transpose(1, 2)
        v = module.v_proj(hidden).view(heads).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        parts = [
            _attend(request, layer, start, *one, module.scaling)
            for request, start, *one in zip(
                batch.requests,
                batch.positions,
                *(x[0].split(list(lengths), 1) for x in (q, k, v)),
                strict=True,
            )
        ]
        o = torch.cat(parts, 1).transpose(0, 1).reshape(1, -1, q.shape[1] * module.head_dim)
        return module.o_proj(o * gate.reshape(o.shape).sigmoid())


def _attend(
    request: Request | None, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> Tensor:
    """o [heads, S, D] of one sequence's tokens from position `start`; its keys and values go to its cache."""
    if request is None:
        return torch.zeros_like(q)
    if start and layer in request.cache:
        old_k, old_v = request.cache[layer]
        k, v = torch.cat([old_k[:, :start], k], 1), torch.cat([old_v[:, :start], v], 1)
    request.cache[layer] = (k, v)
    scores = q @ k.repeat_interleave(len(q) // len(k), 0).mT * scale
    late = torch.arange(k.shape[1]) > torch.arange(q.shape[1])[:, None] + (k.shape[1] - q.shape[1])
    weights = scores.masked_fill(late, -torch.inf).softmax(-1)
    return weights @ v.repeat_interleave(len(q) // len(v), 0)


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
