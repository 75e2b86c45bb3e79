# SPDX-License-Identifier: Apache-2.0
"""The command of a record, read by a shell and by the command line itself."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import Any

import pytest

from gdnbench.cli.judging import factors, tolerance
from gdnbench.cli.rules import tensor_rules
from gdnbench.judge.by_tensor import describe_rules, replay_options_of, with_rules
from gdnbench.judge.rule import make_rule
from gdnbench.page.repeat import repeat_command, shell_quote

HEADER = {
    "command": "replay",
    "store": "a store.zarr",
    "kernel": "mine.py:kernel",
    "against": "torch",
    "on": "sim",
    "rule": "bitwise",
}


def record(**more: Any) -> dict[str, Any]:
    return {"number": 12, "op": "gdn_prefill", "tensors": [], "findings": None, **more}


def test_a_replay() -> None:
    assert repeat_command(HEADER, record()) == (
        "gdnbench replay 'a store.zarr' 12 --kernel mine.py:kernel --against torch --on sim --bitwise"
    )


def test_stages_and_check_are_asked_for_again() -> None:
    again = repeat_command(HEADER, record(tensors=[{"stage": True}], findings=[]))
    assert again.endswith("--bitwise --stages --check")


def test_what_no_result_tells_is_taken_from_the_command_line() -> None:
    words = [
        "python",
        "gdnbench",
        "replay",
        "a",
        "--timeout=9",
        "--save",
        "x",
        "--accept",
        "a.toml",
        "--no-isolate",
    ]
    words += ["--json", "--schedule", "random:3", "--shape"]
    again = repeat_command(HEADER, record(), words)
    assert again.endswith("--bitwise --timeout 9 --accept a.toml --no-isolate --schedule random:3")
    traced = repeat_command(
        HEADER, record(), ["gdnbench", "trace", "a", "t.zarr", "--timeout", "3", "--select", "all"]
    )
    assert traced == f"{repeat_command(HEADER, record())} --timeout 3"
    assert repeat_command(HEADER, record(), ["gdnbench", "suite", "--timeout", "3"]) == repeat_command(
        HEADER, record()
    )


def test_a_diff() -> None:
    header = {"command": "diff", "a": "a.zarr", "b": "b.zarr", "rule": "error <= 3 x torch's + rounding"}
    expected = "gdnbench diff a.zarr b.zarr --op gdn_prefill --oracle --k 3"
    assert repeat_command(header, record()) == expected
    assert (
        repeat_command({**header, "rule": "bitwise"}, record())
        == "gdnbench diff a.zarr b.zarr --op gdn_prefill"
    )


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"k": 3.5},
        {"k_by_tensor": {"o": 1.5, "state": 4.0}},
        {"k": 1.0, "k_by_tensor": {"o": 1.5}},
        {"tol": (1e-3, 0.0)},
        {"tol": (0.0, 2e-6)},
        {"bitwise": True},
    ],
)
@pytest.mark.parametrize("tensors", [[], ["o=bitwise", "gdn_decode.state=tol:0.001,0"], ["A=k:3", "P=k:2"]])
def test_a_rule_in_words_is_asked_for_by_options(asked: dict[str, Any], tensors: list[str]) -> None:
    rule = with_rules(make_rule(**asked), tensor_rules(tensors))
    words = replay_options_of(describe_rules(rule))
    assert words is not None
    given: dict[str, list[str]] = {}
    left = iter(words)
    for word in left:
        given.setdefault(word, []).append("" if word == "--bitwise" else next(left))
    k, by_tensor = factors(given.get("--k"))
    tol = tolerance(given["--tol"][0]) if "--tol" in given else None
    again = make_rule(k, by_tensor, tol, "--bitwise" in given)
    assert with_rules(again, tensor_rules(given.get("--rule"))) == rule


def test_words_of_no_rule_have_no_options() -> None:
    assert replay_options_of("state: error <= 2 x torch's; o: bitwise") is None
    assert replay_options_of("bitwise; o: whatever") is None


@pytest.mark.parametrize(
    "word", ["plain", "", "it's $HOME `id`", "a\nb", "\x1b[2J'\\", "caf\u00e9 \u202e", "\udcff.zarr"]
)
def test_a_shell_reads_the_word(word: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here to read it")
    text = shell_quote(word)
    assert text.isprintable()
    if word.isprintable():
        assert shlex.split(text) == [word]
    read = subprocess.run([bash, "-c", f"printf %s {text}"], capture_output=True, check=True).stdout
    assert read == word.encode("utf-8", "surrogateescape")
