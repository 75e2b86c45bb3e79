# SPDX-License-Identifier: Apache-2.0
"""Value traces: what the simulated warps computed, against the same sums made by torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench import sim
from gdnbench.sim.errors import InputError
from gdnbench.sim.machine.cta import Launch
from gdnbench.sim.simulate import Settings
from gdnbench.sim.value_trace import (
    LOAD,
    STORE,
    End,
    Event,
    Recorder,
    Selection,
    TracedInstruction,
    traced_instructions,
)
from gdnbench.sim.watch import Observed
from tests.messages import wording
from tests.sim.kernels import compiling, simt

ROWS, COLUMNS, ALPHA = 5, 60, 0.3
THREADS = simt.THREADS


@dataclass
class Kept:
    """Keeps what it is told. Seam: `Recorder`."""

    selection: Selection
    instructions: list[TracedInstruction] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ended: list[End] = field(default_factory=list)

    def begin_launch(self, launch: Launch, engine: str) -> None:
        self.instructions = traced_instructions(launch.kernel, self.selection)

    def add_event(self, *event: Any) -> None:
        self.events.append(Event(*event))

    def end_launch(self, how: End) -> None:
        self.ended.append(how)

    def named(self, event: Event, op: str, space: str) -> bool:
        parts = self.instructions[event.pc].name.split(".")
        return parts[0] == op and space in parts


class Recording:
    """A watch that has every launch recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.begun: list[int] = []

    def on_launch_begin(self, entry: str, grid: object, regions: object) -> Observed:
        return Observed(self.recorder, self.begun.append)

    def on_launch_end(self, regions: object) -> None: ...


@pytest.fixture(scope="module")
def kernel() -> object:
    shape = (ROWS, COLUMNS)
    x, y = (compiling.fake(torch.bfloat16, shape) for _ in range(2))
    return compiling.compiled(simt.scaled_sum, x, y, compiling.fake(torch.float32, shape), 1.0)


def run(kernel: object, recorder: Recorder) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Recording]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(ROWS, COLUMNS, generator=generator).bfloat16() for _ in range(2))
    z = torch.full((ROWS, COLUMNS), torch.nan)
    watch = Recording(recorder)
    with sim.active(Settings(watch=watch)):
        sim.launch(kernel, x, y, z, ALPHA)
    return x, y, z, watch


def test_values_are_those_of_the_lanes(kernel: object) -> None:
    kept = Kept(Selection(frozenset({1})))
    x, y, z, watch = run(kernel, kept)
    sums = ALPHA * x.float() + y.float()
    torch.testing.assert_close(z, sums, rtol=2**-22, atol=2**-22)  # one rounding, fused or not
    assert watch.begun == [0, 1, 2]
    assert kept.ended == [End.COMPLETE]
    assert {event.cta for event in kept.events} == {1}
    assert {event.warp for event in kept.events} == {0, 1, 2, 3}
    for name, kind, wanted in (("st", "f32", z), ("ld", "bf16", x)):
        for warp in range(4):
            first = THREADS + 32 * warp
            event = next(one for one in kept.events if one.warp == warp and kept.named(one, name, "global"))
            bits = event.values[0].astype(np.uint32 if kind == "f32" else np.uint16)
            here = wanted.flatten()[first : first + 32]
            view = here.view(torch.int32 if kind == "f32" else torch.int16).numpy()
            assert event.lanes == 0xFFFFFFFF
            assert event.occurrence == 0
            np.testing.assert_array_equal(bits.view(view.dtype), view)


def test_formats_come_from_uses_and_places_are_the_source(kernel: object) -> None:
    kept = Kept(Selection(frozenset({0})))
    run(kernel, kept)
    source = Path(simt.__file__).read_text().splitlines()
    for one in (kept.instructions[event.pc] for event in kept.events):
        if one.kind == STORE:
            assert [register.format for register in one.registers] == ["f32"]
        if one.kind == LOAD and "global" in one.name:
            assert [register.format for register in one.registers] == ["bf16"]
        if one.kind in (STORE, LOAD) and "global" in one.name:
            assert one.file is not None
            assert one.file_line is not None
            assert Path(one.file).name == "simt.py"
            assert "z[place] = " in source[one.file_line - 1]
            (base,) = one.addresses
            assert any(base in {reg.index for reg in ins.registers} for ins in kept.instructions)


def test_a_selection_is_kept_to(kernel: object) -> None:
    kept = Kept(Selection.parse("warp=2 class=store"))
    run(kernel, kept)
    found = [(event.cta, event.warp, kept.instructions[event.pc].kind) for event in kept.events]
    assert found == [(0, 2, STORE)]
    everything = Kept(Selection.parse("all"))
    run(kernel, everything)
    assert {event.cta for event in everything.events} == {0, 1, 2}
    assert Selection.parse("cta=0-9999999999").includes_cta(7_000_000_000)


@pytest.mark.parametrize("text", ["lane=3", "cta=", "cta=4-2", "class=load1", "source=8-9", "lines=a", "x"])
def test_a_selection_that_selects_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=wording("sim.select-wrong")):
        Selection.parse(text)
