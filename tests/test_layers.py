# SPDX-License-Identifier: Apache-2.0
"""Which part of the tree imports which: an allow-list, which docs/design.md draws."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each part, and all parts that it imports, be it inside a function or for types alone. A part may only name
# parts above it, so that nothing runs in a circle.
ALLOWED = """
artifact_cache:
sim.base:
base: sim.base
sim.ptx: sim.base
sim.tensorcore.formats: sim.base
sim.machine: sim.base sim.ptx sim.tensorcore.formats
sim.tensorcore: sim.base sim.tensorcore.formats
sim.compiler: artifact_cache sim.base sim.ptx sim.tensorcore.formats sim.machine
sim.host: sim.base sim.ptx sim.machine
sim.cuda_source: sim.base sim.ptx sim.host
sim.profile: sim.base sim.ptx sim.machine
sim.value_trace: sim.base sim.ptx sim.machine
sim.checker: sim.base sim.ptx sim.machine sim.profile
sim.interpreter: sim.base sim.ptx sim.tensorcore.formats sim.machine sim.value_trace
sim.run: sim.base sim.ptx sim.tensorcore.formats sim.machine sim.tensorcore sim.compiler sim.host sim.profile
    sim.value_trace sim.checker sim.interpreter
sim.fp64: sim.base sim.ptx sim.machine sim.host sim.value_trace sim.interpreter sim.run
sim: sim.base sim.ptx sim.machine sim.host sim.profile sim.checker sim.run sim.fp64
sim.virtual: sim.base sim.ptx sim.machine sim.host sim.cuda_source sim.checker sim.run sim
sim.mutants: sim.base sim.ptx sim.machine sim.host sim.checker sim.run
sim.predict: artifact_cache sim.base sim.ptx sim.machine sim.compiler sim.host sim.profile sim.run
sim.protocol: sim.base sim.ptx sim.machine sim.compiler sim.host sim.run
sim.delays: sim.base sim.checker sim.ptx sim.machine sim.host sim sim.predict
kernels: artifact_cache
report.outcome: base
store: artifact_cache base
ops: base kernels
export: base store
timing.result: base report.outcome
workers: base report.outcome
lineage: base kernels store ops
capture: base sim.virtual kernels store ops lineage
compile: base kernels ops
doctor: base kernels ops
judge: base kernels store ops
synth: base kernels ops
kernel_figures: base sim.base sim.ptx sim.host kernels
report: base sim sim.predict kernels report.outcome store ops timing.result lineage judge
trace: base sim.host sim.value_trace sim sim.virtual store
diff: base kernels report.outcome store ops judge report
diff.traces: base sim.ptx sim.value_trace sim trace
heatmap: base kernels judge report
page: base timing.result lineage judge report
replay: base sim.base sim sim.virtual sim.predict sim.protocol kernels report.outcome store ops timing.result
    workers judge synth report trace
bisect: artifact_cache base sim.base sim.host sim.value_trace sim sim.predict kernels report.outcome store
    ops workers judge synth report trace diff.traces replay
mismatch: base report.outcome store capture judge report replay workers
share: base kernels report.outcome store ops judge report replay
timing: base sim sim.predict kernels report.outcome store ops timing.result workers judge report replay
distributed: base sim.base sim kernels report.outcome store workers report replay bisect
prove.records: base kernels store ops synth
prove: base kernels report.outcome store ops judge report prove.records replay
suite: base sim sim.virtual report.outcome store ops workers lineage judge report prove.records replay
    distributed
simulated_call: base sim.base sim.host sim sim.virtual replay
kernel_file: base sim.base sim.ptx sim.host sim.cuda_source sim simulated_call
api: base sim.base sim store judge report diff heatmap replay simulated_call kernel_file
__init__: base sim.base api
cli: base sim.base sim.ptx sim.host sim.value_trace sim sim.virtual sim.predict sim.protocol sim.delays
    kernels store ops export timing.result lineage capture compile doctor judge synth kernel_figures report
    trace diff diff.traces heatmap page replay bisect mismatch share timing distributed prove suite
    simulated_call kernel_file
