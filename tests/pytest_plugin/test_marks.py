# SPDX-License-Identifier: Apache-2.0
"""Tests of a user, with the mark `gdnbench`, run by a pytest of their own."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest

from gdnbench.cli import main
from tests.subset import quick

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
Keep = Callable[..., Path]

CHECKED = """
    import pytest

    @pytest.mark.gdnbench({})
    def test_kernel(gdnbench_case):
        gdnbench_case.check()
"""

KERNELS = """
    def writes_nothing(q):
        pass

    def here_only(q):
        import no_such_package

    def cannot(q):
        raise NotImplementedError("no heads of 4")

    def falls(q):
        raise ZeroDivisionError("of mine")
"""


def ids(result: pytest.RunResult) -> list[str]:
    """What is in brackets of the tests that `--collect-only -q` lists, in order."""
    return [found[1] for line in result.outlines if (found := re.search(r"::[^\[]*\[(.*)\]$", line))]


def test_each_record_is_a_test_with_its_name(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    keep("captures/a.zarr", ["layers.0", "layers.1"])
    shutil.make_archive(str(pytester.path / "captures/b.zarr"), "zip", keep("captures/b.zarr", ["x"]))
    shutil.rmtree(pytester.path / "captures/b.zarr")
    pytester.makepyfile(CHECKED.format("'captures/*.zarr*'"))
    assert ids(run("--collect-only", "-q")) == [
        "a.zarr-0-gdn_decode-layers.0-step0",
        "a.zarr-1-gdn_decode-layers.1-step1",
        "b.zarr.zip-0-gdn_decode-x-step0",
    ]
    # In a process of its own: this one has imported the plugin, which pytest warns of.
    strict = pytester.runpytest_subprocess("-p", "gdnbench.pytest_plugin", "--strict-markers", "-W", "error")
    strict.assert_outcomes(passed=3)


def test_k_chooses_by_layer_and_step(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    keep("a.zarr", ["layers.0", "layers.1", "layers.1"])
    pytester.makepyfile(CHECKED.format("'a.zarr'"))
    run("-k", "layers.1 and not step2").assert_outcomes(passed=1, deselected=2)


@pytest.mark.slow
def test_processes_of_xdist_agree(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    """On tests of marks and on records of stores that are arguments."""
    keep("a.zarr", ["l"] * 4)
    keep("b.zarr", ["m", "n"])
    pytester.makefile(".py", kernels=KERNELS)
    file = pytester.makepyfile(
        test_x=CHECKED.format("'*.zarr', kernel='kernels.py:writes_nothing', isolate=False")
    )
    result = run("-p", "xdist", "-n", "2", file, "b.zarr", "--tb=no")
    result.assert_outcomes(failed=6, passed=2)
    failed = sorted(line.split("[")[1].split("]")[0] for line in result.outlines if line.startswith("FAILED"))
    assert failed == [
        *(f"a.zarr-{n}-gdn_decode-l-step{n}" for n in range(4)),
        "b.zarr-0-gdn_decode-m-step0",
        "b.zarr-1-gdn_decode-n-step1",
    ]


def test_a_failure_says_what_replay_says(
    pytester: pytest.Pytester,
    run: Run,
    keep: Keep,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    keep("a.zarr", ["layers.7"])
    pytester.makefile(".py", kernels=KERNELS)
    pytester.makepyfile(CHECKED.format("'a.zarr', kernel='kernels.py:writes_nothing', isolate=False"))
    result = run()
    result.assert_outcomes(failed=1)
    shown = [line.removeprefix("E").strip() for line in result.outlines if line.startswith("E  ")]
    capfd.readouterr()
    kernel = f"{pytester.path / 'kernels.py'}:writes_nothing"
    monkeypatch.setattr("sys.argv", ["gdnbench", "replay", "a.zarr", "--kernel", kernel, "--no-isolate"])
    with pytest.raises(SystemExit):
        main.console_main()
    printed = [line.strip() for line in capfd.readouterr().out.splitlines()]
    assert [line for line in shown[1:] if line] == [line for line in printed if line]
    assert "of 4 elements were never written" in "\n".join(shown)
    # The reason is the first line, which pytest repeats in its summary.
    assert shown[0].startswith("gdnbench.pytest_plugin.case.Mismatch: numeric mismatch: state: RMS error")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("here_only", "missing device or package: *no_such_package*"),
        ("cannot", "unsupported: *no heads of 4*"),
    ],
)
def test_what_cannot_run_here_is_skipped(
    pytester: pytest.Pytester, run: Run, keep: Keep, kernel: str, reason: str
) -> None:
    keep("a.zarr")
    pytester.makefile(".py", kernels=KERNELS)
    pytester.makepyfile(CHECKED.format(f"'a.zarr', kernel='kernels.py:{kernel}', isolate=False"))
    result = run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED*{reason}"])


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a GPU is here")
def test_a_device_that_is_not_here_is_skipped_before_the_test(
    pytester: pytest.Pytester, run: Run, keep: Keep
) -> None:
    keep("a.zarr")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gdnbench("a.zarr", on="cuda")
        def test_kernel(gdnbench_case):
            raise RuntimeError
    """)
    result = run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*--on cuda needs an NVIDIA GPU*"])


