#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Confirms or refutes on a Blackwell GPU (B200, sm_100) what the simulator assumes about it.

    python scripts/verify_on_blackwell.py               run all, compare every bit with the stored answers
    python scripts/verify_on_blackwell.py NAME ...      only these assumptions
    python scripts/verify_on_blackwell.py --list        the assumptions
    python scripts/verify_on_blackwell.py --assemble    does ptxas accept every micro-kernel?
    python scripts/verify_on_blackwell.py --store       write the simulator's answers (no GPU needed)

On the GPU machine this checkout needs NumPy and the CUDA driver library, which compiles the PTX. Exit status:
0 all confirmed, 1 something refuted, 2 stored answers are stale, 3 there is no Blackwell GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.sim_silicon import Driver, DriverError
from tests.sim.blackwell.answers import differences, stale, store, stored
from tests.sim.blackwell.cases import Assumption, assumptions
from tests.sim.silicon.capture import Capture
from tests.sim.silicon.microkernel import Array, MicroKernel

COMPUTE_CAPABILITY_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
BLACKWELL = 10
NO_GPU = 3
SPAWN = multiprocessing.get_context("spawn")


def missing() -> str:
    """Why nothing can run here; "" if there is a Blackwell GPU."""
    try:
        driver = Driver()
    except (OSError, DriverError) as error:
        return f"no CUDA GPU ({error})"
    major = ctypes.c_int()
    driver.call("cuDeviceGetAttribute", ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, driver.device)
    if major.value != BLACKWELL:
        return f"{driver.about()['gpu']} has compute capability {major.value}.x, not {BLACKWELL}.x"
    return ""


def run_until_fault(kernels: Sequence[MicroKernel], answers: Connection) -> None:
    """In a process of its own: a fault of the GPU leaves no call of that process working."""
    driver = Driver()
    for kernel in kernels:
        try:
            answers.send((kernel.name, driver.run(kernel)["out"]))
        except DriverError as error:
            answers.send((kernel.name, str(error)))
            return


def run_all(kernels: Sequence[MicroKernel]) -> dict[str, Array | str]:
    """The answer of each micro-kernel, or what its launch failed with."""
    found: dict[str, Array | str] = {}
    while remaining := [kernel for kernel in kernels if kernel.name not in found]:
        ours, theirs = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=run_until_fault, args=(remaining, theirs))
        process.start()
        theirs.close()
        before = len(found)
        try:
            while len(found) < len(kernels):
                name, answer = ours.recv()
                found[name] = answer
                if isinstance(answer, str):
                    break
        except EOFError:
            if len(found) == before:
                found[remaining[0].name] = "the process that launched it died"
        process.join()
    return found


def verify(chosen: Sequence[Assumption], capture: Capture) -> int:
    answers = run_all([kernel for assumption in chosen for kernel in assumption.kernels])
    refuted = 0
    for assumption in chosen:
        lines = differences(assumption, capture, answers)
        refuted += bool(lines)
        print(f"{'refuted  ' if lines else 'confirmed'} {assumption.name}: {assumption.claim}")
        for line in lines:
            print(f"          {line}")
    print(f"{len(chosen) - refuted} of {len(chosen)} assumptions confirmed")
    return int(refuted > 0)


def assemble(chosen: Sequence[Assumption]) -> int:
    """Exit status 1 if ptxas refuses a micro-kernel."""
    refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "kernel.ptx"
        for kernel in (kernel for assumption in chosen for kernel in assumption.kernels):
            source.write_text(kernel.ptx)
            command = ["ptxas", "-arch=sm_100a", str(source), "-o", f"{scratch}/kernel.cubin"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                refused += 1
                print(f"{kernel.name}: {done.stderr.strip()}")
    print(f"{refused} refused")
    return int(refused > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group()
    for name in ("list", "assemble", "store"):
        action.add_argument(f"--{name}", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", help="assumptions; default: all")
    options = parser.parse_args(arguments)
    by_name = {assumption.name: assumption for assumption in assumptions()}
    if unknown := set(options.names) - set(by_name):
        parser.error(f"no assumption {', '.join(sorted(unknown))}; --list shows them")
    chosen = [by_name[name] for name in options.names] or list(by_name.values())
    if options.list:
        for assumption in chosen:
            print(f"{assumption.name:28} {len(assumption.kernels)} micro-kernels: {assumption.claim}")
        return 0
    if options.assemble:
        return assemble(chosen)
    if options.store:
        path = store()
        print(f"{path}: {path.stat().st_size} bytes")
        return 0
    capture = stored()
    if old := stale(capture):
        print(
            f"{len(old)} micro-kernels changed since the answers were stored, such as {old[0]}: run --store"
        )
        return 2
    if why := missing():
        print(f"cannot verify: {why}")
        return NO_GPU
    return verify(chosen, capture)


if __name__ == "__main__":
    sys.exit(main())
