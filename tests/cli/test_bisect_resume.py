# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect --resume`: what is gone on with, what a damaged state and a failure to print come to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording
from tests.subset import quick

Invoke = Callable[..., Any]  # the fixture `gdnbench`
pytestmark = pytest.mark.usefixtures("probes_here")
RESUME = ("bisect", "--resume", "--state", "s")
PASSES = wording("bisect.calls-pass", kernel="torch", calls=1, plural="")


@pytest.fixture
def store(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8")
    assert gdnbench("synth", "s.zarr", *options).code == 0
    return Path("s.zarr")


def arguments() -> Path:
    (found,) = Path("s").glob("record-*/arguments.json")
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "value"),
    quick(
        [
            ("store", 5),
            ("store", ["s.zarr"]),
            ("store", "a\0b"),
            ("kernel", None),
            ("kernel", {"a": 1}),
            ("k", "2"),
            ("k", True),
            ("k", 10**400),
            ("k", float("inf")),
            ("carry", 1),
            ("carry", "yes"),
            ("records", [0]),
            ("layer", 0),
            ("tol", 1e-3),
            ("tol", "x"),
            ("nosuch", 1),
        ],
        *(0, 2, 4, 7, 10, 15),
    ),
)
def test_arguments_of_a_wrong_type_are_one_line(
    gdnbench: Invoke, store: Path, name: str, value: object
) -> None:
    assert gdnbench("bisect", "record", store, "--kernel", "torch", "--state", "s").code == 0
    file = arguments()
    kept = json.loads(file.read_text())
    kept["arguments"][name] = value
    file.write_text(json.dumps(kept))
    file.with_name("found.json").unlink()
    result = gdnbench(*RESUME)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1].startswith("gdnbench: ")
    assert "Traceback" not in result.err


def test_a_state_that_is_a_file(gdnbench: Invoke, store: Path) -> None:
    Path("s").write_text("")
    for arguments in (RESUME, ("bisect", "record", store, "--kernel", "torch", "--state", "s")):
        result = gdnbench(*arguments)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


def test_the_one_that_was_interrupted_goes_on_and_a_failure_is_told(gdnbench: Invoke, store: Path) -> None:
    assert gdnbench("bisect", "record", store, "--kernel", "torch", "--state", "s").code == 0
    file = arguments()
    file.with_name("found.json").unlink()  # as Ctrl-C leaves it
    failing = gdnbench("bisect", "record", store, "--kernel", "nosuch", "--state", "s")
    assert failing.code == 2
    result = gdnbench(*RESUME)
    assert result.code == 0
    assert re.fullmatch(PASSES + "\n", result.out)
    assert re.fullmatch(
        wording("cli.bisect-resumed", name="record", store="s.zarr"), result.err.splitlines()[0]
    )
    last = gdnbench(*RESUME)
    assert (last.code, last.out) == (2, "")
    reason = failing.err.splitlines()[-1].removeprefix("gdnbench: ")
    assert reason in last.err
    assert re.search(wording("bisect.resume-would-fail"), last.err)


@pytest.mark.slow
def test_an_answer_that_was_not_printed_is_given_again(gdnbench: Invoke, store: Path) -> None:
    """The reader of stdout is gone before it: the status is the same, and nothing is lost."""
    Path("mine.py").write_text("def kernel(**call):\n    raise RuntimeError('no')\n")
    command = [sys.executable, "-m", "gdnbench", "bisect", "record", str(store)]
    command += ["--kernel", "mine.py:kernel", "--state", "s"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    result = gdnbench(*RESUME)
    assert result.code == 1
    assert re.search(wording("bisect.first-bad-call") + r" of mine\.py:kernel", result.out)
    assert gdnbench(*RESUME).code == 2


def test_an_interrupt_while_it_prints(gdnbench: Invoke, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*lines: object, **options: object) -> None:
        raise KeyboardInterrupt

    given = ("bisect", "record", store, "--kernel", "torch", "--state", "s")
    with monkeypatch.context() as patched:
        patched.setattr("gdnbench.cli.bisect.common.print_json", interrupted)
        assert gdnbench(*given, "--json").code == 130
    result = gdnbench(*RESUME)
    assert result.code == 0
    assert re.fullmatch(PASSES, json.loads(result.out)["answer"])
    again = gdnbench(*given)  # the same bisection, as text
    assert again.code == 0
    assert re.fullmatch(PASSES + "\n", again.out)
    assert len(list(Path("s").glob("record-*"))) == 1


def test_names_of_a_store_do_nothing_to_a_terminal(gdnbench: Invoke, tmp_path: Path) -> None:
    """In the answer, in what is asked, in an error, and in what a process says that replays."""
    call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8))
    one = draft("gdn_decode", call)
    layer = "a\x1b[31m\nfirst bad call: none\u202e"
    with StoreWriter(tmp_path / "s.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [replace(one, info=replace(one.info, layer=layer, layer_index=None))])
    (tmp_path / "mine.py").write_text("def kernel(**call):\n    raise RuntimeError('\\x1b[2J no')\n")
    given = ("bisect", "record", tmp_path / "s.zarr", "--kernel", f"{tmp_path / 'mine.py'}:kernel")
    found = gdnbench(*given, "--state", tmp_path / "s")
    assert found.code == 1
    refused = gdnbench(*given, "--layer", "nosuch", "--state", tmp_path / "s")
    assert refused.code == 2
    for text in (found.out, found.err):
        assert r"a\x1b[31m\nfirst bad call: none\u202e" in text
    for text in (found.out, found.err, refused.err):
        assert all(line.isprintable() for line in text.splitlines())
    assert (found.out.count("\n"), refused.err.count("\n")) == (1, 1)
