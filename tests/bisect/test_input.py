# SPDX-License-Identifier: Apache-2.0
"""`bisect input` on kernels with planted faults, the smallest call that shows each being known."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.bisect import trial as trials
from gdnbench.bisect.flakiness import RUNS
from gdnbench.bisect.input.reproduction import HERE, OWN, apart
from gdnbench.bisect.input.result import MADE, answer, check_out, rows, write_script, write_store
from gdnbench.bisect.input.shrink import INTERRUPTED, Options, Shrunk, shrink
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError
from gdnbench.ops import operation
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.workers.restarting import PROCESS_ENDED
from gdnbench_kernels.contract import Call
from tests.messages import wording
from tests.subset import quick

KERNELS = (Path(__file__).parent / "failing_kernels.py").read_text(encoding="utf-8")


class Here:
    """Trials in this process: none of these kernels ends it."""

    interrupt_after: int | None = None

    def __init__(self) -> None:
        self.asked = 0

    def run_trial(self, trial: Trial) -> Verdict:
        self.asked += 1
        if self.interrupt_after is not None and self.asked > self.interrupt_after:
            raise KeyboardInterrupt
        try:
            return trials.run_trial(trial)
        except SystemExit as ended:  # what a prober says of a process that it ends
            return Verdict(State.BAD, "crash", f"{PROCESS_ENDED} exit status {ended.code}")

    def close(self) -> None:
        pass


Shrink = Callable[..., Shrunk]


@pytest.fixture
def shrunk(tmp_path: Path) -> Shrink:
    (tmp_path / "kernels.py").write_text(KERNELS)

    def run(
        op: str, kernel: str, call: Call, options: Options | None = None, stages: bool = False, **more: Any
    ) -> Shrunk:
        path = tmp_path / "s.zarr"
        with StoreWriter(path, kind="synth", durable=False) as writer:
            writer.write("0", [draft(op, call)])
        trial = Trial(str(path), f"{tmp_path / 'kernels.py'}:{kernel}", records=(0,), stages=stages)
        session = Session.begin(tmp_path / "state", "input", {"kernel": kernel}, lambda line: None)
        with Store.open(path) as store:
            return shrink(
                store.records[0], trial, options or Options(), session, more.get("keep", lambda found: None),
                more.get("prober", Here),
            )  # fmt: skip

    return run


def extent(found: Shrunk) -> dict[str, int]:
    assert found.shrinker is not None
    assert found.operation.shrinking is not None
    return found.operation.shrinking.extent(found.shrinker.best.call)


def best(found: Shrunk) -> Call:
    assert found.shrinker is not None
    return found.shrinker.best.call


def prefill(chunk_size: int = 64, **options: Any) -> Call:
    call = synthesise("gdn_prefill", **{"head_dim": (4, 4), "heads": (2, 8), **options})
    return replace(call, scalars={**call.scalars, "chunk_size": chunk_size})


@pytest.mark.slow
def test_one_head_of_one_chunk_of_one_sequence_by_its_place(shrunk: Shrink) -> None:
    found = shrunk("gdn_prefill", "by_place", prefill(4, seqlens=(7, 1, 7), initial_state=True))
    assert found.complete
    # Two groups of three are the fewest heads of which there is a sixth, as a group of four is cut.
    assert extent(found) == {"token": 5, "sequence": 3, "chunk": 2, "key head": 2, "value head": 6}
    assert best(found).tensors["cu_seqlens"].tolist() == [0, 0, 0, 5]
    assert "initial_state" not in best(found).tensors
    assert best(found).scalars["output_final_state"] is False
    assert re.fullmatch(
        wording(
            "bisect.shrunk",
            record=0,
            so_far="",
            before="15 tokens, 5 chunks, 8 value heads",
            after="5 tokens, 2 chunks, 6 value heads",
            reason=re.compile("o: RMS error.*"),
        ),
        answer(found),
    )


@pytest.mark.slow
def test_the_one_token_that_a_fault_depends_on(shrunk: Shrink) -> None:
    call = prefill(seqlens=(20, 90, 3), heads=(2, 4), beta=(0.1, 0.9))
    call.tensors["beta"][20 + 70, 2] = 1
    found = shrunk("gdn_prefill", "by_value", call)
    assert extent(found) == {"token": 1, "sequence": 1, "chunk": 1, "key head": 1, "value head": 1}
    assert best(found).tensors["beta"].tolist() == [[1]]
    assert found.shrinker is not None
    # The fault is in o = scale beta v <k, q>: none of them may be zero, g may.
    assert found.shrinker.simplified == {
        "q": "one value", "k": "one value", "v": "one value", "beta": "one value", "g": "zeros"
    }  # fmt: skip


def test_a_crash_of_sequences_without_tokens(shrunk: Shrink) -> None:
    found = shrunk("gdn_prefill", "empty_sequence", prefill(seqlens=(5, 0, 70, 0, 1)))
    assert extent(found) == {"token": 0, "sequence": 1, "chunk": 0, "key head": 1, "value head": 1}
    assert "IndexError" in answer(found)


@pytest.mark.slow  # processes that import torch
def test_the_nan_of_the_next_sequence_keeps_both(shrunk: Shrink) -> None:
    call = prefill(seqlens=(8, 5, 6, 4), heads=(1, 2), nan_at=(14, 15))
    found = shrunk("gdn_prefill", "tail_load", call)
    assert extent(found) == {"token": 2, "sequence": 2, "chunk": 2, "key head": 1, "value head": 1}
    v = best(found).tensors["v"]
    assert bool(v[0].isfinite().all())
    assert bool(v[1].isnan().any())
    assert "NaN" in answer(found)


def test_a_stage_alone(shrunk: Shrink) -> None:
    call = prefill(seqlens=(7, 3), heads=(2, 2))
    passing = shrunk("gdn_prefill", "stage", call)
    assert passing.shrinker is None
    assert passing.first.state is State.GOOD


def test_a_stage_that_fails(shrunk: Shrink) -> None:
    found = shrunk("gdn_prefill", "stage", prefill(seqlens=(7, 3), heads=(2, 2)), stages=True)
    assert extent(found) == {"token": 1, "sequence": 1, "chunk": 1, "key head": 1, "value head": 1}
    assert "; P: " in answer(found)


def decode(**options: Any) -> Call:
    return synthesise("gdn_decode", **{"head_dim": (4, 4), "heads": (2, 4), **options})


@pytest.mark.slow
def test_padding_that_counts_from_the_end_keeps_a_slot_to_write_to(shrunk: Shrink) -> None:
    found = shrunk("gdn_decode", "hole", decode(batch=6, padding=0.4, slots=20))
    size = extent(found)
    assert size["sequence"] == size["value head"] == size["slot"] == 1
    assert best(found).tensors["state_indices"].tolist() == [[-1]]
    assert "slots were written" in answer(found)


@pytest.mark.slow
def test_slots_that_lie_apart_stay_apart(shrunk: Shrink) -> None:
    found = shrunk("gdn_decode", "apart", decode(batch=3, slot_gap=24))
    assert found.shrinker is not None
    assert found.shrinker.best.laid == {"state"}
    # A slot alone lies nowhere else than a contiguous one, and torch says that it is one.
    assert extent(found) == {
        "sequence": 1, "token a sequence": 1, "key head": 1, "value head": 1, "slot": 2
    }  # fmt: skip


@pytest.mark.slow
def test_slots_and_pages_keep_the_numbers_that_a_failure_needs(
    shrunk: Shrink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pools that are too large to begin with whole."""
    monkeypatch.setattr("gdnbench.bisect.input.shrink.WHOLE_POOLS", 0)
    call = decode(batch=6, slots=60)
    call.tensors["state_indices"].copy_(torch.tensor([[3], [52], [7], [1], [9], [57]]))
    found = shrunk("gdn_decode", "far", call)
    assert extent(found)["sequence"] == extent(found)["value head"] == 1
    assert found.shrinker is not None
    assert found.prober is not None
    stored = found.prober.draft(found.shrinker.best)
    assert stored.info.pools["state"].slots == 60
    assert stored.before["state_indices"].data.item() >= 50
    assert stored.info.pools["state"].rows == (stored.before["state_indices"].data.item(),)