def test_a_crash_fails(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    keep("a.zarr")
    pytester.makefile(".py", kernels=KERNELS)
    pytester.makepyfile(CHECKED.format("'a.zarr', kernel='kernels.py:falls', isolate=False"))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*crash: ZeroDivisionError: of mine (kernels.py:11 in falls: raise ZeroDivisionError(*))"]
    )


def test_the_test_s_own_function_is_judged(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    """In place, as an output, wrong, an input written to; and called as the contract says by `check`."""
    keep("a.zarr")
    pytester.makepyfile("""
        import pytest
        from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

        pytestmark = pytest.mark.gdnbench("a.zarr")

        def in_place(q, k, v, g, beta, state, o, state_indices=None):
            made = torch_recurrent(q=q, k=k, v=v, g=g, beta=beta, state=state, state_indices=state_indices)
            o.copy_(made["o"])

        def test_right(gdnbench_case):
            gdnbench_case.judge(torch_recurrent(**gdnbench_case.arguments))

        def test_missing(gdnbench_case):
            torch_recurrent(**gdnbench_case.arguments)
            gdnbench_case.judge(None)

        def test_wrong(gdnbench_case):
            made = torch_recurrent(**gdnbench_case.arguments)
            made["o"] += 1
            gdnbench_case.judge(made)

        def test_writes_inputs(gdnbench_case):
            made = torch_recurrent(**gdnbench_case.arguments)
            gdnbench_case.arguments["q"].zero_()
            gdnbench_case.judge(made)

        def test_is_called(gdnbench_case):
            assert gdnbench_case.check(in_place).label == "0 gdn_decode l step 0"

        def test_has_no_such_output(gdnbench_case):
            gdnbench_case.judge({"p": None})
    """)
    result = run("-v")
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(["*::test_right* PASSED*", "*::test_is_called* PASSED*"])
    result.stdout.fnmatch_lines(
        [
            "*numeric mismatch: o: it is not among the outputs",
            "*numeric mismatch: o: RMS error *",
            "*numeric mismatch: input q was written to: 4 elements, first [[]0, 0, 0, 0[]]",
            "*WrongReturn: the test returned 'p'; gdn_decode has *o*",
        ]
    )


def test_marks_add_up_and_the_command_line_has_their_defaults(
    pytester: pytest.Pytester, run: Run, keep: Keep
) -> None:
    """Two marks of one store: the records have the same names."""
    keep("a.zarr")
    pytester.makefile(".py", kernels=KERNELS)
    pytester.makepyfile("""
        import pytest

        @pytest.mark.gdnbench("a.zarr", kernel="torch")
        @pytest.mark.gdnbench("a.zarr", isolate=False)
        def test_kernel(gdnbench_case):
            gdnbench_case.check()
    """)
    result = run("-v", "--gdnbench-kernel", "kernels.py:writes_nothing")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*-step0_0[]] PASSED*", "*-step0_1[]] FAILED*"])


