# SPDX-License-Identifier: Apache-2.0
"""Trees of processes as engines make them: ranks, workers, servers that fork, what outlives the command."""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gdnbench.capture.options import OPTIONS_VARIABLE, STORE_VARIABLE
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.summary import segment_summary
from gdnbench.store.verify import verify
from tests.messages import wording

Toy = Any

HANG_SECONDS = 60.0  # no test waits for time to pass; a process that never comes back is given up on


def wait_for(path: Path) -> str:
    """The text of a file that is renamed into place."""
    end = time.monotonic() + HANG_SECONDS
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.02)
    return path.read_text()


def calls_by(store: Path, of: str, problems: int = 0) -> dict[Any, int]:
    """Records by what their process says of itself, in a store without damage."""
    assert verify(store).ok
    found: collections.Counter[Any] = collections.Counter()
    with open_store(store) as opened:
        assert len(opened.problems) == problems, opened.problems
        processes = {segment.name: segment.process for segment in opened.segments}
        for record in opened.records:
            assert {handle.read().isfinite().all().item() for handle in record.before.values()} == {True}
            found[processes[record.key.partition("/")[0]].get(of)] += 1
    return dict(found)


@pytest.mark.slow
def test_a_killed_rank_leaves_the_others_whole(toy: Toy, tmp_path: Path) -> None:
    """Gloo ranks; one dies by SIGKILL when half of a record is in its journal."""
    script = toy.script(
        """
        import os, signal, sys, torch, toyframe
        import torch.distributed as dist
        import torch.multiprocessing as mp
        from gdnbench.store.journal.log import JournalLog

        def die_half_way(log, pieces, nbytes):
            os.write(log._fd, b"".join(map(bytes, pieces))[:nbytes // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        def work(rank, meeting):
            os.environ.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank))
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=3)
            model = toyframe.Model(2)
            for step in range(3):
                dist.barrier()
                model(step)
            dist.barrier()
            if rank == 1:
                JournalLog._write_all = die_half_way
            model(3)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            ranks = [context.Process(target=work, args=(rank, sys.argv[1])) for rank in range(3)]
            [rank.start() for rank in ranks]
            [rank.join() for rank in ranks]
            print([rank.exitcode for rank in ranks])
        """
    )
    store = tmp_path / "run.zarr"
    ran = toy.capture(store, [sys.executable, str(script), str(tmp_path / "meeting")])
    assert ran.out == "[0, -9, 0]\n", ran.err
    assert calls_by(store, "rank", problems=1) == {0: 8, 1: 6, 2: 8}  # four steps of two layers, and three
    with Store.open(store) as opened:
        assert re.search(
            wording("store.record-unfinished", record="call 6 of blocks.0.mixer"), opened.problems[0]
        )
        assert {segment.process["world_size"] for segment in opened.segments} == {3}
        for segment in opened.segments:
            summary = segment_summary(store, segment.name)
            assert summary is not None
            assert (summary.torn is not None) == (not summary.closed) == (segment.process["rank"] == 1)


@pytest.mark.slow  # torchrun starts two processes that import torch
def test_torchrun_gives_each_rank_a_segment(toy: Toy, tmp_path: Path) -> None:
    script = toy.script(
        """
        import torch, toyframe
        import torch.distributed as dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        toyframe.Model(1)(dist.get_rank())
        dist.barrier()
        dist.destroy_process_group()
        """
    )
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = toy.capture(tmp_path / "run.zarr", [sys.executable, *launch, str(script)])
    assert ran.status == 0, ran.err
    assert calls_by(tmp_path / "run.zarr", "rank") == {0: 1, 1: 1}


