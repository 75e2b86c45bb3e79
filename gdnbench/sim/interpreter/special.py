# SPDX-License-Identifier: Apache-2.0
"""Special registers (PTX ISA chapter 10) of the threads of a warp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import LANES, Values, Warp

_AXES = "xyz"
_LANE = np.arange(LANES, dtype=np.uint64)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFF_FFFF)

# Which lanes a thread sees around itself, as masks.
_LANE_MASKS = {
    "lanemask_eq": _ONE << _LANE,
    "lanemask_lt": (_ONE << _LANE) - _ONE,
    "lanemask_le": (_ONE << (_LANE + _ONE)) - _ONE,
    "lanemask_ge": _ALL & ~((_ONE << _LANE) - _ONE),
    "lanemask_gt": _ALL & ~((_ONE << (_LANE + _ONE)) - _ONE),
}


def _same(value: int) -> Values:
    return np.full(LANES, value, np.uint64)


class SpecialRegisters:
    """Values that stay as they are are computed once; `clock` counts the warp's instructions."""

    def __init__(self, cta: Cta, warp: Warp, executed: Callable[[], int]) -> None:
        self.cta = cta
        self.warp = warp
        self._executed = executed
        self._known: dict[str, Values] = {}

    def __call__(self, name: str) -> Values:
        if name.startswith(("clock", "globaltimer")):
            shift = 32 if name.endswith("_hi") else 0
            return _same(self._executed() >> shift)
        value = self._known.get(name)
        if value is None:
            value = self._known[name] = self._fixed(name)
        return value

    def _fixed(self, name: str) -> Values:
        if name in _LANE_MASKS:
            return _LANE_MASKS[name]
        base, _, axis = name.partition(".")
        value = self._of_axis(base, _AXES.index(axis)) if axis else self._scalar(base)
        if value is None:
            raise UnsupportedError(f"register %{name}")
        return value

    def _of_axis(self, base: str, axis: int) -> Values | None:
        cta = self.cta
        if base == "tid":
            linear = _LANE + np.uint64(self.warp.index * LANES)
            for extent in cta.block[:axis]:
                linear = linear // np.uint64(extent)
            return linear % np.uint64(cta.block[axis])
        # Without clusters every CTA is a cluster of its own (PTX ISA 10.12 to 10.15).
        cluster = cta.cluster
        values = {
            "ntid": cta.block[axis],
            "ctaid": cta.ctaid[axis],
            "nctaid": cta.grid[axis],
            "clusterid": (cta.ctaid if cluster is None else cluster.place.position)[axis],
            "nclusterid": (cta.grid if cluster is None else cluster.place.clusters)[axis],
            "cluster_ctaid": 0 if cluster is None else cluster.position(cta.rank)[axis],
            "cluster_nctaid": 1 if cluster is None else cluster.place.shape[axis],
        }
        return _same(values[base]) if base in values else None

    def _scalar(self, name: str) -> Values | None:
        cta, launch = self.cta, self.cta.launch
        if name == "laneid":
            return _LANE
        values = {
            "warpid": self.warp.index,
            "nwarpid": launch.warps,
            "smid": cta.index % cta.config.multiprocessors,
            "nsmid": cta.config.multiprocessors,
            "gridid": 0,
            "dynamic_smem_size": launch.dynamic_shared,
            "total_smem_size": launch.shared_size,
            "aggr_smem_size": launch.shared_size,
            "is_explicit_cluster": cta.config.explicit_clusters,
            "cluster_ctarank": cta.rank,
            "cluster_nctarank": 1 if cta.cluster is None else cta.cluster.size,
        }
        return _same(values[name]) if name in values else None
