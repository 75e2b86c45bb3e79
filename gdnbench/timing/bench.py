# SPDX-License-Identifier: Apache-2.0
"""From a record's call and kernels to what is compared: subjects on the same memory, with the same clock.

The call is the compact one of `gdnbench.judge.calls`: pools have the slots that were stored and no others, so
they lie side by side where the caller's lay apart, and a set is no larger than what a launch can touch.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnbench.poison import poison, same_bits
from gdnbench.replay.call import arguments, by_name, conversion
from gdnbench.replay.kernels import LoadedKernel
from gdnbench.timing import cache, cupti, programs
from gdnbench.timing.clocks import Clock, Recorded, round_seconds
from gdnbench.timing.cuda_clocks import clock_of
from gdnbench.timing.result import Control
from gdnbench.timing.rotation import CallTensors, Rotation, RotationOptions, held_bytes, most_sets, size
from gdnbench.timing.types import Cache, Mode
from gdnbench_kernels.contract import Call, Launch, Operation, Role

CONTROL_ROUNDS = 5
"""Of each of the three ways of reading; their medians are compared."""
PROGRAM_LAUNCHES = 128
"""Of a round of programs, at most: what lies between them is kept for each."""
CONFIRMING = 8
"""Rounds on the first placement that must leave the same bits, before a round on another is held to them."""
WARM_SECONDS = 0.02
"""Of a warm round by the host's clock: long against any clock here."""


