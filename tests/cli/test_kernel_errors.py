# SPDX-License-Identifier: Apache-2.0
"""A user's kernel that fails: what the terminal, JSON, JUnit and a run store say of it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gdnbench.store.reader import Store

Invoke = Callable[..., Any]  # the fixture `gdnbench`

RAISES = """\
import torch


def check(x, n):
    return torch.matmul(x[:n], x[: n + 1])


def prefill(q, o):
    check(q[:, 0].float(), 2)
"""
SAID = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x16 and 3x16)"
PLACE, SOURCE = "kernel.py:5 in check", "return torch.matmul(x[:n], x[: n + 1])"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str, ...]]:
    """Writes kernel.py into the current folder, and gives the options that run its `prefill` here."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> tuple[str, ...]:
        (tmp_path / "kernel.py").write_text(text)
        return "--kernel", "kernel.py:prefill", "--no-isolate"

    return write


def test_one_message_with_the_kernels_own_line(
    gdnbench: Invoke, prefills: Path, kernel: Callable[[str], tuple[str, ...]]
) -> None:
    """Two records fail alike. The line is that of the innermost function of the file, not torch's."""
    options = kernel(RAISES)
    short = gdnbench("replay", prefills, *options, "--save", "run.zarr", "--junit", "j.xml")
    assert short.code == 1
    head, *lines, summary = short.out.splitlines()
    assert head == "crash: records 0-1 (2): gdn_prefill"
    assert lines == [f"  {SAID}", f"  {PLACE}", f"    {SOURCE}"]
    assert summary.startswith("2 records: 2 crash | ")
    none = gdnbench("replay", prefills, *options, "--tb", "none")
    assert none.out.splitlines() == [head, f"  {SAID}", summary]
    whole = gdnbench("replay", prefills, *options, "--tb", "long").out.splitlines()
    frames = [line for line in whole if line.startswith('    File "')]
    assert [re.sub(r'.*/(.*)", line', r"\1", frame) for frame in frames] == [
        "kernel.py 9, in prefill",
        "kernel.py 5, in check",
    ]
    assert whole[-2:] == [f"  {SAID}", summary]
    case = ElementTree.parse("j.xml").find("testsuite/testcase")
    assert case is not None
    (problem,) = case
    assert problem.tag == "error"
    assert problem.get("message") == f"{SAID} ({PLACE}: {SOURCE})"
    assert "line 9, in prefill" in str(problem.text)
    with Store.open("run.zarr") as run:
        result = run.records[1].info.run["result"]
    assert result["reason"] == f"{SAID} ({PLACE}: {SOURCE})"
    error = result["error"]
    assert [error[name] for name in ("text", "file", "line", "function", "source")] == [
        SAID,
        "kernel.py",
        5,
        "check",
        SOURCE,
    ]
    assert "line 9, in prefill" in error["traceback"]


def test_no_escape_codes_in_results(
    gdnbench: Invoke, prefills: Path, kernel: Callable[[str], tuple[str, ...]]
) -> None:
    options = kernel(
        "def prefill(q, o):\n"
        "    raise ValueError('\\x1b[91m\\x1b[1merror:\\x1b[0m \\x1b]8;;http://x\\x1b\\\\link\\x1b]8;;\\x1b\\\\')\n"
    )
    result = gdnbench("replay", prefills, "0", *options, "--json", "--junit", "j.xml")
    (record,) = json.loads(result.out)["records"]
    assert record["error"]["text"] == "ValueError: error: link"
    assert record["error"]["traceback"].endswith("\nValueError: error: link")
    for text in (result.out, result.err, Path("j.xml").read_text()):
        assert not re.search(r"\x1b|\\u001b|\N{REPLACEMENT CHARACTER}", text)


