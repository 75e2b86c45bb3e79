# SPDX-License-Identifier: Apache-2.0
"""Programs that do to a capture what programs do: their result must stand, and what we say must be true."""

from __future__ import annotations

import gc
import importlib.machinery
import os
import re
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gdnbench.capture.hook import CaptureFinder, install_finder, remove_finder
from gdnbench.capture.layers import LayerNames
from gdnbench.capture.report import Report, read_report
from gdnbench.errors import BadInputError
from gdnbench.store.journal.log import JournalLog
from gdnbench.store.reader import Store
from tests.messages import wording

Toy = Any


@pytest.mark.slow
def test_two_captures_into_one_store_count_their_own_records(toy: Toy, tmp_path: Path) -> None:
    # Each waits for the other's first record, so that both journals are there while one launcher seals.
    script = toy.script(
        """
        import toyframe, pathlib, sys, time
        mine, other, steps = sys.argv[1:]
        model = toyframe.Model()
        model(0)
        pathlib.Path(mine).touch()
        while not pathlib.Path(other).exists():
            time.sleep(0.02)
        for step in range(1, int(steps)):
            time.sleep(0.3)
            model(step)
        """
    )
    store = tmp_path / "run.zarr"
    other = subprocess.Popen(
        [
            *(sys.executable, "-m", "gdnbench", "capture", store),
            *("--", sys.executable, script, tmp_path / "b", tmp_path / "a", "2"),
        ],
        env=toy.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    ran = toy.capture(store, [sys.executable, str(script), str(tmp_path / "a"), str(tmp_path / "b"), "8"])
    _, err = other.communicate(timeout=60)
    assert (ran.status, other.returncode) == (0, 0)
    assert ran.err.startswith("gdnbench: 16 records, ")
    assert err.startswith("gdnbench: 4 records, ")
    assert not re.search(wording("capture.processes-live"), ran.err + err)
    assert len(Store.open(store).records) == 20


@pytest.mark.slow  # processes that import torch
def test_what_an_earlier_process_left_is_not_what_the_command_did(toy: Toy, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    # No sealer: the journal stays behind.
    no_sealer = toy.script(
        """
        import gdnbench.capture.runtime as runtime
        runtime.running[-1]._on_first_record = lambda store: None
        import toyframe, os
        toyframe.Model()(0)
        os.kill(os.getpid(), 9)
        """,
        "no_sealer.py",
    )
    assert toy.run(no_sealer, GDNBENCH_CAPTURE=str(store)).status == -9
    ran = toy.capture(store, toy.script("import toyframe"))
    assert ran.status == 1
    assert ran.err.startswith("gdnbench: 0 records, ")
    assert re.search(wording("capture.records-recovered", records=2), ran.err)
    assert len(Store.open(store).records) == 2


def test_nothing_imported_names_the_targets_too(toy: Toy, tmp_path: Path) -> None:
    ran = toy.capture(tmp_path / "run.zarr", [sys.executable, "-c", "print('hello')"], {"target": ["toy"]})
    assert (ran.status, ran.out) == (1, "hello\n")
    assert re.search(wording("capture.no-gdnbench-python"), ran.err)
    assert "never imported: toyframe (step, absent)" in ran.err


@pytest.mark.slow  # processes that import torch
def test_a_program_that_closes_every_descriptor_keeps_its_own_files(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(
        f"""
        import toyframe, os
        model = toyframe.Model()
        model(0)
        os.closerange(3, 400)
        files = [open(f"{tmp_path}/mine{{i}}", "w+b") for i in range(30)]
        for step in range(4):
            model(step)
        for file in files:
            file.write(b"x")
            file.flush()
        print(sorted({{os.path.getsize(file.name) for file in files}}))
        """
    )
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert (ran.status, ran.out) == (0, "[1]\n")
    assert "8 dropped" in ran.err
    assert re.search(wording("store.journal-closed"), ran.err)
    assert len(Store.open(tmp_path / "run.zarr").records) == 2


def test_a_journal_leaves_files_that_took_its_descriptors_alone(tmp_path: Path) -> None:
    log = JournalLog(tmp_path / "run.zarr", "0-1-a", b"{}")
    numbers = (log._fd, log._writer_lock, log._sealer_lock)
    mine = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in numbers]
    for own, number in zip(mine, numbers, strict=True):
        os.dup2(own, number)
    assert not log.sealer_lives()
    log.release()
    for own, number in zip(mine, numbers, strict=True):
        assert os.fstat(number).st_ino == os.fstat(own).st_ino
        assert os.fstat(own).st_size == 0
        os.close(own)
        os.close(number)


@pytest.mark.slow  # processes that import torch
def test_a_relative_store_is_where_the_program_started(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = toy.script(
        f"""
        import os
        os.chdir({str(tmp_path / "elsewhere")!r})
        import toyframe
        toyframe.Model()(0)
        """
    )
    (tmp_path / "here").mkdir()
    environment = toy.environment(GDNBENCH_CAPTURE="run.zarr")
    subprocess.run([sys.executable, script], env=environment, cwd=tmp_path / "here", check=True)
    # The sealer may be at work or done by now: what there is of the store is here, and nothing is there.
    assert (tmp_path / "here" / "run.zarr").is_dir()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.slow  # a program of its own
@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("raise SystemExit(9)", "SystemExit(9)"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("ADAPTER = 5", "'int' object has no attribute 'framework'"),
        ("ADAPTER: object", "has no attribute 'ADAPTER'"),
    ],
)
def test_an_adapter_that_does_not_load_stops_nothing(
    toy: Toy, program: Path, tmp_path: Path, adapter: str, said: str
) -> None:
    plain = toy.run(program)
    (toy.folder / "toy_adapter.py").write_text(adapter)
    ran = toy.capture(tmp_path / "run.zarr", program)
    assert (ran.status, ran.out) == (1, plain.out)
    assert re.search(wording("capture.adapter-fails", name="'toy'", place="toy_adapter:ADAPTER"), ran.err)
    assert said in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_without_stderr_a_broken_option_is_silent(toy: Toy, program: Path, tmp_path: Path) -> None:
    command = f'exec "{sys.executable}" "{program}" 2>&-'
    environment = toy.environment(GDNBENCH_CAPTURE=str(tmp_path / "s"), GDNBENCH_CAPTURE_OPTIONS="[")
    done = subprocess.run(
        ["sh", "-c", command], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, toy.run(program).out)


def test_what_loading_the_adapters_imports_is_not_run_twice(toy: Toy, tmp_path: Path) -> None:
    (toy.folder / "once.py").write_text("print('run'); things = []")
    adapter = toy.folder / "toy_adapter.py"
    adapter.write_text("import once; once.things.append(1)\n" + adapter.read_text())
    script = toy.script("import once; print(once.things, once.__spec__.origin.endswith('once.py'))")
    ran = toy.run(script, GDNBENCH_CAPTURE=str(tmp_path / "run.zarr"))
    assert (ran.status, ran.out) == (0, "run\n[1] True\n")


@pytest.fixture
def hooked() -> Any:
    """Has the imports of the given modules told to a list; takes the finder back at the end."""
    finders = []

    def hook(*names: str) -> list[str]:
        seen: list[str] = []
        finder = CaptureFinder(lambda: dict.fromkeys(names, lambda module: seen.append(module.__name__)))
        install_finder(finder)
        finders.append(finder)
        return seen

    yield hook
    for finder in finders:
        remove_finder(finder)


def test_modules_that_share_a_loader_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooked: Callable[..., list[str]]
) -> None:
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("zipped_target.py", "x = 1")
        archive.writestr("zipped_other.py", "x = 2")
    monkeypatch.syspath_prepend(tmp_path / "modules.zip")
    seen = hooked("zipped_target")
    assert importlib.import_module("zipped_target").x == 1
    assert importlib.import_module("zipped_other").x == 2
    assert seen == ["zipped_target"]


def test_finders_and_loaders_of_other_kinds_still_import(
    monkeypatch: pytest.MonkeyPatch, hooked: Callable[..., list[str]]
) -> None:
    class Loader:
        """Has no `exec_module` that could be replaced."""

        __slots__ = ()

        def create_module(self, spec: Any) -> None:
            return None

        def exec_module(self, module: types.ModuleType) -> None:
            module.x = 3  # type: ignore[attr-defined]

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.machinery.ModuleSpec(name, Loader()) if name == "strange_target" else None  # type: ignore[arg-type]

    class NoFinder:
        """Of a kind that Python passes over, with a warning of its own in some releases."""

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path, NoFinder()])
    hooked("strange_target")
    assert importlib.import_module("strange_target").x == 3


