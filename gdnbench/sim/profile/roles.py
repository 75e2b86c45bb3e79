# SPDX-License-Identifier: Apache-2.0
"""The role of a warp (MMA, TMA load, epilogue, ...), derived from the instructions that it issues: PTX has no
names for warp roles."""

from __future__ import annotations

from collections.abc import Mapping

from gdnbench.sim.ptx.ir import Instruction

# The order of these names in a role. A warp that issues products is "MMA", whatever else it issues.
_ROLES = (
    ("tcgen05.mma", "MMA"),
    ("tcgen05.mma.ws", "MMA"),
    ("wgmma.mma_async", "MMA"),
    ("cp.async.bulk.tensor load", "TMA load"),
    ("tcgen05.ld", "TMEM load"),
    ("tcgen05.ld.red", "TMEM load"),
    ("tcgen05.st", "TMEM store"),
    ("cp.async.bulk.tensor store", "TMA store"),
    ("cp.async.bulk", "bulk copy"),
    ("cp.async", "cp.async"),
)
OTHER = "compute"


def issued_as(ins: Instruction) -> str:
    """The opcode; for tensor copies with the direction."""
    if ins.op != "cp.async.bulk.tensor":
        return ins.op
    return f"{ins.op} {'store' if ins.has('bulk_group') else 'load'}"


def role(ops: Mapping[str, int]) -> str:
    """The roles of a warp that issued `ops` (see `issued_as`), such as "MMA" or "TMEM load + TMA store"."""
    found = list(dict.fromkeys(name for op, name in _ROLES if ops.get(op)))
    if found[:1] == ["MMA"]:
        return "MMA"
    return " + ".join(found) if found else OTHER
