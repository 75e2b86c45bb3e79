# SPDX-License-Identifier: Apache-2.0
"""Several processes, forks and threads; calls that take their process with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdnbench.store.reader import Store
from tests.subset import quick

Toy = Any


def test_children_and_forks_record_into_segments_of_their_own(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(
        """
        import multiprocessing, os, subprocess, sys, torch, toyframe

        def work(seed):
            torch.set_num_threads(1)
            toyframe.Model(1)(seed)

        if sys.argv[1:] == ["child"]:
            work(3)
        else:
            toyframe.Model(1)(0)
            subprocess.run([sys.executable, __file__, "child"], check=True)
            process = multiprocessing.get_context("fork").Process(target=work, args=(2,))
            process.start()
            process.join()
            assert process.exitcode == 0
            toyframe.Model(1)(1)
        """
    )
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert (ran.status, ran.out) == (0, "")
    store = Store.open(tmp_path / "run.zarr")
    assert store.problems == ()
    by_segment: dict[str, int] = {}
    for record in store.records:
        name = record.key.partition("/")[0]
        by_segment[name] = by_segment.get(name, 0) + 1
    assert sorted(by_segment.values()) == [1, 1, 2]
    assert "problem" not in ran.err


@pytest.mark.slow
def test_threads_lose_nothing_and_keep_their_layers_apart(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(
        """
        import threading, toyframe
        def work():
            model = toyframe.Model(3)
            for step in range(5):
                model(step)
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """
    )
    toy.capture(tmp_path / "run.zarr", script)
    infos = [record.info for record in Store.open(tmp_path / "run.zarr").records]
    assert sorted(info.call for info in infos) == list(range(4 * 3 * 5))
    # Each thread has a model of its own: every layer name has four layers behind it, each with steps 0..4.
    for layer in range(3):
        steps = sorted(info.step for info in infos if info.layer == f"blocks.{layer}.mixer")
        assert steps == sorted(list(range(5)) * 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "death", quick(["os._exit(9)", "os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"], 1)
)
def test_sync_leaves_the_inputs_of_a_call_that_never_comes_back(toy: Toy, tmp_path: Path, death: str) -> None:
    text = (toy.folder / "toyframe.py").read_text()
    dying = f"def step(q, k, v, g, beta, pool, *, slots, scale=0.5):\n    import os, signal; {death}\n"
    (toy.folder / "toyframe.py").write_text(
        text.replace("def step(q, k, v, g, beta, pool, *, slots, scale=0.5):\n", dying)
    )
    ran = toy.capture(
        tmp_path / "run.zarr", toy.script("import toyframe; toyframe.Model()(0)"), {"sync": True}
    )
    assert ran.status in (9, 137, 134)
    (record,) = Store.open(tmp_path / "run.zarr").records
    assert record.info.status == "unfinished"
    assert record.info.layer == "blocks.0.mixer"
    assert set(record.before) == {"q", "k", "v", "g", "beta", "state", "state_indices"}
    assert record.before["q"].read().abs().sum() > 0


@pytest.mark.slow  # processes that import torch
def test_sync_records_finished_calls_whole(toy: Toy, program: Path, tmp_path: Path) -> None:
    ran = toy.capture(tmp_path / "run.zarr", program, {"sync": True})
    assert (ran.status, ran.out) == (0, toy.run(program).out)
    records = Store.open(tmp_path / "run.zarr").records
    assert len(records) == 8
    assert {record.info.status for record in records} == {"complete"}
    assert all(set(record.after) == {"o", "state"} for record in records)
    assert all(record.info.pools["state"].untouched_after is not None for record in records)