@pytest.mark.slow  # processes that import torch
def test_workers_of_a_fork_server(toy: Toy, tmp_path: Path) -> None:
    """The server imports torch and the framework once; its forks record, and leave without exit handlers."""
    script = toy.script(
        """
        import multiprocessing, torch, toyframe

        def work(seed):
            torch.set_num_threads(1)
            toyframe.Model(1)(seed)

        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch", "toyframe"])
            workers = [context.Process(target=work, args=(seed,)) for seed in range(3)]
            [worker.start() for worker in workers]
            [worker.join() for worker in workers]
            print([worker.exitcode for worker in workers])
        """
    )
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert ran.out == "[0, 0, 0]\n", ran.err
    assert sorted(calls_by(tmp_path / "run.zarr", "pid").values()) == [1, 1, 1]


@pytest.mark.slow  # processes that import torch
def test_children_of_a_forking_server_that_leave_by_exit(toy: Toy, tmp_path: Path) -> None:
    """`os._exit` runs nothing of ours: what was recorded is in the journal already."""
    script = toy.script(
        """
        import os, torch, toyframe
        torch.set_num_threads(1)
        model = toyframe.Model(1)
        model(0)
        for request in range(1, 4):
            if os.fork() == 0:
                for step in range(request):
                    model(step)
                os._exit(0)
            assert os.wait()[1] == 0
        model(9)
        """
    )
    ran = toy.capture(tmp_path / "run.zarr", script)
    assert ran.status == 0, ran.err
    assert sorted(calls_by(tmp_path / "run.zarr", "pid").values()) == [1, 2, 2, 3]


DAEMON = """
    import os, sys, torch, toyframe
    from pathlib import Path
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    model = toyframe.Model(1)
    if {before}:
        model(0)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for stream in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            if {early}:
                model(1)
            (folder / "pid.new").write_text(str(os.getpid()))
            (folder / "pid.new").rename(folder / "pid")
            with open(folder / "go") as go:
                go.read()
            model(2)
            sys.exit(0)
        os._exit(0)
    os.wait()
    if {early}:
        while not (folder / "pid").exists():
            os.sched_yield()
"""


@pytest.mark.slow  # a program of its own
@pytest.mark.parametrize("early", [True, False])
def test_a_daemon_outlives_the_command(
    toy: Toy, tmp_path: Path, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal is sealed though nobody looks: by the sealer that the command left, or, where it records
    for the first time when the command has ended, by one that it starts."""
    monkeypatch.setattr("gdnbench.capture.sealing._GRACE_SECONDS", 0.5)
    store = tmp_path / "run.zarr"
    os.mkfifo(tmp_path / "go")
    script = toy.script(DAEMON.format(before="True", early=early))
    ran = toy.capture(store, [sys.executable, str(script), str(tmp_path)])
    pid = int(wait_for(tmp_path / "pid"))
    try:
        assert ran.status == 0, ran.err
        (tmp_path / "go").write_text("on")
        end = time.monotonic() + HANG_SECONDS
        while (store / ".journal").exists() or sealed(store) != [1, 1 + early]:
            assert time.monotonic() < end, (sealed(store), ran.err)
            time.sleep(0.05)
        assert verify(store).ok
    finally:
        end_process(pid)


def sealed(store: Path) -> list[int]:
    """Records of each segment, without sealing anything."""
    with Store.open(store) as opened:
        counts = collections.Counter(record.key.partition("/")[0] for record in opened.records)
    return sorted(counts.values())


def end_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.slow  # processes that import torch
def test_a_process_whose_launcher_is_on_another_host_is_sealed(toy: Toy, tmp_path: Path) -> None:
    """As `mpirun -x` starts them: the launcher's options, and no launcher's file."""
    script = toy.script("import toyframe; toyframe.Model(1)(0)")
    store = tmp_path / "run.zarr"
    store.mkdir()
    options = json.dumps({"report": str(tmp_path / "gone" / "report")})
    toy.run(script, **{STORE_VARIABLE: str(store), OPTIONS_VARIABLE: options})
    end = time.monotonic() + HANG_SECONDS
    while (store / ".journal").exists() or not (store / "segments").exists():
        assert time.monotonic() < end, "nobody sealed it"
        time.sleep(0.05)
    assert sealed(store) == [1]
