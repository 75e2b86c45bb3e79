#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Measures the simulator's checker: every instruction of a kernel that synchronises is changed, and something
has to find the change.

    python scripts/mutate_synchronisation.py --list                    the kernels
    python scripts/mutate_synchronisation.py gemm 'gdn_*'              those, all of their mutants
    python scripts/mutate_synchronisation.py --sample 20 --seed 7      20 of each kernel
    python scripts/mutate_synchronisation.py --results RESULTS.jsonl   kept; what is there is not judged again
    python scripts/mutate_synchronisation.py --results RESULTS.jsonl --again   but for what survived

`gdnbench/sim/mutants/generate.py` says what is changed. A mutant runs on the inputs of the kernel, small ones
that take every path, under late, early and random schedules, and is found by the checker (an error, or for
review), by a fault, as a hang, or by other bits. Instructions that the inputs do not reach are counted apart.
The others survive: `tests/sim/checker/equivalent_mutants.toml` says of which why they change nothing.

A kernel that is not installed is passed over, which is said. Exit status: 0 all are found or explained, 1 one
is not, 2 bad arguments, 3 a kernel cannot run here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from gdnbench.cli.console import table
from gdnbench.errors import BAD_INPUT_ERRORS, Exit
from gdnbench.sim import ENGINES

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sim.mutation.subjects import SUBJECTS
from tests.sim.mutation.surroundings import environment, installed
from tests.sim.mutation.verdicts import TOLD, equivalents, latest, rows, unexplained


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of kernels; all if left out")
    parser.add_argument("--list", action="store_true", help="print the kernels")
    parser.add_argument("--sample", type=int, help="mutants of each kernel; all if left out")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="interpreter")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="for one mutant")
    parser.add_argument("--results", type=Path, help="a file to keep results in, and to go on from")
    parser.add_argument("--again", action="store_true", help="what survived or was not reached, once more")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(SUBJECTS))
        return Exit.PASS
    names = [
        name for name in SUBJECTS if not options.names or any(fnmatchcase(name, one) for one in options.names)
    ]
    if not names:
        print(f"error: no kernel is called {' or '.join(options.names)}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    if options.here:
        return _here(names, options)
    with tempfile.TemporaryDirectory(prefix="gdnbench-mutants-") as folder:
        path = options.results or Path(folder) / "results.jsonl"
        try:
            known = equivalents()
        except BAD_INPUT_ERRORS as error:
            print(f"error: {error}", file=sys.stderr)
            return Exit.BAD_INPUT
        statuses = [_apart(name, path, options) for name in names if installed(name)]
        results = latest(path, names)
    print(table(TOLD, rows(results, known), right=TOLD[2:]))
    left = unexplained(results, known)
    for result in left:
        print(f"{result.outcome}: {result}")
    judged = {result.kernel.partition("/")[0] for result in results}
    for reason in known if options.sample is None else ():
        meant = {name for name in SUBJECTS if reason.is_about(name)}
        if meant <= judged and not any(reason.explains(result) for result in results):
            print(f"note: no mutant that survives is {reason}")
    print(f"{len(results)} mutants, {len(left)} neither found nor explained")
    if any(statuses):
        return Exit.CANNOT_RUN
    return Exit.MISMATCH if left else Exit.PASS


def _here(names: list[str], options: argparse.Namespace) -> int:
    from tests.sim.mutation.judging import Asked, judge_all

    asked = Asked(
        options.engine, options.processes, options.seconds, options.sample, options.seed, options.again
    )
    for name in names:
        judge_all(name, options.results, asked)
    return Exit.PASS


def _apart(name: str, path: Path, options: argparse.Namespace) -> int:
    """Judges in a process of its own: other people's packages change CuTe DSL for all of it."""
    command = [sys.executable, __file__, *_passed(options), "--here", "--results", str(path.resolve())]
    status = subprocess.run([*command, "--", name], env=environment(SUBJECTS[name].architecture)).returncode
    if status:
        print(f"error: {name} could not be judged; see above", file=sys.stderr)
    return status


def _passed(options: argparse.Namespace) -> list[str]:
    """What the process that judges is told."""
    given = [f"--{name}={getattr(options, name)}" for name in ("seed", "engine", "processes", "seconds")]
    given += ["--again"] if options.again else []
    return given if options.sample is None else [*given, f"--sample={options.sample}"]


if __name__ == "__main__":
    sys.exit(main())
