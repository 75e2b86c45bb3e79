# SPDX-License-Identifier: Apache-2.0
"""The simulator's answers to the micro-kernels, as stored for a GPU to be compared with.

An answer that is TMEM is stored as its XOR with what TMEM was filled with: most cells keep that.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.sim.blackwell.cases import Assumption, assumptions
from tests.sim.silicon.capture import Capture, load
from tests.sim.silicon.microkernel import Array, MicroKernel

FAMILY = "answers"
FOLDER = Path(__file__).parent


def simulate(kernel: MicroKernel, engine: str = "interpreter", schedule: str = "late") -> Array:
    """What the simulator answers."""
    # Not at the top: on the machine with the GPU the simulator need not be installed.
    from gdnbench.sim.run import run_ptx

    buffers = {buffer.name: np.ascontiguousarray(buffer.data).copy() for buffer in kernel.buffers()}
    run_ptx(
        kernel.ptx,
        kernel.name,
        (kernel.grid, 1, 1),
        (kernel.block, 1, 1),
        list(buffers.values()),
        engine=engine,
        schedule=schedule,
    )
    return buffers["out"]


def store() -> Path:
    """Simulate everything and write the answers."""
    capture = Capture({"kernels": {}})
    for kernel in all_kernels():
        capture.about["kernels"][kernel.name] = kernel.fingerprint()
        capture.answers[kernel.name] = without_fill(kernel, simulate(kernel))
    path = FOLDER / f"{FAMILY}.npz"
    capture.save(path)
    return path


def without_fill(kernel: MicroKernel, answer: Array) -> Array:
    """An answer as it is stored, and back."""
    fill = next(buffer.data for buffer in kernel.buffers() if buffer.name == "fill")
    return answer ^ fill if answer.shape == fill.shape else answer


def stored() -> Capture:
    """The stored answers as a GPU must give them."""
    capture = load(FAMILY, FOLDER)
    for kernel in all_kernels():
        if kernel.name in capture.answers:
            capture.answers[kernel.name] = without_fill(kernel, capture.answers[kernel.name])
    return capture


def all_kernels() -> list[MicroKernel]:
    return [kernel for assumption in assumptions() for kernel in assumption.kernels]


def stale(capture: Capture) -> list[str]:
    """Micro-kernels that changed since their answers were stored, or that have none."""
    known = capture.about["kernels"]
    return [kernel.name for kernel in all_kernels() if known.get(kernel.name) != kernel.fingerprint()]


def differences(assumption: Assumption, capture: Capture, answers: dict[str, Array | str]) -> list[str]:
    """One line for every micro-kernel of an assumption that a GPU answers otherwise, or not at all."""
    lines = []
    for kernel in assumption.kernels:
        answer, expected = answers[kernel.name], capture.answers[kernel.name]
        if isinstance(answer, str):
            lines.append(f"{kernel.name}: {answer}")
            continue
        wrong = np.argwhere(answer != expected)
        if len(wrong):
            lane, word = wrong[0]
            lines.append(
                f"{kernel.name}: {len(wrong)} of {expected.size} words differ, the first in lane {lane}, "
                f"word {word}: GPU {int(answer[lane, word]):#010x}, "
                f"simulator {int(expected[lane, word]):#010x}"
            )
    return lines
