#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""What `gdnbench capture --digests` costs a decode step, and whether a device's digests are the CPU's.

    python scripts/benchmarks/bench_capture_digests.py                  # on a GPU with triton
    python scripts/benchmarks/bench_capture_digests.py --device cpu     # cost on the CPU, figures for a GPU
        [--layers 48] [--batch 1,8,64] [--dtype float32,bfloat16] [--sample 1,101] [--seconds 4]
        [--step-ms 9] [--fill-ms 9] [--modes graph,eager] [--out FILE.json]

A step is `--layers` gated delta rule layers with 32 value heads and states of 128 x 128, by a kernel that
reads and writes each state once: the least that a step can be. Segments of steps with capture off and on take
turns; a row has the median of what a segment adds to a step, and that as a share of the bare step and of a
whole model's step of `--step-ms`. `graph`: the step is replayed from a CUDA graph, else its calls are eager.
With `--fill-ms`, products with weights that do not fit into caches follow each layer, so many that they alone
take that long: a step is then about as long as a whole model's, and its host has time while the device works.
`host` is what the program's thread takes more until the step is queued.
Every step ends when a number of it is on the host. The last step's digests are compared with those that NumPy
makes of the states.

On the CPU a step has states of 8 x 8 and calls that do nothing, and the time is processor time: what Python
takes. Replays run on the tests' stand-in for a GPU, with the digests left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gdnbench.bits import to_bits
from gdnbench.capture import CaptureOptions, capturing, record, runtime
from gdnbench.capture.adapter import Observation, Target
from gdnbench.capture.adapters.transformers import ADAPTER
from gdnbench.capture.claims import Claims
from gdnbench.digests import Jobs, indexed_digests, row_digests
from gdnbench.store.access_log import AccessKind
from gdnbench.store.access_pieces import piece_of
from gdnbench.store.reader import Store

H, HV, DIM = 16, 32, 128
SPARE = 8  # slots that no sequence has
SEGMENT_STEPS = 16  # at least
SEGMENT_SECONDS = 0.7  # in which digests are sent to the host and logged a few times
WIDTH = 8192  # of the products that fill a step: 128 MiB of weights each
BANDWIDTH = 3.35e12  # bytes a second of an H100 SXM's memory, for the predicted figures
LAUNCH = 2.5e-6  # seconds that a small kernel takes on a GPU, for the same


@dataclass(frozen=True)
class Row:
    batch: int
    dtype: str
    graph: bool
    sample: int
    bare_ms: float
    added_ms: float
    of_bare: float
    of_step: float
    host_us: float
    digests_equal: bool | None


class Layer(nn.Module):
    """A layer for the capture's sake: each counts its own steps."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index

    def forward(self, run: Callable[[], None]) -> None:
        run()


class Runner:
    """Names the requests of a step, as an engine's runner does."""

    framework = "bench"
    steps = (Target("bench", "execute"),)

    def step(self, target: Target, arguments: Mapping[str, Any]) -> Any:
        return arguments["number"]

    def claims(self, known: Any, observation: Observation) -> Claims:
        batch = len(observation.tensors["state_indices"].tensor)
        return Claims([f"request-{n}" for n in range(batch)], [known] * batch)


