#!/usr/bin/env python
"""Replays a prefill kernel, stages and all, on calls that kernels have gone wrong on and on shipped captures.

    python scripts/prove_prefill.py                      the SM100 kernels, simulated: about ten minutes
    python scripts/prove_prefill.py --quick              the few small cases that meet every branch
    python scripts/prove_prefill.py 'gate*' 'keys*'      cases by name; --list prints them
    python scripts/prove_prefill.py --kernel torch --on cpu

A case passes when its record does: every stage and output within twice torch's error, and within its limit
where it has one; outputs alone of a kernel that shows no stages. A call outside what the kernels are written
for passes when it is refused. The table gives for each case the stage whose RMS error is largest beside
torch's. Exit status: 0 all pass, 1 one does not, 2 bad arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdnbench.errors import Exit
from gdnbench_kernels.gdn_prefill.cases import cases
from tests.kernels import proving

GRID = proving.Grid("gdn_prefill", cases, refusing=("sm100", "sm100_fused"))


def main() -> Exit:
    return proving.main(GRID, (__doc__ or "").splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
