# SPDX-License-Identifier: Apache-2.0
"""Models of tensor-core arithmetic, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.tensorcore.formats import FORMATS
    from gdnbench.sim.tensorcore.native import multiply
    from gdnbench.sim.tensorcore.product import Product

__all__ = [
    "FORMATS",
    "Product",
    "multiply",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.tensorcore.formats": "FORMATS",
        "gdnbench.sim.tensorcore.native": "multiply",
        "gdnbench.sim.tensorcore.product": "Product",
    },
)
