#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Finds the regressions of `make_regressions.py` with `gdnbench bisect`, from end to end, with a clock.

    python scripts/find_regressions.py                          all of them, in a folder that is removed
    python scripts/find_regressions.py --only inverse,tail --folder FOLDER

`inverse` is a round less in the inverse, which keys that are alike show: its commit, its stage, the smallest
record and the line are asked for. `barrier` and `operand` are waits left out, which one schedule of the
simulator shows and another does not, `beta` is a beta rounded to bf16, `tail` a tail load that lets the next
sequence's NaN in, `fence` a fence left out, which no number shows and the simulator's checker does. All of
it runs on a CPU, the prefill kernels on the simulator.
Programs that are compiled are kept in FOLDER, so that nothing is known from before. Exit status: 0 all are
found, 1 one is not, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from gdnbench.cli.console import print_wide, table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.bisect.regressions.finding import Answered, Cases, answered

WIDTH = 100


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="new or empty; kept")
    parser.add_argument("--only", help="cases, separated by commas")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gdnbench-regressions-") as scratch:
        folder = (arguments.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["GDNBENCH_CACHE_DIR"] = str(folder / "cache")
        try:
            cases = Cases(folder).all()
        except ValueError as error:
            parser.error(str(error))
        chosen = list(cases) if arguments.only is None else arguments.only.split(",")
        if unknown := [name for name in chosen if name not in cases]:
            parser.error(f"no case {unknown[0]}; there are {', '.join(cases)}")
        found = []
        for name in chosen:
            for asked in cases[name]:
                found.append(answered(asked))
                print(_line(found[-1]), file=sys.stderr, flush=True)
    print_wide(
        table(
            ("case", "axis", "answer", "found", "seconds"), [_cells(one) for one in found], right=("seconds",)
        )
    )
    for name in chosen:
        asked = [one for one in found if one.case == name]
        seconds, busy = sum(one.seconds for one in asked), sum(one.busy for one in asked)
        print(f"{name}: {seconds:.0f} s, {busy:.0f} s of CPU time")
    return 1 if any(one.wrong for one in found) else 0


def _cells(one: Answered) -> tuple[str, ...]:
    answer = one.answer if len(one.answer) <= WIDTH else f"{one.answer[:WIDTH]}..."
    return one.case, one.what, answer, one.wrong or "yes", f"{one.seconds:.0f}"


def _line(one: Answered) -> str:
    return f"{one.case}, {one.what}: {one.wrong or 'found'}, {one.seconds:.1f} s: {one.answer}"


if __name__ == "__main__":
    sys.exit(main())