def test_stores_of_one_name_are_told_apart_by_folder(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    for folder in ("x", "y"):
        keep(f"{folder}/a.zarr")
    pytester.makepyfile(CHECKED.format("'*/a.zarr', 'x/*.zarr'"))
    assert ids(run("--collect-only", "-q")) == [f"{f}/a.zarr-0-gdn_decode-l-step0" for f in "xy"]


def test_paths_are_the_test_file_s_then_the_root_s(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    keep("tests/a.zarr", ["near"])
    keep("a.zarr", ["far"])
    keep("b.zarr", ["far"])
    (pytester.path / "tests" / "test_x.py").write_text(dedent(CHECKED.format("'a.zarr', 'b.zarr'")))
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    found = ids(run("--collect-only", "-q", "tests"))
    assert found == ["a.zarr-0-gdn_decode-near-step0", "b.zarr-0-gdn_decode-far-step0"]


HOSTILE = ["a/b c[d]", "line\nend::x", "\x1b[2Jé층", "", "\u202eback", "x" * 4000, "a&<'\"\x00"]


@pytest.mark.slow
def test_names_of_layers_do_no_harm(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    """Each can be chosen by the name that it is listed by, and the JUnit file is XML."""
    keep("a b.zarr", HOSTILE)
    pytester.makefile(".py", kernels=KERNELS)
    pytester.makepyfile(CHECKED.format("'a b.zarr'"))
    listed = [line for line in run("--collect-only", "-q").outlines if "::" in line]
    assert len(listed) == len(set(listed)) == len(HOSTILE)
    assert all(line.isascii() and line.isprintable() and len(line) < 200 for line in listed)
    assert listed[0].endswith("[a_b.zarr-0-gdn_decode-a/b_c_d_-step0]")
    for line in listed:
        assert run("--collect-only", "-q", line).outlines[0] == line
    pytester.makepyfile(CHECKED.format("'a b.zarr', kernel='kernels.py:writes_nothing', isolate=False"))
    result = run("--junitxml=out.xml")
    result.assert_outcomes(failed=len(HOSTILE))
    assert "\x1b[2J" not in result.stdout.str()
    assert "\u202e" not in result.stdout.str()
    names = [case.get("name") for case in ElementTree.parse(pytester.path / "out.xml").iter("testcase")]
    assert len(names) == len(HOSTILE)


def test_junit_has_the_errors_of_each_tensor(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    keep("a.zarr")
    pytester.makefile(".py", kernels=KERNELS)
    pytester.makepyfile(CHECKED.format("'a.zarr', kernel='torch', against='recorded'"))
    run("--junitxml=out.xml").assert_outcomes(passed=1)
    case = next(ElementTree.parse(pytester.path / "out.xml").iter("testcase"))
    found = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert found["outcome"] == "pass"
    assert found["difference o: max abs"] == "0"  # torch's kernel made the recorded output
    assert float(found["o: RMS ratio"] or "nan") == float(found["o: torch's RMS ratio"] or "nan") > 0


@pytest.mark.parametrize(
    ("mark", "said"),
    quick(
        [
            ("", "names no store: its arguments are paths and globs"),
            ("'nowhere/*.zarr'", "'nowhere/[*].zarr' names no store in *"),
            ("'a.zarr', op='gdn_prefill'", "no record of gdn_prefill in a.zarr"),
            ("'a.zarr', kernal='torch'", "no option 'kernal'; it has kernel, on, *"),
            (
                "'a.zarr', kernel=print",
                "is not a text; a function of the test is called by case.check(function)",
            ),
            ("'a.zarr', k='two'", "k='two' is not a number"),
            ("'a.zarr', k_by_tensor=2", "k_by_tensor=2 is not a dict of numbers by tensor"),
            ("'a.zarr', tol=(1, 2, 3)", "tol=(1, 2, 3) is not a number or (absolute, relative)"),
            ("'a.zarr', records=1.5", "records=1.5: write a number, a list of them, or a text like '0,3-5'"),
            ("'a.zarr', check='yes'", "check='yes' is not True or False"),
        ],
        *(0, 3, 5, 8),
    ),
)
def test_a_mark_that_makes_no_sense_is_one_error_of_collection(
    pytester: pytest.Pytester, run: Run, keep: Keep, mark: str, said: str
) -> None:
    keep("a.zarr")
    pytester.makepyfile(CHECKED.format(mark))
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*::test_kernel: *{said}"])


def test_a_case_without_a_mark_is_an_error(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile("def test_kernel(gdnbench_case): pass")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*which stores? Give the test @pytest.mark.gdnbench(*"])


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("'a.zarr', kernel='nosuch'", "refused: kernel 'nosuch' is not known; there are *"),
        ("'a.zarr', on='tpu'", "refused: --on 'tpu' is no device; *"),
        ("'a.zarr', records='0,7'", "there is no record 7; the store has records 0 to 0"),
        ("'a.zarr', k=-1", "refused: k -1 must not be negative"),
        ("'a.zarr', timeout=0", "refused: timeout 0 must be a number of seconds above 0"),
        ("'a.zarr', check=True", "refused: --check is done by the simulator: --on sim, not cpu"),
        ("'a.zarr', stages=True, against='recorded'", "refused: no call records its stages: *"),
    ],
)
def test_what_only_a_replay_can_tell_is_an_error_of_the_test(
    pytester: pytest.Pytester, run: Run, keep: Keep, mark: str, said: str
) -> None:
    keep("a.zarr")
    pytester.makepyfile(CHECKED.format(mark))
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])


def test_damage_is_an_error_beside_the_others(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    """A store that is none, one whose batch is damaged, one whose tensors are, and a whole one."""
    (pytester.path / "a.zarr.zip").write_bytes(b"no archive")
    batch = next(keep("b.zarr").glob("segments/*/[0-9]*"))
    (batch / "zarr.json").write_text("{")
    rows = next(path for path in keep("c.zarr").glob("segments/*/*/rows/*/c/**/*") if path.is_file())
    rows.write_bytes(b"\xff" * rows.stat().st_size)
    keep("d.zarr")
    pytester.makepyfile(CHECKED.format("'*.zarr*'"))
    result = run("-v")
    result.assert_outcomes(errors=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*[[]a.zarr.zip-unreadable[]] ERROR*",
            "*[[]b.zarr-damaged[]] ERROR*",
            "*[[]c.zarr-0-gdn_decode-l-step0[]] ERROR*",
            "*[[]d.zarr-0-gdn_decode-l-step0[]] PASSED*",
            "*a.zarr.zip is not a zip archive that can be read: *",
            "*b.zarr: batch *is skipped: *",
            "refused: record *",
        ]
    )


@pytest.mark.slow
def test_the_kernel_s_process_finds_what_tests_find(pytester: pytest.Pytester, run: Run, keep: Keep) -> None:
    """A module in a folder that pytest.ini names, in the process of a kernel, which serves all records."""
    keep("a.zarr", ["l", "m", "n"])
    pytester.mkdir("src").joinpath("mine.py").write_text(
        "import os\ndef kernel(o):\n    print(os.getpid(), file=open('pids', 'a'))\n    o.zero_()\n"
    )
    (pytester.path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    pytester.makepyfile(CHECKED.format("'a.zarr', kernel='mine:kernel', tol=1e9"))
    run().assert_outcomes(passed=3)
    pids = (pytester.path / "pids").read_text().split()
    assert len(pids) == 3
    assert len(set(pids)) == 1
    assert "mine" not in sys.modules
