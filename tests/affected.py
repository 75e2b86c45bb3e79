# SPDX-License-Identifier: Apache-2.0
"""Which tests to run first after an edit: `python tests/affected.py [FILE...]` prints files of tests, the
nearest first.

Without FILE the edited files are those that git lists as changed, staged or new. A file of tests is near to
an edited file, in this order, if it is the edited file itself, if it has the same stem (`judge/ulp.py`:
`test_ulp.py`), or if it imports the edited module. Tests that reach the module only through others are not
listed: `scripts/test` runs those.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def changed_files(root: Path = ROOT) -> list[str]:
    """What git lists: changed, staged and new files, by their paths from the top of the checkout."""
    listed = subprocess.run(
        ["git", "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [entry[3:] for entry in listed.stdout.split("\0") if entry]


def module_of(file: str) -> str | None:
    """`gdnbench/judge/ulp.py`: `gdnbench.judge.ulp`; None for a file that is no module."""
    path = Path(file)
    if path.suffix != ".py":
        return None
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "kernels" else parts).removesuffix(".__init__")


def imported(text: str) -> Iterator[str]:
    """The modules that a file of this text imports; of `from a import b` also `a.b`, which may be one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def affected(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The files of tests that are near to the changed files, nearest first, then by name."""
    files = [file for file in changed if (root / file).is_file()]
    modules = {module for file in files if (module := module_of(file)) is not None}
    stems = {f"test_{Path(file).stem}" for file in files if file.endswith(".py")}
    last_parts = {module.rpartition(".")[2] for module in modules}
    found = []
    for test in sorted((root / "tests").rglob("test_*.py")):
        name = test.relative_to(root).as_posix()
        nearness = 0 if name in files else 1 if test.stem in stems else 2
        text = test.read_text(encoding="utf-8")
        names_one = any(part in text for part in last_parts)  # most name none, and parsing is slow
        if nearness < 2 or (names_one and modules.intersection(imported(text))):
            found.append((nearness, name))
    return [name for _, name in sorted(found)]


def main(arguments: list[str]) -> int:
    missing = [file for file in arguments if not (ROOT / file).is_file()]
    if missing:
        print(f"no file {missing[0]} in {ROOT}: name files from the top of the checkout", file=sys.stderr)
        return 2
    for test in affected(arguments or changed_files()):
        print(test)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
