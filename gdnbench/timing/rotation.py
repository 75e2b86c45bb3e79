# SPDX-License-Identifier: Apache-2.0
"""Sets of buffers that launches take in turn, each at an address of its own.

Where buffers lie moves identical kernels by 6 %, so every set and every placement lies at random offsets of
an arena, and all kernels under comparison are given the same memory: where they take a tensor in different
forms (another layout of the state, another form of the gate), the forms are written over one another, outside
the time. A tensor that is larger in another form has a region of its own there.

Before a launch is timed its set is as the call was: tensors that launches write are copied again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.errors import BadInputError, CannotRunError

GRANULE = 512
"""Bytes that offsets are multiples of; `alignment` of a GPU."""
LEAST_SPREAD, MOST_SPREAD = 4 << 10, 64 << 10
"""Bytes of the largest gap between two tensors: a page at least; more would cost memory and pages of the
TLB, which tensors of a real program share."""


@dataclass(frozen=True, slots=True)
class RotationOptions:
    """How much is rotated; None means a default of the device."""

    placements: int = 4
    touched: int = 512 << 20
    """Bytes that pass through the cache before a set is used again."""
    round_bytes: int | None = None
    """Bytes that the launches of a cold round touch together, if `most_sets` allows. What a kernel wrote and
    the cache still holds when the round ends was never paid for: 50 MB of 2 GiB are 2.5 %."""
    most_sets: int | None = None
    memory: int | None = None
    """Bytes of all placements together."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("placements", "touched", "round_bytes", "most_sets", "memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInputError(f"{name} of a rotation is {value}; it is 1 or more")


@dataclass(frozen=True, slots=True)
class Size:
    """Of a rotation."""

    placements: int
    sets: int
    notes: tuple[str, ...] = ()


