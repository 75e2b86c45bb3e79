# SPDX-License-Identifier: Apache-2.0
"""Observes the launches of one version while they are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.sim import Dim3, Observed
from gdnbench.sim.host import Region
from gdnbench.sim.value_trace import CLASSES, OTHER, Selection
from gdnbench.trace.watching import Tracing
from gdnbench.trace.writer import TraceWriter, make_trace


def _tensors(regions: Sequence[Region]) -> dict[str, Tensor]:
    return {region.name: region.keeper for region in regions if isinstance(region.keeper, Tensor)}


@dataclass(slots=True)
class Survey:
    """Writes what every launch changed: `FOLDER/<number>.pt` has for each tensor its elements and which of
    them are new. `launches` lists entry, grid, addresses of the changed tensors and a digest of them, as
    plain JSON."""

    folder: Path
    launches: list[dict[str, Any]] = field(default_factory=list)
    _before: dict[str, Tensor] = field(default_factory=dict)

    def on_launch_begin(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> None:
        self._before = {name: tensor.clone() for name, tensor in _tensors(regions).items()}
        self.launches.append({"entry": entry, "grid": list(grid), "tensors": {}})

    def on_launch_end(self, regions: Sequence[Region]) -> None:
        kept = {}
        hasher = blake3()
        for name, tensor in _tensors(regions).items():
            changed = as_integers(tensor) != as_integers(self._before[name])
            if changed.any():
                kept[name] = (tensor.detach().clone(), changed)
                self.launches[-1]["tensors"][name] = tensor.data_ptr()
                hasher.update(name.encode() + as_integers(tensor.contiguous()).numpy().tobytes())
        self.launches[-1]["digest"] = hasher.hexdigest()
        torch.save(kept, self.folder / f"{len(self.launches) - 1}.pt")


@dataclass(slots=True)
class WriterSearch:
    """Finds the CTA of a launch that writes one element of a tensor: `found`, None if it cannot be
    determined."""

    launch: int
    tensor: str
    place: tuple[int, ...]
    found: int | None = None
    _count: int = 0
    _element: Tensor | None = None
    _last: int = 0
    _running: int | None = None

    def on_launch_begin(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None:
        self._count += 1
        if self._count - 1 != self.launch:
            return None
        element = _tensors(regions)[self.tensor][self.place]
        self._element = as_integers(element)
        self._last = int(self._element)
        return Observed(before_cta=self._before)

    def on_launch_end(self, regions: Sequence[Region]) -> None:
        if self._count - 1 == self.launch:
            self._look()

    def _before(self, cta: int) -> None:
        self._look()
        self._running = cta

    def _look(self) -> None:
        """The last CTA to change it is the one."""
        assert self._element is not None
        if int(self._element) != self._last:
            self._last = int(self._element)
            self.found = self._running


def tracing(launch: int, cta: int, path: Path, limit: int) -> Tracing:
    """Traces one CTA of one launch to a new store."""
    make_trace(path)
    selection = Selection(frozenset({cta}), classes=frozenset(CLASSES) - {OTHER})
    return Tracing(TraceWriter(path, limit), selection, only=launch)
