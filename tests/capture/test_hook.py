# SPDX-License-Identifier: Apache-2.0
"""The import hook and the patcher on made-up modules: every way in which a function can be reached."""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdnbench.capture.adapter import Target
from gdnbench.capture.hook import CaptureFinder, install_finder, remove_finder
from gdnbench.capture.patching import Patch, Patcher
from tests.messages import wording

SOURCE = """
def double(x, *, times: int = 2) -> int:
    '''Doubles.'''
    return x * times

absent_here = None
not_a_function = 3

class Layer:
    def forward(self, x):
        return x + 1
"""

made: list[tuple[str, Any]] = []


class Adapter:
    framework = "made-up"
    targets = ()
    scopes = ()


def wrap(adapter: Any, target: Target, function: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        made.append((target.function, args))
        return function(*args, **kwargs)

    return wrapper


class Hooked:
    def __init__(self) -> None:
        self.failed: list[str] = []
        self.imported: list[str] = []
        names = ("double", "absent_here", "absent", "Layer.forward", "Absent.forward", "not_a_function")
        patches = [Patch(Adapter(), Target("madeup.inner", name), wrap) for name in names]  # type: ignore[arg-type]
        self.patcher = Patcher(patches, imported=self.imported.append, failed=self.failed.append)
        self.finder = CaptureFinder(lambda: self.patcher.after_import)


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    package = tmp_path / "madeup"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import importlib\ndef __getattr__(name):\n    return importlib.import_module('madeup.inner')\n"
    )
    (package / "inner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    made.clear()
    hooked = Hooked()
    install_finder(hooked.finder)
    yield hooked
    remove_finder(hooked.finder)
    for name in ("madeup.inner", "madeup"):
        sys.modules.pop(name, None)


def inner() -> ModuleType:
    return importlib.import_module("madeup.inner")


def test_functions_and_methods_are_wrapped_however_they_are_imported(hooked: Hooked) -> None:
    lazy = importlib.import_module("madeup").inner  # as transformers' lazy modules do
    from madeup.inner import double  # type: ignore[import-not-found]

    assert double(4) == lazy.double(4) == 8
    assert lazy.Layer().forward(1) == 2
    assert [name for name, _ in made] == ["double", "double", "Layer.forward"]
    assert hooked.imported == ["madeup.inner"]


def test_a_wrapped_function_looks_like_itself(hooked: Hooked) -> None:
    double = inner().double
    assert str(inspect.signature(double)) == "(x, *, times: int = 2) -> int"
    assert (double.__name__, double.__doc__, double.__module__) == ("double", "Doubles.", "madeup.inner")
    assert pickle.loads(pickle.dumps(double)) is double
    assert "def double" in inspect.getsource(double)


def test_the_module_keeps_its_loader(hooked: Hooked) -> None:
    spec = inner().__spec__
    assert spec is not None
    assert type(spec.loader) is importlib.machinery.SourceFileLoader
    assert inspect.getsource(inner()) == SOURCE


def test_a_reloaded_module_is_wrapped_again_and_once(hooked: Hooked) -> None:
    module = importlib.reload(inner())
    assert module.double(1) == 2
    assert len(made) == 1


def test_what_a_release_lacks_is_no_failure_and_what_cannot_be_wrapped_is_one(hooked: Hooked) -> None:
    assert inner().absent_here is None
    (failed,) = hooked.failed
    error = re.compile(rf"TypeError\('{wording('capture.not-function', type='int')}'\)")
    assert re.fullmatch(
        wording("capture.wrapping-fails", target="madeup.inner:not_a_function", error=error), failed
    )


def test_restoring_gives_the_originals_back(hooked: Hooked) -> None:
    module = inner()
    hooked.patcher.restore()
    assert module.double(1) == 2
    assert module.Layer().forward(1) == 2
    assert made == []
    assert not hasattr(module.double, "__wrapped__")


def test_restoring_leaves_alone_what_others_put_in_our_place(hooked: Hooked) -> None:
    module = inner()
    module.double = theirs = lambda x: x
    hooked.patcher.restore()
    assert module.double is theirs


def test_modules_imported_before_are_patched_on_request(hooked: Hooked) -> None:
    remove_finder(hooked.finder)
    assert inner().double(1) == 2
    assert made == []
    hooked.patcher.patch_loaded()
    assert inner().double(1) == 2
    assert len(made) == 1


def test_nothing_is_loaded_for_the_standard_library() -> None:
    asked: list[str] = []

    def load() -> dict[str, Any]:
        asked.append("now")
        return {}

    finder = CaptureFinder(load)
    for name in ("json", "email.mime.text", "sqlite3"):
        assert finder.find_spec(name) is None
    assert asked == []
    finder.find_spec("numpy.linalg")
    finder.find_spec("torch")
    assert asked == ["now"]
