#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Holds the simulator's checker against SentryWard, a static checker of PTX that shares nothing with it.

    python scripts/compare_sentryward.py --list                    the kernels
    python scripts/compare_sentryward.py gemm 'gdn_*'              those, each as it is
    python scripts/compare_sentryward.py --mutants 20 gemm         and 20 mutants of each, as --seed says
    python scripts/compare_sentryward.py --sentryward PROGRAM      where it is, if not in PATH

Both get the same PTX and launch, on small inputs (`tests/sim/static_check/cases.py`), because SentryWard
follows every thread. A kernel is shown without mutants if SentryWard refuses it, needs more than --seconds or
finds fault with it. `tests/sim/static_check/differences.toml` lists where the two differ and which is right;
docs/checker_comparison.md describes what each sees.

Exit status: 0 they agree or the difference is explained, 1 one is not, 2 bad arguments, 3 SentryWard is not
installed or a kernel cannot run here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

from gdnbench.cli.console import table
from gdnbench.errors import BAD_INPUT_ERRORS, Exit

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sim.mutation.surroundings import environment, installed
from tests.sim.static_check.cases import CASES
from tests.sim.static_check.comparing import TOLD, Row, compared, differences, lines, unexplained
from tests.sim.static_check.sentryward import SentryWard


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of kernels; all if left out")
    parser.add_argument("--list", action="store_true", help="print the kernels")
    parser.add_argument("--mutants", type=int, default=0, help="of each kernel")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--seconds", type=float, default=150.0, help="for one kernel or mutant")
    parser.add_argument("--memory", type=int, default=6000, help="MiB that SentryWard may take")
    parser.add_argument("--sentryward", default="sentryward", help="the program")
    parser.add_argument("--rows", type=Path, help="a file that all is appended to, a line of JSON each")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return Exit.PASS
    names = [
        name for name in CASES if not options.names or any(fnmatchcase(name, one) for one in options.names)
    ]
    if not names:
        print(f"error: no kernel is called {' or '.join(options.names)}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    program = shutil.which(options.sentryward)
    if program is None:
        print(
            f"error: no program {options.sentryward}: pip install sentryward into an environment of its own, "
            "and name its program with --sentryward",
            file=sys.stderr,
        )
        return Exit.CANNOT_RUN
    options.sentryward = program
    if options.here:
        return _here(names, options)
    try:
        known = differences()
    except BAD_INPUT_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    with tempfile.TemporaryDirectory(prefix="gdnbench-static-") as folder:
        path = options.rows or Path(folder) / "rows.jsonl"
        path.touch()
        there = len(path.read_text().splitlines())
        statuses = [_apart(name, path, options) for name in names if installed(name)]
        rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()[there:]]
    print(table(TOLD, lines(rows), right=("line", "seconds")))
    said = Counter(row.agreement or "not judged by both" for row in rows)
    left = unexplained(rows, known)
    for row in left:
        print(f"differ: {row}")
    print(", ".join(f"{count} {word}" for word, count in sorted(said.items())), f"| {len(left)} unexplained")
    if any(statuses):
        return Exit.CANNOT_RUN
    return Exit.MISMATCH if left else Exit.PASS


def _here(names: list[str], options: argparse.Namespace) -> int:
    from tests.sim.mutation.judging import launches

    static = SentryWard(options.sentryward, options.seconds, options.memory)
    for name in names:
        for kernel, launch in launches(name, CASES[name].call).items():
            for row in compared(kernel, launch, static, options.mutants, options.seed):
                print(row, file=sys.stderr, flush=True)
                with options.rows.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    return Exit.PASS


def _apart(name: str, path: Path, options: argparse.Namespace) -> int:
    """Compares in a process of its own: other people's packages change CuTe DSL for all of it."""
    given = [f"--{each}={getattr(options, each)}" for each in ("mutants", "seed", "seconds", "memory")]
    given += [f"--sentryward={options.sentryward}", f"--rows={path.resolve()}", "--here"]
    status = subprocess.run(
        [sys.executable, __file__, *given, "--", name], env=environment(CASES[name].architecture)
    ).returncode
    if status:
        print(f"error: {name} could not be compared; see above", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
