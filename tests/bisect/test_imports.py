# SPDX-License-Identifier: Apache-2.0
"""What a file imports, read from its text: statements are in `test_commit`, here are calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import cache_key, trial
from gdnbench.bisect.commit.relevant import Relevant
from gdnbench.bisect.commit.repository import Repository
from gdnbench.bisect.imports import FilePath, read_imports
from tests.messages import wording


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("importlib.import_module('a.b')", {"a"}),
        ("import_module(name='a')", {"a"}),
        ("load('a')", {"a"}),  # from importlib import import_module as load
        ("__import__('a')", {"a"}),
        ("runpy.run_module('a.b', run_name='x')", {"a"}),
        ("import_module('.b', 'a')", {"a"}),
        ("import_module('.b', __package__)", set()),
        ("import_module(f'{__name__}.b')", set()),
        ("import_module(f'a.{name}')", {"a"}),
        ("import_module('a.' + name)", {"a"}),
        ("pkgutil.resolve_name('a:b')", {"a"}),
        ("module_from_spec(importlib.util.find_spec('a.b'))", {"a"}),
        ("NAME = 'a.b'\nimport_module(NAME)", {"a"}),
        ("import h\u00e9", {"h", "h\u00e9"}),  # h: what the quick look takes it for
    ],
)
def test_calls_that_import_by_a_literal_name(call: str, names: set[str]) -> None:
    text = f"x = 1\nfrom importlib import import_module as load\n{call}\n"
    found = read_imports(text.encode())
    assert (found.names - {"importlib"}, found.computed) == (names, ())


@pytest.mark.parametrize(
    "call",
    [
        "import_module(name)",
        "import_module(f'{name}.b')",
        "import_module('a' + name)",
        "import_module('.b', package=name)",
        "__import__(sys.argv[1])",
        "runpy.run_path(path)",
        "spec_from_file_location('a', folder / 'a.py')",
        "module_from_spec(find_spec(name))",
        "load = importlib.import_module",
        "(load := __import__)('a')",
        "map(import_module, ['a'])",
        "functools.partial(runpy.run_path, 'a.py')",
        "getattr(importlib, 'import_module')('a')",
        "def load(name='a'): return import_module(name)",
        "sys.path.insert(0, folder)",
        "sys.path = [*sys.path, folder]",
        "from sys import path",
        "sys.meta_path.append(finder)",
    ],
)
def test_what_is_computed_or_handed_on_has_its_line(call: str) -> None:
    assert read_imports(f"\n\n{call}\n".encode()).computed == (3,)


@pytest.mark.parametrize(
    ("path", "beside", "names"),
    [
        ("'tools/a.py'", False, "tools/a.py"),
        ("Path(__file__).parent / 'a.py'", True, "a.py"),
        ("str(Path(__file__).resolve().parents[1] / 'b' / 'a.py')", True, "../b/a.py"),
        ("Path(__file__).with_name('a.py')", True, "a.py"),
        ("os.path.join(os.path.dirname(os.path.abspath(__file__)), 'b', 'a.py')", True, "b/a.py"),
    ],
)
def test_calls_that_load_a_file(path: str, beside: bool, names: str) -> None:
    for call in (f"runpy.run_path({path})", f"importlib.util.spec_from_file_location('m', {path})"):
        found = read_imports(call.encode())
        assert (found.paths, found.computed) == ({FilePath(beside, names)}, ())


def test_a_name_counts_as_its_value_where_it_has_one_alone() -> None:
    text = "name = 'a'\ndef load(name): import_module(name)\nother = 'a'\nother = 'b'\nimport_module(other)\n"
    assert read_imports(text.encode()).computed == (2, 5)
    doubled = "".join(f"a{n} = a{n + 1} + a{n + 1}\n" for n in range(40))  # 2 to the power of 40 parts
    assert read_imports(f"a40 = a40\n{doubled}import_module(a0)\n".encode()).computed == (42,)


@pytest.mark.parametrize(
    "added",
    [
        "sys.path.insert(0, str(HERE / 'lib'))",
        "sys.path.append(LIB)",
        "sys.path[:0] = [LIB]",
        "sys.path += [LIB]",
        "sys.path = [LIB] + sys.path",
        "site.addsitedir(LIB)",
        "import sys as system; system.path.extend([LIB])",
    ],
)
def test_folders_that_are_added_to_the_search_path(added: str) -> None:
    begin = "import sys, site\nHERE = Path(__file__).parent\nLIB = str(HERE / 'lib')\n"
    found = read_imports(f"{begin}{added}\n".encode())
    assert (found.folders, found.computed) == ({FilePath(True, "lib")}, ())
    assert read_imports(b"import sys\nfor path in sys.path: print(path, sys.path[0])\n").computed == ()


SEVERAL = {
    "pyproject.toml": '[tool.setuptools.package-dir]\n"" = "src"\n',
    "pack/notes.txt": "a folder of the name of the package",
    "src/pack/__init__.py": "",
    "src/pack/k.py": "import sys\nsys.path[:0] = ['lib', 'zipped.zip']\nimport helper, fast, far\n",
    "helper.py": "",
    "src/helper/__init__.py": "",
    "src/fast.abi3.so": "",
    "lib/far.py": "import runpy\nrunpy.run_path('tools/tables')\n",
    "tools/tables/__main__.py": "",
    "zipped.zip": "",
    "sitecustomize.py": "",
}


@pytest.mark.every(2)
@pytest.mark.parametrize("changed", [name for name in SEVERAL if name != "pyproject.toml"])
def test_all_that_an_import_may_find_counts(history: Any, changed: str) -> None:
    """A folder of the same name in another place, which Python passes over, hides no package."""
    before = history.commit("Begin", SEVERAL)
    after = history.commit("Change", {changed: "# changed\n" + SEVERAL[changed]})
    relevant = Relevant(Repository(history.path), "pack.k:kernel", "")
    assert relevant.tree_hashes(before) != relevant.tree_hashes(after)
    assert relevant.computed == {}


def test_what_an_adapter_outside_the_repository_imports_counts(
    history: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = history.commit("Begin", {"engine.py": "", "common.py": "", "other.py": ""})
    common, adapter = tmp_path / "beside" / "shared.py", tmp_path / "beside" / "adapter.py"
    common.parent.mkdir()
    common.write_text("import engine\n")
    adapter.write_text("import shared\n")
    monkeypatch.syspath_prepend(common.parent)
    relevant = Relevant(Repository(history.path), f"{adapter}:kernel", "")
    for name, counts in (("engine.py", True), ("other.py", False)):
        after = history.commit(name, {name: "# changed\n"})
        assert (relevant.tree_hashes(before) != relevant.tree_hashes(after)) is counts
        before = after
    assert set(relevant.outside(before)) == {adapter, common}


FILES = {
    "pack/__init__.py": "",
    "pack/k.py": "import importlib, runpy\nfrom pathlib import Path\n"
    "def kernel():\n    importlib.import_module('other.part')\n"
    "    runpy.run_path(Path(__file__).parents[1] / 'tools' / 'tables.py')\n",
    "other/__init__.py": "",
    "other/part.py": "",
    "tools/tables.py": "import far\n",
    "far.py": "",
    "unrelated.py": "",
}


@pytest.mark.parametrize("changed", ["other/part.py", "tools/tables.py", "far.py", "unrelated.py"])
def test_a_commit_to_a_file_that_is_loaded_counts(history: Any, changed: str) -> None:
    before = history.commit("Begin", {f"src/{name}": text for name, text in FILES.items()})
    after = history.commit("Change", {f"src/{changed}": "# changed\n"})
    relevant = Relevant(Repository(history.path), "pack.k:kernel", "src")
    counts = relevant.tree_hashes(before) != relevant.tree_hashes(after)
    assert counts is (changed != "unrelated.py")
    assert relevant.computed == {}


@pytest.mark.parametrize("changed", ["other/part.py", "tools/tables.py", "far.py", "unrelated.py"])
def test_a_file_that_a_package_loads_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before = cache_key.digest_code(trial.kernel_sources("pack.k:kernel"))
    (tmp_path / changed).write_text("# changed\n")
    counts = cache_key.digest_code(trial.kernel_sources("pack.k:kernel")) != before
    assert counts is (changed != "unrelated.py")


def test_a_computed_import_is_told_with_the_option_that_names_it(bisecting: Any, history: Any) -> None:
    history.commit("Plug", {"pack/plug.py": "import importlib\nimportlib.import_module(input())\n"})
    made = bisecting.commits(history, "right", "wrong")
    said = wording("bisect.imports-computed", place="pack/plug.py:2")
    bisecting(made[0], made[1])
    assert sum(bool(re.fullmatch(said, line)) for line in bisecting.told) == 1
    bisecting(made[0], made[1], also=("pack",))
    assert not [line for line in bisecting.told if line.startswith("imports")]
