# SPDX-License-Identifier: Apache-2.0
"""Tensor copies that may be illegal: coordinates and addresses off their alignment, stores below zero.

The recording keeps the driver's error of each that faults; the simulator must refuse the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.tensormap import Swizzle
from tests.sim.silicon.tma import BF16, F32, Load, Store, load_kernel, store_kernel, tensor_map

PLANE = tensor_map(BF16, (64, 40), (16, 8))
SINGLE = tensor_map(F32, (64, 40), (16, 8))
CUBE = tensor_map(BF16, (64, 10, 6), (16, 4, 2))
SWIZZLED = tensor_map(BF16, (64, 40), (64, 8), swizzle=Swizzle.B128)


def named(place: tuple[int, ...]) -> str:
    return "_".join(str(n).replace("-", "m") for n in place)


LOADS = (
    *(
        Load(f"bf16_at_{named(p)}", PLANE, (p,))
        for p in ((1, 0), (2, 0), (4, 0), (8, 1), (-1, 0), (-4, 0), (65, 0))
    ),
    *(Load(f"f32_at_{named(p)}", SINGLE, (p,)) for p in ((1, 0), (2, 0), (4, 0), (-2, 0))),
    *(Load(f"to_offset_{o}", PLANE, ((0, 0),), offset=o) for o in (16, 32, 64)),
    *(Load(f"swizzled_to_offset_{o}", SWIZZLED, ((0, 0),), offset=o) for o in (16, 64, 128)),
)
PLACES = ((1, 0), (4, 0), (-8, 0), (-16, 0), (0, -1), (0, -8), (8, -1), (-1000, 0), (64, 0), (0, 40), (65, 0))
STORES = (
    *(Store(f"bf16_at_{named(p)}", PLANE, (p,)) for p in PLACES),
    *(Store(f"cube_at_{named(p)}", CUBE, (p,)) for p in ((0, -1, 0), (0, 0, -1), (0, 9, 5), (0, 0, 6))),
    *(Store(f"add_f32_at_{named(p)}", SINGLE, (p,), "add") for p in ((2, 0), (-4, 0), (0, -1), (60, 39))),
    *(Store(f"from_offset_{o}", PLANE, ((0, 0),), offset=o) for o in (16, 64)),
)


def load_limit(load: Load) -> MicroKernel:
    return load_kernel(Load(f"limit_{load.name}", load.map, load.at, load.offset))


def store_limit(store: Store) -> MicroKernel:
    return store_kernel(Store(f"limit_{store.name}", store.map, store.at, store.reduction, store.offset))


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(load_limit, load) for load in LOADS),
    *(partial(store_limit, store) for store in STORES),
)
