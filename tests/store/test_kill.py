# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random instants: what was acknowledged is in the store, once and bit for bit, whoever died when.

Every trial has a writer and a sealer at work on one store; the writer, the sealer or both are killed. Then
the store is opened as a user does, and judged against `journal_calls`.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from gdnbench.errors import StoreError
from gdnbench.record import Status
from gdnbench.store.recover import open_store
from gdnbench.store.summary import segment_summary
from gdnbench.store.verify import verify
from tests.seeds import drawn, fresh
from tests.store import journal_calls as calls
from tests.subset import quick

# A trial that nobody disturbs takes about this long on two busy cores; kills fall in it evenly.
TRIAL_SECONDS = 0.25
# One append takes about this long; a third of the kills fall so closely after an acknowledgement.
APPEND_SECONDS = 0.0004
QUICK_TRIALS = 108
SLOW_TRIALS = 1000

Template = subprocess.Popen[str]


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.kill_template"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=30) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a process that dies leaves its files alike on any file system,
    and the many flushes of a store then cost nothing."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 32 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@dataclass(frozen=True)
class Trial:
    seed: int
    kills: dict[str, float]  # who -> seconds
    after: int = 0  # acknowledgements from which on the seconds count

    @classmethod
    def choose(cls, number: int, chooser: random.Random) -> Trial:
        seed = chooser.randrange(1 << 32)
        who = (("writer",), ("sealer",), ("writer", "sealer"))[number % 3]
        if number % 3 == 1 or chooser.random() < 0.5:
            return cls(seed, {name: chooser.uniform(0, TRIAL_SECONDS) for name in who})
        after = chooser.randrange(20)
        return cls(seed, {name: chooser.uniform(0, APPEND_SECONDS) for name in who}, after)


def run(template: Template, store: Path, trial: Trial) -> dict[str, Any]:
    assert template.stdin is not None
    assert template.stdout is not None
    template.stdin.write(json.dumps({"store": str(store), **asdict(trial)}) + "\n")
    template.stdin.flush()
    result: dict[str, Any] = json.loads(template.stdout.readline())
    for name, status in result["statuses"].items():
        # One that was to be killed may have ended before; nobody may fail.
        assert status == 0 or (status == -9 and name in trial.kills), f"{name} ended with {status}"
    return result


def judge(store: Path, acknowledged: list[int]) -> None:
    assert acknowledged == list(range(len(acknowledged)))
    notes = io.StringIO()
    try:
        opened = open_store(store, notes=notes)
    except StoreError:
        # Killed before there was anything: nothing had been acknowledged, and no journal is left.
        assert acknowledged == []
        assert not any(not path.name.startswith(".new-") for path in (store / ".journal").glob("*"))
        return
    with opened:
        found = [(record.info.call, record.info.status) for record in opened.records]
        complete = [call for call, status in found if status is Status.COMPLETE]
        # One more may have been written whose acknowledgement the kill cut off.
        assert complete in (acknowledged, [*acknowledged, len(acknowledged)])
        unfinished = [call for call, status in found if status is Status.UNFINISHED]
        assert unfinished in ([], [len(complete)])
        for record in opened.records:
            calls.assert_is_call(
                record.info,
                {name: handle.read() for name, handle in record.before.items()},
                {name: handle.read() for name, handle in record.after.items()},
            )
        skipped = []
        for segment in opened.segments:
            summary = segment_summary(store, segment.name)
            assert summary is not None
            assert (summary.records, summary.unfinished) == (len(found), len(unfinished))
            assert summary.damage == ()
            if summary.torn is not None:
                assert not summary.closed
                skipped.append(summary.torn)
    report = verify(store)
    assert report.ok, report.damages
    assert len(report.problems) == len(skipped), report.problems
    assert all(torn in problem for torn, problem in zip(skipped, report.problems, strict=True))
    assert not (store / ".incoming").exists()


def kill_all_over(template: Template, folder: Path, chooser: random.Random, trials: int) -> None:
    for number in range(trials):
        trial = Trial.choose(number, chooser)
        store = folder / f"{number}.zarr"
        result = run(template, store, trial)
        try:
            judge(store, result["acknowledged"])
        except AssertionError:
            print(f"number {number}: {trial}")
            raise
        shutil.rmtree(store, ignore_errors=True)


def test_nobody_killed(template: Template, folder: Path) -> None:
    result = run(template, folder / "run.zarr", Trial(seed=1, kills={}))
    assert len(result["acknowledged"]) >= 20
    judge(folder / "run.zarr", result["acknowledged"])


@pytest.mark.parametrize("seed", [0, fresh(drawn("kill"))])
@pytest.mark.parametrize("trials", quick([QUICK_TRIALS // 12, QUICK_TRIALS // 4], 0))
def test_killed_at_random_instants(template: Template, folder: Path, trials: int, seed: int) -> None:
    print(f"seed {seed}")
    kill_all_over(template, folder, random.Random(seed), trials)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_a_thousand_instants(template: Template, folder: Path) -> None:
    seed = drawn("a thousand kills")
    print(f"seed {seed}")
    kill_all_over(template, folder, random.Random(seed), SLOW_TRIALS)
