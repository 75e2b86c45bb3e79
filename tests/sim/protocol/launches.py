# SPDX-License-Identifier: Apache-2.0
"""All orders of one launch of a kernel `k`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gdnbench.sim.host.device import described_device
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.protocol.launch import OrdersOfLaunches
from gdnbench.sim.protocol.result import CheckedLaunch
from gdnbench.sim.ptx.parser import parse


def checked(
    text: str,
    arrays: Sequence[np.ndarray],
    *,
    ctas: int,
    threads: int,
    cluster: int = 1,
    smem: int = 0,
    sms: int | None = None,
    more: Sequence[bytes] = (),
    reachable: Sequence[np.ndarray] = (),
) -> CheckedLaunch:
    """The parameters are the addresses of `arrays`, then the bytes `more`."""
    memory = GlobalMemory()
    addresses = [memory.add_array(array, f"array {at}") for at, array in enumerate(arrays)]
    for at, array in enumerate(reachable):
        memory.add_array(array, f"reachable {at}")
    params = (*(one.to_bytes(8, "little") for one in addresses), *more)
    shape = (ctas, 1, 1), (threads, 1, 1), (cluster, 1, 1)
    orders = OrdersOfLaunches()
    with described_device(sms=sms):
        orders(parse(text), LaunchRequest(text, "k", *shape, smem, params, 16, 0), memory)
    (launch,) = orders.launches
    return launch
