"""How an entry of the log of a kernel's own loads and stores lies in memory."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.compiler.layout import ALIGN
from gdnbench.sim.machine.engine_interface import LANES

# An access: its addresses, then the instruction and the mask of its lanes. Whole cache lines. Where lanes
# meet at a collective, what `access_log.log_meeting` says stands for an address.
PC_OFFSET, LANES_OFFSET, ENTRY_BYTES = 8 * LANES, 8 * LANES + 4, 8 * LANES + ALIGN
ENTRY = np.dtype(
    {
        "names": ["addresses", "pc", "lanes"],
        "formats": [(np.uint64, LANES), np.uint32, np.uint32],
        "offsets": [0, PC_OFFSET, LANES_OFFSET],
        "itemsize": ENTRY_BYTES,
    }
)
