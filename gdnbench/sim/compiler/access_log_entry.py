# SPDX-License-Identifier: Apache-2.0
"""The contents and memory layout of an entry of the access log."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.compiler.layout import ALIGN
from gdnbench.sim.machine.engine_interface import LANES

# An entry: 32 addresses, then the instruction and the mask of its lanes, in whole cache lines. For a
# collective the value that `access_log.log_meeting` describes replaces the address. An entry for a block that
# a warp enters (`Program.path`) has the pc of its first instruction with the bit BLOCK, and no addresses.
BLOCK = 1 << 31
PC_OFFSET, LANES_OFFSET, ENTRY_BYTES = 8 * LANES, 8 * LANES + 4, 8 * LANES + ALIGN
ENTRY = np.dtype(
    {
        "names": ["addresses", "pc", "lanes"],
        "formats": [(np.uint64, LANES), np.uint32, np.uint32],
        "offsets": [0, PC_OFFSET, LANES_OFFSET],
        "itemsize": ENTRY_BYTES,
    }
)
