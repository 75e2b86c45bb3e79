"""Trains the small Qwen3-Next model whose activations the shipped captures hold.

    python scripts/captures/train.py MODEL_DIR [--steps 2000]

Byte-level language model, four layers (three of them Gated DeltaNet: H 2, Hv 4, head dim 128), seeded. Two
minutes on one data-centre GPU with transformers' own torch code; hours on a CPU.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from corpus import corpus
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

SEED = 20250917
CONTEXT = 512
BATCH = 32
PEAK_LEARNING_RATE = 2e-3
WARMUP_STEPS = 100


def configuration() -> Qwen3NextConfig:
    return Qwen3NextConfig(
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


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to a tenth of the peak."""
    if step < WARMUP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return PEAK_LEARNING_RATE * (0.55 + 0.45 * math.cos(math.pi * progress))


def train(steps: int, device: str) -> Qwen3NextForCausalLM:
    torch.manual_seed(SEED)
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).to(device)
    held_out = text[-65536:].long()
    text = text[:-65536]
    model = Qwen3NextForCausalLM(configuration()).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1
    )
    offsets = torch.arange(CONTEXT, device=device)
    print(
        f"{text.numel()} bytes of text, {sum(p.numel() for p in model.parameters())} parameters", flush=True
    )
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        starts = torch.randint(text.numel() - CONTEXT, (BATCH, 1), device=device)
        tokens = text[starts + offsets].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.3f} after {time.monotonic() - started:.0f} s", flush=True)
    model.eval()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        tokens = held_out[: 32 * CONTEXT].view(32, CONTEXT)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    print(f"held-out loss {loss.item():.3f} nats a byte", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    train(options.steps, options.device).to(torch.bfloat16).save_pretrained(options.model_dir)


if __name__ == "__main__":
    main()