class Bench:
    """One call on one device in one mode, and memory that all its subjects share.

    A cold round launches each set once, after sets were restored and as much as `RotationOptions.touched` and
    four times the cache was read elsewhere. A warm round launches one set again and again: what it writes in
    place is the call's at the first launch only. What a kernel's own `prepare` copied it is given once, and
    is not restored.

    `device` is where the call's tensors are. `clock`, on a GPU: `cupti` or `events`, or `auto`, which is
    CUPTI where it is installed and events otherwise. CannotRunError where memory does not suffice, or CUPTI
    is asked for and not there.
    """

    def __init__(
        self,
        call: Call,
        operation: Operation,
        device: torch.device,
        mode: Mode,
        options: RotationOptions,
        clock: str = "auto",
    ) -> None:
        self._call = call
        self._operation = operation
        self._device = device
        self._mode = mode
        self.launch_bytes = touched_bytes(call, operation)
        self._forms: dict[tuple[tuple[str, str], ...], tuple[Call, CallTensors]] = {}
        first = self._form(call.conventions)[1]
        cold = mode.cache is Cache.COLD
        found = size(options, device, self.launch_bytes, held_bytes(first.tensors), cold)
        self.notes = found.notes
        self._rotation = Rotation(first, found, device, options.seed)
        self._prepared: list[tuple[LoadedKernel, CallTensors, list[Launch]]] = []  # on the first placement
        self.cache_bytes = cache.last_level(device)
        flushed = max(options.touched, 4 * (self.cache_bytes or 0))
        self._flush = cache.Flush(device, flushed) if cold else None
        self._evicted = flushed
        self._clock = clock_of(device, mode.form, clock)
        self._most = options.most_sets or most_sets(device)

    @property
    def method(self) -> str:
        """What was timed with what, for people."""
        return self._clock.method

    @property
    def sets(self) -> int:
        """Of buffers, of a placement."""
        return self._rotation.sets

    def subject(self, kernel: LoadedKernel) -> BenchSubject:
        """`kernel`, compiled, tuned and converted for, ready for rounds. Raises what the kernel raises, and
        CannotRunError where its launches cannot be captured into a CUDA graph."""
        form, launches = self._launches(kernel, 0)
        with torch.no_grad():
            launches[0]()  # compiles and tunes
            self._rotation.load(form, 0)
            expected = min(self._clock.once(launches[0]) for _ in range(2))
            sequences = [self._sequence(launches, expected)]
            for placement in range(1, self._rotation.placements):
                sequences.append(self._sequence(self._launches(kernel, placement)[1], expected))
            recorded = []
            for placement, sequence in enumerate(sequences):
                self._rotation.load(form, placement)
                recorded.append(self._clock.record(sequence))
        rounds = [_Round(sequence[0], timed) for sequence, timed in zip(sequences, recorded, strict=True)]
        ready = [partial(self._ready, form, placement) for placement in range(len(rounds))]
        sets = len(sequences[0]) if self._mode.cache is Cache.COLD else 1
        written = [
            [_Written.of_form(form, self._rotation.buffers(form, placement, index)) for index in range(sets)]
            for placement in range(len(rounds))
        ]
        return BenchSubject(kernel.name, len(sequences[0]), rounds, ready, written, self._clock.least)

    def programs(self, kernel: LoadedKernel) -> dict[str, float] | None:
        """Seconds a launch by program, for a kernel that launches several; None for others."""
        if self._device.type != "cuda":
            return None
        form, launches = self._launches(kernel, 0)
        with torch.no_grad():
            launches[0]()
            self._rotation.load(form, 0)
            expected = min(self._clock.once(launches[0]) for _ in range(2))
            self._rotation.load(form, 0)
            if isinstance(self._clock, cupti.CuptiClock):
                timed = self._clock.record(self._sequence(launches, expected))
                self._ready(form, 0)
                kernels = timed.by_kernel()
                return kernels if len(kernels) > 1 else None
            few = self._sequence(launches, expected)[:PROGRAM_LAUNCHES]
            return programs.by_program(few, self._clock, partial(self._ready, form, 0))

    def outputs(self, kernel: LoadedKernel) -> dict[str, Tensor]:
        """What a launch that would be timed leaves, by name, in the call's conventions: a launch that
        `prepare` made is other code than the function that a replay judges."""
        form, launches = self._launches(kernel, 0)
        last = len(launches) - 1
        buffers = self._rotation.buffers(form, 0, last)
        for name in form.outputs:
            poison(buffers[name])
        with torch.no_grad():
            returned = launches[last]()
        named = by_name(returned, list(form.outputs), kernel, self._operation)
        found = {name: buffers[name] for name in (*form.outputs, *sorted(form.mutated))} | named
        current = conversion(self._call, self._operation, kernel).target
        converted = self._operation.convert_outputs(found, current, self._call.conventions)
        return {name: tensor.detach().clone() for name, tensor in converted.items()}

    def control(self) -> Control:
        """Whether the cache is what the mode says, seen with a kernel that only reads."""
        reader = _Reader(self._rotation, self._clock, self._device, self._evicted)
        warm = reader.seconds(reader.warm, reader.touch)
        known = reader.seconds(reader.fresh, reader.evict)
        if self._flush is None:
            return cache.judged_warm(warm, known, reader.bytes, self.cache_bytes)
        cold = reader.seconds(reader.rotated, self._flush)
        return cache.judged(cold, warm, known, reader.bytes, self.cache_bytes)

    def _form(self, target: Mapping[str, str]) -> tuple[Call, CallTensors]:
        """The call in the conventions `target`."""
        key = tuple(sorted(target.items()))
        if key not in self._forms:
            same = dict(target) == dict(self._call.conventions)
            call = self._call if same else self._operation.convert(self._call, dict(target))
            outputs = {
                name: torch.empty(shape, dtype=dtype, device=self._device)
                for name, (shape, dtype) in self._operation.outputs(call).items()
            }
            mutated = {spec.name for spec in self._operation.tensors if spec.role is Role.MUTATED}
            form = CallTensors(call.tensors, outputs, frozenset(mutated & set(call.tensors)))
            self._forms[key] = call, form
        return self._forms[key]

    def _launches(self, kernel: LoadedKernel, placement: int) -> tuple[CallTensors, list[Launch]]:
        """A launch for every set of a placement, whose tensors are as the call was."""
        for known, form, launches in self._prepared if placement == 0 else ():
            if known is kernel:
                self._rotation.load(form, 0)
                return form, launches
        call, form = self._form(conversion(self._call, self._operation, kernel).target)
        self._rotation.add(form)
        self._rotation.load(form, placement)
        prepare = preparation(kernel, self._operation)
        launches = []
        with torch.no_grad():
            for index in range(self._rotation.sets):
                buffers = self._rotation.buffers(form, placement, index)
                given = Call({name: buffers[name] for name in form.inputs}, call.scalars, call.conventions)
                outputs = {name: buffers[name] for name in form.outputs}
                named = arguments(kernel, self._operation, given, outputs, None)
                launches.append(prepare(**named) if prepare else _Kept(kernel.function, named))
        if placement == 0:
            self._prepared.append((kernel, form, launches))
        return form, launches

    def _sequence(self, launches: Sequence[Launch], expected: float) -> list[Launch]:
        """The launches of a round: each set once where launches are cold, the one set often where warm."""
        if self._mode.cache is Cache.COLD:
            return list(launches[: max(1, math.ceil(self._clock.goal / max(expected, 1e-9)))])
        return [launches[0]] * max(1, min(self._most, math.ceil(WARM_SECONDS / max(expected, 1e-9))))

    def _ready(self, form: CallTensors, placement: int, warming: Launch | None = None) -> None:
        """Outside the time: sets as the call was, the cache as the mode says."""
        self._rotation.load(form, placement)
        if self._flush is not None:
            self._flush()
        elif warming is not None:
            warming()


class _Kept:
    """A call of a kernel, whose result is kept until the next: memory that a kernel allocates for its outputs
    would else be the same in every launch of a round, and stay in the cache."""

    def __init__(self, function: Callable[..., Any], named: Mapping[str, Any]) -> None:
        self._function = function
        self._named = named
        self._result: Any = None

    def __call__(self) -> Any:
        self._result = self._function(**self._named)
        return self._result


@dataclass(frozen=True, slots=True)
class _Round:
    first: Launch
    timed: Recorded


@dataclass(frozen=True, slots=True)
class _Written:
    """What launches write in a set: tensors that each round restores, and outputs, which none does."""

    mutated: dict[str, Tensor]
    outputs: dict[str, Tensor]

    @classmethod
    def of_form(cls, form: CallTensors, buffers: Mapping[str, Tensor]) -> _Written:
        return cls(
            {name: buffers[name] for name in sorted(form.mutated)},
            {name: buffers[name] for name in form.outputs},
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**self.mutated, **self.outputs}


