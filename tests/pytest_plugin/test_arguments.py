# SPDX-License-Identifier: Apache-2.0
"""Stores as arguments of pytest, without a test file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
Keep = Callable[..., Path]


def packed(store: Path) -> Path:
    """The store as a .zip in its place."""
    made = shutil.make_archive(str(store), "zip", store)
    shutil.rmtree(store)
    return Path(made)


def test_records_of_a_folder_and_of_an_archive(run: Run, keep: Keep) -> None:
    keep("a.zarr", ["layers.0", "layers.1"])
    packed(keep("b.zarr", ["x"]))
    result = run("-v", "a.zarr", "b.zarr.zip")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "a.zarr::0-gdn_decode-layers.0-step0 PASSED*",
            "a.zarr::1-gdn_decode-layers.1-step1 PASSED*",
            "b.zarr.zip::0-gdn_decode-x-step0 PASSED*",
        ]
    )


@pytest.mark.slow
def test_the_kernel_is_the_command_line_s(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    """Its failure is what `gdnbench replay` prints, without a line of Python."""
    keep("a.zarr", ["l"] * 3)
    pytester.makefile(".py", kernels="def writes_nothing(q): pass")
    options = ("--gdnbench-kernel", "kernels.py:writes_nothing", "--gdnbench-against", "torch")
    result = run("a.zarr", *options, "-k", "step1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "_* a.zarr 1-gdn_decode-l-step1 _*",
            "numeric mismatch: state: RMS error *",
            "  o: 4 of 4 elements were never written",
            "1 record: 1 numeric mismatch | kernels.py:writes_nothing on cpu against torch | *",
            "FAILED a.zarr::1-gdn_decode-l-step1 - numeric mismatch: state: RMS *",
        ]
    )
    assert "case.py" not in result.stdout.str()


def test_a_kernel_not_compiled_for_the_simulator_is_skipped(run: Run, keep: Keep) -> None:
    keep("a.zarr")
    result = run("a.zarr", "--gdnbench-on", "sim", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*--on sim runs kernels compiled for SM100, and 'torch' is not one of them*"]
    )


def test_one_record_of_an_archive_by_its_name(run: Run, keep: Keep) -> None:
    packed(keep("a.zarr", ["l[0]::x", "m"]))
    listed = run("--collect-only", "-q", "a.zarr.zip").outlines
    assert listed[:2] == ["a.zarr.zip::0-gdn_decode-l_0___x-step0", "a.zarr.zip::1-gdn_decode-m-step1"]
    for line in listed[:2]:
        run(line).assert_outcomes(passed=1)


def test_stores_in_a_tree_are_left_alone(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    keep("captures/a.zarr")
    packed(keep("captures/b.zarr"))
    pytester.makepyfile("def test_other(): pass")
    for arguments in ((), (".",), ("captures", "test_stores_in_a_tree_are_left_alone.py")):
        run(*arguments).assert_outcomes(passed=1)


def test_what_cannot_be_read_is_an_error_beside_the_others(
    pytester: pytest.Pytester, run: Run, keep: Keep
) -> None:
    (pytester.path / "a.zarr.zip").write_bytes(b"no archive")
    pytester.mkdir("b.zarr")
    keep("c.zarr")
    result = run("a.zarr.zip", "b.zarr", "c.zarr")
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines(
        ["*a.zarr.zip is not a zip archive that can be read: *", "*b.zarr is not a gdnbench store: *"]
    )


def test_an_empty_store_is_an_error(run: Run, keep: Keep) -> None:
    keep("a.zarr", [])
    result = run("a.zarr")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a.zarr has no record"])


def test_records_are_chosen_by_their_mark(run: Run, keep: Keep) -> None:
    keep("a.zarr")
    run("--strict-markers", "-m", "gdnbench", "a.zarr").assert_outcomes(passed=1)
    run("-m", "not gdnbench", "a.zarr").assert_outcomes(deselected=1)


def test_pytest_writes_nothing_into_a_store(
    pytester: pytest.Pytester, run: Run, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called from elsewhere, it would take the store for its root and keep its cache there."""
    store = keep("a.zarr")
    before = sorted(store.rglob("*"))
    monkeypatch.chdir("/")
    result = run(store)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *a.zarr would be pytest's rootdir, which it writes to: *--rootdir*"])
    run(store, "--rootdir", pytester.path).assert_outcomes(passed=1)
    assert sorted(store.rglob("*")) == before


def test_the_help_has_the_options(run: Run) -> None:
    assert set(re.findall(r"--gdnbench-\w+", run("--help").stdout.str())) == {
        "--gdnbench-kernel",
        "--gdnbench-on",
        "--gdnbench-against",
        "--gdnbench-virtual",
        "--gdnbench-sms",
        "--gdnbench-check",
    }