pytest_plugin: base sim.base sim sim.virtual kernels report.outcome store ops judge report replay suite
__main__: cli
"""
ROWS = (row.partition(":") for row in re.sub(r"\n +", " ", ALLOWED).strip().split("\n"))
TABLE = {part: set(names.split()) for part, _, names in ROWS}

# A part is the module or package of its name below gdnbench, without the modules that have a part of their
# own; these parts have several modules, or one of another name.
MODULES = {
    "__init__": "gdnbench",
    "kernels": "gdnbench_kernels",
    "base": """bits digest_kernel digests error_frames errors export_format handlers missing near_names
        options phases poison pools printable provenance record record_numbers shipped tables toml_tables
        units value_range version whole_file""",
    "sim.base": """sim.deadline sim.demangle sim.errors sim.floating_environment sim.forked sim.lazy
        sim.special_function""",
    "sim.tensorcore.formats": "sim.tensorcore.formats sim.tensorcore.product sim.tensorcore.scaled",
    "sim.run": "sim.run sim.watch",
    "sim": "sim sim.checker.accept",
    "ops": "ops kernel_names",
    "timing.result": "timing.json_values timing.result timing.statistics timing.types",
}
PART_OF = {module: part for part in TABLE for module in MODULES.get(part, part).split()}

# The packages of other projects that each room imports: a room is a part's name up to its first dot.
THIRD_PARTY = """
sim: numpy llvmlite ml_dtypes cutlass torch tvm_ffi cuda triton
kernels: cutlass cuda torch
base: numpy torch triton
store: numpy torch zarr blake3 google_crc32c obstore
export: numpy torch
simulated_call: torch
api: numpy torch ml_dtypes pandas
capture: numpy torch blake3
lineage: numpy torch
judge: numpy torch
synth: torch
kernel_figures: torch
doctor: torch packaging
workers: numpy torch distributed
report: numpy
trace: numpy zarr blake3
diff: numpy torch
heatmap: numpy
page: quickjs resvg_py
replay: numpy torch
bisect: numpy torch zarr blake3 packaging
mismatch: torch
share: torch
prove: torch
timing: torch
distributed: torch
cli: torch typer
pytest_plugin: torch pytest
"""
ROOMS = (row.partition(":") for row in THIRD_PARTY.strip().split("\n"))
PACKAGES = {room: set(names.split()) for room, _, names in ROOMS}

# The modules of the simulator that other code may import, and those that import next to nothing.
PUBLIC = {
    "",
    ".argspec",
    ".cuda_source",
    ".delays",
    ".errors",
    ".explore",
    ".host",
    ".mutants",
    ".predict",
    ".protocol",
    ".ptx",
    ".tensorcore",
    ".value_trace",
    ".virtual",
}
LIGHT = ("", ".errors", ".host", ".mutants", ".ptx", ".tensorcore", ".virtual", ".virtual.bootstrap")
# The simulator, its tests and what holds its time model to measured times, and two tests that replace what it
# runs kernels with.
INSIDERS = (
    "gdnbench/sim/",
    "tests/sim/",
    "scripts/benchmarks/predict_gdn_prefill.py",
    "scripts/benchmarks/predicted_then_measured.py",
    "scripts/validate_time_model.py",
    "tests/kernels/test_cuda_arguments.py",
    "tests/kernels/test_swa_grid.py",
)


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "kernels" else parts).removesuffix(".__init__")


FILES = {_module(file): file for top in ("gdnbench", "kernels") for file in (ROOT / top).rglob("*.py")}


@functools.cache
def _contents(file: Path) -> tuple[dict[ast.Import | ast.ImportFrom, bool], frozenset[str]]:
    """A file's imports, wherever they stand, each with whether it is for type checkers alone; and its strings
    that hold a dot. One walk, whose tree is not kept."""
    imports: dict[ast.Import | ast.ImportFrom, bool] = {}
    texts: set[str] = set()
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text(encoding="utf-8")), False)]
    while nodes:
        node, typed = nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports[node] = typed
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and "." in node.value:
                texts.add(node.value)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            nodes += ((one, True) for one in node.body)
            nodes += ((one, typed) for one in node.orelse)
        else:
            nodes += ((one, typed) for one in ast.iter_child_nodes(node))
    return imports, frozenset(texts)


@functools.cache
def imported(file: Path, types: bool = True) -> frozenset[str]:
    """The modules of the tree that a file imports, wherever the import stands. Without `types`, not those
    that it imports for type checkers alone."""
    found: set[str] = set()
    for node, typed in _contents(file)[0].items():
        if typed and not types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0 or "tests" in file.parts, f"{file}: relative import"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in FILES else str(node.module) for name in names}
    return frozenset(name for name in found if name in FILES and name != _module(file))


def named(file: Path) -> set[str]:
    """The modules of the tree that a file names in a string, to import them later or in another process."""
    return {*_contents(file)[1]} & FILES.keys() - {_module(file)}


def third_party(file: Path) -> set[str]:
    """The packages of other projects that a file imports, wherever the import stands."""
    names = {name for node in _contents(file)[0] for name in _names(node)}
    ours = {"gdnbench", "gdnbench_kernels", "_typeshed"}  # the last is for type checkers
    return {name.partition(".")[0] for name in names} - ours - sys.stdlib_module_names


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def part_of(module: str) -> str:
    """The part with the longest name that the module belongs to."""
    name = module.removeprefix("gdnbench.")
    while name not in PART_OF and "." in name:
        name = name.rpartition(".")[0]
    assert name in PART_OF, f"{module}: this test has no row for it"
    return PART_OF[name]


def test_each_package_has_a_row() -> None:
    inits = [*(ROOT / "gdnbench").glob("*/__init__.py"), *(ROOT / "gdnbench/sim").glob("*/__init__.py")]
    assert {_module(init).removeprefix("gdnbench.") for init in inits} <= TABLE.keys()
    assert {part_of(module) for module in FILES} == TABLE.keys()


def test_each_folder_of_modules_is_a_package() -> None:
    """A folder without __init__.py is imported all the same, and would need no row."""
    folders = {file.parent for file in FILES.values()} - {ROOT / "kernels"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("part", TABLE)
def test_imports_are_those_of_the_row(part: str) -> None:
    """No import that the row does not name, and no name that nothing imports. A module that is named in a
    string counts as imported."""
    found = {
        part_of(name): f"{module} -> {name}"
        for module, file in FILES.items()
        if part_of(module) == part
        for name in imported(file) | named(file)
    }
    found.pop(part, None)
    assert found.keys() == TABLE[part], [why for name, why in found.items() if name not in TABLE[part]]


def test_packages_of_other_projects_are_those_of_the_room() -> None:
    found: dict[str, set[str]] = {}
    for module, file in FILES.items():
        found.setdefault(part_of(module).partition(".")[0], set()).update(third_party(file))
    assert {room: names for room, names in found.items() if names} == PACKAGES


def test_rows_name_rows_above_them() -> None:
    above: set[str] = set()
    for part, names in TABLE.items():
        assert names <= above, part
        above.add(part)


def test_no_files_import_each_other() -> None:
    try:
        TopologicalSorter({module: imported(file) for module, file in FILES.items()}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_simulator_has_one_door() -> None:
    """Code outside imports the simulator's public modules and nothing inside."""
    deep = [
        f"{file.relative_to(ROOT)}: {name}"
        for top in ("gdnbench", "kernels", "scripts", "captures", "tests")
        for file in (ROOT / top).rglob("*.py")
        if not str(file.relative_to(ROOT)).startswith(INSIDERS)
        if re.search(rb"(from|import) gdnbench\.sim", file.read_bytes())  # few are parsed
        for name in imported(file)
        if name.startswith("gdnbench.sim.") and name.removeprefix("gdnbench.sim") not in PUBLIC
    ]
    assert not deep


