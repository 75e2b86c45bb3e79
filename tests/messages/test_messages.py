# SPDX-License-Identifier: Apache-2.0
"""The golden file, the tests and the sources hold the same sentences."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from tests.messages import SENTENCES, placeholders, wording

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("gdnbench", "kernels/gdnbench_kernels")
VALUE = "\0"


def _trees(*folders: str, naming: str = "") -> Iterator[ast.Module]:
    """The syntax trees of the files that hold the word `naming`."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if naming in text:
                yield ast.parse(text)


def _text(node: ast.AST) -> str:
    """What an expression makes, each value as VALUE: of a string, an f-string, or a sum of them."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(_text(part) for part in node.values)
        case ast.BinOp(op=ast.Add()):
            return _text(node.left) + _text(node.right)
        case _:
            return VALUE


def _source_texts() -> str:
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    texts = {_text(node) for tree in _trees(*SOURCES) for node in ast.walk(tree) if isinstance(node, kinds)}
    return "\n\n".join(sorted(texts))


@cache
def _uses() -> dict[str, set[str]]:
    """Of each code that a test uses: the placeholders that it is given there."""
    uses: dict[str, set[str]] = {}
    for tree in _trees("tests", naming="wording"):
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="wording"), args=[ast.Constant(value=str(code))]):
                    uses.setdefault(code, set()).update(keyword.arg or "**" for keyword in node.keywords)
    return uses


def _as_in_sources(sentence: str) -> str:
    pieces = Formatter().parse(sentence)
    return "".join(text + (VALUE if name is not None else "") for text, name, _, _ in pieces)


def test_every_sentence_is_in_the_sources() -> None:
    texts = _source_texts()
    assert [code for code, sentence in SENTENCES.items() if _as_in_sources(sentence) not in texts] == []


def test_every_sentence_is_asserted_by_a_test() -> None:
    assert sorted(SENTENCES.keys() - _uses().keys()) == []


def test_tests_name_codes_and_placeholders_that_there_are() -> None:
    assert sorted(_uses().keys() - SENTENCES.keys()) == ["no.such-code"]
    assert {
        code: unknown
        for code, names in _uses().items()
        if code in SENTENCES and (unknown := names - placeholders(SENTENCES[code]))
    } == {"store.symlink": {"target"}}


def test_what_wording_gives() -> None:
    text = "a/zarr.json is a symbolic link; a store holds only its own files"
    assert re.fullmatch(wording("store.symlink"), text)
    assert re.fullmatch(wording("store.symlink", path="a/zarr.json"), text)
    assert re.fullmatch(wording("store.symlink", path=re.compile(r".*\.json")), text)
    assert not re.search(wording("store.symlink", path="a/zarr+json"), text)


def test_what_wording_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"no\.such-code"):
        wording("no.such-code")
    with pytest.raises(TypeError, match=r"store.symlink has no placeholder target: \{path\} is a"):
        wording("store.symlink", target="x")
