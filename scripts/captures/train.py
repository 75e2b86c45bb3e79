"""Trains one of the small models whose activations the shipped captures hold.

    python scripts/captures/train.py qwen3_next|deepseek_v4 MODEL_DIR [--steps 2000]

Byte-level language models, seeded. Minutes on one data-centre GPU with the torch code of transformers, hours
on a CPU.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import torch
from corpus import corpus
from models import MODELS
from transformers import PreTrainedModel

SEED = 20250917
CONTEXT = 512
BATCH = 32
WARMUP_STEPS = 100


def learning_rate(step: int, steps: int) -> float:
    """As a share of the peak: linear warm-up, then a cosine to a tenth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return 0.55 + 0.45 * math.cos(math.pi * progress)


def train(name: str, steps: int, batch: int, peak: float, device: str) -> PreTrainedModel:
    torch.manual_seed(SEED)
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).to(device)
    held_out = text[-65536:].long()
    text = text[:-65536]
    model = MODELS[name]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)
    offsets = torch.arange(CONTEXT, device=device)
    print(
        f"{text.numel()} bytes of text, {sum(p.numel() for p in model.parameters())} parameters", flush=True
    )
    started = time.monotonic()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate(step, steps)
        starts = torch.randint(text.numel() - CONTEXT, (batch, 1), device=device)
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


def save_halved(model: PreTrainedModel, folder: Path) -> None:
    """Saves in bfloat16 but for what the library keeps in fp32 (norms, sinks): its loader knows which."""
    with tempfile.TemporaryDirectory() as whole:
        model.save_pretrained(whole)
        type(model).from_pretrained(whole, dtype=torch.bfloat16).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--peak", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    model = train(options.model, options.steps, options.batch, options.peak, options.device)
    save_halved(model, options.model_dir)


if __name__ == "__main__":
    main()