def test_the_door_is_light() -> None:
    public = "; ".join(f"import gdnbench.sim{name}" for name in LIGHT)
    heavy = "{'numpy', 'torch', 'llvmlite', 'cutlass'}"
    program = f"import sys; {public}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("package", ["report", "replay"])
def test_times_are_carried_and_not_taken(package: str) -> None:
    """Timing is handed to them: they name its types and import nothing of it."""
    files = [file for module, file in FILES.items() if module.startswith(f"gdnbench.{package}.")]
    taken, typed = (
        [f"{file}: {name}" for file in files for name in imported(file, types) if ".timing" in name]
        for types in (False, True)
    )
    assert not taken
    assert typed  # else nothing is carried


def drawing() -> str:
    """The parts in rows, each above all that it imports."""
    height: dict[str, int] = {}
    for part, names in TABLE.items():
        height[part] = 1 + max((height[name] for name in names), default=-1)
    rows = [[part for part in TABLE if height[part] == row] for row in range(max(height.values()) + 1)]
    return "".join(f"    {row:2}  {'  '.join(parts)}\n" for row, parts in reversed(list(enumerate(rows))))


def test_the_drawing_is_the_table() -> None:
    assert drawing() in (ROOT / "docs/design.md").read_text(encoding="utf-8"), f"docs/design.md:\n{drawing()}"
