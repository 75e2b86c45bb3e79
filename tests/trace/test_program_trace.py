# SPDX-License-Identifier: Apache-2.0
"""Traces of launches on a virtual GPU, which several processes write into one store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gdnbench.diff.traces.compare import compare
from gdnbench.diff.traces.judging import Bound
from gdnbench.sim.virtual import LaunchChoice, virtual_gpu
from gdnbench.trace.layout import LAUNCHES, launch_name
from gdnbench.trace.program_trace import attach_to
from gdnbench.trace.reader import open_trace
from gdnbench.trace.request import TraceRequest
from gdnbench.trace.writer import TraceWriter, make_trace
from tests.trace import sums

ROUNDS = 3


def run(path: Path, request: TraceRequest, launches: str | None, count: int) -> None:
    """`count` launches of the kernel on a GPU of its own: the n-th of x = n, n + 1, ..."""
    with virtual_gpu("b200") as gpu:
        attach_to(gpu, request.as_json())
        gpu.choice = None if launches is None else LaunchChoice.parse(launches)
        module = gpu.load_module(sums.PTX.replace("@FILE@", str(path.with_name("sums.py"))))
        x, z = (gpu.memory.allocate(4 * sums.LANES) for _ in range(2))
        for number in range(count):
            x.view(np.float32)[:] = np.arange(sums.LANES) + number
            params = [int(array.ctypes.data).to_bytes(8, "little") for array in (x, z)]
            params.append(ROUNDS.to_bytes(4, "little"))
            gpu.launch(module, "sums", (1, 1, 1), (sums.LANES, 1, 1), params)


def test_chosen_launches_of_two_processes_are_in_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    make_trace(path)
    request = TraceRequest(str(path), "class=store")
    run(path, request, "1", 3)
    run(path, request, None, 2)
    with open_trace(path) as trace:
        assert [launch.attributes["launch"] for launch in trace.launches] == [1, 0, 1]
        for launch in trace.launches:
            assert launch.attributes["origin"].endswith("in run")
            assert "test_program_trace.py" in launch.attributes["origin"]
            (event,) = launch.read()
            stored = event.values[0].astype(np.uint32).view(np.float32)
            # 0x + 1x + 2x, exact in f32
            assert stored.tolist() == (3 * (np.arange(32) + launch.attributes["launch"])).tolist()


@pytest.mark.slow
def test_diff_compares_two_traces_of_a_program(tmp_path: Path) -> None:
    paths = tmp_path / "a.zarr", tmp_path / "b.zarr"
    for path, launches in zip(paths, ("0", "1"), strict=True):
        make_trace(path)
        run(path, TraceRequest(str(path)), launches, 2)
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        assert compare(a, a, Bound()).equal
        found = compare(a, b, Bound())  # of another x
        assert not found.equal
        first = found.launches[0].first
        assert first is not None
        assert first["a"]["ptx"].startswith("ld.global.f32")


def test_a_launch_without_metadata_is_passed_over(tmp_path: Path) -> None:
    """A process that is killed at the start of a launch leaves an empty group."""
    path = tmp_path / "a.zarr"
    make_trace(path)
    (path / LAUNCHES / launch_name(0)).mkdir()
    run(path, TraceRequest(str(path), "class=store"), None, 1)
    assert TraceWriter(path).launches == 2
    with open_trace(path) as trace:
        (launch,) = trace.launches
        assert launch.end == "complete"
