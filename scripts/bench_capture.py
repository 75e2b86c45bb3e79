#!/usr/bin/env python
"""What capturing costs a transformers model: off, every call, every 16th step.

    python scripts/bench_capture.py [--repeats 7] [--threads 2] [--prompt 512] [--steps 64]
    python scripts/bench_capture.py --device cuda [--repeats 7] [--steps 128] [--layers 12] [--batch 1]

On a GPU the model has the head counts that are served (H 16, Hv 32) in bf16, the times are of the decode
steps alone, and a second table is of a decode loop of `--layers` such layers replayed from a CUDA graph.

One Qwen3-Next model with random weights generates the same tokens again and again; the three modes alternate,
so that what else the machine does meets them alike. A sealer process works beside them, as in `gdnbench
capture`; a mode begins when it has sealed all of the one before, so that its work falls on no other. Starting
the capture and the sealer is not in the times. An overhead is the median of the ratios within each round, not
the ratio of medians.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM, StoppingCriteriaList
from transformers.utils import logging

from gdnbench.capture import runtime
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.report import Report
from gdnbench.store.segment_sealer import sealed_records

TARGETS = {"every call": 0.10, "every 16": 0.03}
MODES = {"off": None, "every call": CaptureOptions(), "every 16": CaptureOptions(every=16)}


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    cpu_seconds: float  # of this process: what other programs on the machine cannot lengthen by taking turns
    records: int
    bytes: int


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


@contextlib.contextmanager
def sealer(store: Path) -> Iterator[None]:
    """The process that `gdnbench capture` has beside the program, for the whole benchmark."""
    command = [sys.executable, "-m", "gdnbench.store.sealer", str(store), "--until-stdin-closes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()


def generate(model: Any, prompt: torch.Tensor, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds: on a GPU of the decode steps alone, until it is through with our copies too."""
    begun = [time.perf_counter(), time.process_time()]
    criteria: list[Any] = []
    if prompt.is_cuda:
        waits = iter([True])

        def after_prefill(ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
            if next(waits, False):
                torch.cuda.synchronize()
                begun[:] = [time.perf_counter(), time.process_time()]
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

        criteria.append(after_prefill)
    model.generate(
        prompt,
        max_new_tokens=steps + 1,
        min_new_tokens=steps + 1,
        do_sample=False,
        stopping_criteria=StoppingCriteriaList(criteria),
    )
    if prompt.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


class Mode:
    """One capture for all rounds: what starting one costs, a program pays once."""

    def __init__(self, store: Path, options: CaptureOptions | None) -> None:
        self._capture: runtime.Capture | None = None
        self._loop: Any = None
        if options is not None:
            self._capture = runtime.Capture(store, options, report=Report(None), on_first_record=None)
            self._counts = self._capture.session.counts

    def run(self, model: Any, prompt: torch.Tensor, steps: int) -> Run:
        if self._capture is None:
            return Run(*generate(model, prompt, steps), 0, 0)
        records, nbytes = self._counts.records, self._counts.bytes
        self._capture.patcher.patch_loaded()
        seconds, cpu_seconds = generate(model, prompt, steps)
        self._capture.patcher.restore()
        return self._recorded(seconds, cpu_seconds, records, nbytes)

    def replay(self, layers: int, batch: int, steps: int) -> Run:
        """Decode steps from a CUDA graph, captured at the first call."""
        from bench_capture_graph import GraphLoop

        if self._loop is None:
            self._loop = GraphLoop(layers, batch, self._capture)
        if self._capture is None:
            return Run(self._loop.seconds(steps), 0.0, 0, 0)
        records, nbytes = self._counts.records, self._counts.bytes
        cpu_begun = time.process_time()
        seconds = self._loop.seconds(steps)
        return self._recorded(seconds, time.process_time() - cpu_begun, records, nbytes)

    def _recorded(self, seconds: float, cpu_seconds: float, records: int, nbytes: int) -> Run:
        self._capture_settles()
        if self._counts.failures or self._counts.dropped:
            raise SystemExit(f"not everything was recorded: {self._counts.summary()}")
        return Run(seconds, cpu_seconds, self._counts.records - records, self._counts.bytes - nbytes)

    def _capture_settles(self) -> None:
        """What is on its way from a GPU is counted once it is in the journal."""
        recorder = self._capture.session.recorder if self._capture is not None else None
        if recorder is not None:
            recorder.settle()

    def wait_until_sealed(self, store: Path) -> None:
        segment = self._capture.session.segment if self._capture is not None else None
        if segment is not None:
            while sealed_records(store, segment) < self._counts.records:
                time.sleep(0.1)

    def close(self) -> None:
        if self._capture is not None:
            self._capture.session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=64, help="decode steps")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--layers", type=int, default=12, help="of the loop in a CUDA graph")
    parser.add_argument("--batch", type=int, default=1, help="of the loop in a CUDA graph")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU; run it where there is one")
    model = build_model(options.device)
    prompt = torch.randint(1, 4096, (1, options.prompt)).to(options.device)
    what = "Qwen3-Next, hidden 1024, 3 linear layers of 4, H 4, Hv 8, head dim 128, fp32"
    if options.device == "cuda":
        what = "Qwen3-Next, eager, hidden 2048, 3 linear layers of 4, H 16, Hv 32, head dim 128, bf16"
    rounds = measure(options, lambda mode, steps: mode.run(model, prompt, steps))
    print_table(rounds, options, f"{what}; prefill {options.prompt} + {options.steps} decode steps")
    if options.device == "cuda":
        loop = f"{options.layers} layers in a CUDA graph, H 16, Hv 32, head dim 128, batch {options.batch}"
        rounds = measure(options, lambda mode, steps: mode.replay(options.layers, options.batch, steps))
        print_table(rounds, options, f"{loop}; {options.steps} replays")


