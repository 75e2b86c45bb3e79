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
    ],
)
def test_calls_whose_name_is_computed_have_their_line(call: str) -> None:
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
