# SPDX-License-Identifier: Apache-2.0
"""The captured command: its own output and status, what is recorded, and what is said when nothing was."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.capture.launch import run_captured
from gdnbench.capture.options import CaptureOptions
from gdnbench.errors import BadInputError
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from tests.messages import wording
from tests.subset import quick

Toy = Any


def test_entry_point_adapter_records_every_call_and_leaves_output_alone(
    toy: Toy, program: Path, tmp_path: Path
) -> None:
    plain = toy.run(program)
    captured = toy.capture(tmp_path / "run.zarr", program)
    assert (captured.status, captured.out) == (0, plain.out)
    assert captured.err.splitlines()[0].startswith("gdnbench: 8 records, ")
    assert captured.err.count("\n") == 1
    store = Store.open(tmp_path / "run.zarr")
    assert store.problems == ()
    infos = [record.info for record in store.records]
    assert [(i.call, i.step, i.layer, i.layer_index) for i in infos] == [
        (2 * step + layer, step, f"blocks.{layer}.mixer", layer) for step in range(4) for layer in range(2)
    ]
    assert {i.target for i in infos} == {"toyframe:step"}


@pytest.mark.slow
def test_only_touched_rows_are_stored_and_the_state_chains(toy: Toy, program: Path, tmp_path: Path) -> None:
    toy.capture(tmp_path / "run.zarr", program, {"layer": ["1"]})
    records = list(Store.open(tmp_path / "run.zarr").records)
    assert len(records) == 4
    for record in records:
        pool = record.info.pools["state"]
        assert (pool.slots, pool.rows) == (5, (1, 3))
        # The toy writes only the rows it was given.
        assert pool.untouched_before == pool.untouched_after is not None
        assert record.before["state"].meta.caller_shape == (5, 4, 8, 8)
    for earlier, later in pairwise(records):
        assert torch.equal(earlier.after["state"].read(), later.before["state"].read())
        assert not torch.equal(later.before["state"].read(), later.after["state"].read())


@pytest.mark.slow  # processes that import torch
def test_full_pools_keep_every_row(toy: Toy, program: Path, tmp_path: Path) -> None:
    toy.capture(tmp_path / "run.zarr", program, {"full_pools": True, "first": 1})
    for record in Store.open(tmp_path / "run.zarr").records:
        assert record.info.pools["state"].rows == (0, 1, 2, 3, 4)
        assert record.before["state"].meta.shape == (5, 4, 8, 8)
        assert record.info.pools["state"].untouched_before is None


@pytest.mark.slow  # processes that import torch
@pytest.mark.parametrize("status", quick([0, 77], 1))
def test_exit_status_of_the_command_is_ours(toy: Toy, tmp_path: Path, status: int) -> None:
    script = toy.script(f"import toyframe, sys; toyframe.Model()(0); sys.exit({status})")
    assert toy.capture(tmp_path / "run.zarr", script).status == status
    assert len(Store.open(tmp_path / "run.zarr").records) == 2


@pytest.mark.slow  # processes that import torch
def test_a_signal_that_ends_the_command_gives_128_and_its_number(toy: Toy, tmp_path: Path) -> None:
    script = toy.script("import toyframe, os; toyframe.Model()(0); os.kill(os.getpid(), 9)")
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert ran.status == 137
    assert len(Store.open(tmp_path / "run.zarr").records) == 2


@pytest.mark.slow  # processes that import torch
def test_nothing_captured_is_exit_1_and_says_what_was_never_called(toy: Toy, tmp_path: Path) -> None:
    ran = toy.capture(tmp_path / "run.zarr", toy.script("import toyframe; print('hello')"))
    assert (ran.status, ran.out) == (1, "hello\n")
    assert "imported but never called: toyframe:step" in ran.err
    assert "never imported: transformers.models.qwen3_next.modeling_qwen3_next" in ran.err
    assert "never imported: toyframe" not in ran.err


@pytest.mark.slow  # processes that import torch
def test_nothing_selected_is_exit_1_and_says_what_was_called(toy: Toy, program: Path, tmp_path: Path) -> None:
    ran = toy.capture(tmp_path / "run.zarr", program, {"layer": ["7"], "target": ["toy"]})
    assert ran.status == 1
    assert re.search(wording("capture.called-only") + ": toyframe:step", ran.err)
    assert "transformers" not in ran.err


def test_no_python_with_gdnbench_is_said(toy: Toy, tmp_path: Path) -> None:
    ran = toy.capture(tmp_path / "run.zarr", ["sh", "-c", "exit 0"])
    assert ran.status == 1
    assert re.search(wording("capture.no-gdnbench-python"), ran.err)


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ([], {}, wording("capture.command-missing")),
        (
            ["no-such-program-anywhere"],
            {},
            wording(
                "capture.command-unusable",
                command="no-such-program-anywhere",
                reason="No such file or directory",
            ),
        ),
        (["true"], {"target": ("nonesuch",)}, wording("capture.target-unknown", pattern="nonesuch")),
    ],
)
def test_refused_before_anything_runs(
    tmp_path: Path, command: list[str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        run_captured(tmp_path / "run.zarr", command, CaptureOptions(**options))


def test_a_path_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(BadInputError, match=wording("capture.folder-not-store", file="precious.txt")):
        run_captured(tmp_path, ["true"], CaptureOptions())
    with pytest.raises(BadInputError, match=wording("capture.path-is-file")):
        run_captured(tmp_path / "precious.txt", ["true"], CaptureOptions())


@pytest.mark.slow  # processes that import torch
def test_capturing_again_into_a_store_adds_to_it(toy: Toy, program: Path, tmp_path: Path) -> None:
    for _ in range(2):
        toy.capture(tmp_path / "run.zarr", program, {"first": 1})
    assert len(Store.open(tmp_path / "run.zarr").records) == 4


@pytest.mark.slow  # a program of its own; store/test_quota.py has the rule
def test_drop_oldest_keeps_the_latest_records_and_says_so(toy: Toy, tmp_path: Path) -> None:
    script = toy.script("import toyframe; m = toyframe.Model(); [m(n) for n in range(100)]")
    path, limit = tmp_path / "run.zarr", 400_000
    ran = toy.capture(path, script, {"max_bytes": limit, "when_over": "drop-oldest"})
    assert ran.status == 0
    with Store.open(path) as store:
        calls = [record.info.call for record in store.records]
        assert calls == list(range(calls[0], 200))
        assert 0 < calls[0] < 199
        assert store.removed_records == calls[0]
        (lost,) = store.unfinished
    held = sum(file.stat().st_size for file in (path / "segments").rglob("*") if file.is_file())
    assert held < limit + 20_000  # what describes the segment and its end comes on top
    lines = ran.err.splitlines()
    assert lines[0] == f"gdnbench: {200 - calls[0]} records in {path}"
    assert re.fullmatch("gdnbench: " + wording("capture.dropped-older", records=calls[0]), lines[1])
    assert re.search(wording("store.dropped-oldest", records=calls[0]), lost)
    assert verify(path).ok


def test_interrupt_is_passed_on_and_what_was_recorded_is_kept(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(
        """
        import toyframe, os, signal, time
        toyframe.Model()(0)
        launcher = os.getppid()
        os.kill(launcher, signal.SIGTERM)
        time.sleep(60)
        """
    )
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert ran.status == 128 + 15
    assert len(Store.open(tmp_path / "run.zarr").records) == 2


def test_environment_alone_captures_and_seals(toy: Toy, program: Path, tmp_path: Path) -> None:
    plain = toy.run(program)
    store = tmp_path / "run.zarr"
    ran = toy.run(program, GDNBENCH_CAPTURE=str(store), GDNBENCH_CAPTURE_OPTIONS='{"first": 3}')
    assert ran == plain
    wait_until_sealed(store)
    assert len(Store.open(store).records) == 6


@pytest.mark.slow
def test_a_broken_option_turns_capture_off_with_one_line(toy: Toy, program: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    ran = toy.run(program, GDNBENCH_CAPTURE=str(store), GDNBENCH_CAPTURE_OPTIONS='{"frist": 3}')
    assert (ran.status, ran.out) == (0, toy.run(program).out)
    unknown = wording("capture.option-unknown", variable="GDNBENCH_CAPTURE_OPTIONS", name="frist")
    assert re.fullmatch(wording("capture.off", message=re.compile(unknown)) + "\n", ran.err)
    assert not store.exists()


def test_start_up_imports_nothing_heavy(toy: Toy, tmp_path: Path) -> None:
    script = toy.script("import sys; print(*sys.modules)")
    loaded = [
        set(toy.run(script, **env).out.split()) for env in ({}, {"GDNBENCH_CAPTURE": str(tmp_path / "s")})
    ]
    new = {name.partition(".")[0] for name in loaded[1] - loaded[0]}
    # Type hints cost these; the rest of capture waits for the program's first import.
    assert new <= {"gdnbench", "collections", "typing", "_typing"}


def wait_until_sealed(store: Path) -> None:
    """The detached sealer ends by itself; its journal folder is then gone."""
    deadline = time.monotonic() + 30
    while not (store / "zarr.json").exists() or any((store / ".journal").glob("*/*.log")):
        assert time.monotonic() < deadline, "the detached sealer did not finish"
        time.sleep(0.05)
