# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect env` over wheels made here, from which no index is asked; its kernel is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

Invoke = Callable[..., Any]  # the fixture `gdnbench`
Arguments = Callable[[str, str], tuple[object, ...]]

KERNEL = """
import inspect
from gain import factor
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def kernel(**call):
    names = inspect.signature(torch_recurrent).parameters
    found = torch_recurrent(**{name: call[name] for name in names if name in call})
    found["o"] = found["o"] * factor()
    return found
"""


@pytest.fixture
def arguments(gdnbench: Invoke, tmp_path: Path, wheels: Any, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    store = tmp_path / "decodes.zarr"
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8")
    assert gdnbench("synth", store, *options).code == 0
    (tmp_path / "k.py").write_text(KERNEL)
    monkeypatch.setattr("gdnbench.bisect.trial.toolchain", lambda on="cpu": {})  # may be edited meanwhile
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path / "cache"))
    return lambda good, bad: (
        *("bisect", "env", store, "--kernel", f"{tmp_path / 'k.py'}:kernel", "--good", good, "--bad", bad),
        *("--no-index", "--find-links", wheels.path, "--state", tmp_path / "state"),
    )


@pytest.mark.slow
def test_the_version_of_the_package_is_named(gdnbench: Invoke, arguments: Arguments, wheels: Any) -> None:
    for version, factor in (("1.3", 1.0), ("1.4", 1.5)):
        wheels("gain", version, f"def factor():\n    return {factor}\n")
    wheels("gain", "1.4rc1", "raise RuntimeError('a pre-release')\n")
    wheels("other", "1", "")
    wheels("other", "2", "")
    asked = arguments("gain==1.3 other==1", "Gain==1.4 other==2")
    result = gdnbench(*asked)
    assert result.code == 1, result.err
    assert re.fullmatch(
        wording(
            "bisect.first-bad-package",
            together="",
            packages=re.compile(wording("bisect.package-after", package="gain", bad="1.4", good="1.3")),
            kind="numeric mismatch",
            reason=re.compile("o:.*"),
        ),
        result.out.splitlines()[-1],
    )
    again = gdnbench(*asked)
    assert (again.code, again.out) == (1, result.out)


def test_ends_that_are_none(gdnbench: Invoke, arguments: Arguments, wheels: Any) -> None:
    wheels("gain", "1", "def factor():\n    return 1.0\n")
    for good, bad, code, said in (
        ("gain", "gain==2", 2, wording("bisect.version-not-pinned", option="--good", text="gain")),
        ("gain==1", "gain==1 gain==2", 2, wording("bisect.package-twice", option="--bad", name="gain")),
        ("gain==1", "gain==one", 2, wording("bisect.version-invalid", option="--bad", text="one")),
        ("gain==1", "gain==1.0", 2, wording("bisect.same-versions")),
        ("gain==1", "gain==3", 3, wording("bisect.version-not-installed", versions="gain==3")),
    ):
        result = gdnbench(*arguments(good, bad))
        assert (result.code, result.out) == (code, "")
        assert re.search(said, result.err.splitlines()[-1])
    result = gdnbench(*arguments("gain==1", "gain==2"), "--with", "-r /etc/hostname")
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("cli.with-option", word="-r"), result.err)
