# SPDX-License-Identifier: Apache-2.0
"""Trains one of the small models whose activations the shipped captures hold.

    python scripts/captures/train.py MODEL MODEL_DIR [--steps 2000]

Byte-level language models, seeded. Minutes on one data-centre GPU with the torch code of transformers, hours
on a CPU.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from corpus import corpus
from indexer_loss import IndexerLoss
from models import MODELS, Recipe
from transformers import PreTrainedModel

SEED = 20250917
BATCH = 32
WARMUP_STEPS = 100


def learning_rate(step: int, steps: int) -> float:
    """As a share of the peak: linear warm-up, then a cosine to a tenth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return 0.55 + 0.45 * math.cos(math.pi * progress)


def groups(model: PreTrainedModel, undecayed: tuple[str, ...]) -> list[dict[str, Any]]:
    """The parameters for the optimizer, those without weight decay in a group of their own."""
    named = list(model.named_parameters())
    free = [parameter for name, parameter in named if name.endswith(undecayed)]
    decayed = [parameter for name, parameter in named if not name.endswith(undecayed)]
    return [{"params": decayed}] + ([{"params": free, "weight_decay": 0.0}] if free else [])


def samples(text: torch.Tensor, recipe: Recipe, batch: int) -> torch.Tensor:
    """int64 [batch, context]. Where the recipe repeats, every second row is one passage of 64 bytes to half a
    context over and over: it pays to remember that long."""
    offsets = torch.arange(recipe.context, device=text.device)
    starts = torch.randint(text.numel() - recipe.context, (batch, 1), device=text.device)
    if not recipe.repeats:
        return text[starts + offsets].long()
    periods = torch.randint(64, recipe.context // 2 + 1, (batch, 1), device=text.device)
    periods[::2] = recipe.context
    return text[starts + offsets % periods].long()


def train(name: str, steps: int, batch: int, peak: float, device: str) -> PreTrainedModel:
    torch.manual_seed(SEED)
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).to(device)
    held_out = text[-65536:].long()
    text = text[:-65536]
    recipe = MODELS[name]
    model = recipe.build().to(device)
    optimizer = torch.optim.AdamW(
        groups(model, recipe.undecayed), lr=peak, betas=(0.9, 0.95), weight_decay=0.1
    )
    print(
        f"{text.numel()} bytes of text, {sum(p.numel() for p in model.parameters())} parameters", flush=True
    )
    indexers = IndexerLoss(model) if recipe.indexers else None
    started = time.monotonic()
    for step in range(steps):
        if indexers:
            indexers.dense(step < steps // 2)
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate(step, steps)
        tokens = samples(text, recipe, batch)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        apart = indexers.total() if indexers else torch.zeros(())
        (loss + apart.to(loss.device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            told = f" of indexers {apart.item():.3f}" if indexers else ""
            print(
                f"step {step} loss {loss.item():.3f}{told} after {time.monotonic() - started:.0f} s",
                flush=True,
            )
    model.eval()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        tokens = held_out[: batch * recipe.context].view(-1, recipe.context)
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
