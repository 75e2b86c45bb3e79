# SPDX-License-Identifier: Apache-2.0
"""Which groups of tests need not run again: those whose files, and all that they stand on, passed before.

    python tests/unchanged.py digests           prints the digest of each group as it is now
    python tests/unchanged.py passed DIGEST...  prints the folders to leave out, and on stderr a line for each
    python tests/unchanged.py keep DIGEST...    notes that these passed, those that are as they were then

A group is a folder of tests that stands on the simulator alone; test_unchanged.py holds the list to what the
folders import. The digest covers the content of every file, tracked or not, so that an edit that is not
committed counts. `scripts/test` computes the digests once, before the tests run, and gives them to the other
two commands. A file edited after that was perhaps tested before the edit, perhaps after it: `keep` leaves out
a group whose digest has changed since.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm

ROOT = Path(__file__).resolve().parents[1]
PASSED = ROOT / ".cache" / "passed"
GROUPS = tuple(
    f"tests/sim/{name}"
    for name in (
        "compiler",
        "instructions",
        "machine",
        "profile",
        "ptx",
        "silicon",
        "tcgen05",
        "tensorcore",
        "wgmma",
    )
)
STANDS_ON = (
    "gdnbench/__init__.py",
    "gdnbench/artifact_cache.py",
    "gdnbench/errors.py",
    "gdnbench/poison.py",
    "gdnbench/sim",
    "pyproject.toml",
    "scripts/test",
    "tests/__init__.py",
    "tests/conftest.py",
    "tests/messages",
    "tests/seeds.py",
    "tests/subset.py",
    "tests/sim/blackwell",
    "tests/sim/clusters",
    "tests/sim/conftest.py",
    "tests/sim/fault_cases.py",
    "tests/sim/kernels",
    "tests/sim/machine/bench.py",
    "tests/sim/machine/tma_model.py",
    "tests/sim/silicon",
    "tests/sim/tcgen05/products.py",
    "tests/sim/tcgen05/tensor_machine.py",
)


def files(places: tuple[str, ...]) -> Iterator[Path]:
    """The files at and below `places`, in one order, also those below linked folders; byte code and caches
    are none."""
    for place in places:
        path = ROOT / place
        walked = os.walk(path, followlinks=True)
        found = sorted(Path(at, name) for at, _, names in walked for name in names) or [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


def digest(group: str) -> str:
    """Of the group's files, what they stand on, the interpreter, this CPU and the installed packages; and of
    PYTEST_ADDOPTS, which may leave out tests."""
    cpu = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    total = hashlib.sha256(f"{group} {sys.version} {cpu} {os.environ.get('PYTEST_ADDOPTS')}".encode())
    for file in files((group, *STANDS_ON)):
        total.update(f"\0{file.relative_to(ROOT)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    for path in sorted(Path(path).name for entry in sys.path for path in Path(entry).glob("*.dist-info")):
        total.update(path.encode())
    return total.hexdigest()


def main(arguments: list[str]) -> int:
    match arguments:
        case ["passed", *digests] if len(digests) == len(GROUPS):
            for group, one in zip(GROUPS, digests, strict=True):
                if (PASSED / one).exists():
                    print(group)
                    print(f"skipped, unchanged since it passed: {group}", file=sys.stderr)
        case ["digests"]:
            print(*map(digest, GROUPS), sep="\n")
        case ["keep", *digests] if len(digests) == len(GROUPS):
            PASSED.mkdir(parents=True, exist_ok=True)
            for group, one in zip(GROUPS, digests, strict=True):
                if one == digest(group):
                    (PASSED / one).touch()
        case _:
            takes = f"`digests`, or `passed` or `keep` with {len(GROUPS)} digests"
            print(f"tests/unchanged.py takes {takes}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
