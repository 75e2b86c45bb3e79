"""Value traces: what the simulated warps computed, against the same sums made by torch."""

from __future__ import annotations

from pathlib import Path

import compiling
import numpy as np
import pytest
import simt
import torch

from gdnbench import sim
from gdnbench.errors import BadInputError
from gdnbench.sim.simulate import Settings
from gdnbench.sim.value_trace import LOAD, STORE, Event, Selection, Trace, TraceWriter, read
from gdnbench.sim.watch import Observed

ROWS, COLUMNS, ALPHA = 5, 60, 0.3
THREADS = simt.THREADS


class Recording:
    """A watch that traces every launch."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self.begun: list[int] = []

    def begins(self, entry: str, grid: object, regions: object) -> Observed:
        return Observed(self.writer, self.begun.append)

    def ended(self, regions: object) -> None: ...


@pytest.fixture(scope="module")
def kernel() -> object:
    shape = (ROWS, COLUMNS)
    x, y = (compiling.fake(torch.bfloat16, shape) for _ in range(2))
    return compiling.compiled(simt.scaled_sum, x, y, compiling.fake(torch.float32, shape), 1.0)


def run(kernel: object, writer: TraceWriter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Recording]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(ROWS, COLUMNS, generator=generator).bfloat16() for _ in range(2))
    z = torch.full((ROWS, COLUMNS), torch.nan)
    watch = Recording(writer)
    with sim.active(Settings(watch=watch)):
        sim.launch(kernel, x, y, z, ALPHA)
    return x, y, z, watch


def test_values_are_those_of_the_lanes(kernel: object, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    x, y, z, watch = run(kernel, TraceWriter(path, Selection(frozenset({1}))))
    sums = ALPHA * x.float() + y.float()
    torch.testing.assert_close(z, sums, rtol=2**-22, atol=2**-22)  # one rounding, fused or not
    assert watch.begun == [0, 1, 2]
    with read(path) as trace:
        events = list(trace.events())
        assert trace.recorded == len(events)
        assert trace.dropped == 0
    assert {event.cta for event in events} == {1}
    assert {event.warp for event in events} == {0, 1, 2, 3}
    for name, kind, wanted in (("st", "f32", z), ("ld", "bf16", x)):
        found = {event.warp: event for event in events if named(trace, event, name, "global")}
        for warp in range(4):
            first = THREADS + 32 * warp
            event = found[warp] if name == "st" else first_load(trace, events, warp)
            bits = event.values[0].astype(np.uint32 if kind == "f32" else np.uint16)
            here = wanted.flatten()[first : first + 32]
            view = here.view(torch.int32 if kind == "f32" else torch.int16).numpy()
            assert event.lanes == 0xFFFFFFFF
            np.testing.assert_array_equal(bits.view(view.dtype), view)


def named(trace: Trace, event: Event, op: str, space: str) -> bool:
    parts = trace.instructions[event.pc].name.split(".")
    return parts[0] == op and space in parts


def first_load(trace: Trace, events: list[Event], warp: int) -> Event:
    return next(event for event in events if event.warp == warp and named(trace, event, "ld", "global"))


def test_formats_come_from_uses_and_places_are_the_source(kernel: object, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    run(kernel, TraceWriter(path, Selection(frozenset({0}))))
    with read(path) as trace:
        used = [trace.instructions[event.pc] for event in trace.events()]
    source = Path(simt.__file__).read_text().splitlines()
    for one in used:
        if one.kind == STORE:
            assert [register.format for register in one.registers] == ["f32"]
        if one.kind == LOAD and "global" in one.name:
            assert [register.format for register in one.registers] == ["bf16"]
        if one.kind in (STORE, LOAD) and "global" in one.name:
            assert one.file is not None
            assert one.file_line is not None
            assert Path(one.file).name == "simt.py"
            assert "z[place] = " in source[one.file_line - 1]


def test_a_selection_is_kept_to_and_a_limit_said(kernel: object, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    selection = Selection(frozenset({0}), warps=frozenset({2}), classes=frozenset({STORE}))
    run(kernel, TraceWriter(path, selection))
    with read(path) as trace:
        events = list(trace.events())
    assert [(event.cta, event.warp, trace.instructions[event.pc].kind) for event in events] == [(0, 2, STORE)]
    run(kernel, TraceWriter(path, Selection(frozenset({0, 1, 2})), limit=10))
    with read(path) as trace:
        assert len(list(trace.events())) == trace.recorded == 10
        assert trace.dropped > 0


def test_a_file_that_is_no_trace_or_not_whole(kernel: object, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("no trace")
    with pytest.raises(BadInputError, match=r"cannot be read|is no"), read(path):
        pass
    run(kernel, TraceWriter(path, Selection(frozenset({0}))))
    path.write_bytes(path.read_bytes()[:-40])
    with read(path) as trace, pytest.raises(BadInputError, match="ends in the middle"):
        list(trace.events())
