# SPDX-License-Identifier: Apache-2.0
"""Answers what CuTe DSL asks of the GPU while a kernel is compiled, from the simulated device.

cutlass.base_dsl.runtime.cuda.get_device_attribute   asked for launches with `min_blocks_per_mp` above 1
cutlass.utils.HardwareInfo                           asked by kernels for their number of CTAs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gdnbench.sim.errors import LaunchError, UnsupportedError
from gdnbench.sim.host.device import L2_BYTES, MULTIPROCESSORS, Device, multiprocessors_asked
from gdnbench.sim.host.patching import patched

MOST_IN_CLUSTER = 32  # as HardwareInfo checks


@contextmanager
def device_queries_answered(device: Callable[[], Device]) -> Iterator[None]:
    """Inside this block the two interfaces above describe `device()`."""
    from cutlass.base_dsl.runtime import cuda
    from cutlass.utils import HardwareInfo

    def attribute(number: Any, device_id: int = 0) -> int:
        attributes = device().attributes
        if int(number) not in attributes:
            raise UnsupportedError(f"compiling a kernel that asks for device attribute {int(number)}")
        if int(number) == MULTIPROCESSORS:
            multiprocessors_asked()
        return attributes[int(number)]

    def initialise(info: Any, device_id: int = 0) -> None:
        if device_id != 0:
            raise LaunchError(f"HardwareInfo of device {device_id!r}: there is only device 0")
        info.device_id = device_id

    def get_max_active_clusters(info: object, cluster_size: int, stream: object = None) -> int:
        if not 0 < cluster_size <= MOST_IN_CLUSTER:
            raise LaunchError(f"cluster size {cluster_size}; from 1 to {MOST_IN_CLUSTER}")
        multiprocessors_asked()
        return device().active_clusters(cluster_size)

    def get_l2_cache_size_in_bytes(info: object) -> int:
        return attribute(L2_BYTES)

    def get_device_multiprocessor_count(info: object) -> int:
        return attribute(MULTIPROCESSORS)

    answers = {
        answer.__name__: answer
        for answer in (get_max_active_clusters, get_l2_cache_size_in_bytes, get_device_multiprocessor_count)
    }
    with patched(cuda, get_device_attribute=attribute), patched(HardwareInfo, __init__=initialise, **answers):
        yield
