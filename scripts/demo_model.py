# SPDX-License-Identifier: Apache-2.0
"""A program as users have them: plain transformers, a Qwen3-Next model, one prompt, a few generated tokens.

Random weights, since none ship with the library; the captures under captures/ come from a trained model.
"""

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

PROMPT = (
    "The state of a Gated DeltaNet layer is a matrix; each token decays it, corrects it and reads it once."
)

torch.manual_seed(0)
config = Qwen3NextConfig(
    vocab_size=256,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=128,
)
model = Qwen3NextForCausalLM(config).to(torch.bfloat16).eval()
tokens = torch.tensor([list(PROMPT.encode())])
generated = model.generate(tokens, max_new_tokens=9, do_sample=False, pad_token_id=0)
print("generated", generated.shape[1] - tokens.shape[1], "tokens")
