#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Replays a kernel of an operation on calls that kernels have gone wrong on and on shipped captures.

    python scripts/kernel_grid.py gdn_decode                       simulated, under three schedules
    python scripts/kernel_grid.py gdn_prefill --kernel sm100_fused
    python scripts/kernel_grid.py swa_decode --kernel portable --on cuda
    python scripts/kernel_grid.py swa_decode --quick               the few small cases that meet every branch
    python scripts/kernel_grid.py swa_decode 'ds_mla, sink*'       cases by name; --list prints them
    python scripts/kernel_grid.py gdn_decode --kernel torch --on cpu --seed 7

A case passes when its record does: outputs, states and stages within twice torch's error, and on the
simulator the same bits under every schedule. A call that the compiled kernels are not written for passes
when they refuse it. The table gives for each case the tensor whose RMS error is the largest multiple of
torch's. Exit status: 0 all pass, 1 one does not, 2 bad arguments.

`pytest -m slow tests/kernels/test_grids.py` runs all cases in the simulator; scripts/drift_gdn_decode.py
proves a decode kernel over many steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kernels import proving

if __name__ == "__main__":
    sys.exit(proving.main((__doc__ or "").splitlines()[0]))
