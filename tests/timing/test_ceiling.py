# SPDX-License-Identifier: Apache-2.0
"""The memory's ceiling: which ways are tried, how the best is found, and what a CPU measures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.timing import ceiling
from gdnbench.timing.ceiling import arch_of, grids, measure, source_of, sources, title
from gdnbench.timing.clocks import PerfCounter
from gdnbench.timing.rotation import RotationOptions

CPU = torch.device("cpu")
SMALL = RotationOptions(placements=1, touched=8 << 20, most_sets=8)


def test_a_cpu_copies_and_writes_in_place() -> None:
    """Between a hundredth of what one core of any machine with this library's instructions reaches and more
    than any has."""
    found = measure(CPU, 1 << 20, SMALL)
    assert set(found.candidates) == {"torch copy_", "torch mul_ in place"}
    assert found.bytes_per_second == max(found.candidates.values()) == found.candidates[found.method]
    assert 1e8 < found.bytes_per_second < 1e13


class Timed:
    """A clock that moves by what a launch costs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-12
        return self.now


def test_the_best_way_is_the_ceiling_and_bytes_count_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 MiB moved in 3 s, 1 s and 2 s: 1 MiB/s. A copy reads and writes half a MiB each."""
    now = Timed()
    clock = PerfCounter(now)
    sizes = set()

    def launch(seconds: float, source: Tensor, target: Tensor) -> None:
        now.now += seconds
        sizes.add((source.nbytes, target.nbytes))

    def ways(device: torch.device, moved: int, name: str) -> Iterator[tuple[str, Any, Any]]:
        for name, seconds in (("slow", 3.0), ("fast", 1.0), ("middle", 2.0)):
            yield (
                name,
                clock,
                lambda source, target, seconds=seconds: partial(launch, seconds, source, target),
            )

    monkeypatch.setattr(ceiling, "_ways", ways)
    found = measure(CPU, 1 << 20, SMALL)
    assert found.method == "fast"
    assert found.bytes_per_second == pytest.approx(1 << 20, rel=1e-9)
    assert found.candidates["slow"] == pytest.approx((1 << 20) / 3, rel=1e-9)
    assert sizes == {(1 << 19, 1 << 19)}


def test_the_cache_is_flushed_before_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(ceiling.cache, "read_memory", lambda memory, total: log.append("flush"))
    clock = PerfCounter(Timed())
    clock.least = 0.0
    clock.least = 1e-13

    def ways(device: torch.device, moved: int, name: str) -> Iterator[tuple[str, Any, Any]]:
        yield "one", clock, lambda source, target: lambda: log.append("launch")

    monkeypatch.setattr(ceiling, "_ways", ways)
    measure(CPU, 1 << 20, SMALL)
    assert log[0] == "launch"  # compiles
    assert log[1:] == ["flush", *["launch"] * 8] * (ceiling.ROUNDS + 1)


def test_grids_are_one_cta_a_tile_or_what_is_resident() -> None:
    source = source_of(256, 4, False)
    tile = 256 * 4 * 16
    assert grids(source, 100 * tile, 132) == (100, 100)
    assert grids(source, 10_000 * tile, 132) == (10_000, 132 * 8)
    assert grids(source, 1, 132) == (1, 1)
    assert grids(source, tile + 1, 132) == (2, 2)


def test_sources_are_named_by_what_they_are() -> None:
    assert len({source.symbol for source in sources()}) == len(sources()) == 8
    assert len({title(source) for source in sources()}) == 8
    assert title(source_of(512, 4, True)) == "512 threads x 4, not into L1"


def test_devices_have_a_target_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Something")
    for capability, arch in (((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_100f")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert arch_of(device) == arch
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(NotImplementedError, match=r"9\.0, 10\.0, 10\.3; NVIDIA Something has 8\.0$"):
        arch_of(device)


def test_nothing_has_no_ceiling() -> None:
    with pytest.raises(BadInputError, match="0 bytes"):
        measure(CPU, 0)


def test_a_few_bytes_are_measured_as_32() -> None:
    assert measure(CPU, 1, SMALL).bytes_per_second > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_reaches_what_its_memory_is_said_to_and_no_more() -> None:
    """Of 256 MiB, whose cold rounds no L2 helps: above half of the product of the memory's clock and width,
    and not above it. Own kernels are among the best, else they measure no ceiling."""
    properties = torch.cuda.get_device_properties(0)
    said = 2 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8
    found = measure(torch.device("cuda"), 256 << 20, RotationOptions(placements=1), "events")
    assert said / 2 < found.bytes_per_second <= said, found
    own = max(rate for name, rate in found.candidates.items() if name.startswith("own"))
    assert own > 0.95 * found.bytes_per_second, found
