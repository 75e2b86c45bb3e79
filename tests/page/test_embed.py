# SPDX-License-Identifier: Apache-2.0
"""Values inside the page: what would end a script element cannot, and nothing is lost."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tomllib
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gdnbench.page.build import render_page, script_of
from gdnbench.page.embed import csp_hash, packed_json, script_json


class Scripts(HTMLParser):
    """The elements of a page, and the text of those whose text a browser takes as it is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.texts: list[tuple[Mapping[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:  # inside a script or style
            self.texts.append((self.tags[-1][1], data))


def test_json_in_a_script_is_ascii_without_markup_and_reads_back(hostile: str) -> None:
    value = {hostile: [hostile, "\u2028\u2029", "\ud800", 1.5, None]}
    text = script_json(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_numbers_that_json_lacks_are_text() -> None:
    found = {"a": [float("nan"), float("inf"), (float("-inf"), 1)], "b": True}
    assert json.loads(script_json(found)) == {"a": ["nan", "inf", ["-inf", 1]], "b": True}


def test_packed_json_is_gzip_and_the_same_every_time() -> None:
    value = [{"a": "\u202e<"}] * 3
    text = packed_json(value)
    assert json.loads(gzip.decompress(base64.b64decode(text, validate=True))) == value
    assert base64.b64decode(text)[4:8] == bytes(4)  # no time: RFC 1952, MTIME


def test_a_hostile_run_adds_no_element(made: Any, right: dict[str, Any], hostile: str) -> None:
    harmless = render_page([made.run([right])], "a report")
    record = {**right, "layer": hostile, "reason": hostile, "notes": [hostile], "key": hostile}
    header = {**made.HEADER, "store": hostile, "kernel": hostile, "rule": hostile}
    text = render_page([made.run([record], hostile, header=header, provenance={hostile: hostile})], hostile)
    assert [tag for tag, _ in Scripts(text).tags] == [tag for tag, _ in Scripts(harmless).tags]


def test_the_policy_names_the_digests_of_what_is_in_the_page(made: Any, right: dict[str, Any]) -> None:
    found = Scripts(render_page([made.run([right])]))
    policy = next(
        attributes["content"] or ""
        for tag, attributes in found.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    running = [text for attributes, text in found.texts if attributes.get("type") in (None, "module")]
    assert len(running) == 2  # a style and a script
    expected = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running
    }
    assert {rules["style-src"], rules["script-src"]} == expected == {csp_hash(text) for text in running}
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"


def test_nothing_in_the_page_points_outside(made: Any, right: dict[str, Any]) -> None:
    for tag, attributes in Scripts(render_page([made.run([right])])).tags:
        for name in ("src", "href", "action", "srcset", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith("#"), (tag, name)


def test_scripts_are_joined_each_once_after_what_they_need() -> None:
    text = script_of("main")
    assert "import {" not in text
    assert "\nexport " not in text
    for needed, by in (("function visible", "function el("), ("function el(", "function heatmap(")):
        assert text.count(needed) == text.count(by) == 1
        assert text.index(needed) < text.index(by)
    for act in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert act not in text


def test_assets_are_installed() -> None:
    root = Path(__file__).parents[2]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folder = root / "gdnbench" / "page"
    installed = {
        file for pattern in listed["gdnbench.page"] for file in folder.glob(pattern) if file.is_file()
    }
    assert installed == {file for file in (folder / "assets").rglob("*") if file.is_file()}
    assert len(installed) > 20


def test_the_same_runs_make_the_same_page(made: Any, right: dict[str, Any]) -> None:
    assert render_page([made.run([right])]) == render_page([made.run([dict(right)])])
