"""The two small models whose activations the shipped captures hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


MODELS: Mapping[str, Callable[[], PreTrainedModel]] = {
    function.__name__: function for function in (qwen3_next, deepseek_v4)
}
