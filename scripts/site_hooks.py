# SPDX-License-Identifier: Apache-2.0
"""What `mkdocs build` does beside its own: pages that lie outside docs/, and links to files of the
repository.

mkdocs reads Markdown as Python-Markdown does, which wants a blank line before a table or list, four blanks
before a nested list, and nothing but a language behind the fence of a block; GitHub wants none of these.

`OUTSIDE` become pages of the site. A link to a page becomes a link within the site; a link to any other file
or folder of the checkout becomes one to the repository, whose address is `Source` in pyproject.toml. mkdocs
refuses a link to a file that does not exist, as it does without this.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "captures/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "gdnbench/sim/README.md",
    "kernels/README.md",
    "results/README.md",
    "results/gdn_decode/README.md",
    "results/kda_decode/README.md",
    "scripts/README.md",
    "SECURITY.md",
)
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
BEFORE_TABLE = re.compile(r"(?<=[^\n|])\n(?=\|.*\n\|[-:| ]+\n)")
BEFORE_LIST = re.compile(r"(?<=\n)((?!(?:[-*]|\d+\.) )[^\s#].*)\n(?=(?:[-*]|1\.) )")
FILE = re.compile(r"^```(\w+) file=(\S+)$", re.MULTILINE)
NESTED = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )", re.MULTILINE)
FENCED = re.compile(r"^( {0,3}```.*?^ {0,3}``` *$)", re.MULTILINE | re.DOTALL)


def site_page(source: str) -> str | None:
    """The page of the site that is made of a file of the checkout: `docs/store.md` is `store.md`."""
    if source.startswith("docs/") and source.endswith((".md", ".png", ".ipynb")):
        return source.removeprefix("docs/")
    return f"project/{source}" if source in OUTSIDE else None


def rewritten(text: str, source: str, repository: str) -> str:
    """The text of the page made of `source`, with its links as the site needs them."""

    def link(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if ":" in target or not (ROOT / file).exists():
            return found[0]
        page = site_page(file)
        if page is None:
            return f"{before}{repository}/blob/main/{file}{after}"
        return before + posixpath.relpath(page, posixpath.dirname(site_page(source) or "") or ".") + after

    def prose(part: str) -> str:
        spaced = BEFORE_LIST.sub(r"\1\n\n", BEFORE_TABLE.sub("\n\n", LINK.sub(link, part)))
        return NESTED.sub("    ", spaced)

    parts = FENCED.split(text)
    return "".join(FILE.sub(r"`\2`\n\n```\1", part) if n % 2 else prose(part) for n, part in enumerate(parts))


def github_anchor(heading: str, separator: str) -> str:
    """The anchor that GitHub makes of a heading: links to sections work there and here."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig, **_: Any) -> MkDocsConfig:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project["urls"]["Source"]
    config.site_description = project["description"]
    config.mdx_configs["toc"] = {"slugify": github_anchor}
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for source in OUTSIDE:
        page = site_page(source)
        assert page is not None
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    source = page.file.src_uri
    source = source.removeprefix("project/") if source.startswith("project/") else f"docs/{source}"
    return rewritten(text, source, str(config.repo_url).rstrip("/"))
