# SPDX-License-Identifier: Apache-2.0
"""The tests that `scripts/test --changed` picks, and its limit of seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.affected import ROOT, affected, changed_files, main


def test_the_same_stem_comes_first_then_what_imports_it() -> None:
    found = affected(["gdnbench/bits.py"])
    assert found[0] == "tests/test_bits.py"
    assert "tests/test_packaging.py" not in found
    for name in found[1:]:
        assert "gdnbench.bits" in (ROOT / name).read_text(encoding="utf-8") or name.endswith("test_bits.py")


def test_kernels_are_imported_by_their_own_name() -> None:
    found = affected(["kernels/gdnbench_kernels/gdn_prefill/prefill_plan.py"])
    assert found[0] == "tests/kernels/test_prefill_plan.py"


def test_an_edited_test_is_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("import gdnbench.b\n")
    (tmp_path / "tests" / "test_b.py").write_text("")
    (tmp_path / "gdnbench").mkdir()
    (tmp_path / "gdnbench" / "b.py").write_text("")
    assert affected(["gdnbench/b.py"], tmp_path) == ["tests/test_b.py", "tests/test_a.py"]
    assert affected(["tests/test_a.py", "gdnbench/b.py", "gone.py"], tmp_path) == [
        "tests/test_a.py",
        "tests/test_b.py",
    ]


def test_changed_files_are_changed_staged_and_new(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name in ("a.py", "b.py", "same.py"):
        (tmp_path / name).write_text("")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "a")
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("1")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "c d.py").write_text("")
    git("add", "b.py")
    assert sorted(changed_files(tmp_path)) == ["a.py", "b.py", "new/c d.py"]


def test_no_test_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`scripts/test --changed` counts lines: an empty one would be all of the tests to pytest."""
    assert main(["LICENSE"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_rest_is_skipped_when_the_time_is_over(tmp_path: Path) -> None:
    """Starts a pytest."""
    test = ROOT / "tests" / "test_bits.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--within=0", str(test)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert " passed" not in ran.stdout.splitlines()[-1]
    assert "the 0 s of --within are over" in ran.stdout
