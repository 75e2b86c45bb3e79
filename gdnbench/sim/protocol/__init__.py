# SPDX-License-Identifier: Apache-2.0
"""Every order of a barrier protocol: the synchronisation events that one run recorded (`events.py`), what
mbarriers and named barriers do with them (`barriers.py`), the check of all orders (`orders.py`) and the plain
search through them (`search.py`).

    check(Protocol(events)).verdict is Verdict.PROVED
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.protocol.launch import OrdersOfLaunches
    from gdnbench.sim.protocol.orders import Verdict
    from gdnbench.sim.protocol.program import MODULE, read_orders
    from gdnbench.sim.protocol.result import CheckedLaunch, orders_text

__all__ = ["MODULE", "CheckedLaunch", "OrdersOfLaunches", "Verdict", "orders_text", "read_orders"]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.protocol.launch": "OrdersOfLaunches",
        "gdnbench.sim.protocol.orders": "Verdict",
        "gdnbench.sim.protocol.program": "MODULE read_orders",
        "gdnbench.sim.protocol.result": "CheckedLaunch orders_text",
    },
)
