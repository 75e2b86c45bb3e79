# SPDX-License-Identifier: Apache-2.0
"""`scripts/zoo.py`: its files, its page, and how it installs, edits, runs and judges the sides of a bug. The
packages are made here; what comes from the package index runs in `scripts/zoo`."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError, Exit
from scripts import zoo
from scripts.zoo import Bug, Outcome, Side, judge, made_page, page_table, read_bug, read_bugs, read_classes

ROOT = zoo.ROOT


def test_every_file_describes_a_bug() -> None:
    bugs = read_bugs()
    assert len(bugs) >= 15
    for bug in bugs:
        assert bug.issue.startswith("https://")
        assert bool(bug.sides) != bool(bug.why_not)
        for side in bug.sides:
            assert all(re.fullmatch(r"[\w-]+==[\w.]+", package) for package in side.packages)
            assert all(re.compile(one) for one in (*side.finds, *side.not_finds))
        if bug.sides:
            bad, good = bug.sides
            assert (bad.packages, bad.edits) != (good.packages, good.edits)
            assert bad.status == Exit.MISMATCH


def test_programs_are_short() -> None:
    for program in zoo.ZOO.glob("*.py"):
        assert len(program.read_text(encoding="utf-8").splitlines()) <= 60, program.name


def test_the_page_has_the_results_and_the_classes() -> None:
    page = zoo.PAGE.read_text(encoding="utf-8")
    results = json.loads(zoo.RESULTS.read_text(encoding="utf-8"))
    bugs = read_bugs()
    assert page == made_page(page, bugs, results)
    assert {bug.name for bug in bugs} == {one["name"] for one in results}
    assert zoo.exit_status(results) == Exit.PASS


def test_each_class_has_a_test() -> None:
    """It is in the file by name: a case's, or a function's."""
    classes = read_classes()
    assert len({one["name"] for one in classes}) == len(classes) >= 20
    for one in classes:
        file, _, name = one["test"].partition("::")
        assert name in (ROOT / file).read_text(encoding="utf-8"), one["test"]


SIDE = """
title = "t"
kind = "k"
issue = "https://example.org"
command = "python {root}/kernel/run.py"
packages = ["kernel==1"]
[bad]
finds = ['^race at line 2$']
[good]
[[good.edit]]
file = "kernel/run.py"
search = "sys.exit('race at line 2')"
replace = "print('right')"
"""


def made(tmp_path: Path, text: str = SIDE) -> Bug:
    path = tmp_path / "bug.toml"
    path.write_text(text, encoding="utf-8")
    return read_bug(path)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Installs a package that fails; how often it ran."""
    counts = tmp_path / "counts"

    def install(package: str, keep: object, folder: Path) -> Path:
        target = folder / "packages" / package
        (target / "kernel").mkdir(parents=True, exist_ok=True)
        code = f"import sys\nopen({str(counts)!r}, 'a').write('x')\nsys.exit('race at line 2')\n"
        (target / "kernel/run.py").write_text(code, encoding="utf-8")
        return target

    monkeypatch.setattr(zoo, "install", install)
    return lambda: len(counts.read_text()) if counts.exists() else 0


