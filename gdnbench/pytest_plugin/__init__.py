# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: recorded calls as parametrised tests, and stores as arguments of pytest; see
docs/pytest.md.

Every pytest in the environment loads this module, so it imports its parts only when a test needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gdnbench.pytest_plugin.stash import GPU, MARK, REPLAYS, replays_of

if TYPE_CHECKING:
    from gdnbench.pytest_plugin.case import Case
    from gdnbench.pytest_plugin.selection import Chosen

FIXTURE = "gdnbench_case"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gdnbench", "recorded kernel calls (gdnbench)")
    group.addoption(
        "--gdnbench-kernel",
        metavar="K",
        help="kernel of stores given as arguments, and of marks that name none: a name,"
        " package.module:function or FILE.py:function; default torch",
    )
    group.addoption("--gdnbench-on", metavar="DEVICE", help="where it runs: cpu, cuda or sim; default cpu")
    group.addoption(
        "--gdnbench-against",
        metavar="A",
        help="what it is compared with: reference, recorded or another kernel; default reference",
    )
    group.addoption(
        "--gdnbench-virtual",
        metavar="MACHINE",
        help="give the tests a virtual GPU, b200, b300, h200 or h100: tensors on cuda live in CPU memory and"
        " kernels are simulated",
    )
    group.addoption(
        "--gdnbench-sms",
        type=int,
        metavar="N",
        help="with --gdnbench-virtual: how many SMs the GPU has; default the machine's",
    )
    group.addoption(
        "--gdnbench-check",
        action="store_true",
        help="with --gdnbench-virtual: check every launch for races, missing fences and missing waits",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Make the virtual GPU before a conftest.py asks torch whether there is one."""
    options = early_config.known_args_namespace
    if options.gdnbench_virtual is not None:
        from gdnbench.pytest_plugin.virtual import start_gpu

        start_gpu(early_config, options.gdnbench_virtual, options.gdnbench_sms, check=options.gdnbench_check)
    elif options.gdnbench_sms is not None or options.gdnbench_check:
        raise pytest.UsageError("--gdnbench-sms and --gdnbench-check go with --gdnbench-virtual MACHINE")


def pytest_configure(config: pytest.Config) -> None:
    root = config.rootpath
    if root.name.endswith(".zarr") and (root / "zarr.json").exists():
        raise pytest.UsageError(f"{root} would be pytest's rootdir, which it writes to: give --rootdir too")
    config.addinivalue_line(
        "markers",
        f"{MARK}(*stores, kernel=, on=, against=, op=, records=, k=, ...): run the test, which takes the"
        f" fixture {FIXTURE}, for each record of the stores; paths and globs are relative to the test's file",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (gpu := config.stash.get(GPU, None)) is not None:
        from gdnbench.pytest_plugin.virtual import write_summary

        write_summary(terminalreporter, gpu)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    gpu = session.config.stash.get(GPU, None)
    if gpu is not None and exitstatus == pytest.ExitCode.OK and not all(one.ok for one in gpu.reports):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if (replays := config.stash.get(REPLAYS, None)) is not None:
        replays.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE not in metafunc.fixturenames:
        return
    from gdnbench.errors import EXPECTED_ERRORS
    from gdnbench.pytest_plugin.selection import select_marked

    marks = list(metafunc.definition.iter_markers(MARK))
    where = f"{metafunc.definition.nodeid}: "
    try:
        chosen = select_marked(marks, metafunc.definition.path, metafunc.config)
    except EXPECTED_ERRORS as error:
        raise pytest.Collector.CollectError(f"{where}{error}") from None
    metafunc.parametrize(FIXTURE, [pytest.param(one, id=one.id) for one in chosen], indirect=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not (file_path.name.endswith((".zarr.zip", ".toml")) and parent.session.isinitpath(file_path)):
        return None
    if file_path.suffix == ".toml":
        if b"[[replay]]" not in file_path.read_bytes():
            return None  # no suite
        from gdnbench.pytest_plugin.suite_items import SuiteFile

        return SuiteFile.from_parent(parent, path=file_path)
    from gdnbench.pytest_plugin.items import StoreFile

    return StoreFile.from_parent(parent, path=file_path)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not (path.name.endswith(".zarr") and parent.session.isinitpath(path)):
        return None
    from gdnbench.pytest_plugin.items import StoreFolder

    return StoreFolder.from_parent(parent, path=path)


@pytest.fixture
def gdnbench_case(request: pytest.FixtureRequest) -> Case:
    """A recorded call of the stores that the test's mark `gdnbench` names."""
    from gdnbench.pytest_plugin.case import open_case

    chosen: Chosen = request.param
    return open_case(chosen, request.node, replays_of(request.config))
