# SPDX-License-Identifier: Apache-2.0
"""What docs/ shows is what happens: the files and commands of its pages, and the reader of pages itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import session
from tests.subset import quick

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "run_page.py"

PAGE = """# A page
```python file=sub/greet.py
print("hello")
```
```python
raise SystemExit  # is not run
```
```console
$ cd sub
$ python greet.py; \\
      false
hello
$ echo $?
1
```
<!-- slow -->
```console
$ cat greet.py - && pwd
print("hello")
.../sub
```
"""


PAGES = (
    "docs/adding.md",
    "docs/tutorial.md",
    "docs/trust.md",
    "README.md",
    "docs/sim_files.md",
    "docs/clusters.md",
    "docs/tutorial_lineage.md",
    "docs/python.md",
)


def test_a_page_is_run_as_it_is_read(tmp_path: Path) -> None:
    """One shell: the folder and `$?` carry over; what reads stdin finds none."""
    found = list(session.run(session.blocks(PAGE), tmp_path, tmp_path / "cache"))
    assert [(one.line, one.wrong) for one in found] == [(9, ""), (10, ""), (13, ""), (18, "")]
    quick = [one for one in session.blocks(PAGE) if not one.slow]
    assert len(quick) == 2


def test_a_block_finds_the_packages_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "<!-- slow, peers from PLACE/with-these -->\n```console\n$ ls peers\nengine\n```\n"
    (tmp_path / "there" / "with-these" / "engine").mkdir(parents=True)
    monkeypatch.setenv("PLACE", str(tmp_path / "there"))
    (block,) = session.blocks(page)
    assert (block.slow, block.lacks) == (True, "")
    (tmp_path / "folder").mkdir()
    (done,) = session.run([block], tmp_path / "folder", tmp_path / "cache")
    assert done.wrong == ""
    (written,) = session.blocks("```python file=peers/engine/x.py\n```\n")
    with pytest.raises(ValueError, match="is in a folder of packages"):
        list(session.run([written], tmp_path / "folder", tmp_path / "cache"))
    for value in (str(tmp_path), ""):
        monkeypatch.setenv("PLACE", value)
        assert session.blocks(page)[0].lacks == "peers"


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a b", "a\n  b", True),
        ("a b", "a b c", False),
        ("", "", True),
        ("", "a", False),
        ("a ... d", "a b c d", True),
        ("a ... d", "a d", True),
        ("a ...\nd", "a b c", False),
        ("record 3 fails, 12.5 s", "record 3 fails, 140.2 s", True),
        ("record 3 fails", "record 4 fails", False),
        ("error 4.39e-05 over 0.17", "error 4e-06 over 1.65e-05", True),
        ("error 4.39e-05", "error nan", False),
        ("commit 172a921303 of", "commit 9c0ffee123 of", True),
        ("commit 172a921303 of", "commit inverse of", False),
        ("added", "adder", False),
        ("1234567 tokens", "1234568 tokens", False),
        ("at 8f36434, 0xbeef", "at 8f36434, 0xbeee", False),
        ("key 1795383840151-14514-129d184f/1", "key 1795383840999-9-00000000/1", True),
        ("key 1795383840151-14514-129d184f/1", "key 1795383840999-9-00000000/2", False),
        ("[x] (y) *", "[x] (y) *", True),
        ("[x]", "x", False),
    ],
)
def test_what_may_differ(expected: str, printed: str, same: bool) -> None:
    assert (session.difference(expected, printed) == "") is same


def test_where_it_differs_is_said() -> None:
    assert "up to 'one two', and not at 'three four'" in session.difference(
        "one two three four", "one two 3 four"
    )
    assert "more than the page says" in session.difference("one two", "one two three")


def test_a_session_that_begins_with_output() -> None:
    (block,) = session.blocks("```console\nhello\n```\n")
    with pytest.raises(ValueError, match="line 2: a session begins with a command"):
        list(session.commands(block))


def test_the_script_ends_with_1_where_something_else_is_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo two\none\n```\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(page)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{page}:2: " in done.stdout


@pytest.mark.parametrize("page", quick(PAGES, 1, 2, 3))
def test_the_quick_part_of_a_page(page: str) -> None:
    _holds(page, "--quick")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES)
def test_all_of_a_page(page: str) -> None:
    _holds(page)


def test_figures_of_mutants_are_those_of_the_table() -> None:
    """docs/trust.md sums up the table of the simulator's page."""
    table = (ROOT / "gdnbench" / "sim" / "README.md").read_text(encoding="utf-8")
    start = table.index("| kernel | mutants |")
    lines = table[start : table.index("\n\n", start)].splitlines()[2:]
    rows = {name: list(map(int, cells)) for name, cells in map(_cells, lines)}
    kernels = [row for name, row in rows.items() if name != "all"]
    assert rows["all"] == [sum(column) for column in zip(*kernels, strict=True)]
    trust = " ".join((ROOT / "docs" / "trust.md").read_text(encoding="utf-8").split())
    said = (
        f"Of {len(kernels)} kernels that were judged in full, {sum(rows['all'][1:-1]):,} mutants are killed,"
        f" and {rows['all'][-1]} change nothing"
    )
    assert said in trust


def _cells(line: str) -> tuple[str, list[str]]:
    """The kernel of a row, and its counts without the share that is killed."""
    name, mutants, _, *counts = (cell.strip() for cell in line.strip("|").split("|"))
    return name, [mutants, *counts]


def test_links_lead_somewhere() -> None:
    """Of the README and of docs/: files that are there, and headings that they have."""
    wrong = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            file, _, heading = target.partition("#")
            there = page.parent / file if file else page
            if not there.exists() or (heading and heading not in _anchors(there)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert not wrong


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def _holds(page: str, *options: str) -> None:
    command = [sys.executable, str(SCRIPT), str(ROOT / page), *options, *["--here"] * (page == "README.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