class BenchSubject:
    """A kernel on the buffers of a `Bench`; see `gdnbench.timing.types.Subject`."""

    def __init__(
        self,
        name: str,
        launches: int,
        rounds: Sequence[_Round],
        ready: Sequence[Callable[[Launch], None]],
        written: Sequence[Sequence[_Written]],
        least: float,
    ) -> None:
        self.name = name
        self.launches = launches
        self._rounds = rounds
        self._ready = ready
        self._written = written  # by placement and set
        self._least = least

    @property
    def placements(self) -> int:
        return len(self._rounds)

    def round(self, placement: int) -> float:
        """Seconds a launch. A round that is short against the clock's resolution is repeated, made ready each
        time."""
        this = self._rounds[placement]
        with torch.no_grad():
            ready = partial(self._ready[placement], this.first)
            return round_seconds(this.timed, ready, self._least) / self.launches

    def stray(self) -> str | None:
        """Where launches of a timed round left other bits than the first of them, in a line: all had the same
        call. None if nowhere, or if they differ on the first placement too, from time to time: such a
        kernel's sums may have another order each time."""
        self._run(0)
        expected = {name: tensor.clone() for name, tensor in self._written[0][0].tensors.items()}
        for placement, sets in enumerate(self._written):
            odd = self._odd(placement, expected)
            if not odd:
                continue
            if any(self._odd(0, expected) for _ in range(CONFIRMING)):
                return None
            return (
                f"{len(odd)} of {len(sets)} launches on placement {placement} left other bits than those on"
                f" placement 0: launch {odd[0]} first"
            )
        return None

    def _odd(self, placement: int, expected: Mapping[str, Tensor]) -> list[int]:
        """The sets in which a round leaves something else."""
        self._run(placement)
        return [
            index
            for index, written in enumerate(self._written[placement])
            if not all(same_bits(written.tensors[name], tensor) for name, tensor in expected.items())
        ]

    def _run(self, placement: int) -> None:
        """A round whose launches find outputs of zeros: what they leave alone is then the same everywhere."""
        with torch.no_grad():
            for written in self._written[placement]:
                for output in written.outputs.values():
                    output.zero_()
            self._ready[placement](self._rounds[placement].first)
            self._rounds[placement].timed.seconds()


class _Reader:
    """Reads the sets of a rotation and memory beside it, for the control."""

    def __init__(self, rotation: Rotation, clock: Clock, device: torch.device, evicted: int) -> None:
        memories = [rotation.memory(0, index).view(torch.int64) for index in range(rotation.sets)]
        least = min(map(len, memories))
        memories = [memory[:least] for memory in memories]
        self.bytes = memories[0].nbytes
        self._clock = clock
        total = torch.zeros((), dtype=torch.int64, device=device)
        self._first: Launch = partial(cache.read_memory, memories[0], total)
        self._first()
        # As many launches for each way: what a launch costs beside its bytes is then the same.
        count = max(len(memories), 8)
        fresh = torch.zeros(count * least, dtype=torch.int64, device=device).view(count, least)
        self.rotated = [partial(cache.read_memory, memory, total) for memory in memories]
        self.warm = [self._first] * count
        self.fresh = [partial(cache.read_memory, memory, total) for memory in fresh]
        self.touch: Launch = self._first
        self.evict: Launch = cache.Eviction(device, evicted)

    def seconds(self, launches: Sequence[Launch], ready: Launch) -> float:
        """Of a launch: the median of some rounds, `ready` before each."""
        timed = self._clock.record(launches)
        found = []
        for _ in range(CONTROL_ROUNDS):
            ready()
            found.append(timed.seconds() / len(launches))
        return statistics.median(found)


def preparation(kernel: LoadedKernel, operation: Operation) -> Callable[..., Launch] | None:
    """What prepares launches of a kernel: that of its entry, or a user's function's attribute `prepare`."""
    entry = operation.kernels.get(kernel.name)
    if entry is not None and entry.target == kernel.target:
        if not entry.prepare:
            return None
        module, _, function = entry.prepare.partition(":")
        found: Callable[..., Launch] = getattr(importlib.import_module(module), function)
        return found
    own: Any = getattr(kernel.function, "prepare", None)
    return own if callable(own) else None


def touched_bytes(call: Call, operation: Operation) -> int:
    """Bytes of memory that a launch touches, each once however often: at most its tensors, of pools the slots
    that the call names; and at most what the operation says it moves, of which what is written in place is
    the same memory as what is read."""
    rows = operation.touched(call)
    tensors = 0
    for name, tensor in call.tensors.items():
        row = tensor[:1].nbytes if tensor.dim() else tensor.nbytes
        tensors += len(rows[name]) * row if name in rows else tensor.nbytes
    outputs = sum(
        torch.Size(shape).numel() * dtype.itemsize for shape, dtype in operation.outputs(call).values()
    )
    tensors += outputs
    if operation.work is None:
        return tensors
    work = operation.work(call)
    return min(tensors, max(work.read + min(work.written, outputs), work.written))
