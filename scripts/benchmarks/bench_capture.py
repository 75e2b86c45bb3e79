#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""What capturing costs a decode loop: every call, and every 16th step.

    python scripts/benchmarks/bench_capture.py [--seconds 20] [--threads 2]
    python scripts/benchmarks/bench_capture.py --device cuda [--seconds 20] [--layers 4]
        [--batch 1] [--step-ms 9]

One Qwen3-Next model with random weights generates in one go. Segments of 16 steps with capture off and on
take turns; an overhead is the median of the ratios of a segment to the mean of the two off around it, with an
interval that has the median with 95 %. A sealer process works beside, as in `gdnbench capture`. Between
segments what is on its way is waited for, untimed. stderr tells how far it is.

On a GPU the model has the head counts that are served (H 16, Hv 32) in bf16, eager; its prefill is
transformers' own in torch, since fla's takes most of a minute to compile and tune, and decoding is by fla
where that is installed. A second table is of a loop replayed from a CUDA graph: `--layers` layers whose
replays are captured, and as many plain matrix products as make a step as long as a served model's, at batch
1 some 9 ms. Every step ends when its token is on the host.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_capture_segments import EVERY_16, EVERY_CALL, OFF, STEPS, Mode, Segment, Segments, interval, ratios
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM, StoppingCriteriaList
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.utils import logging

from gdnbench.capture import runtime
from gdnbench.capture.adapters.transformers import ADAPTER
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.report import Report

PROMPT = 16
WARM_SECONDS = 10.0
LONGEST = 1 << 16
"""Tokens of a generation, which the clock ends long before."""
TARGETS = {EVERY_CALL: 0.10, EVERY_16: 0.03}
OPTIONS = {EVERY_CALL: CaptureOptions(), EVERY_16: CaptureOptions(every=16)}
BEGUN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGUN:6.1f} s  {text}", file=sys.stderr, flush=True)


def build_model(device: str) -> Any:
    """Four layers, three of them linear attention; head dim 128. Key heads 4 and value heads 8 in fp32 on the
    CPU, 16 and 32 in bf16 on a GPU."""
    torch.manual_seed(0)
    gpu = device == "cuda"
    config = Qwen3NextConfig(
        vocab_size=4096,
        hidden_size=2048 if gpu else 1024,
        intermediate_size=3072,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        linear_num_key_heads=16 if gpu else 4,
        linear_num_value_heads=32 if gpu else 8,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    )
    model = Qwen3NextForCausalLM(config).eval().to(device)
    return model.to(torch.bfloat16) if gpu else model


