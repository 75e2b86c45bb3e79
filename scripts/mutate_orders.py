#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Measures the check of all orders: each mutant of a kernel whose orders are proved lacks one wait for an
mbarrier, one arrival or one commit, and the check has to print an order that stops or misses a phase.

    python scripts/mutate_orders.py --list                         the kernels
    python scripts/mutate_orders.py persistent 'swa_decode_*' -v   those, and what becomes of each mutant
    python scripts/mutate_orders.py gdn_prefill_fused --sample 10  10 of each kernel

A row for each kernel: the mutants, those of which an order is broken, those of which the recorded run itself
hangs or is undefined, those still proved, and those that could not be decided. A mutant is proved if no phase
depends on the wait: it is the last one of its warp, or it waits for data alone, and `--check` finds the race.
The kernels are those of `mutate_synchronisation.py` that have mbarriers. Exit status: 0 each mutant is
decided, 1 one is not, 2 bad arguments, 3 a kernel itself is not proved.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

from gdnbench.errors import Exit

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sim.mutation.judging import launches
from tests.sim.mutation.orders import Told, judged
from tests.sim.mutation.subjects import SUBJECTS

OWN = [name for name, subject in SUBJECTS.items() if not subject.architecture]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of kernels; all if left out")
    parser.add_argument("--list", action="store_true", help="print the kernels")
    parser.add_argument("--sample", type=int, help="mutants of each kernel; all if left out")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each mutant")
    options = parser.parse_args()
    names = [one for one in OWN if not options.names or any(fnmatchcase(one, at) for at in options.names)]
    if options.list:
        print("\n".join(names))
        return Exit.PASS
    if not names:
        print(f"error: no kernel is called {' or '.join(options.names)}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    headers = ("kernel", "mutants", *Told)
    print("| " + " | ".join(headers) + " |\n" + "|---" * len(headers) + "|", flush=True)
    status = Exit.PASS
    for name in names:
        status = max(status, _judge(name, options))
    return status


def _judge(name: str, options: argparse.Namespace) -> Exit:
    status = Exit.PASS
    for kernel, kept in launches(name).items():
        counts = Counter[Told]()
        try:
            for one in judged(kept, options.sample, options.seed):
                counts[one.told] += 1
                if options.verbose:
                    print(f"{kernel}: {one}", file=sys.stderr, flush=True)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return Exit.CANNOT_RUN
        if counts:
            cells = (kernel, counts.total(), *(counts[told] for told in Told))
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            status = max(status, Exit.MISMATCH if counts[Told.OPEN] else Exit.PASS)
    return status


if __name__ == "__main__":
    sys.exit(main())
