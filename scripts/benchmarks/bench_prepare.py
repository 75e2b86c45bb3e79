# SPDX-License-Identifier: Apache-2.0
"""How long the compiled engine takes to prepare a kernel: to read its PTX, translate it and compile it.

    python scripts/benchmarks/bench_prepare.py KERNEL.ptx ... [--against CHECKOUT] [--cores 1,2] [--repeats 3]

Prints for each file the processor time on the critical path and the wall time of its largest kernel, each the
median of `--repeats` processes that have the modules imported. The critical path is what the process does
alone, and of what several processes do at once the longest. On a machine that does other work too, compare
processor times.

With `--against`, another checkout of this repository, processes of both alternate. Kernels are never taken
from the cache. Helper functions are: `first` is the one process that had to compile them too.
`CUTE_DSL_KEEP=ptx` and `CUTE_DSL_DUMP_DIR` make CuTe DSL write PTX.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]

# Runs in a checkout of any commit from d880793 on.
MEASURE = """
import json, os, resource, sys, time
from pathlib import Path

path, cores = sys.argv[1], int(sys.argv[2])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
from gdnbench.sim.compiler import kernel as kernels, native
from gdnbench.sim.ptx.parser import parse

native._host()
prepare = getattr(kernels, "compile_kernel", None) or kernels.make
together = [0.0]


def counted(function):
    def call(*arguments):
        start = time.process_time()
        try:
            return function(*arguments)
        finally:
            together[0] += time.process_time() - start
    return call


for name in ("in_processes", "compile_texts"):
    if hasattr(native, name):
        setattr(native, name, counted(getattr(native, name)))
        break


def children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


text = Path(path).read_text()
wall, own, others = time.perf_counter(), time.process_time(), children()
module = parse(text)
kernel = max(module.kernels.values(), key=lambda kernel: len(kernel.instructions))
prepare(module, kernel)
wall, own, others = time.perf_counter() - wall, time.process_time() - own, children() - others
longest = max(together[0], others / max(cores - 1, 1))
print(json.dumps([own - together[0] + longest, wall, len(kernel.instructions)]))
"""


def measure(checkout: Path, path: Path, cores: int, cache: Path) -> tuple[float, float, int]:
    """(seconds of the critical path, seconds of wall time, instructions) of one new process."""
    for found in cache.iterdir():
        if found.name != "sim-helpers":
            shutil.rmtree(found)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH")}
    environment |= {
        "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'kernels'}",
        "GDNBENCH_CACHE_DIR": str(cache),
        "XDG_CACHE_HOME": str(cache / "xdg"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path.resolve()), str(cores)],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    critical, wall, instructions = json.loads(done.stdout.splitlines()[-1])
    return critical, wall, instructions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="PTX files, for example k.ptx")
    parser.add_argument("--against", type=Path, help="another checkout, for example ../old")
    parser.add_argument("--cores", default="1,2", help="numbers of cores; default 1,2")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each number; default 3")
    options = parser.parse_args()
    checkouts = [HERE, *([options.against.resolve()] if options.against else [])]
    cores = [int(count) for count in options.cores.split(",")]
    print(
        f"{'kernel':28} {'instructions':>12} {'cores':>5} {'checkout':16} {'critical':>8} {'wall':>7}  first"
    )
    with tempfile.TemporaryDirectory() as folder:
        caches = {checkout: Path(folder) / str(index) for index, checkout in enumerate(checkouts)}
        for cache in caches.values():
            cache.mkdir()
        for path in options.files:
            for cache in caches.values():
                shutil.rmtree(cache / "sim-helpers", ignore_errors=True)
            for count in cores:
                first = {checkout: measure(checkout, path, count, caches[checkout]) for checkout in checkouts}
                runs: dict[Path, list[tuple[float, float, int]]] = {checkout: [] for checkout in checkouts}
                for _ in range(options.repeats):
                    for checkout in checkouts:
                        runs[checkout].append(measure(checkout, path, count, caches[checkout]))
                for checkout in checkouts:
                    critical, wall = (statistics.median(run[i] for run in runs[checkout]) for i in (0, 1))
                    print(
                        f"{path.stem[:28]:28} {runs[checkout][0][2]:12,} {count:5} {checkout.name[:16]:16}"
                        f" {critical:8.2f} {wall:7.2f}  {first[checkout][0]:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