class Sealer:
    """The process that `gdnbench capture` has beside the program, for the whole benchmark."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, "-m", "gdnbench.store.sealer", str(store), "--until-stdin-closes"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def check(self) -> None:
        """SystemExit if the sealer ended."""
        status = self._process.poll()
        if status is not None:
            raise SystemExit(f"the sealer ended with status {status}")

    def close(self) -> None:
        """Killed: nobody reads the store any more, and it would wait for journals that are still open."""
        self._process.kill()
        self._process.communicate()


class Off:
    def enter(self) -> None: ...

    def leave(self) -> int:
        return 0


class Capturing:
    """One capture for all segments: what starting one costs, a program pays once."""

    def __init__(self, store: Path, options: CaptureOptions, sealer: Sealer) -> None:
        self.capture = runtime.Capture(store, options, report=Report(None), on_first_record=None)
        self._counts = self.capture.session.counts
        self._sealer = sealer
        self._before = 0

    def enter(self) -> None:
        self._before = self._counts.records
        self.capture.patcher.patch_loaded()

    def leave(self) -> int:
        self.capture.patcher.restore()
        if self.capture.session.recorder is not None:
            self.capture.session.recorder.wait_until_written()
        self._sealer.check()
        if self._counts.failures or self._counts.dropped or self._counts.passed_over:
            raise SystemExit(f"not everything was recorded: {self._counts.summary()}")
        return self._counts.records - self._before

    def close(self) -> None:
        self.capture.session.close()


@contextlib.contextmanager
def modes() -> Iterator[dict[str, Mode]]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gdnbench-bench-"))
        store = Path(folder) / "run.zarr"
        sealer = Sealer(store)
        stack.callback(sealer.close)
        found: dict[str, Mode] = {OFF: Off()}
        for name, options in OPTIONS.items():
            found[name] = mode = Capturing(store, options, sealer)
            stack.callback(mode.close)
        yield found


def generate(model: Any, prompt: torch.Tensor, step_done: Callable[[], bool]) -> None:
    """Until `step_done`, called behind each step when the device is through with it, says so."""

    def after_step(ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        if ids.is_cuda:
            torch.cuda.current_stream().synchronize()
        return torch.full((len(ids),), step_done(), dtype=torch.bool, device=ids.device)

    criteria: list[Any] = [after_step]
    with torch.no_grad():
        model.generate(
            prompt,
            max_new_tokens=LONGEST,
            min_new_tokens=LONGEST,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList(criteria),
        )


def eager(options: argparse.Namespace) -> None:
    say("building the model")
    # Its other decorators are of use to models that are compiled, or get kernels by name.
    chunk = modeling_qwen3_next.torch_chunk_gated_delta_rule
    modeling_qwen3_next.torch_chunk_gated_delta_rule = getattr(chunk, "__wrapped__", chunk)
    model = build_model(options.device)
    prompt = torch.randint(1, 4096, (1, PROMPT)).to(options.device)
    say("decoding: libraries compile what they need")
    with modes() as some:
        segments = Segments(some, seconds=options.seconds, warm_seconds=WARM_SECONDS, say=say)
        generate(model, prompt, segments.step_done)
    sizes = "hidden 2048, H 16, Hv 32, bf16" if options.device == "cuda" else "hidden 1024, H 4, Hv 8, fp32"
    recurrent = ADAPTER.implementation(modeling_qwen3_next.torch_recurrent_gated_delta_rule)
    what = f"Qwen3-Next, eager, {sizes}, head dim 128, 3 linear layers of 4, batch 1; decoding by {recurrent}"
    print_table(segments.measured, f"{what}; {options.threads} threads")


def replayed(options: argparse.Namespace) -> None:
    from bench_capture_graph import GraphLoop

    say("the loop in a CUDA graph")
    loop = GraphLoop(options.layers, options.batch, options.step_ms)
    with modes() as some:
        graphs = {
            name: loop.graph(mode.capture if isinstance(mode, Capturing) else None)
            for name, mode in some.items()
        }
        segments = Segments(some, seconds=options.seconds, warm_seconds=WARM_SECONDS, say=say)
        while not segments.step_done():
            loop.run(graphs[segments.mode])
    print_table(
        segments.measured,
        f"CUDA graph, {options.layers} captured layers, H 16, Hv 32, head dim 128, batch {options.batch}, and"
        f" {loop.products} pairs of plain products",
    )


def print_table(segments: list[Segment], what: str) -> None:
    print(f"{what}; {os.cpu_count()} CPUs; load {os.getloadavg()[0]:.1f}")
    columns = (
        f"{'mode':<12}{'segments':>9}{'ms/step':>9}{'steps/s':>9}{'overhead':>10}{'95 %':>18}{'target':>8}"
    )
    print(f"{columns}{'records':>9}{'us/record':>11}{'CPU us':>8}")
    off = [one for one in segments if one.mode == OFF]
    off_cpu = median(one.cpu_seconds / len(one.steps) for one in off)
    for name in STEPS:
        mine = [one for one in segments if one.mode == name]
        if not mine:
            continue
        seconds = median(one.seconds for one in mine)
        row = f"{name:<12}{len(mine):>9}{seconds * 1e3:>9.3f}{1 / seconds:>9.1f}"
        found = ratios(segments, name) if name in TARGETS else []
        if found:
            low, high = interval(found)
            records = median(one.records for one in mine)
            extra = (median(found) - 1) * median(one.seconds for one in off) * STEPS[name]
            cpu = median(one.cpu_seconds for one in mine) - off_cpu * STEPS[name]
            row += (
                f"{median(found) - 1:>+10.2%}{f'{low - 1:+.2%} to {high - 1:+.2%}':>18}{TARGETS[name]:>8.0%}"
            )
            row += f"{records:>9.0f}{extra / records * 1e6:>11.0f}{cpu / records * 1e6:>8.0f}"
        print(row, flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, of each table")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--table", choices=("eager", "graph"), help="one alone, on a GPU")
    parser.add_argument("--layers", type=int, default=4, help="captured, of the loop in a CUDA graph")
    parser.add_argument("--batch", type=int, default=1, help="of the loop in a CUDA graph")
    parser.add_argument("--step-ms", type=float, default=9.0, help="of the loop in a CUDA graph")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU; run it where there is one")
    if options.table != "graph":
        eager(options)
    if options.device == "cuda" and options.table != "eager":
        replayed(options)


if __name__ == "__main__":
    main()
