# SPDX-License-Identifier: Apache-2.0
"""Which launches on the virtual GPU depend on others: by attribute, stream, and what runs in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gdnbench.sim import Settings
from gdnbench.sim.host.request import LaunchAttributes
from gdnbench.sim.launch_order import ANY_STREAM
from gdnbench.sim.virtual import VirtualGpu, virtual_gpu
from tests.sim.checker.test_dependent_launches import COPY, DEPENDENTS, FILL, HEADER

BODIES = {"fill": DEPENDENTS + FILL, "copy": COPY}
Between = Callable[[torch.Tensor], object]


def races(
    attributes: LaunchAttributes, streams: tuple[int, int] = (0, 0), between: Between = lambda x: None
) -> bool:
    with virtual_gpu("b200", settings=Settings(check=True)) as gpu:
        x = torch.zeros(64, dtype=torch.int32, device="cuda")
        y = torch.zeros_like(x)
        params = [tensor.data_ptr().to_bytes(8, "little") for tensor in (x, y)]
        launch(gpu, "fill", params, LaunchAttributes(), streams[0])
        between(x)
        launch(gpu, "copy", params, attributes, streams[1])
    return any(finding.kind == "launches race" for report in gpu.reports for finding in report.findings)


def launch(
    gpu: VirtualGpu, name: str, params: list[bytes], attributes: LaunchAttributes, stream: int
) -> None:
    module = gpu.load_module(HEADER.format(name=name, body=BODIES[name].replace(";", ";\n")))
    gpu.launch(module, name, (1, 1, 1), (64, 1, 1), params, attributes=attributes, stream=stream)


def test_by_the_attribute() -> None:
    assert races(LaunchAttributes(programmatic=True))
    assert not races(LaunchAttributes())


@pytest.mark.parametrize(
    ("streams", "dependent"),
    [((1, 1), True), ((1, 2), False), ((ANY_STREAM, 2), True)],
    ids=["one", "two", "not known"],
)
def test_by_the_stream(streams: tuple[int, int], dependent: bool) -> None:
    assert races(LaunchAttributes(programmatic=True), streams) is dependent


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("between", "dependent"),
    [
        (lambda x: x[1:].view(-1), True),  # launches nothing
        (lambda x: torch.empty_like(x), True),
        (lambda x: x + 1, False),
        (lambda x: x.cpu(), False),
        (lambda x: torch.cuda.synchronize(), False),
        (lambda x: torch.cuda.current_stream().synchronize(), False),
    ],
    ids=["view", "empty", "kernel", "copy", "synchronize", "stream"],
)
def test_what_runs_in_between(between: Between, dependent: bool) -> None:
    assert races(LaunchAttributes(programmatic=True), between=between) is dependent
