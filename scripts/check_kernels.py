#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Runs the kernels of this project, and other people's, under the simulator's checker: on every shipped
capture and every made call that they are proven on.

    python scripts/check_kernels.py                      all of them, three schedules each: hours
    python scripts/check_kernels.py --quick              the few small cases that meet every branch
    python scripts/check_kernels.py 'swa_decode *'       kernels by name; --list prints them
    python scripts/check_kernels.py --cases 'ds_mla*'    cases by name
    python scripts/check_kernels.py --random 20          20 more schedules, of which the bits are compared
    python scripts/check_kernels.py --sms 1,2,4,148      on GPUs of these numbers of SMs, with equal bits
    python scripts/check_kernels.py --results FILE       kept; what is there is not run again

A case fails where the checker finds an error, where the bits under two schedules or on two GPUs differ, or,
of a kernel of this project, where its record does not pass. What is right all the same is in
tests/sim/third_party/accepted.toml, with the reason. Findings for review are printed and fail nothing.

Kernels of other packages are found in the folders that prove_kda.py names. A kernel that is not installed is
passed over, which is said. Exit status: 0 all pass, 1 one does not, 2 bad
arguments, 3 a kernel cannot run here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from importlib.machinery import PathFinder
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gdnbench.cli.console import table
from gdnbench.errors import BAD_INPUT_ERRORS, Exit
from gdnbench.sim import Accepted, Severity
from tests.sim.kernel_checks import foreign
from tests.sim.kernel_checks.results import (
    GPUS,
    TOLD,
    Case,
    content,
    differences,
    gpu_rows,
    merged,
    read,
    row,
)
from tests.sim.kernel_checks.subjects import SUBJECTS

ACCEPTED = Path(__file__).parents[1] / "tests" / "sim" / "third_party" / "accepted.toml"
SCHEDULES = ("late", "early", "random:0")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of kernels; all if left out")
    parser.add_argument("--list", action="store_true", help="print the kernels")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cases", action="append", default=[], help="patterns of cases; may repeat")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="default %(default)s")
    parser.add_argument(
        "--sms", help="numbers of SMs of the GPU, e.g. 1,2,4,148; default a B200's, an H200's"
    )
    parser.add_argument("--random", type=int, default=0, help="schedules of fresh seeds beside these")
    parser.add_argument("--threads", type=int, default=1, help="of a launch")
    parser.add_argument("--results", type=Path, help="a file to keep results in, and to go on from")
    # Files may change while the processes run that check.
    parser.add_argument("--content", help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [
        name for name in SUBJECTS if not options.names or any(fnmatchcase(name, one) for one in options.names)
    ]
    if options.list:
        print("\n".join(names))
        return Exit.PASS
    if not names:
        print(f"error: no kernel is called {' or '.join(options.names)}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    if options.here:
        return _here(names, options)
    accepted = ACCEPTED.read_text(encoding="utf-8") if ACCEPTED.exists() else ""
    options.content = content(options.schedules, options.random, accepted)
    with tempfile.TemporaryDirectory(prefix="gdnbench-check-") as folder:
        options.results = (options.results or Path(folder) / "results.jsonl").resolve()
        gpus = options.sms.split(",") if options.sms else [None]
        statuses = [
            _apart(name, options, sms)
            for name in names
            if _installed(SUBJECTS[name].package, name)
            for sms in gpus
        ]
        asked = [None if sms is None else int(sms) for sms in gpus]
        cases = [
            case
            for case in read(options.results, options.content)
            if case.kernel in names and case.sms in asked
        ]
    return _told(names, cases, bool(any(statuses)))


def _told(names: list[str], cases: list[Case], broken: bool) -> int:
    try:
        accepted = Accepted.read(ACCEPTED)
    except BAD_INPUT_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    for (severity, is_accepted, summary), where in merged(cases).items():
        if not is_accepted:
            kernels = ", ".join(dict.fromkeys(case.kernel for case in where))
            print(f"{severity}: {summary}\n  {len(where)} cases of {kernels}; first {where[0].case}")
    failed = [case for case in cases if case.failed]
    for case in failed:
        print(f"FAIL: {case.kernel}: {case.case}: {case.reason}")
    by_kernel = {name: [case for case in cases if case.kernel == name] for name in names}
    rows = [row(name, some) for name, some in by_kernel.items() if some]
    print(table(TOLD, rows, right=TOLD[1:]))
    if any(case.sms is not None for case in cases):
        print(table(GPUS, gpu_rows(cases), right=GPUS[1:]))
    differing = differences(cases)
    for line in differing:
        print(f"FAIL: {line}")
    accepted.apply(finding for case in cases for finding in case.found())
    if not failed and names == list(SUBJECTS):
        for line in accepted.unused():
            print(f"note: {line}")
    standing = sum(severity is Severity.ERROR and not ok for severity, ok, _ in merged(cases))
    print(f"{len(cases)} cases, {len(failed)} failed, {standing} errors found")
    if broken:
        return Exit.CANNOT_RUN
    return Exit.MISMATCH if failed or standing or differing else Exit.PASS


def _here(names: list[str], options: argparse.Namespace) -> int:
    from tests.sim.kernel_checks.judging import Asked, check_all

    asked = Asked(
        tuple(options.schedules.split(",")),
        options.random,
        options.quick,
        tuple(options.cases),
        options.threads,
        Accepted.read(ACCEPTED),
        options.content,
        None if options.sms is None else int(options.sms),
    )
    for name in names:
        check_all(name, options.results, asked)
    return Exit.PASS


def _installed(package: str, name: str) -> bool:
    folder = foreign.folder_of(package)
    if not package or PathFinder.find_spec(package, [*([folder] if folder else []), *sys.path]):
        return True
    print(f"note: {name} is passed over: {package} is not installed", file=sys.stderr)
    return False


def _apart(name: str, options: argparse.Namespace, sms: str | None) -> int:
    """Checks in a process of its own: other people's packages change CuTe DSL for all of it, and may remember
    a number of SMs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if SUBJECTS[name].package:
        environment |= foreign.environment(SUBJECTS[name].package)
    given = [
        f"--{one}={getattr(options, one)}" for one in ("schedules", "random", "threads", "results", "content")
    ]
    given += [f"--cases={one}" for one in options.cases] + ["--quick"] * options.quick
    given += [] if sms is None else [f"--sms={sms}"]
    status = subprocess.run(
        [sys.executable, __file__, *given, "--here", "--", name], env=environment
    ).returncode
    if status:
        print(f"error: {name} could not be checked; see above", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