def test_both_sides_run_once_and_the_package_stays_as_it_is(
    tmp_path: Path, runs: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    bug = made(tmp_path)
    for _ in range(2):
        result = zoo.run_bug(bug, tmp_path / "zoo", again=False, verbose=False)
        assert result["bad"] | {"seconds": 0} == {
            "status": 1,
            "found": ("race at line 2",),
            "wrong": "",
            "seconds": 0,
            "cannot_run": "",
        }
        assert (result["good"]["status"], result["good"]["found"], result["good"]["wrong"]) == (0, (), "")
        assert runs() == 2
    assert zoo.row(result)[:3] == ("bug", "found", "clean")
    zoo.run_bug(bug, tmp_path / "zoo", again=True, verbose=False)
    assert runs() == 4
    assert "race" in (tmp_path / "zoo/packages/kernel==1/kernel/run.py").read_text()


def test_other_expectations_do_not_run_it_again(tmp_path: Path, runs: Callable[[], int]) -> None:
    zoo.run_bug(made(tmp_path), tmp_path / "zoo", again=False, verbose=False)
    result = zoo.run_bug(
        made(tmp_path, SIDE.replace("line 2$'", "line 3$'")), tmp_path / "zoo", again=False, verbose=False
    )
    assert (result["bad"]["wrong"], runs()) == ("nothing says '^race at line 3$'", 2)
    assert zoo.exit_status([result]) == Exit.MISMATCH


def test_what_was_kept_in_part_is_made_again(tmp_path: Path, runs: Callable[[], int]) -> None:
    bug = made(tmp_path)
    zoo.run_bug(bug, tmp_path / "zoo", again=False, verbose=False)
    first, _ = sorted((tmp_path / "zoo/outputs").iterdir())
    first.write_text(first.read_text()[:20])
    zoo.run_bug(bug, tmp_path / "zoo", again=False, verbose=False)
    assert runs() == 3


def test_two_processes_do_not_run_one_bug_at_once(
    tmp_path: Path, runs: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The second would remove the folder that the first one's command reads."""
    bug, folder = made(tmp_path), tmp_path / "zoo"
    (folder / "locks").mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        with (folder / "locks/bug").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            second = pool.submit(zoo.run_bug, bug, folder, again=False, verbose=False)
            said = ""
            while "waiting for another process" not in said:
                assert not second.done()
                said += capsys.readouterr().err
            assert runs() == 0
        assert second.result()["bad"]["wrong"] == ""
    assert runs() == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('search = "sys', 'search = "nowhere', "has 0 of"),
        ("print('right')", "print('right')\\nprint()", "moves the lines below"),
    ],
)
def test_an_edit_that_does_not_fit(
    tmp_path: Path, runs: Callable[[], int], old: str, new: str, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        zoo.prepare(made(tmp_path, SIDE.replace(old, new)), "good", tmp_path / "zoo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 't'\nwhy_not = 'w'", "missing 2 required"),
        (SIDE.replace("finds", "find"), "unexpected keyword argument 'find'"),
        (SIDE.replace("finds = ['^race at line 2$']", ""), r"\[bad\] has no `finds`"),
        (SIDE.split("[bad]")[0], "why_not"),
        ("title", "bug.toml: "),
    ],
)
def test_a_file_that_is_not_well_formed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        made(tmp_path, text)


def test_what_a_side_prints() -> None:
    bad = Side((), 1, ("race", "at kernel"))
    good = Side((), 0, (), ("race",))
    lines = ["error: race at /a/.cache/zoo/sides/bug-bad/kernel.py:3", "no more"]
    assert judge(bad, 1, lines, bad.finds, 5) == Outcome(1, ("error: race at kernel.py:3",), "", 5)
    assert judge(good, 0, lines, bad.finds, 5).wrong == "'race' is said"
    assert judge(good, 1, ["no"], bad.finds, 5).wrong == "exit status 1 instead of 0"
    assert judge(bad, 3, ["a", "no package"], bad.finds, 5).cannot_run == "no package"


def test_a_row_that_is_not_run_says_why(tmp_path: Path) -> None:
    bug = Bug("n", "t", "k", "https://example.org", why_not="no wheel")
    result = zoo.run_bug(bug, tmp_path, again=False, verbose=False)
    assert zoo.row(result)[1] == "not run: no wheel"
    assert zoo.exit_status([result]) == Exit.PASS
    assert "not run: no wheel" in page_table([bug], {})


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo.main(["--list", "flashinfer-block-end-decay"]) == Exit.PASS
    assert capsys.readouterr().out == "flashinfer-block-end-decay\n"
    assert zoo.main(["nothing"]) == Exit.BAD_INPUT
    assert "--list prints the names" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert zoo.main(["sglang-newton-schulz", "--folder", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"error: --folder {tmp_path}/file: File exists\n"
