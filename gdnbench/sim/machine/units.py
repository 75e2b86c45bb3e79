# SPDX-License-Identifier: Apache-2.0
"""Maps each machine instruction to the unit that executes it."""

from __future__ import annotations

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine import (
    barriers,
    bulk,
    copies,
    driver_calls,
    fences,
    launch_control,
    mbarrier,
    tcgen05,
    tensormap_edit,
    tma,
    wgmma,
)
from gdnbench.sim.machine.cta import Handler

HANDLERS: dict[str, Handler] = {
    **mbarrier.HANDLERS,
    **barriers.HANDLERS,
    **fences.HANDLERS,
    **copies.HANDLERS,
    **bulk.HANDLERS,
    **tma.HANDLERS,
    **tensormap_edit.HANDLERS,
    **tcgen05.HANDLERS,
    **wgmma.HANDLERS,
    **driver_calls.HANDLERS,
    **launch_control.HANDLERS,
}


def handler(op: str) -> Handler:
    """The handler of `op`. Raises UnsupportedError for an instruction that no unit models."""
    found = HANDLERS.get(op)
    if found is None:
        raise UnsupportedError(f"instruction {op}")
    return found
