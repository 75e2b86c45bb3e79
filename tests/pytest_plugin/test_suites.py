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
name = "mine"
captures = "captures/a.zarr"
kernels = "kernels.py:writes_nothing"
records = [1, 2]
"""

KNOWN = """
[[known]]
entry = "mine*"
record = "1"
reason = "it is being written"
until = {}
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, keep: Keep) -> Callable[[str], Path]:
    """`suite(more)`: two entries, of a kernel that is right and one that is not."""
    keep("ci/captures/a.zarr", ["l"] * 3)
    keep("ci/captures/b.zarr")
    (pytester.path / "ci" / "kernels.py").write_text("def writes_nothing(q):\n    pass\n")

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
            "ci/all.toml::mine.a.*.cpu-1-gdn_decode-l-step1 FAILED*",
            "ci/all.toml::mine.a.*.cpu-2-gdn_decode-l-step2 FAILED*",
            "numeric mismatch: state: RMS error *; o: 4 of 4 elements were never written*",
            "again: gdnbench replay ci/captures/a.zarr 1 --kernel ci/kernels.py:writes_nothing --on cpu",
        ]
    )
    cases = list(ElementTree.parse(pytester.path / "out.xml").iter("testcase"))
    assert len(cases) == 6
    assert all(case.find("properties/property[@name='o: max abs']") is not None for case in cases)


def test_a_known_failure_is_expected_until_its_day(run: Run, suite: Callable[..., Path]) -> None:
    chosen = ("-k", "mine", "-rx")
    result = run(suite(KNOWN.format("2999-12-31")), *chosen)
    result.assert_outcomes(xfailed=1, failed=1, deselected=4)
    result.stdout.fnmatch_lines(["XFAIL*-1-gdn_decode-l-step1 -*known failure: *it is being written*"])
    result = run(suite(KNOWN.format("2020-01-31")), *chosen)
    result.assert_outcomes(failed=2, deselected=4)
    result.stdout.fnmatch_lines(["*known until 2020-01-31, which is over: it is being written"])


def test_an_error_worse_than_accepted_fails(
    run: Run, suite: Callable[..., Path], pytester: pytest.Pytester
) -> None:
    """The baseline has an error for o that no kernel in fp32 can keep; the others are not accepted yet."""
    path = suite()
    path.write_text('baselines = "accepted.json"\n' + path.read_text())
    with Store.open(pytester.path / "ci/captures/b.zarr") as store:
        key = store.records[0].key
    accepted = {"cpu": {key: {"state": {"rms": 1e-30, "max_abs": 1e-30, "update": 1}}}}
    (pytester.path / "ci/accepted.json").write_text(
        json.dumps({"schema": 1, "history": [], "accepted": {"captures/b.zarr": {"torch": accepted}}})
    )
    result = run(path, "-k", "torch.b")
    result.assert_outcomes(failed=1, deselected=5)
    result.stdout.fnmatch_lines(["worse than accepted: state: * the accepted 1e-30; factor 1.5*"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[replay]]\ncaptures = 'no/*.zarr'\nkernels = 'torch'", "*: captures 'no/[*].zarr' match nothing*"),
        ("[[replay]]\ncaptures = ", "*all.toml is not TOML: *"),
    ],
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
    assert "found no collectors" in run("pyproject.toml").stderr.str()