def test_a_kernel_that_is_no_python_fails(
    gdnbench: Invoke, prefills: Path, kernel: Callable[[str], tuple[str, ...]]
) -> None:
    """Exit status 1 and an error: in a CI whose kernel does not compile nothing is skipped."""
    options = kernel("def prefill(q, o):\n    o[:] = (q * 2\n    return o\n")
    result = gdnbench("replay", prefills, "0", *options, "--junit", "j.xml")
    assert result.code == 1
    head, *lines, _ = result.out.splitlines()
    assert head.startswith("compile failure: record 0 gdn_prefill")
    assert lines == ["  SyntaxError: '(' was never closed", "  kernel.py:2", "    o[:] = (q * 2"]
    suite = ElementTree.parse("j.xml").find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("errors", "skipped", "failures")} == {
        "errors": "1",
        "skipped": "0",
        "failures": "0",
    }
    assert gdnbench("replay", prefills, "0", *options, "--git-bisect").code == 125


def test_a_parameter_that_the_operation_does_not_have(
    gdnbench: Invoke, prefills: Path, kernel: Callable[[str], tuple[str, ...]]
) -> None:
    result = gdnbench("replay", prefills, *kernel("def prefill(query, o):\n    pass\n"))
    _, line, _ = result.out.splitlines()
    assert line.startswith(
        "  kernel.py:prefill needs 'query', which gdn_prefill does not have; it has q, k, v, g, beta, "
    )


def test_refused_in_one_line(gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the store is looked for."""
    refused = {
        "--pdb": "--pdb reads from a terminal, and stdin is none; --tb long prints the traceback",
        "--pdb --isolate": "--pdb debugs in this process, and --isolate runs the kernel in another: omit it",
        "--pdb --workers 2": "--pdb debugs in this process, and --workers runs the kernel in another:"
        " omit it",
        "--pdb --json": "--pdb and --json both write to stdout: omit one",
        "--tb all": "--tb 'all' is none of short, long, none",
    }
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        for options, said in refused.items():
            result = gdnbench("replay", "nowhere.zarr", *options.split())
            assert (result.code, result.out, result.err) == (2, "", f"gdnbench: {said}\n")


@pytest.mark.slow
def test_pdb_begins_at_the_kernels_own_line(prefills: Path, kernel: Callable[[str], tuple[str, ...]]) -> None:
    """json raises deep inside; the debugger is at the kernel's line, whose variables it prints."""
    options = kernel("import json\n\n\ndef prefill(q, o):\n    text = '{' * 3\n    json.loads(text)\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gdnbench", "replay", str(prefills), *options[:2], "--pdb"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        shown = _read_until(ours, b"(Pdb) ")
        os.write(ours, b"p len(text)\n")
        shown += _read_until(ours, b"(Pdb) ")
        os.write(ours, b"q\n")
        shown += _read_until(ours, None)
        assert process.wait(60) == 1
    os.close(ours)
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    begins = "JSONDecodeError at kernel.py:6 in prefill; c or q leaves the debugger and goes on"
    assert any(line.endswith(begins) for line in lines)  # behind a line of progress that is cleared
    assert "-> json.loads(text)" in lines
    assert "3" in lines
    assert "crash: records 0-1 (2): gdn_prefill" in lines


def _read_until(fd: int, end: bytes | None) -> bytes:
    """What a terminal shows up to `end`, or to its end."""
    found = b""
    while end is None or not found.endswith(end):
        try:
            part = os.read(fd, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        found += part
    return found


CUTE = """\
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def kernel(x: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    x[t] = x[t] * missing


@cute.jit
def launch(x: cute.Tensor):
    kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))


def prefill(q, o):
    cute.compile(launch, from_dlpack(torch.zeros(32)))
"""


@pytest.mark.slow
def test_a_cute_dsl_kernel_that_does_not_compile(
    gdnbench: Invoke, prefills: Path, kernel: Callable[[str], tuple[str, ...]]
) -> None:
    """The DSL raises from the NameError that the kernel's own line raised, in colour."""
    result = gdnbench("replay", prefills, *kernel(CUTE))
    assert result.code == 1
    head, *lines, _ = result.out.splitlines()
    assert head == "compile failure: records 0-1 (2): gdn_prefill"
    assert re.fullmatch(r"  DSLUserCodeError: .*name 'missing' is not defined", lines[0])
    assert lines[1:] == ["  kernel.py:9 in kernel", "    x[t] = x[t] * missing"]
    assert gdnbench("sim", "kernel.py:launch", "f32[32]").code == 1
