#!/usr/bin/env python
"""Replays a kernel of gdn_decode on calls that kernels have gone wrong on and on shipped captures.

    python scripts/prove_gdn_decode.py                        simulated, under three schedules
    python scripts/prove_gdn_decode.py --on cuda
    python scripts/prove_gdn_decode.py --quick                the few small cases that meet every branch
    python scripts/prove_gdn_decode.py 'bf16, reads*'         cases by name; --list prints them
    python scripts/prove_gdn_decode.py --kernel torch --on cpu --seed 7

A case passes when its record does: o and the states within twice torch's error, and on the simulator the same
bits under every schedule. A call outside what the compiled kernel is written for passes when it is refused.
Exit status: 0 all pass, 1 one does not, 2 bad arguments. scripts/drift_gdn_decode.py proves a kernel over
many steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdnbench.errors import Exit
from gdnbench_kernels.gdn_decode.cases import cases
from tests.kernels import proving

COMPILED = "cute"
GRID = proving.Grid("gdn_decode", cases, refusing=(COMPILED,))
SCHEDULES = ("late", "early", "random:0")


def main() -> Exit:
    return proving.main(GRID, (__doc__ or "").splitlines()[0], SCHEDULES, COMPILED)


if __name__ == "__main__":
    sys.exit(main())
