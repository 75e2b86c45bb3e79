#!/usr/bin/env python
"""Replays a kernel of swa_decode on calls that kernels have gone wrong on and on shipped captures.

    python scripts/prove_swa.py --kernel sm100           simulated, under three schedules
    python scripts/prove_swa.py --kernel portable        likewise
    python scripts/prove_swa.py --kernel wgmma           likewise, compiled for sm_90a
    python scripts/prove_swa.py --kernel portable --on cuda
    python scripts/prove_swa.py --quick                  the few small cases that meet every branch
    python scripts/prove_swa.py 'ds_mla, sink*'          cases by name; --list prints them
    python scripts/prove_swa.py --kernel torch --on cpu --seed 7

A case passes when its record does: o within twice torch's error, lse within its tolerance, and on the
simulator the same bits under every schedule. A call outside what the kernels are written for passes when it
is refused. Exit status: 0 all pass, 1 one does not, 2 bad arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdnbench.errors import Exit
from gdnbench_kernels.swa_decode.cases import cases
from gdnbench_kernels.swa_decode.contract import SERVED
from tests.kernels import proving

GRID = proving.Grid(
    "swa_decode",
    cases,
    refusing=("sm100", "portable", "wgmma"),
    refused=lambda conventions: conventions["cache_layout"] not in SERVED["cache_layout"],
)
SCHEDULES = ("late", "early", "random:0")


def main() -> Exit:
    return proving.main(GRID, (__doc__ or "").splitlines()[0], SCHEDULES)


if __name__ == "__main__":
    sys.exit(main())
