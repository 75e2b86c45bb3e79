# SPDX-License-Identifier: Apache-2.0
"""Runs the trained model as a user's program would: plain transformers, nothing of gdnbench.

python scripts/captures/infer.py MODEL_DIR prefill|packed|resumed|decode
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from corpus import corpus
from transformers import AutoModelForCausalLM, PreTrainedModel

PREFILL_LENGTHS = (1, 63, 64, 65, 500)
PACKED_LENGTHS = (70, 1, 130, 64)
DECODE_STEPS = 16


def prefill(model: PreTrainedModel, text: torch.Tensor) -> None:
    for index, length in enumerate(PREFILL_LENGTHS):
        model(input_ids=text[None, 1000 * index : 1000 * index + length], use_cache=True)


def packed(model: PreTrainedModel, text: torch.Tensor) -> None:
    """Several documents in one row, kept apart by cu_seqlens. Needs a chunk kernel that takes them."""
    positions = torch.cat([torch.arange(length) for length in PACKED_LENGTHS]).to(text.device)
    offsets = torch.tensor((0, *PACKED_LENGTHS), device=text.device).cumsum(0).to(torch.int32)
    model(
        input_ids=text[None, : sum(PACKED_LENGTHS)],
        position_ids=positions[None],
        cu_seq_lens_q=offsets,
        use_cache=False,
    )


def resumed(model: PreTrainedModel, text: torch.Tensor) -> None:
    cache = model(input_ids=text[None, :130], use_cache=True).past_key_values
    model(input_ids=text[None, 130:220], past_key_values=cache, use_cache=True)


def decode(model: PreTrainedModel, text: torch.Tensor) -> None:
    prompt = text[None, :200]
    generated = model.generate(prompt, max_new_tokens=DECODE_STEPS + 1, do_sample=False, pad_token_id=0)
    print(bytes(generated[0, 200:].tolist()).decode("utf-8", errors="replace"))


SCENARIOS = {function.__name__: function for function in (prefill, packed, resumed, decode)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("scenario", choices=SCENARIOS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(options.model_dir, dtype=torch.bfloat16).to(device).eval()
    text = torch.frombuffer(bytearray(corpus()[-65536:]), dtype=torch.uint8).to(device).long()
    with torch.no_grad():
        SCENARIOS[options.scenario](model, text)


if __name__ == "__main__":
    main()
