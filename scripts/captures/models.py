"""The small models whose activations the shipped captures hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from transformers import (
    DeepseekV4Config,
    DeepseekV4ForCausalLM,
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


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is made and trained. Weights whose name ends in one of `undecayed` have no weight decay."""

    build: Callable[[], PreTrainedModel]
    context: int = 512
    repeats: bool = False  # half of the samples repeat a passage of themselves
    undecayed: tuple[str, ...] = ()


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
}
