# SPDX-License-Identifier: Apache-2.0
"""Special registers in compiled code (PTX ISA, "Special Registers")."""

from __future__ import annotations

from gdnbench.sim.compiler.emit import I32, LANE_IDS, Code, Value, const, lane_constants
from gdnbench.sim.compiler.layout import HEADER
from gdnbench.sim.errors import UnsupportedError

_LANEMASKS = ("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt")


def special_register(code: Code, state: Value, name: str, *, clustered: bool) -> Value:
    """A special register in all lanes, read from the warp's `state`. `clustered`: for launches with clusters
    of several CTAs. Raises UnsupportedError for one that the simulator does not have."""
    if name in ("tid.x", "tid.y", "tid.z"):
        return code.load(I32, code.offset(state, HEADER[name]), 64)
    if name == "laneid":
        return LANE_IDS
    if name in _LANEMASKS:
        return _lanemask(code, name)
    if name == "gridid":
        return const(I32, 0)
    if not clustered:
        if name.startswith("cluster_ctaid.") or name == "cluster_ctarank":
            return const(I32, 0)
        if name.startswith("cluster_nctaid.") or name == "cluster_nctarank":
            return const(I32, 1)
        name = _OF_ONE_CTA.get(name, name)
    if name in ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
        return _clock(code, state, name)
    if name == "aggr_smem_size":
        name = "total_smem_size"
    if name not in HEADER:
        raise UnsupportedError(f"special register %{name}")
    return code.splat(code.load("i32", code.offset(state, HEADER[name]), 4))


_OF_ONE_CTA = {f"{count}clusterid.{axis}": f"{count}ctaid.{axis}" for count in ("", "n") for axis in "xyz"}
"""What equals a register where every CTA is a cluster of its own."""


def _clock(code: Code, state: Value, name: str) -> Value:
    """The clock is the number of instructions that the warp has executed."""
    now = code.load("i64", code.offset(state, HEADER["executed"]), 8)
    if name.endswith("_hi"):
        now = code.opi("lshr", now, 32)
    wide = name in ("clock64", "globaltimer")
    return code.splat(now if wide else code.cast("trunc", now, "i32"))


def _lanemask(code: Code, name: str) -> Value:
    """Bits of the lanes equal to, below or above a lane."""
    masks = {
        "lanemask_eq": [1 << i for i in range(32)],
        "lanemask_le": [(2 << i) - 1 for i in range(32)],
        "lanemask_lt": [(1 << i) - 1 for i in range(32)],
        "lanemask_ge": [-(1 << i) & 0xFFFFFFFF for i in range(32)],
        "lanemask_gt": [-(2 << i) & 0xFFFFFFFF for i in range(32)],
    }
    return lane_constants("i32", [m - (1 << 32) if m >> 31 else m for m in masks[name]])
