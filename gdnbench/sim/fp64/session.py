# SPDX-License-Identifier: Apache-2.0
"""Launches with shadows, and the numbers of tensors that they wrote.

shadows = Fp64Shadows()
with active(Settings(watch=shadows)):
    launch(compiled, a, b, c)
numbers, shadowed = shadows.numbers(c)
for loss in shadows.losses(): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gdnbench.sim.errors import Place
from gdnbench.sim.fp64.constants import Constants
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.machine.shadow_cells import SHAPES, Bools, Doubles, GlobalCells, make_cells, read_elements
from gdnbench.sim.ptx.ir import Kernel
from gdnbench.sim.value_trace import End
from gdnbench.sim.watch import Observed

if TYPE_CHECKING:
    from gdnbench.sim.host.arguments import Region
    from gdnbench.sim.machine.cta import Engine, Launch

_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}


@dataclass(frozen=True, slots=True)
class LostShadows:
    """Elements that an instruction of a kernel left without a shadow though an operand had one."""

    kernel: str
    instruction: str
    place: Place
    count: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kernel": self.kernel,
            "instruction": self.instruction,
            "ptx_line": self.place.line,
            "file": self.place.file,
            "line": self.place.file_line,
            "count": self.count,
        }


class Fp64Shadows:
    """Shadows of all launches that it watches, one after the other. Seam: `Watch`. `named` are numbers that
    may stand behind f32 parameters, such as the scalars of a call (`constants`)."""

    def __init__(self, named: Iterable[float] = ()) -> None:
        self.constants = Constants(named)
        self._cells = GlobalCells()
        self._lost: list[tuple[Kernel, Counter[int]]] = []
        self.launches = 0

    def on_launch_begin(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed:
        self.launches += 1
        return _ObservedShadows(self._begin)

    def on_launch_end(self, regions: Sequence[Region]) -> None:
        """Nothing to do: shadows stay."""

    def _begin(self, launch: Launch) -> Engine:
        from gdnbench.sim.fp64.engine import ShadowEngine

        engine = ShadowEngine(launch.kernel, self.constants)
        launch.memory.add_shadows(self._cells)
        launch.shadowed = True
        self._lost.append((launch.kernel, launch.lost_shadows))
        return engine

    def numbers(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The fp64 numbers of a tensor's elements, and which of them come from a shadow; an element without
        one is the number that its bits are. Raises TypeError for a tensor of other elements than floats."""
        if tensor.dtype not in _NAMES:
            raise TypeError(f"a tensor of {tensor.dtype} has no shadows: floats of 8 to 64 bits have")
        shape = SHAPES[_NAMES[tensor.dtype]]
        found, present = tensor.to(torch.float64), torch.zeros(tensor.shape, dtype=torch.bool)
        if not tensor.numel():
            return found, present
        steps = [stride * shape.size for stride in tensor.stride()]
        address = tensor.data_ptr()
        span = sum((extent - 1) * step for extent, step in zip(tensor.shape, steps, strict=True)) + shape.size
        if not self._cells.covers(address, span):
            return found, present
        cells = self._cells.strided(address, (*tensor.shape, shape.size), (*steps, 1))
        data = tensor.contiguous().view(torch.uint8).reshape(*tensor.shape, shape.size).numpy()
        values, shadowed = read_elements(np.ascontiguousarray(cells), data, shape)
        return _tensor(values[..., 0]), _tensor(shadowed[..., 0])

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """The elements of `target`, which are those of `source`, get its shadows."""
        if source.dtype not in _NAMES or not source.numel():
            return
        values, shadowed = self.numbers(source)
        shape = SHAPES[_NAMES[target.dtype]]
        steps = [stride * shape.size for stride in target.stride()]
        span = sum((extent - 1) * step for extent, step in zip(target.shape, steps, strict=True))
        self._cells.cover([(target.data_ptr(), target.data_ptr() + span + shape.size)])
        data = target.contiguous().view(torch.uint8).reshape(*target.shape, shape.size).numpy()
        cells = self._cells.strided(target.data_ptr(), (*target.shape, shape.size), (*steps, 1))
        cells[...] = make_cells(values.numpy()[..., None], data, shape, shadowed.numpy()[..., None])

    def losses(self) -> list[LostShadows]:
        """What lost its shadow, the most first."""
        total: Counter[tuple[str, str, Place]] = Counter()
        for kernel, lost in self._lost:
            for pc, count in lost.items():
                ins = kernel.instructions[pc]
                total[kernel.name, ins.name, ins.place] += count
        return [LostShadows(*key, count) for key, count in total.most_common()]


def _tensor(values: Doubles | Bools) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


@dataclass(frozen=True, slots=True)
class _ObservedShadows(Observed):
    """Runs the launch on an engine with shadows, whichever engine the call has."""

    begin: Callable[[Launch], Engine] | None = None

    def __init__(self, begin: Callable[[Launch], Engine]) -> None:
        Observed.__init__(self)
        object.__setattr__(self, "begin", begin)

    def wrap_engine(self, launch: Launch, engine: Engine, name: str) -> Engine:
        assert self.begin is not None
        return self.begin(launch)

    def end_launch(self, how: End) -> None:
        """Shadows need no end."""
