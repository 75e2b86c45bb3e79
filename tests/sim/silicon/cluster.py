# SPDX-License-Identifier: Apache-2.0
"""Clusters: shared memory of other CTAs, arrivals at their mbarriers, copies to several, and faults.

The kernels are those of tests/sim/clusters, for sm_90. None depends on the order in which CTAs run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.sim.clusters import test_cluster_faults, test_clusters
from tests.sim.clusters.cluster_kernels import RING, STREAM, TILES, WORDS, kernel
from tests.sim.silicon.microkernel import Buffer, MicroKernel, TensorMapOf
from tests.sim.silicon.tensormap import DataType, TensorMap

BODIES = {
    "stream": STREAM,
    "atomics": test_clusters.ATOMICS,
    "red_async": test_clusters.RED_ASYNC,
    "bulk_reduction": test_clusters.BULK_REDUCTION,
    "multicast": test_clusters.MULTICAST.replace("COPY", test_clusters.COPIES["bulk"]),
    "multicast_tensor": test_clusters.MULTICAST.replace("COPY", test_clusters.COPIES["tensor"]),
    **{f"send_{i}": body for i, body in enumerate(test_clusters.SENDING.values())},
}
FAULTS = ("exited", "rank", "own window", "waits for a peer's mbarrier", "ctaMask")


def made(name: str, body: str, ctas: int) -> MicroKernel:
    text = kernel(body).replace(".target sm_100a", ".target sm_90a").replace("entry k(", f"entry {name}(")
    x = np.arange(max(ctas, TILES) * WORDS, dtype=np.uint32)
    labels = tuple(f"the CTA of rank {rank}" for rank in range(ctas))
    described = TensorMap(DataType.UINT32, (x.size,), (), (WORDS,), (1,))
    return MicroKernel(
        name,
        text,
        (
            Buffer("in_x", x),
            Buffer("out_y", np.zeros((ctas, WORDS), np.uint32), labels),
            TensorMapOf("map", "in_x", described),
        ),
        ctas,
        WORDS,
        ctas,
    )


def _fault(name: str) -> MicroKernel:
    pair = test_cluster_faults.FAULTS[name]
    spelled = "".join(letter if letter.isalnum() else "_" for letter in name)
    return made(f"fault_{spelled}", pair.body.replace("@@", pair.bad), 2)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(made, f"ring_{ctas}", RING, ctas) for ctas in (2, 4, 8, 16)),
    *(partial(made, name, body, 4) for name, body in BODIES.items()),
    *(partial(_fault, name) for name in FAULTS),
)