@pytest.mark.slow  # processes that import torch
def test_a_module_of_the_programs_named_like_one_of_the_library(toy: Toy, tmp_path: Path) -> None:
    """All else is imported while it is, and nothing behind it."""
    script = toy.script("import calendar")
    (script.parent / "calendar.py").write_text("import toyframe\ntoyframe.Model()(0)\n", encoding="utf-8")
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert ran.status == 0, ran.err
    assert ran.err.startswith("gdnbench: 2 records, ")


@pytest.mark.slow  # a program of its own
@pytest.mark.parametrize(
    ("slip", "write"),
    [("s3:/bucket/run.zarr", "s3://bucket/run.zarr"), ("file:/run.zarr", "file:///run.zarr")],
)
def test_half_a_url_makes_no_folder(toy: Toy, slip: str, write: str) -> None:
    script = toy.script("import toyframe; print(toyframe.Model()(0))")
    plain = toy.run(script)
    before = sorted(script.parent.iterdir())  # with Python's own __pycache__
    ran = toy.run(script, GDNBENCH_CAPTURE=slip)
    assert (ran.status, ran.out) == (plain.status, plain.out)
    scheme, _, rest = write.partition(":")
    wrong = wording("store.url-wrong", text=slip, scheme=scheme, slashes="", rest=rest, folder=slip)
    assert re.fullmatch(wording("capture.off", message=re.compile(wrong)) + "\n", ran.err)
    assert sorted(script.parent.iterdir()) == before
    with pytest.raises(BadInputError, match=wording("store.url-wrong")):
        toy.capture(slip, script)


def test_a_frozen_layer_is_named_by_its_class_and_index() -> None:
    layer = nn.Linear(1, 1)
    layer.layer_idx = 4  # type: ignore[assignment]
    gc.freeze()
    try:
        assert LayerNames().layer_of(layer).name == "Linear.4"
    finally:
        gc.unfreeze()


def test_notes_that_a_full_disk_cut_short_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "report"
    Report(str(path)).note("started")
    with path.open("ab") as file:
        file.write(b'{"event": "clo\n[1]\n\xff\n{"pid": 1}\n' + b"[" * 100_000)
    assert [note["event"] for note in read_report(path)] == ["started"]
    assert read_report(tmp_path / "none") == []


@pytest.mark.slow  # processes that import torch
def test_a_program_that_begins_with_dataclasses(toy: Toy, tmp_path: Path) -> None:
    """It imports `copy`, which tries a module of Jython's: the first import from outside the library."""
    script = toy.script("""
        import dataclasses
        import toyframe
        toyframe.Model()(0)
        """)
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert ran.status == 0, ran.err
    assert ran.err.startswith("gdnbench: 2 records, ")
