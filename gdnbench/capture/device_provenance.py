# SPDX-License-Identifier: Apache-2.0
"""Which GPU a record comes from: the virtual one of this process, or else the real ones."""

from __future__ import annotations

import sys
from typing import Any

from gdnbench.provenance import gpu_provenance


def device_provenance() -> dict[str, Any]:
    """`simulator` with the machine if the process has a virtual GPU, whose name as a product would claim that
    hardware ran; else what `gpu_provenance` says."""
    if "gdnbench.sim.virtual.gpu" in sys.modules:
        from gdnbench.sim.virtual import current_gpu

        gpu = current_gpu()
        if gpu is not None:
            return {"simulator": gpu.description()}
    return gpu_provenance()
