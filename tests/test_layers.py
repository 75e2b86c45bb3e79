"""Imports run one way, from the command line down to the kernels, as docs/design.md draws them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What each package must know nothing of, wherever in a file the import stands.
FORBIDDEN = {
    "kernels": ("gdnbench",),
    "gdnbench/store": (
        "gdnbench.judge",
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.diff",
        "gdnbench.cli",
    ),
    "gdnbench/judge": (
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.cli",
    ),
    "gdnbench/report": ("gdnbench.replay", "gdnbench.diff", "gdnbench.capture", "gdnbench.cli"),
    "gdnbench/replay": ("gdnbench.diff", "gdnbench.capture", "gdnbench.cli"),
    "gdnbench/diff": ("gdnbench.replay", "gdnbench.capture", "gdnbench.cli"),
    "gdnbench/capture": (
        "gdnbench.judge",
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.diff",
        "gdnbench.cli",
    ),
}


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_import_runs_up(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    upward = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in imported(file)
        if any(f"{name}.".startswith(f"{above}.") for above in FORBIDDEN[package])
    ]
    assert not upward
