# SPDX-License-Identifier: Apache-2.0
"""Suites as arguments of pytest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gdnbench.store.reader import Store

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
Keep = Callable[..., Path]

SUITE = """
[[replay]]
name = "torch"
captures = "captures/*.zarr"
kernels = "torch"

[[replay]]
name = "exact"
captures = "captures/a.zarr"
kernels = "torch"
records = [1, 2]
tol = 0.0
"""

KNOWN = """
[[known]]
entry = "exact*"
record = "1"
reason = "it is being written"
until = {}
"""

ZEROS = """
baselines = "accepted.json"
factor = 3

[[replay]]
captures = "captures/b.zarr"
kernels = "kernels.py:zeros"
tol = 1.0
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, keep: Keep) -> Callable[[str], Path]:
    """`suite(more)`: torch's kernel, also held to the oracle's very values, which are not in its dtypes."""
    keep("ci/captures/a.zarr", ["l"] * 3)
    keep("ci/captures/b.zarr")

    def write(more: str = "") -> Path:
        path = pytester.path / "ci" / "all.toml"
        path.write_text(SUITE + more)
        return path

    return write


def test_records_of_entries_are_tests(
    run: Run, suite: Callable[..., Path], pytester: pytest.Pytester
) -> None:
    result = run(suite(), "-v", "--junitxml=out.xml")
    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(
        [
            "ci/all.toml::torch.a.torch.cpu-0-gdn_decode-l-step0 PASSED*",
            "ci/all.toml::torch.b.torch.cpu-0-gdn_decode-l-step0 PASSED*",
            "ci/all.toml::exact.a.torch.cpu-1-gdn_decode-l-step1 FAILED*",
            "ci/all.toml::exact.a.torch.cpu-2-gdn_decode-l-step2 FAILED*",
            "numeric mismatch: state: *; o: *",
            "again: gdnbench replay ci/captures/a.zarr 1 --kernel torch --on cpu --tol 0.0,0.0",
        ]
    )
    cases = list(ElementTree.parse(pytester.path / "out.xml").iter("testcase"))
    assert len(cases) == 6
    assert all(case.find("properties/property[@name='o: max abs']") is not None for case in cases)


def test_a_known_failure_is_expected_until_its_day(run: Run, suite: Callable[..., Path]) -> None:
    chosen = ("-k", "exact", "-rx")
    result = run(suite(KNOWN.format("2999-12-31")), *chosen)
    result.assert_outcomes(xfailed=1, failed=1, deselected=4)
    result.stdout.fnmatch_lines(["XFAIL*-1-gdn_decode-l-step1 -*known failure: *it is being written*"])
    result = run(suite(KNOWN.format("2020-01-31")), *chosen)
    result.assert_outcomes(failed=2, deselected=4)
    result.stdout.fnmatch_lines(["*known until 2020-01-31, which is over: it is being written"])


@pytest.mark.slow
def test_an_error_worse_than_accepted_fails(
    run: Run, suite: Callable[..., Path], pytester: pytest.Pytester
) -> None:
    """Zeros are within the tolerance. Of o, whose largest value is 0.54, less is accepted."""
    path = suite()
    path.write_text(ZEROS)
    (pytester.path / "ci/kernels.py").write_text("def zeros(o, state):\n    o.zero_()\n")
    with Store.open(pytester.path / "ci/captures/b.zarr") as store:
        key = store.records[0].key
    errors = {"o": {"rms": 1e-5, "max_abs": 1e-5, "update": 1}}
    accepted = {"captures/b.zarr": {"kernels.py:zeros": {"cpu": {key: errors}}}}
    (pytester.path / "ci/accepted.json").write_text(
        json.dumps({"schema": 1, "history": [], "accepted": accepted})
    )
    result = run(path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["worse than accepted: o: RMS error * the accepted 1e-05; factor 3*"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[replay]]\ncaptures = 'no/*.zarr'\nkernels = 'torch'", "*: captures 'no/[*].zarr' match nothing*"),
        ("[[replay]]\ncaptures = ", "*all.toml is not TOML: *"),
    ],
    ids=["captures", "syntax"],
)
def test_a_wrong_suite_is_one_error(run: Run, suite: Callable[..., Path], text: str, said: str) -> None:
    path = suite()
    path.write_text(text)
    result = run(path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])


def test_other_toml_is_left_to_others(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[project]\nname = 'x'")
    pytester.makepyfile("def test_other(): pass")
    run().assert_outcomes(passed=1)
    assert run("pyproject.toml").ret == pytest.ExitCode.USAGE_ERROR
