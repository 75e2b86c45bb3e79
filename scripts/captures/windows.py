# SPDX-License-Identifier: Apache-2.0
"""Records a few decode steps of the trained DeepSeek-V4 model, far apart: what lies between is run only.

python scripts/captures/windows.py MODEL_DIR STORE.zarr per_token_scale|fp8_ds_mla|bfloat16
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from corpus import corpus
from transformers import AutoModelForCausalLM, PreTrainedModel

from gdnbench.capture import CaptureOptions, capturing

LAYER = "1"


@dataclass(frozen=True, slots=True)
class Scene:
    """One batch: the bytes of each prompt, padded on the left to the longest, and the steps to record."""

    prompts: tuple[int, ...]
    steps: tuple[int, ...]


SHORT = Scene((16,), (0,))
# At first the two short prompts have padding in their windows; after 128 steps every window is full.
BATCH = Scene((17, 60, 200), (0, 128))
SCENES = {
    "per_token_scale": (SHORT, BATCH),
    "fp8_ds_mla": (SHORT, BATCH),
    # Twice the bytes a row, and outputs: the step whose windows hold padding.
    "bfloat16": (Scene(BATCH.prompts, BATCH.steps[:1]),),
}


def padded(text: torch.Tensor, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, mask), both int64 [prompts, longest]."""
    width = max(lengths)
    tokens, mask = torch.zeros(2, len(lengths), width, dtype=torch.long, device=text.device)
    for row, length in enumerate(lengths):
        tokens[row, width - length :] = text[1000 * row : 1000 * row + length]
        mask[row, width - length :] = 1
    return tokens, mask


def play(model: PreTrainedModel, text: torch.Tensor, scene: Scene, store: Path, layout: str) -> None:
    """Greedy decoding of one batch up to the last step to record."""
    tokens, mask = padded(text, scene.prompts)
    options = CaptureOptions(layer=(LAYER,), cache_layout=layout, zstd=9)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True)
    written = []
    for step in range(max(scene.steps) + 1):
        token = found.logits[:, -1:].argmax(2)
        written.append(token)
        mask = torch.cat([mask, torch.ones_like(token)], dim=1)
        with capturing(store, options) if step in scene.steps else nullcontext():
            found = model(
                input_ids=token,
                attention_mask=mask,
                position_ids=mask.sum(1, keepdim=True) - 1,
                past_key_values=found.past_key_values,
                use_cache=True,
            )
    for row in torch.cat(written, dim=1).tolist():
        print(repr(bytes(row).decode("utf-8", errors="replace")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("layout", choices=SCENES)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(options.model_dir, dtype=torch.bfloat16).to(device).eval()
    text = torch.frombuffer(bytearray(corpus()[-65536:]), dtype=torch.uint8).to(device).long()
    with torch.no_grad():
        for scene in SCENES[options.layout]:
            play(model, text, scene, options.store, options.layout)


if __name__ == "__main__":
    main()