class Decode:
    """Steps of decoding, with states of their own."""

    def __init__(
        self, device: str, layers: int, batch: int, dtype: torch.dtype, dim: int = DIM, fill_ms: float = 0
    ) -> None:
        torch.manual_seed(0)
        self.layers = [Layer(index) for index in range(layers)]
        self.number = 0
        with torch.device(device):
            slots = batch + SPARE
            self.states = [torch.randn(slots, HV, dim, dim).to(dtype) * 0.1 for _ in range(layers)]
            self.slots = (torch.randperm(slots)[:batch, None]).to(torch.int32)
            self.q, self.k = (torch.randn(batch, 1, H, dim).to(torch.bfloat16) * 0.05 for _ in range(2))
            self.v = torch.randn(batch, 1, HV, dim).to(torch.bfloat16)
            self.g, self.beta = -torch.rand(batch, 1, HV), torch.rand(batch, 1, HV)
            self.o = torch.zeros(batch, 1, HV, dim, dtype=torch.bfloat16)
            self.weights = []
            self.products = 0
            if fill_ms:
                self.weights = [torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(8)]
                self.x, self.y = (torch.randn(batch, WIDTH, dtype=torch.bfloat16) for _ in range(2))
                self.products = round(fill_ms * 1e-3 / self.seconds_of_a_product())
        self.call = record("gdn_decode", conventions={"qk": "normalised"})(self._rule(device, dim))

    def _rule(self, device: str, dim: int) -> Callable[..., Tensor]:
        if device == "cpu":

            def nothing(
                q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
                state_indices: Tensor, o: Tensor,
            ) -> Tensor:  # fmt: skip
                return o

            return nothing
        from bench_capture_digests_kernel import delta_rule

        def updated(
            q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor,
            state_indices: Tensor, o: Tensor,
        ) -> Tensor:  # fmt: skip
            delta_rule[(len(q), HV, 4)](
                q, k, v, g, beta, state, state_indices, o, DIM**-0.5, HEADS=HV, KEYS=H, DIM=dim, ROWS=dim // 4
            )
            return o

        return updated

    def seconds_of_a_product(self) -> float:
        """Of a product with one of the weights, when many follow each other."""
        times = []
        for _ in range(5):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            for number in range(256):
                torch.mm(self.x, self.weights[number % len(self.weights)], out=self.y)
            ended.record()
            torch.cuda.synchronize()
            times.append(begun.elapsed_time(ended) / 256e3)
        return median(times)

    def fill(self, layer: int) -> None:
        """This layer's share of the products."""
        share = range(
            self.products * layer // len(self.layers), self.products * (layer + 1) // len(self.layers)
        )
        for number in share:
            torch.mm(self.x, self.weights[number % len(self.weights)], out=self.y)

    def step(self) -> None:
        for layer, state in zip(self.layers, self.states, strict=True):
            self.fill(layer.layer_idx)
            layer(
                lambda state=state: self.call(
                    q=self.q, k=self.k, v=self.v, g=self.g, beta=self.beta, state=state,
                    state_indices=self.slots, o=self.o,
                )
            )  # fmt: skip

    def graph(self) -> torch.cuda.CUDAGraph:
        """Of one step; captured by the capture that runs, if any."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph


@contextlib.contextmanager
def scopes(capture: runtime.Capture) -> Iterator[Callable[[Callable[[], None], int], None]]:
    """Wraps layers and steps as adapters have it done; yields a function that runs a step."""
    plain = Layer.forward
    Layer.forward = capture.session.wrap_scope(ADAPTER, Target(__name__, "Layer.forward"), plain)  # type: ignore[method-assign]

    def execute(run: Callable[[], None], number: int) -> None:
        run()

    try:
        yield capture.session.wrap_step(Runner(), Runner.steps[0], execute)  # type: ignore[arg-type]
    finally:
        Layer.forward = plain  # type: ignore[method-assign]


def seconds_a_step(
    run: Callable[[], None], ended: Callable[[], object], clock: Callable[[], float], steps: int
) -> tuple[float, float]:
    """Of a step, and of it until it is queued."""
    ended()
    begun = clock()
    queued = 0.0
    for _ in range(steps):
        start = clock()
        run()
        queued += clock() - start
        ended()
    return (clock() - begun) / steps, queued / steps


def measure(decode: Decode, sample: int, in_graph: bool, args: argparse.Namespace) -> Row:
    device = args.device
    ended = (lambda: decode.o[0, 0, 0, 0].item()) if device == "cuda" else (lambda: None)
    # On the CPU the time of the program's thread alone counts, which other processes do not lengthen.
    clock = time.perf_counter if device == "cuda" else time.thread_time
    off = decode.graph().replay if in_graph else decode.step
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "run.zarr"
        options = CaptureOptions(digests=True, digest_sample=sample)
        with capturing(store, options) as counts:
            capture = runtime.innermost()
            assert capture is not None
            with scopes(capture) as execute:
                on = decode.graph().replay if in_graph else decode.step
                number = 0

                def stepped() -> None:
                    nonlocal number
                    execute(on, number)
                    number += 1

                stepped()  # compiles the kernels of digests
                recorder = capture.session.recorder_here()
                steps = SEGMENT_STEPS
                if device == "cuda":
                    known = seconds_a_step(off, ended, clock, SEGMENT_STEPS)[0]
                    steps = max(steps, round(SEGMENT_SECONDS / known))
                bare, added, host = [], [], []
                until = time.monotonic() + args.seconds
                while time.monotonic() < until or len(added) < 3:
                    capture.session.active = False
                    before, queued_before = seconds_a_step(off, ended, clock, steps)
                    capture.session.active = True
                    with_digests, queued = seconds_a_step(stepped, ended, clock, steps)
                    recorder.wait_until_written()
                    capture.session.active = False
                    after, queued_after = seconds_a_step(off, ended, clock, steps)
                    capture.session.active = True
                    bare.append((before + after) / 2)
                    added.append(with_digests - (before + after) / 2)
                    host.append(queued - (queued_before + queued_after) / 2)
                stepped()
                recorder.wait_until_written()
        assert (counts.failures, counts.dropped) == (0, 0), counts.first_failure
        equal = last_digests_equal(store, decode, sample)
    bare_ms, added_ms = median(bare) * 1e3, median(added) * 1e3
    return Row(
        len(decode.slots), str(decode.states[0].dtype).removeprefix("torch."), in_graph, sample,
        bare_ms, added_ms, added_ms / bare_ms, added_ms / args.step_ms, median(host) * 1e6, equal,
    )  # fmt: skip


def last_digests_equal(store: Path, decode: Decode, sample: int) -> bool:
    """Whether the last step's writes have the digests of the states as they are now, by NumPy."""
    with Store.open(store) as opened:
        pieces = [piece_of(one) for one in opened.records]
    last = max(int(piece.rows["step"].max()) for piece in pieces if len(piece.rows))
    found = [
        (piece.layers[row["layer"]], row)
        for piece in pieces[-4:]
        for row in piece.rows[(piece.rows["kind"] == AccessKind.WRITE) & (piece.rows["step"] == last)]
    ]
    if len(found) != len(decode.layers) * len(decode.slots):
        raise RuntimeError(f"the last step has {len(found)} writes in the log")
    wanted = [row_digests(to_bits(state.cpu()), sample) for state in decode.states]
    layers = {f"Layer.{number}": digests for number, digests in enumerate(wanted)}
    return all(np.array_equal(row["digest"], layers[layer][row["slot"]]) for layer, row in found)


