# SPDX-License-Identifier: Apache-2.0
"""Runs a micro-kernel in the simulator and says where its answer is not the GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.run import run_ptx
from tests.sim.silicon.capture import Capture
from tests.sim.silicon.microkernel import Array, Buffer, MicroKernel

ALIGNMENT = 512
SHOWN = 4


def aligned_copy(data: Array) -> Array:
    """A copy at a multiple of 512 bytes, as the driver allocates."""
    room = np.zeros(data.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    copy[...] = data
    return copy


def simulate(kernel: MicroKernel, capture: Capture, engine: str) -> dict[str, Array]:
    """The answers of one engine, by buffer. Tensor maps are the driver's, with the address put in."""
    memory = GlobalMemory()
    arrays = {buffer.name: aligned_copy(buffer.data) for buffer in kernel.buffers()}
    params: list[object] = []
    for param in kernel.params:
        if isinstance(param, Buffer):
            if param.argument:
                params.append(arrays[param.name])
            else:
                memory.add_array(arrays[param.name], param.name)
        else:
            stored = capture.tensor_maps[f"{kernel.name}/{param.name}"]
            params.append(arrays[param.buffer].ctypes.data.to_bytes(8, "little") + stored[8:])
    launch = (kernel.grid_shape, (kernel.block, 1, 1), params, kernel.smem)
    options: dict[str, Any] = {
        "memory": memory,
        "threads": 1,
        "cluster": None if kernel.cluster == 1 else kernel.cluster_shape,
    }
    for entry in kernel.entries:
        run_ptx(kernel.ptx, entry, *launch, engine=engine, **options)
    return {buffer.name: arrays[buffer.name] for buffer in kernel.results()}


def differences(kernel: MicroKernel, answers: dict[str, Array], capture: Capture) -> Iterator[str]:
    """A line for each row that differs, with its first differing elements and their operands."""
    operands = [b for b in kernel.buffers() if b.name.startswith("in_")]
    for buffer in kernel.results():
        stored = capture.answers[f"{kernel.name}/{buffer.name}"]
        for label, ours, theirs in zip(buffer.labels, answers[buffer.name], stored, strict=True):
            places = np.flatnonzero(ours != theirs)
            if not places.size:
                continue
            shown = []
            for i in places[:SHOWN]:
                inputs = ", ".join(f"{int(b.data[i]):x}" for b in operands if i < b.data.size)
                shown.append(f"[{i}] ({inputs}) {int(ours[i]):x}, GPU {int(theirs[i]):x}")
            yield f"{label}: {places.size} of {ours.size} differ: {'; '.join(shown)}"
