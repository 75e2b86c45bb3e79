"""Imports run one way, from the command line down to the kernels, as docs/design.md draws them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

SIM_ENGINES = ("gdnbench.sim.interpreter", "gdnbench.sim.compiler")
SIM_ENDS = ("gdnbench.sim.host", "gdnbench.sim.simulate", "gdnbench.sim.run", "gdnbench.sim.profile")

# What stands on a replay or shows it: nothing that a replay is made of knows of these.
ON_TOP = (
    "gdnbench.mismatch",
    "gdnbench.share",
    "gdnbench.distributed",
    "gdnbench.suite",
    "gdnbench.page",
    "gdnbench.pictures",
    "gdnbench.pytest_plugin",
)

# Imports the standard library alone; the simulator and the kernels share it.
LEAVES = ("gdnbench.artifact_cache",)

# What each package must know nothing of, wherever in a file the import stands.
FORBIDDEN = {
    "kernels": ("gdnbench",),
    "gdnbench/store": (
        "gdnbench.judge",
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.trace",
        "gdnbench.cli",
        *ON_TOP,
    ),
    # Stands beside the store, and knows what the simulator tells.
    "gdnbench/trace": (
        "gdnbench_kernels",
        "gdnbench.ops",
        "gdnbench.judge",
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.cli",
        *ON_TOP,
    ),
    "gdnbench/judge": (
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.cli",
        *ON_TOP,
    ),
    "gdnbench/report": (
        "gdnbench.replay",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.cli",
        *ON_TOP,
    ),
    # Shows runs that were saved, and makes none.
    "gdnbench/page": (
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.suite",
        "gdnbench.distributed",
        "gdnbench.sim",
        "gdnbench.pictures",
        "gdnbench.cli",
        "gdnbench.pytest_plugin",
    ),
    # Shows what is in a report, or in a run that was saved.
    "gdnbench/pictures": (
        "gdnbench.replay",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.suite",
        "gdnbench.page",
        "gdnbench.cli",
        "gdnbench.distributed",
        "gdnbench.pytest_plugin",
    ),
    "gdnbench/replay": (
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.cli",
        "gdnbench.bisect",
        *ON_TOP,
    ),
    # Starts processes for whoever asks, and knows nothing of what they compute.
    "gdnbench/workers": (
        "gdnbench_kernels",
        "gdnbench.store",
        "gdnbench.judge",
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.trace",
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.sim",
        "gdnbench.cli",
        *ON_TOP,
    ),
    "gdnbench/distributed": (
        "gdnbench.diff",
        "gdnbench.timing",
        "gdnbench.capture",
        "gdnbench.cli",
        "gdnbench.suite",
        "gdnbench.page",
        "gdnbench.pictures",
        "gdnbench.pytest_plugin",
    ),
    "gdnbench/suite": (
        "gdnbench.diff",
        "gdnbench.timing",
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.page",
        "gdnbench.pictures",
        "gdnbench.pytest_plugin",
        "gdnbench.cli",
    ),
    "gdnbench/timing": (
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.cli",
        "gdnbench.bisect",
        *ON_TOP,
    ),
    "gdnbench/bisect": (
        "gdnbench.timing",
        "gdnbench.capture",
        "gdnbench.cli",
        *ON_TOP,
    ),
    "gdnbench/diff": (
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.cli",
        *ON_TOP,
    ),
    "gdnbench/capture": (
        "gdnbench.judge",
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.cli",
        *ON_TOP,
    ),
    # Replays what is captured, as it is captured.
    "gdnbench/mismatch": (
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.bisect",
        "gdnbench.suite",
        "gdnbench.distributed",
        "gdnbench.page",
        "gdnbench.pictures",
        "gdnbench.pytest_plugin",
        "gdnbench.cli",
    ),
    # Replays what it copies, and what it has copied.
    "gdnbench/share": (
        "gdnbench.capture",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.trace",
        "gdnbench.bisect",
        "gdnbench.mismatch",
        "gdnbench.suite",
        "gdnbench.distributed",
        "gdnbench.page",
        "gdnbench.pictures",
        "gdnbench.pytest_plugin",
        "gdnbench.cli",
    ),
    "gdnbench/pytest_plugin": (
        "gdnbench.capture",
        "gdnbench.bisect",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.distributed",
        "gdnbench.page",
        "gdnbench.pictures",
    ),
    # The simulator knows PTX: no operation, no store, no command.
    "gdnbench/sim": (
        "gdnbench_kernels",
        "gdnbench.ops",
        "gdnbench.store",
        "gdnbench.trace",
        "gdnbench.judge",
        "gdnbench.report",
        "gdnbench.replay",
        "gdnbench.timing",
        "gdnbench.diff",
        "gdnbench.capture",
        "gdnbench.cli",
        *ON_TOP,
    ),
    "gdnbench/sim/ptx": (*SIM_ENGINES, *SIM_ENDS, "gdnbench.sim.machine", "gdnbench.sim.tensorcore"),
    "gdnbench/sim/tensorcore": (*SIM_ENGINES, *SIM_ENDS, "gdnbench.sim.machine", "gdnbench.sim.ptx"),
    "gdnbench/sim/machine": (*SIM_ENGINES, *SIM_ENDS),
    # The engines check each other: neither may borrow from the other.
    "gdnbench/sim/interpreter": ("gdnbench.sim.compiler", "gdnbench.sim.tensorcore.native", *SIM_ENDS),
    "gdnbench/sim/compiler": ("gdnbench.sim.interpreter", "gdnbench.sim.tensorcore.reference", *SIM_ENDS),
    "gdnbench/sim/host": (*SIM_ENGINES, "gdnbench.sim.simulate", "gdnbench.sim.run"),
}

# Timing is handed to them and they carry its results: they may name its types and import nothing of it.
CARRIERS = ("gdnbench/report", "gdnbench/replay")


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what is imported for type checkers alone."""

    def visit_If(self, node: ast.If) -> Any:
        for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse or ast.Pass() if for_types else self.generic_visit(node)


def imported(file: Path, types: bool = True) -> Iterator[str]:
    tree: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree if types else WithoutTypes().visit(tree)):
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
        and not any(f"{name}.".startswith(f"{leaf}.") for leaf in LEAVES)
    ]
    assert not upward


@pytest.mark.parametrize("package", CARRIERS)
def test_times_are_carried_and_not_taken(package: str) -> None:
    taken, named = (
        [
            f"{file.relative_to(ROOT)}: {name}"
            for file in (ROOT / package).rglob("*.py")
            for name in imported(file, types)
            if f"{name}.".startswith("gdnbench.timing.")
        ]
        for types in (False, True)
    )
    assert not taken
    assert named  # else nothing is carried, and the packages belong into FORBIDDEN
