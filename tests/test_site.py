# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: `mkdocs build --strict`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from scripts.site_hooks import OUTSIDE, rewritten, site_page

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://example.org/repository"


def test_each_page_is_listed_and_each_link_leads_somewhere(tmp_path: Path) -> None:
    """`strict`: a page that the navigation lacks, or a link or anchor that leads nowhere, is an error."""
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    listed = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in index, page
        assert f"]({page.name}" in listed or page.name == "index.md", f"docs/index.md lacks {page.name}"
    for page in tmp_path.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"<(script|link|img)[^>]*https?:", text), f"{page} loads something of a network"
        assert not re.search(r"^(\| |\|-|```)", text, re.MULTILINE), (
            f"{page}: a table or block was not read as one"
        )


@pytest.mark.parametrize(
    ("source", "target", "becomes"),
    [
        ("docs/store.md", "replay.md#kernels", "replay.md#kernels"),
        ("docs/store.md", "../captures/README.md", "project/captures/README.md"),
        ("gdnbench/sim/README.md", "../../docs/checker.md", "../../../checker.md"),
        ("CHANGELOG.md", "docs/store.md", "../store.md"),
        ("docs/store.md", "../suites/made.toml", f"{REPOSITORY}/blob/main/suites/made.toml"),
        ("docs/store.md", "../tests", f"{REPOSITORY}/blob/main/tests"),
        ("docs/store.md", "no_such_page.md", "no_such_page.md"),
        ("docs/store.md", "https://example.org/a", "https://example.org/a"),
    ],
)
def test_links(source: str, target: str, becomes: str) -> None:
    assert rewritten(f"a [b]({target}) c", source, REPOSITORY) == f"a [b]({becomes}) c"


def test_code_is_left_as_it_is() -> None:
    text = "```console\n$ cat [a](replay.md)\n| a |\n|---|\n```\n"
    assert rewritten(text, "docs/store.md", REPOSITORY) == text


def test_tables_lists_and_files_are_written_as_mkdocs_reads_them() -> None:
    text = "A table:\n| a |\n|---|\n| 1 |\nA list:\n- b\n  - c\n\n```python file=x.py\npass\n```\n"
    assert rewritten(text, "docs/store.md", REPOSITORY) == (
        "A table:\n\n| a |\n|---|\n| 1 |\nA list:\n\n- b\n    - c\n\n`x.py`\n\n```python\npass\n```\n"
    )


def test_pages_outside_docs_are_there() -> None:
    assert all((ROOT / source).is_file() and site_page(source) for source in OUTSIDE)
