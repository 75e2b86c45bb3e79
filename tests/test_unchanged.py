# SPDX-License-Identifier: Apache-2.0
"""Tests that scripts/test leaves out stand on no more than their digest covers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import unchanged
from tests.unchanged import GROUPS, ROOT, STANDS_ON


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("group", [*GROUPS, "gdnbench/sim"])
def test_a_group_imports_what_its_digest_covers(group: str) -> None:
    covered = [place.removesuffix(".py").replace("/", ".") for place in (group, *STANDS_ON)]
    for file in (ROOT / group).rglob("*.py"):
        for name in imported(file):
            if name == "gdnbench.sim" or name.split(".")[0] not in (
                "gdnbench",
                "gdnbench_kernels",
                "scripts",
                "tests",
            ):
                continue
            assert any(f"{name}.".startswith(f"{one}.") for one in covered), f"{file}: {name}"


@pytest.mark.parametrize("place", ["gdnbench/sim/ptx/parser.py", f"{GROUPS[1]}/test_new.py"])
def test_an_edit_or_a_new_file_is_another_digest(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    for folder in (GROUPS[1], "gdnbench/sim/ptx"):
        (tmp_path / folder).mkdir(parents=True)
    for name in STANDS_ON:
        if name.endswith(".py") or "." in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/test").touch()
    before = unchanged.digest(GROUPS[1])
    assert unchanged.digest(GROUPS[1]) == before
    (tmp_path / place).write_text("x = 1\n")
    assert unchanged.digest(GROUPS[1]) != before


def test_a_file_in_a_linked_folder_is_in_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gdnbench").mkdir()
    (tmp_path / "gdnbench/sim").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/new.py").touch()
    assert [file.name for file in unchanged.files(("gdnbench/sim",))] == ["new.py"]


def test_a_run_that_leaves_out_tests_has_digests_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    whole = unchanged.digest(GROUPS[0])
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k one_test")
    assert unchanged.digest(GROUPS[0]) != whole


def test_nothing_is_left_out_before_it_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unchanged, "PASSED", tmp_path)
    assert unchanged.main(["digests"]) == 0
    digests = capsys.readouterr().out.split()
    assert unchanged.main(["passed", *digests]) == 0
    assert capsys.readouterr().out == ""
    assert unchanged.main(["keep", *digests[1:]]) == 2
    assert unchanged.main(["passed"]) == 2
    assert unchanged.main(["keep", *digests]) == 0
    capsys.readouterr()
    assert unchanged.main(["passed", *digests]) == 0
    assert capsys.readouterr().out.split() == list(GROUPS)


def test_an_edit_while_the_tests_run_is_not_taken_for_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the edited files, nor those before the edit: the tests may have read either."""
    monkeypatch.setattr(unchanged, "PASSED", tmp_path)
    assert unchanged.main(["digests"]) == 0
    before = capsys.readouterr().out.split()
    monkeypatch.setattr(unchanged, "digest", lambda group: f"{group} as it was edited".replace("/", "."))
    assert unchanged.main(["keep", *before]) == 0
    assert unchanged.main(["digests"]) == 0
    edited = capsys.readouterr().out.splitlines()
    for digests in (before, edited):
        assert unchanged.main(["passed", *digests]) == 0
        assert capsys.readouterr().out == ""


def test_what_is_left_out_is_what_is_kept() -> None:
    """An edit between two computations of the digests would be kept for tested although it was left out."""
    script = (ROOT / "scripts/test").read_text(encoding="utf-8")
    assert script.count("unchanged.py digests") == 1
    assert 'unchanged.py passed "${digests[@]}"' in script
    assert 'unchanged.py keep "${digests[@]}"' in script