def measure(options: argparse.Namespace, run: Callable[[Mode, int], Run]) -> list[dict[str, Run]]:
    """Rounds of every mode, in turn."""
    rounds: list[dict[str, Run]] = []
    with tempfile.TemporaryDirectory() as folder, sealer(Path(folder) / "run.zarr"):
        store = Path(folder) / "run.zarr"
        modes = {name: Mode(store, mode) for name, mode in MODES.items()}
        for mode in modes.values():  # warm up: allocators, the journal's first file, names of the layers
            run(mode, 4)
        for number in range(options.repeats):
            # A different mode goes first each time: the one after a heavy one inherits its dirty pages.
            names = list(MODES)
            order = names[number % 3 :] + names[: number % 3]
            rounds.append({})
            for name in order:
                for mode in modes.values():
                    mode.wait_until_sealed(store)
                rounds[-1][name] = run(modes[name], options.steps)
        for mode in modes.values():
            mode.close()
    return rounds


def print_table(rounds: list[dict[str, Run]], options: argparse.Namespace, what: str) -> None:
    print(
        f"{what}; {options.threads} threads of "
        f"{os.cpu_count()} CPUs; load {os.getloadavg()[0]:.1f}; {options.repeats} rounds"
    )
    columns = f"{'mode':<12}{'median s':>10}{'steps/s':>10}{'overhead':>10}{'in CPU time':>13}{'target':>8}"
    print(f"{columns}{'records':>9}{'MiB':>8}{'CPU us/record':>15}")
    for name in MODES:
        runs = [some[name] for some in rounds]
        seconds = median(run.seconds for run in runs)
        row = f"{name:<12}{seconds:>10.3f}{options.steps / seconds:>10.1f}"
        if name != "off":
            overhead = median(some[name].seconds / some["off"].seconds - 1 for some in rounds)
            extra = [(some[name].cpu_seconds - some["off"].cpu_seconds, some) for some in rounds]
            of_cpu = median(more / some["off"].cpu_seconds for more, some in extra)
            cost = median(more / some[name].records for more, some in extra)
            records, mib = median(run.records for run in runs), median(run.bytes for run in runs) / 2**20
            row += f"{overhead:>10.1%}{of_cpu:>13.1%}{TARGETS[name]:>8.0%}{records:>9}{mib:>8.1f}"
            row += f"{cost * 1e6:>15.0f}"
        print(row)


if __name__ == "__main__":
    main()