def check_digests(device: str) -> list[str]:
    """Rows of several dtypes and strides, digested on the device and by NumPy; the names of those that
    differ."""
    wrong = []
    make = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64):
        size = dtype.itemsize
        for shape in ((6, 32, 128, 128), (5, 13, 7), (9, 3000), (4, 128, 3)):
            count = int(np.prod(shape)) * size
            pool = torch.randint(0, 256, (count,), generator=make).to(torch.uint8).view(dtype).view(shape)
            there = pool.to(device)
            strided = {"rows": (pool, there)}
            if size < 8:
                strided["transposed"] = (pool.transpose(1, -1), there.transpose(1, -1))
            for name, (host, moved) in strided.items():
                for sample in (1, 3, 101):
                    index = torch.tensor([2, -1, 0, 2, shape[0]])
                    found = indexed_digests(moved, index.to(device), sample).cpu().numpy().view(np.uint64)
                    whole = row_digests(to_bits(host), sample)
                    wanted = np.stack([whole[2], whole[2] * 0, whole[0], whole[2], whole[2] * 0])
                    if not np.array_equal(found, wanted):
                        wrong.append(f"{dtype} {shape} {name} sample {sample}")
    return wrong


def stand_in_row(layers: int, batch: int) -> str:
    """The processor time of a replay, in which nothing runs, on the tests' stand-in for a GPU."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of

    Jobs.run = lambda *_: None  # type: ignore[assignment]
    StandInGraph.replay = lambda self: None  # type: ignore[method-assign]
    decode, streams, graph = (
        Decode("cpu", layers, batch, torch.float32, dim=8),
        StandInStreams(),
        StandInGraph(),
    )
    streams.gate.set()
    options = CaptureOptions(digests=True)
    with tempfile.TemporaryDirectory() as folder, capturing_stand_in(Path(folder) / "s", streams, options):
        capture = runtime.innermost()
        assert capture is not None
        with scopes(capture) as execute:
            with graph_of(graph):
                decode.step()
            execute(graph.replay, 0)
            recorder = capture.session.recorder_here()
            recorder.wait_until_written()
            thread, process = time.thread_time(), time.process_time()
            for number in range(SEGMENT_STEPS):
                execute(graph.replay, 1 + number)
            thread = time.thread_time() - thread
            recorder.wait_until_written()
            process = time.process_time() - process
    return (
        f"batch {batch:3d} replay of {layers} layers, without digests: the program's thread"
        f" {thread / SEGMENT_STEPS * 1e3:.3f} ms, the process {process / SEGMENT_STEPS * 1e3:.3f} ms"
    )


def predicted_ms(layers: int, batch: int, itemsize: int, sample: int) -> float:
    """What the digests of a replay take on an H100 if nothing but memory and launches counts."""
    read = 2 * layers * batch * HV * DIM * DIM * itemsize / sample
    return (read / BANDWIDTH + 6 * LAUNCH) * 1e3


def on_gpu(args: argparse.Namespace) -> list[Row]:
    wrong = check_digests("cuda")
    print("digests of a device " + (f"DIFFER: {', '.join(wrong)}" if wrong else "equal those of NumPy"))
    rows = []
    for dtype in args.dtype.split(","):
        for batch in map(int, args.batch.split(",")):
            decode = Decode("cuda", args.layers, batch, getattr(torch, dtype), fill_ms=args.fill_ms)
            for in_graph in (mode == "graph" for mode in args.modes.split(",")):
                for sample in map(int, args.sample.split(",")):
                    rows.append(measure(decode, sample, in_graph, args))
                    print(line(rows[-1], args), flush=True)
            del decode
            torch.cuda.empty_cache()
    return rows


def on_cpu(args: argparse.Namespace) -> list[Row]:
    rows = []
    for batch in map(int, args.batch.split(",")):
        decode = Decode("cpu", args.layers, batch, torch.float32, dim=8)
        rows.append(measure(decode, 1, False, args))
        print(line(rows[-1], args), flush=True)
    for batch in map(int, args.batch.split(",")):
        print(stand_in_row(args.layers, batch), flush=True)
    for dtype in args.dtype.split(","):
        for batch in map(int, args.batch.split(",")):
            for sample in map(int, args.sample.split(",")):
                cost = predicted_ms(args.layers, batch, getattr(torch, dtype).itemsize, sample)
                print(
                    f"predicted for an H100: batch {batch:3d} {dtype:9} sample {sample:4d}: {cost:7.3f} ms a"
                    f" replay, {cost / args.step_ms:7.2%} of {args.step_ms:g} ms"
                )
    return rows


def line(row: Row, args: argparse.Namespace) -> str:
    where = "graph" if row.graph else "eager"
    return (
        f"batch {row.batch:3d} {row.dtype:9} {where} sample {row.sample:4d}: bare step {row.bare_ms:8.3f} ms,"
        f" digests add {row.added_ms:7.3f} ms: {row.of_bare:7.2%} of it, {row.of_step:6.2%} of"
        f" {args.step_ms:g} ms; host {row.host_us:.0f} us;"
        f" digests {'equal' if row.digests_equal else 'DIFFER'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--sample", default="1,101")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--step-ms", type=float, default=9.0)
    parser.add_argument("--fill-ms", type=float, default=0.0)
    parser.add_argument("--modes", default="graph,eager")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows = on_gpu(args) if args.device == "cuda" else on_cpu(args)
    if args.out is not None:
        args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.digests_equal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
