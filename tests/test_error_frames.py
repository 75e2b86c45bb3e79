# SPDX-License-Identifier: Apache-2.0
"""Which line of a kernel a message names, where libraries lie between it and the error."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gdnbench.error_frames import MOST_LINES, error_of_dump, frame_of_error, traceback_of_error
from gdnbench.near_names import nearest_first

LIBRARY = """
import faulthandler

def dump(file):
    faulthandler.dump_traceback(file)

def call(function):
    return function()

def compile(function):
    try:
        return function()
    except NameError as error:
        raise RuntimeError("does not compile") from error

def refuse(text, node):
    error = RuntimeError("at 2:8:")
    error.src, error.node = text, node
    raise error
"""
KERNEL = """
import frames_library as library

def wrong():
    return {}["key"]

def raises():
    library.call(wrong)

def raises_inside():
    library.call("text")

def does_not_compile():
    library.compile(lambda: missing)

def tiled(x):
    y = x
    return y * missing

def handles():
    try:
        wrong()
    except KeyError:
        raise ValueError("of its own")

def deep(n):
    return deep(n - 1) + n if n else wrong()

def ends(file):
    library.dump(file)
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's, which calls a library that pip installed."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "frames_library.py").write_text(LIBRARY)
    (tmp_path / "frames_kernel.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("frames_kernel")
    for name in ("frames_kernel", "frames_library"):
        del sys.modules[name]


def raised(function: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
        function()
    return caught.value


def test_the_innermost_line_of_the_kernels_own_code(kernel: ModuleType) -> None:
    lines = {
        "raises": 'frames_kernel.py:5 in wrong: return {}["key"]',  # through the library and back
        "raises_inside": 'frames_kernel.py:11 in raises_inside: library.call("text")',
        "does_not_compile": "frames_kernel.py:14 in <lambda>: library.compile(lambda: missing)",
        "handles": 'frames_kernel.py:24 in handles: raise ValueError("of its own")',
    }
    for name, line in lines.items():
        assert str(frame_of_error(raised(getattr(kernel, name)))) == line


def test_the_line_that_a_compiler_names(kernel: ModuleType) -> None:
    """As Triton does: by the text of the function, and a node of it."""
    text = "def tiled(x):\n    y = x\n    return y * missing\n"
    node = ast.parse(text).body[0].body[1]  # type: ignore[attr-defined]
    error = raised(lambda: kernel.library.call(lambda: kernel.library.refuse(text, node)))
    error.__traceback__ = raised(kernel.raises).__traceback__  # called from the kernel's file
    assert str(frame_of_error(error)) == "frames_kernel.py:18 in tiled: return y * missing"


def test_an_installed_kernel_has_its_own_line_too(kernel: ModuleType) -> None:
    error = raised(lambda: kernel.library.call(1))
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # ours
    frame = frame_of_error(error)
    assert frame is not None
    assert (Path(frame.file).name, frame.function) == ("frames_library.py", "call")


def test_a_long_traceback_is_cut_in_the_middle(kernel: ModuleType) -> None:
    lines = traceback_of_error(raised(lambda: kernel.deep(400))).split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'key'"
    assert len(lines) <= MOST_LINES + 1


def test_where_a_process_ended(kernel: ModuleType, tmp_path: Path) -> None:
    """By what faulthandler writes of this thread."""
    with (tmp_path / "dump").open("w") as dump:
        kernel.ends(dump)
    written = (tmp_path / "dump").read_text()
    assert error_of_dump("it ended", written).reason == (
        "it ended (frames_kernel.py:30 in ends: library.dump(file))"
    )
    assert error_of_dump("it ended", "Fatal Python error: Aborted\n").reason == "it ended"


def test_the_nearest_name_is_first() -> None:
    names = ["q", "k", "v", "cu_seqlens", "o", "final_state", "scale"]
    first = {
        name: nearest_first(name, names).partition(",")[0] for name in ("key", "out", "seqlens", "Scale")
    }
    assert first == {"key": "k", "out": "o", "seqlens": "cu_seqlens", "Scale": "scale"}
    assert nearest_first("nothing", names) == ", ".join(names)
    assert nearest_first("k", []) == ""
