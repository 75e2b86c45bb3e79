# SPDX-License-Identifier: Apache-2.0
"""How fast this machine moves bytes here and now: what bandwidths are a percentage of.

A ceiling is the best of several ways to read half of some bytes and write the other half, timed as kernels
are: cold, on buffers in turn. Copies read one tensor and write another, in-place kernels write what they
read. A library's copy is a candidate among others: in a CUDA graph it can be far slower than a plain one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.timing import cache
from gdnbench.timing.clocks import Clock, round_seconds
from gdnbench.timing.cuda_clocks import clock_of
from gdnbench.timing.result import Ceiling
from gdnbench.timing.rotation import CallTensors, Rotation, RotationOptions, held_bytes, size
from gdnbench.timing.types import Form
from gdnbench_kernels import programs
from gdnbench_kernels.artifacts import ARCHS
from gdnbench_kernels.compiling import Program, program
from gdnbench_kernels.contract import Launch
from gdnbench_kernels.source import Source

ROUNDS = 7
"""Of each candidate, after one that does not count; the median is taken."""
KEY = 0x5A5A5A5A
"""What own kernels combine words with: no pattern that a memory could move faster."""
SHAPES = ((256, 1), (256, 4), (512, 4), (256, 8))
"""Threads of a CTA, vectors of 16 bytes a thread has in flight."""
RESIDENT_THREADS = 2048
"""Of a multiprocessor, on SM90 and SM100."""
LEAST_BYTES, MOST_BYTES = 32, 8 << 30

Way = Callable[[Tensor, Tensor], Launch]
"""From source and target, int32 and equally long, to a launch; in-place ways use the target alone."""


def measure(
    device: torch.device, bytes: int, options: RotationOptions | None = None, clock: str = "auto"
) -> Ceiling:
    """The ceiling of launches that move `bytes`, read and written together.

    Own kernels need CuTe DSL (ImportError) and a GPU they are compiled for (NotImplementedError). More than
    MOST_BYTES are measured as so many: their time is proportional long before. `clock` as for kernels.
    """
    if bytes < 1:
        raise BadInputError(f"a ceiling of {bytes} bytes was asked for; it is of 1 or more")
    moved = min(max(bytes, LEAST_BYTES), MOST_BYTES) // 32 * 32
    options = options or RotationOptions(placements=1)
    half = torch.empty(moved // 8, dtype=torch.int32, device=device)
    half.random_(generator=torch.Generator(device).manual_seed(options.seed))  # zeros would take less power
    form = CallTensors({"source": half}, {"target": half}, frozenset())
    found = size(options, device, moved // 2, held_bytes(form.tensors), cold=True)
    rotation = Rotation(form, found, device, options.seed)
    rotation.load(form, 0)
    flush = cache.Flush(device, max(options.touched, 4 * (cache.last_level(device) or 0)))
    sets = [rotation.buffers(form, 0, index) for index in range(rotation.sets)]
    candidates = {}
    with torch.no_grad():
        for name, timer, way in _ways(device, moved, clock):
            launches = [way(own["source"], own["target"]) for own in sets]
            candidates[name] = moved / _seconds(launches, timer, flush)
    best = max(candidates, key=candidates.__getitem__)
    return Ceiling(candidates[best], best, candidates)


def _seconds(launches: list[Launch], clock: Clock, flush: Launch) -> float:
    """Of a launch, cold."""
    launches[0]()  # compiles
    timed = clock.record(launches)
    found = [round_seconds(timed, flush, clock.least) for _ in range(ROUNDS + 1)]
    return statistics.median(found[1:]) / len(launches)


def _ways(device: torch.device, moved: int, clock: str) -> Iterator[tuple[str, Clock, Way]]:
    graph, plain = (clock_of(device, form, clock) for form in (Form.GRAPH, Form.PLAIN))
    if device.type != "cuda":
        yield "torch copy_", plain, lambda source, target: partial(target.copy_, source)
        yield "torch mul_ in place", plain, lambda source, target: partial(target.mul_, 3)
        return
    for form, timer in (("plain", plain), ("graph", graph)):
        yield f"torch copy_, {form}", timer, lambda source, target: partial(target.copy_, source)
    properties = torch.cuda.get_device_properties(device)
    arch = arch_of(device)
    for source in sources():
        made = program(source, arch)
        for grid in dict.fromkeys(grids(source, moved // 2, properties.multi_processor_count)):
            text = f"{title(source)}, {grid} CTAs"
            yield f"own copy, {text}", graph, partial(_copy, made, grid)
            yield f"own in place, {text}", graph, partial(_in_place, made, grid)


def _copy(made: Program, ctas: int, source: Tensor, target: Tensor) -> Launch:
    return partial(made, source, target, KEY, ctas)


def _in_place(made: Program, ctas: int, source: Tensor, target: Tensor) -> Launch:
    return partial(made, target, target, KEY, ctas)


def sources() -> list[Source]:
    """The kernels of `gdnbench_kernels.memory_ceiling` that are tried."""
    return [source_of(*shape, no_allocate) for shape, no_allocate in product(SHAPES, (False, True))]


def source_of(threads: int, unroll: int, no_allocate: bool) -> Source:
    return Source.create(
        "memory_ceiling.move",
        "gdnbench_kernels.memory_ceiling:build",
        threads=threads,
        unroll=unroll,
        no_allocate=no_allocate,
    )


def title(source: Source) -> str:
    options = dict(source.options)
    hint = ", not into L1" if options["no_allocate"] else ""
    return f"{options['threads']} threads x {options['unroll']}{hint}"


def grids(source: Source, written: int, multiprocessors: int) -> tuple[int, int]:
    """CTAs: one for every tile, and no more than are on the GPU at once."""
    options = {name: int(value or 0) for name, value in source.options}
    tiles = max(1, -(-written // (options["threads"] * options["unroll"] * 16)))
    return tiles, min(tiles, multiprocessors * RESIDENT_THREADS // options["threads"])


def arch_of(device: torch.device) -> str:
    """The target for a device; NotImplementedError for one that has none."""
    return programs.arch_of(device, tuple(ARCHS), "the kernel that measures the memory's ceiling")
