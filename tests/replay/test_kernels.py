# SPDX-License-Identifier: Apache-2.0
"""Kernels found by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gdnbench.errors import BadInputError
from gdnbench.ops import operation
from gdnbench.replay.kernels import check_name, load, load_function, source_folder
from tests.messages import wording


def test_listed_kernels_load() -> None:
    for op in ("gdn_prefill", "gdn_decode"):
        for name in operation(op).kernels:
            assert callable(load(name, operation(op)).function)


def test_an_operation_without_that_kernel() -> None:
    with pytest.raises(
        NotImplementedError,
        match=wording(
            "replay.operation-kernel-unknown",
            operation="swa_decode",
            kernel="reference_staged",
            known=re.compile(".*portable"),
        ),
    ):
        load("reference_staged", operation("swa_decode"))


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(
        BadInputError,
        match=wording(
            "replay.kernel-unknown", kernel="tourch", known=re.compile(".*hf, portable, reference.*")
        ),
    ):
        check_name("tourch")


def test_a_function_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_the_cwd.py").write_text(
        "def kernel(q): pass\nkernel.conventions = {'gate': 'linear', 'qk': ('raw', 'normalised')}\n"
        "class Holder:\n    @staticmethod\n    def inner(q): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    found = load("mine_of_the_cwd:kernel", operation("gdn_prefill"))
    assert found.conventions == {"gate": ("linear",), "qk": ("raw", "normalised")}
    assert load("mine_of_the_cwd:Holder.inner", operation("gdn_prefill")).conventions == {}
    assert load("mine_of_the_cwd.py:kernel", operation("gdn_prefill")).conventions == found.conventions
    with pytest.raises(
        BadInputError,
        match=wording(
            "replay.function-unknown", place="mine_of_the_cwd", function="nosuch", known="kernel, Holder"
        ),
    ):
        load("mine_of_the_cwd:nosuch", operation("gdn_prefill"))
    with pytest.raises(BadInputError, match=wording("replay.kernel-file-missing", path="absent.py")):
        load("absent.py:kernel", operation("gdn_prefill"))


def test_the_folder_of_a_function_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("package/__init__.py", "package/inner/__init__.py", "module_of_the_cwd.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    folders = {
        "a/b/mine.py:f": Path("a/b"),
        "package.inner:f": Path("package"),
        "module_of_the_cwd:f": Path(),
        "json.decoder:f": Path(json.__file__).parent,
        "nosuchpackage.module:f": None,
        ":f": None,
        "torch": None,
    }
    assert {name: source_folder(name) for name in folders} == folders


@pytest.mark.parametrize("name", [":", ":f", "a b:f", ".relative:f"])
def test_what_names_no_module(name: str) -> None:
    with pytest.raises(BadInputError, match=wording("replay.kernel-place")):
        load_function(name)


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(ImportError, match="nosuchpackage"):
        load("nosuchpackage.module:kernel", operation("gdn_prefill"))