def size(options: RotationOptions, device: torch.device, touched: int, held: int, cold: bool) -> Size:
    """How many placements and sets: `touched` bytes that a launch touches, `held` bytes of a set in memory.

    Fewer sets, then fewer placements, where memory is short; the notes say so. CannotRunError if not even
    two sets (one where launches are warm) fit.
    """
    wanted = passing = least = 1
    if cold:
        most = options.most_sets or most_sets(device)
        round_bytes = options.round_bytes or (2 << 30 if device.type == "cuda" else options.touched)
        least = 2
        passing = max(least, min(most, -(-options.touched // max(touched, 1)) + 1))
        wanted = max(passing, min(most, -(-round_bytes // max(touched, 1))))
    budget = options.memory or _memory(device)
    for placements in range(options.placements, 0, -1):
        sets = min(wanted, budget // (placements * held))
        if sets >= (passing if placements > 1 else least):
            return Size(placements, sets, _short(placements, options.placements, sets, wanted))
    raise CannotRunError(
        f"{least} sets of buffers of {held:,} bytes each do not fit into {budget:,} bytes of {device}; time a"
        " smaller record, or allow more memory"
    )


def most_sets(device: torch.device) -> int:
    """What is prepared and captured for each, kernel and placement takes up to a ms of the host's on a GPU;
    on a CPU a round of so many is long. Fewer than 512 MB are cold all the same: a round has each set once,
    and so much is read between rounds."""
    return 256 if device.type == "cuda" else 64


def _short(placements: int, all_placements: int, sets: int, wanted: int) -> tuple[str, ...]:
    notes = []
    if sets < wanted:
        notes.append(f"{sets} sets of buffers instead of {wanted}: memory is short")
    if placements < all_placements:
        notes.append(f"{placements} placements instead of {all_placements}: memory is short")
    return tuple(notes)


def _memory(device: torch.device) -> int:
    """What a rotation may take of `device`: kernels need workspaces beside it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what an earlier record left counts as free
        return torch.cuda.mem_get_info(device)[0] * 2 // 5
    return 4 << 30


def alignment(device: torch.device) -> int:
    """Bytes that torch's allocator aligns to. A tensor that lies off it, as a part of another may, does so by
    as much in a set, so that a kernel finds its tensors aligned as well as ever and no better."""
    return GRANULE if device.type == "cuda" else 64


def span(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one."""
    if not tensor.numel():
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def flat(tensor: Tensor) -> Tensor:
    """All of a tensor's span as bytes, what lies between its elements too."""
    elements = span(tensor) // tensor.element_size()
    return tensor.as_strided((elements,), (1,)).view(torch.uint8)


class CallTensors:
    """A call's tensors in the conventions of one kernel: what sets are filled with."""

    def __init__(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], mutated: frozenset[str]):
        """`inputs` are never written: sets are filled from them. Of `outputs` only shapes, strides and dtypes
        count. `mutated` names the inputs that launches write."""
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self.mutated = mutated

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**self.inputs, **self.outputs}


@dataclass(frozen=True, slots=True)
class _Region:
    """Where one tensor may lie in one set."""

    arena: Tensor  # uint8
    offset: int
    bytes: int

    @property
    def address(self) -> int:
        return self.arena.data_ptr() + self.offset

    def place_tensor(self, tensor: Tensor) -> Tensor:
        """A tensor in this region with the dtype, shape and strides of `tensor`."""
        part = self.arena[self.offset : self.offset + span(tensor)].view(tensor.dtype)
        return part.as_strided(tensor.shape, tensor.stride())


@dataclass(frozen=True, slots=True)
class _Placed:
    """A form on one placement."""

    buffers: list[dict[str, Tensor]]  # by set
    bytes: dict[str, list[Tensor]]  # the same of inputs, by name, for copies


class Rotation:
    """`placements` times `sets` sets of buffers for the forms of one call, on one device."""

    def __init__(self, first: CallTensors, size: Size, device: torch.device, seed: int) -> None:
        self.placements = size.placements
        self.sets = size.sets
        self._device = device
        self._seed = seed
        self._arenas = 0
        self._memory: list[list[Tensor]] = []
        # By placement, set and name: a tensor has several regions where forms of it outgrow the first.
        self._regions: list[list[dict[str, list[_Region]]]] = [
            [{} for _ in range(size.sets)] for _ in range(size.placements)
        ]
        self._content: list[dict[tuple[str, int], Tensor]] = [{} for _ in range(size.placements)]
        self._placed: dict[CallTensors, list[_Placed]] = {}
        self._chosen: dict[CallTensors, dict[str, int]] = {}
        self.add(first)

    def add(self, form: CallTensors) -> None:
        """Make room for a form: in the first region that it fits into, else in one of its own."""
        if form in self._placed:
            return
        chosen = {name: self._fitting(name, tensor) for name, tensor in form.tensors.items()}
        lacking = {name: form.tensors[name] for name, place in chosen.items() if place is None}
        if lacking:
            for placement in range(self.placements):
                self._lay(lacking, placement)
            self._arenas += 1
        there = self._regions[0][0]
        places = {name: len(there[name]) - 1 if place is None else place for name, place in chosen.items()}
        self._chosen[form] = places
        self._placed[form] = [self._on(form, places, sets) for sets in self._regions]

    def _fitting(self, name: str, tensor: Tensor) -> int | None:
        for place, region in enumerate(self._regions[0][0].get(name, [])):
            off = (region.address - tensor.data_ptr()) % alignment(self._device)
            if region.bytes >= span(tensor) and not off:
                return place
        return None

    @staticmethod
    def _on(
        form: CallTensors, places: Mapping[str, int], sets: Sequence[Mapping[str, list[_Region]]]
    ) -> _Placed:
        tensors = form.tensors
        buffers = [
            {name: regions[name][places[name]].place_tensor(tensor) for name, tensor in tensors.items()}
            for regions in sets
        ]
        return _Placed(buffers, {name: [flat(one[name]) for one in buffers] for name in form.inputs})

    def buffers(self, form: CallTensors, placement: int, index: int) -> dict[str, Tensor]:
        """The tensors of one set, by name; what is in them is for `load` to say."""
        return self._placed[form][placement].buffers[index]

    def memory(self, placement: int, index: int) -> Tensor:
        """All bytes of one set of the first form, gaps between tensors included, for the control to read."""
        return self._memory[placement][index]

    def load(self, form: CallTensors, placement: int) -> None:
        """Make every set of a placement what the call was: tensors that launches write are copied, others
        where another form was there."""
        content = self._content[placement]
        for name, tensor in form.inputs.items():
            key = name, self._chosen[form][name]
            if name in form.mutated or content.get(key) is not tensor:
                source = flat(tensor)
                for target in self._placed[form][placement].bytes[name]:
                    target.copy_(source)
                content[key] = tensor

    def _lay(self, tensors: Mapping[str, Tensor], placement: int) -> None:
        """Regions for `tensors` in every set of a placement, in an arena of their own."""
        generator = random.Random(f"{self._seed} {self._arenas} {placement}")
        spread = gap_of(list(tensors.values()))
        offsets: list[dict[str, int]] = []
        end = 0
        for _ in range(self.sets):
            names = list(tensors)
            generator.shuffle(names)
            found = {}
            for name in names:
                start = -(-end // GRANULE) * GRANULE + generator.randrange(0, spread + 1, GRANULE)
                start += tensors[name].data_ptr() % alignment(self._device)
                found[name] = start
                end = start + max(span(tensors[name]), 1)
            offsets.append(found)
        # Zeros: what lies between elements is then no NaN, and the pages are there before anything is timed.
        arena = torch.zeros(end + GRANULE, dtype=torch.uint8, device=self._device)
        skipped = -arena.data_ptr() % GRANULE
        arena = arena[skipped : skipped + end]
        if not self._arenas:
            self._memory.append([_part(arena, tensors, found) for found in offsets])
        for index, found in enumerate(offsets):
            for name, start in found.items():
                regions = self._regions[placement][index].setdefault(name, [])
                regions.append(_Region(arena, start, span(tensors[name])))


def _part(arena: Tensor, tensors: Mapping[str, Tensor], offsets: Mapping[str, int]) -> Tensor:
    """From the first of the tensors at `offsets` to the last one's end, in words of 8 bytes."""
    begin = min(offsets.values()) // GRANULE * GRANULE
    end = max(offset + span(tensors[name]) for name, offset in offsets.items())
    return arena[begin : begin + (end - begin) // 8 * 8]


def gap_of(tensors: Sequence[Tensor]) -> int:
    """Bytes of the largest gap: so that gaps, half of it each, take about a quarter of a set."""
    share = sum(map(span, tensors)) // (2 * max(len(tensors), 1))
    return min(max(share // GRANULE * GRANULE, LEAST_SPREAD), MOST_SPREAD)


def held_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of a set in memory, gaps and alignment at their largest."""
    spread = gap_of(list(tensors.values()))
    return sum(span(tensor) + spread + 2 * GRANULE for tensor in tensors.values())
