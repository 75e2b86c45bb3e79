# SPDX-License-Identifier: Apache-2.0
"""The small models whose activations the shipped captures hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from transformers import (
    BailingHybridConfig,
    BailingHybridForCausalLM,
    DeepseekV4Config,
    DeepseekV4ForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)


def qwen3_next() -> PreTrainedModel:
    """Four layers, three of them Gated DeltaNet (H 2, Hv 4, head dim 128)."""
    configuration = Qwen3NextConfig(
        vocab_size=256,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=512,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return Qwen3NextForCausalLM(configuration)


def deepseek_v4() -> PreTrainedModel:
    """Four layers of pure sliding-window attention: 16 heads, head dim 512 of which 64 rope, window 128.

    Routing is learned in every layer: the table of hash layers comes with a checkpoint, and there is none.
    """
    layers = 4
    configuration = DeepseekV4Config(
        vocab_size=256,
        hidden_size=256,
        num_hidden_layers=layers,
        layer_types=["sliding_attention"] * layers,
        mlp_layer_types=["moe"] * layers,
        num_attention_heads=16,
        head_dim=512,
        sliding_window=128,
        q_lora_rank=64,
        o_groups=4,
        o_lora_rank=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
    )
    return DeepseekV4ForCausalLM(configuration)


def qwen3_next_memory() -> PreTrainedModel:
    """One attention layer, then three Gated DeltaNet layers (H 1, Hv 2, head dim 128) whose heads remember.

    The attention layer comes first: alone it cannot find what followed an earlier occurrence of the last
    bytes, so the layers of interest must. Their gates start as those of Mamba and flash-linear-attention do,
    with dt between 0.001 and 0.1, where this library has a dt_bias of 1. The two heads of a layer stand for
    the slowest and a fast one of the 32 of a served model: their half-lives start at 23,105 tokens and at
    6.9, and training shortens them.
    """
    configuration = Qwen3NextConfig(
        vocab_size=256,
        hidden_size=256,
        num_hidden_layers=4,
        layer_types=["full_attention"] + ["linear_attention"] * 3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=512,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=256,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = Qwen3NextForCausalLM(configuration)
    rate, step = torch.tensor([0.03, 1.0]), torch.tensor([0.001, 0.1])
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            mixer = layer.linear_attn
            mixer.A_log.copy_(rate.log())
            mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is `step`
            # The library's 0.02 is for a width of 2,048: a and b then vary as much over tokens.
            mixer.in_proj_ba.weight.mul_((2048 / configuration.hidden_size) ** 0.5)
    return model


def deepseek_v4_sinks() -> PreTrainedModel:
    """As `deepseek_v4`, but the sinks of a layer start between -4 and 4, not all at 0."""
    model = deepseek_v4()
    with torch.no_grad():
        for layer in model.model.layers:
            sinks = layer.self_attn.sinks
            sinks.copy_(torch.linspace(-4, 4, len(sinks)))
    return model


def deepseek_v4_compressed() -> PreTrainedModel:
    """The three kinds of layers of DeepSeek-V4: a window alone; CSA, with an indexer (8 heads of 128) that
    selects 32 entries of ratio 4; HCA, with all entries of ratio 128; and CSA again. 8 heads, as a rank of 8
    has of V4-Flash's 64. Sinks start between -4 and 4. The positional scores of HCA start with a standard
    deviation of 1: from the library's zeros, training moves those of a window of 128 tokens little.
    """
    kinds = ("sliding", "compressed_sparse", "heavily_compressed", "compressed_sparse")
    configuration = DeepseekV4Config(
        vocab_size=256,
        hidden_size=256,
        num_hidden_layers=len(kinds),
        layer_types=[f"{kind}_attention" for kind in kinds],
        mlp_layer_types=["moe"] * len(kinds),
        num_attention_heads=8,
        head_dim=512,
        sliding_window=128,
        q_lora_rank=128,
        o_groups=4,
        o_lora_rank=64,
        index_n_heads=8,
        index_head_dim=128,
        index_topk=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=True,
    )
    model = DeepseekV4ForCausalLM(configuration)
    with torch.no_grad():
        for layer, kind in zip(model.model.layers, kinds, strict=True):
            attention = layer.self_attn
            attention.sinks.copy_(torch.linspace(-4, 4, len(attention.sinks)))
            if kind == "heavily_compressed":
                attention.compressor.position_bias.normal_()
    return model


KDA_SIZES = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "mlp_layer_types": ["dense"] * 3,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 64,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
"""Of both models with Kimi Delta Attention (H 2, head dim 128). The attention layer comes first: alone it
cannot find what followed an earlier occurrence of the last bytes."""


def kimi_linear() -> PreTrainedModel:
    """One attention layer, then two of Kimi Delta Attention with the unbounded gate.

    Each channel of a head has a dt of its own, spread evenly on a log scale as in flash-linear-attention.
    Head 0: from 0.0003 to 0.03 with a rate of 1; half-lives start at 23 to 2,310 tokens. Head 1: from 0.03 to
    0.7 with a rate of 8; half-lives start at 0.12 to 2.9 tokens, the fastest at a log decay of -5.6 a token.
    """
    model = KimiLinearForCausalLM(
        KimiLinearConfig(
            **KDA_SIZES,
            num_attention_heads=4,
            num_key_value_heads=4,
            linear_head_dim=128,
            linear_num_heads=2,
            num_local_experts=2,
            num_experts_per_tok=1,
        )
    )
    steps = torch.stack([spread(0.0003, 0.03), spread(0.03, 0.7)])
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            gate = layer.self_attn.forget_gate
            gate.A_log.copy_(torch.tensor([1.0, 8.0]).log().view_as(gate.A_log))
            gate.dt_bias.copy_(
                (steps + torch.log(-torch.expm1(-steps))).flatten()
            )  # softplus of it is `steps`
            vary(gate.f_b_proj)
    return model


def bailing_hybrid() -> PreTrainedModel:
    """The same sizes with the bounded gate: at least -5 a token.

    The log decays of the channels start between -0.0005 and -0.05 in head 0, and between -0.05 and -4.9 in
    head 1.
    """
    model = BailingHybridForCausalLM(
        BailingHybridConfig(
            **KDA_SIZES,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=128,
            num_local_experts=2,
            num_experts_per_tok=1,
            n_group=1,
            topk_group=1,
            kda_safe_gate=True,
            kda_lower_bound=-5.0,
        )
    )
    decays = torch.stack([spread(0.0005, 0.05), spread(0.05, 4.9)])
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            gate = layer.self_attn.forget_gate
            gate.A_log.zero_()
            gate.dt_bias.copy_((decays / 5).logit().flatten())  # -5 sigmoid of it is -`decays`
            vary(gate.f_proj)
    return model


def spread(least: float, most: float) -> torch.Tensor:
    """[128], evenly on a log scale."""
    return torch.logspace(math.log10(least), math.log10(most), 128)


def vary(projection: torch.nn.Linear) -> None:
    """The libraries' 0.02 is for widths of 2,304 and more: outputs then vary as much over tokens."""
    projection.weight.mul_((2304 / projection.in_features) ** 0.5)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is made and trained. Weights whose name ends in one of `undecayed` have no weight decay."""

    build: Callable[[], PreTrainedModel]
    context: int = 512
    repeats: bool = False  # half of the samples repeat a passage of themselves
    undecayed: tuple[str, ...] = ()
    indexers: bool = False  # train the indexers, which the model's own loss does not reach


MODELS: Mapping[str, Recipe] = {
    "qwen3_next": Recipe(qwen3_next),
    "deepseek_v4": Recipe(deepseek_v4),
    "qwen3_next_memory": Recipe(
        qwen3_next_memory,
        context=2048,
        repeats=True,
        undecayed=("A_log", "dt_bias", "in_proj_ba.weight"),
    ),
    "deepseek_v4_sinks": Recipe(deepseek_v4_sinks, undecayed=("sinks",)),
    "deepseek_v4_compressed": Recipe(
        deepseek_v4_compressed,
        context=1024,
        repeats=True,
        undecayed=("sinks", "position_bias"),
        indexers=True,
    ),
    "kimi_linear": Recipe(
        kimi_linear, context=1024, repeats=True, undecayed=("A_log", "dt_bias", "f_b_proj.weight")
    ),
    "bailing_hybrid": Recipe(
        bailing_hybrid, context=1024, repeats=True, undecayed=("A_log", "dt_bias", "f_proj.weight")
    ),
}