def test_a_page_keeps_its_number(shrunk: Shrink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnbench.bisect.input.shrink.WHOLE_POOLS", 0)
    call = synthesise("swa_decode", lens=(2, 3), heads=1, window=4, block_size=16, spare_pages=8)
    call.tensors["swa_indices"][1, 2] = 7 * 16 + 5
    call.tensors["cache"].view(torch.uint8)[7] = 0
    call.tensors["inv_scale"][7 * 16 : 8 * 16] = 1
    found = shrunk("swa_decode", "far_page", call)
    assert extent(found)["entry"] == extent(found)["request"] == 1
    assert found.shrinker is not None
    assert found.prober is not None
    stored = found.prober.draft(found.shrinker.best)
    assert stored.before["swa_indices"].data.flatten()[0].item() == 7 * 16 + 5
    assert stored.info.pools["cache"].rows == (7,)


@pytest.mark.slow
def test_steps_of_a_sequence(shrunk: Shrink) -> None:
    call = decode(batch=4, steps=4, speculative=True)
    call.tensors["num_accepted"].copy_(torch.tensor([1, 2, 3, 1]))
    found = shrunk("gdn_decode", "second_step", call)
    size = extent(found)
    assert (size["sequence"], size["token a sequence"], size["value head"]) == (1, 2, 1)
    assert best(found).tensors["num_accepted"].tolist() == [2]


@pytest.mark.slow  # processes that import torch
def test_two_requests_that_share_a_page(shrunk: Shrink) -> None:
    call = synthesise("swa_decode", lens=(3, 0, 4, 2), heads=2, window=6, block_size=16, shared_page=True)
    found = shrunk("swa_decode", "shared_page", call)
    assert extent(found) == {"request": 2, "head": 1, "entry": 2, "column": 1, "page": 1}
    assert best(found).tensors["swa_lens"].tolist() == [1, 1]


def test_what_passes_and_what_is_flaky_is_not_shrunk(shrunk: Shrink) -> None:
    passing = shrunk("gdn_prefill", "right", prefill(seqlens=(5,)))
    assert (passing.first.state, passing.shrinker) == (State.GOOD, None)
    assert re.fullmatch(wording("bisect.not-shrunk", record=0, reason="it passes"), answer(passing))


def test_flaky_ends(shrunk: Shrink) -> None:
    flaky = shrunk("gdn_prefill", "flaky", prefill(seqlens=(5,)))
    assert flaky.shrinker is None
    assert "RMS error of o" in answer(flaky)


class Slow(Here):
    """Takes 0.1 s of a clock of its own, so that a busy machine takes no more."""

    def run_trial(self, trial: Trial) -> Verdict:
        CLOCK.now += 0.1
        return super().run_trial(trial)


class Interrupted(Here):
    interrupt_after = 12


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


def test_an_interrupt_says_that_the_smallest_was_not_replayed_alone(shrunk: Shrink) -> None:
    kept: list[Shrunk] = []
    call = synthesise("gdn_prefill", seqlens=(5, 3), heads=(1, 1), head_dim=(4, 4))

    class Soon(Here):
        interrupt_after = RUNS  # one of its processes: the last looks once, then has two candidates

    with pytest.raises(KeyboardInterrupt):
        shrunk("gdn_prefill", "wide", call, keep=kept.append, prober=Soon)
    (found,) = kept
    assert found.notes == (INTERRUPTED,)
    assert not found.complete


@pytest.mark.parametrize("prober", quick([Slow, Interrupted], 0))
def test_what_ends_it_early_leaves_the_smallest_so_far(
    shrunk: Shrink, tmp_path: Path, prober: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("shrink", "probing"):
        monkeypatch.setattr(f"gdnbench.bisect.input.{module}.time", CLOCK)
    out, kept = tmp_path / "small.zarr", []

    def keep(found: Shrunk) -> None:
        kept.append(found)
        write_store(found, out)

    call = prefill(4, seqlens=(7, 1, 10, 6))
    if prober is Interrupted:
        with pytest.raises(KeyboardInterrupt):
            shrunk("gdn_prefill", "by_place", call, keep=keep, prober=prober)
    else:
        shrunk("gdn_prefill", "by_place", call, Options(budget=1.5), keep=keep, prober=prober)
    (found,) = kept
    assert not found.complete
    assert " so far " in answer(found)
    assert 5 <= extent(found)["token"] <= 24
    with Store.open(out) as store:
        assert store.segments[0].provenance[MADE]["complete"] is False
    again = replace(found.trial, store=str(out))
    assert trials.run_trial(again).state is State.BAD


def test_the_store_of_the_smallest_record(shrunk: Shrink, tmp_path: Path) -> None:
    found = shrunk("gdn_prefill", "empty_sequence", prefill(seqlens=(5, 0, 70)))
    out = tmp_path / "small.zarr"
    for _ in range(2):  # a result is replaced by a later one
        check_out(out)
        write_store(found, out)
    with Store.open(out) as store:
        (record,) = store.records
        made = store.segments[0].provenance[MADE]
        assert store.kind == "synth"
        assert operation(record.info.op).name == "gdn_prefill"
        assert made["record"] == found.key
        assert made["steps"]
        assert str(tmp_path) not in repr((made, store.segments[0].process))
    assert trials.run_trial(replace(found.trial, store=str(out))).kind == "crash"
    assert ("sequences", "3", "1") in rows(found)
    (tmp_path / "mine").mkdir()
    for path in (tmp_path / "mine", tmp_path / "s.zarr"):
        with pytest.raises(BadInputError, match=wording("bisect.output-strange", path=path)):
            check_out(path)


def window(**options: Any) -> Call:
    common = {"lens": (3, 2), "heads": 2, "window": 4, "block_size": 16, "shared_page": True, **options}
    return synthesise("swa_decode", **common)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("op", "kernel", "right", "call"),
    quick(
        [
            ("gdn_decode", "hole", "right_decode", lambda: decode(batch=3, padding=0.4, slots=9)),
            ("gdn_decode", "apart", "right_decode", lambda: decode(batch=2, slot_gap=24)),
            ("swa_decode", "shared_page", "right_window", lambda: window(cache_layout="fp8_ds_mla")),
            ("swa_decode", "shared_page", "right_window", lambda: window(output_lse=True)),
            ("swa_decode", "endless", "right_window", lambda: window(lens=(2, 0), output_lse=True)),
            ("gdn_prefill", "finite", "right", lambda: prefill(seqlens=(3, 4), heads=(1, 1), nan_at=(5,))),
            ("gdn_prefill", "wide", "right", lambda: prefill(seqlens=(3,), heads=(1, 2))),
        ],
        0,
        2,
        6,
    ),
)
def test_the_file_reproduces_it(
    shrunk: Shrink,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    kernel: str,
    right: str,
    call: Callable[[], Call],
) -> None:
    found = shrunk(op, kernel, call())
    script = tmp_path / "repro.py"
    write_store(found, tmp_path / "small.zarr")
    assert write_script(found, tmp_path / "small.zarr", script) is None
    monkeypatch.setattr(sys, "path", [*sys.path])
    for named, status, last in (
        ([], 1, "it reproduces"),
        ([f"kernels.py:{right}"], 0, "it does not reproduce"),
        ([f"kernels.py:{kernel}"], 1, "it reproduces"),
    ):
        monkeypatch.setattr(sys, "argv", ["repro.py", *named])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == status
        assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.mark.slow
def test_the_file_reproduces_the_end_of_a_process(shrunk: Shrink, tmp_path: Path) -> None:
    found = shrunk("gdn_prefill", "ends", prefill(seqlens=(3,), heads=(2, 2)))
    assert extent(found) == {"token": 0, "sequence": 1, "chunk": 0, "key head": 2, "value head": 2}
    script = tmp_path / "repro.py"
    write_store(found, tmp_path / "small.zarr")
    assert write_script(found, tmp_path / "small.zarr", script) is None
    for named, status, said in (
        ([], 1, ["the process ended by exit status 3", "it reproduces"]),
        (["kernels.py:right"], 0, ["it does not reproduce"]),
    ):
        ran = subprocess.run([sys.executable, script, *named], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout.splitlines()[-len(said) :]) == (status, said), ran.stderr


def test_a_kernel_that_hangs_reproduces_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "hangs.py"
    script.write_text("import threading; threading.Event().wait()")
    assert apart(str(script), "mine.py:kernel", 0.5) == 1
    assert capsys.readouterr().out.splitlines() == ["no answer within 0.5 s", "it reproduces"]


ABSENT = """
import nosuch_package
def kernel(**call): ...
"""


def test_what_the_file_cannot_tell_is_no_failure(
    shrunk: Shrink, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shrunk("gdn_prefill", "finite", prefill(seqlens=(3,), heads=(1, 1), nan_at=(1,)))
    script, store = tmp_path / "repro.py", tmp_path / "small.zarr"
    write_store(found, store)
    assert write_script(found, store, script) is None
    (tmp_path / "absent.py").write_text(ABSENT)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = script.read_text()

    def told(named: str, *more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["repro.py", named, *more])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        out, err = capsys.readouterr()
        assert "reproduce" not in out
        assert err.count("\n") == 1
        assert isinstance(ended.value.code, int)
        return ended.value.code, err

    for named, status, said in (
        ("nosuch.py:kernel", 2, wording("bisect.script-kernel-missing", place="nosuch.py")),
        ("nosuch_module:kernel", 2, wording("bisect.kernel-not-importable", kernel="nosuch_module")),
        ("nosuch_module.deep:kernel", 2, "No module named 'nosuch_module'"),
        ("kernels.py:nosuch", 2, r"kernels\.py has no 'nosuch'"),
        ("torch", 2, wording("bisect.script-kernel-invalid")),
        ("absent.py:kernel", 3, "No module named 'nosuch_package'"),
        ("broken.py:kernel", 3, "ZeroDivisionError"),
    ):
        code, err = told(named)
        assert (code, bool(re.search(said, err))) == (status, True), err
    assert told("nosuch.py:kernel", HERE)[0] == OWN + 2
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    script.write_text(text.replace("DEVICE = 'cpu'", "DEVICE = 'cuda'"))
    code, err = told("kernels.py:finite")
    assert code == 3
    assert re.fullmatch(wording("bisect.script-gpu-missing") + "\n", err)
    script.write_text(text)
    store.rename(tmp_path / "elsewhere")
    code, err = told("kernels.py:finite")
    assert (code, bool(re.search(wording("bisect.script-record-missing", store="small.zarr"), err))) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("ends", "status"), [(0, 1), (1, 1), (3, 1), (OWN, 0), (OWN + 1, 1), (OWN + 2, 2), (OWN + 3, 3)]
)
def test_a_status_of_the_kernel_s_own_is_its_failure(tmp_path: Path, ends: int, status: int) -> None:
    (tmp_path / "endpoints.py").write_text(f"raise SystemExit({ends})")
    assert apart(str(tmp_path / "endpoints.py"), "mine.py:kernel", 60.0) == status
