# SPDX-License-Identifier: Apache-2.0
"""`bisect record` beyond decode on the CPU: states followed on the simulator under every schedule, calls that
leave no state, and calls whose verdict is not their own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect import cache_key
from gdnbench.bisect.record import find as finding
from gdnbench.bisect.record import rollout, text
from gdnbench.bisect.record.find import RecordBisection
from gdnbench.bisect.record.links import links_of
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import SCHEDULES, Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.errors import BadInputError, StoreError
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from tests.messages import wording

KERNELS = '''
"""gdn_decode times what a copy left that was not waited for: 1 where it landed in time."""
import numpy as np
from gdnbench import sim
from gdnbench.sim import active
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

PTX = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data)
{
.reg .b32 %r<6>;
.reg .b64 %d<4>;
.shared .align 16 .b8 buffer[128];
ld.param.u64 %d0, [data];
mov.u32 %r0, %tid.x;
mov.u32 %r1, buffer;
shl.b32 %r2, %r0, 2;
add.s32 %r1, %r1, %r2;
cvt.u64.u32 %d1, %r2;
add.s64 %d1, %d0, %d1;
mov.b32 %r3, 0f40000000;
st.shared.b32 [%r1], %r3;
cp.async.ca.shared.global [%r1], [%d1], 4;
cp.async.commit_group;
ld.shared.b32 %r4, [%r1];
cp.async.wait_group 0;
st.global.b32 [%d1], %r4;
ret;
}
"""


def landed():
    with active() as session:
        schedule = session.settings.schedule
    data = np.ones(32, np.float32)
    sim.run_ptx(PTX, "k", (1, 1, 1), (32, 1, 1), [data], engine="interpreter", schedule=schedule)
    return bool((data == 1).all())


def kernel(wrong, **call):
    given = {name: x for name, x in call.items() if name not in ("state_layout", "offsets", "o")}
    found = torch_recurrent(**given)
    if wrong:
        given["state"] *= FACTOR
    return found


def needs_it(**call):
    return kernel(not landed(), **call)


def needs_it_late(**call):
    return kernel(landed(), **call)
'''


@pytest.fixture
def store(tmp_path: Path) -> Path:
    call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), slots=1, seed=1)
    path = tmp_path / "s.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    return path


def asked_of(store: Path, kernel: str, **more: Any) -> dict[str, Any]:
    with Store.open(store) as opened:
        links, digest = links_of(opened.records).to_json([0]), cache_key.digest_records(opened.records)
    given = {"store": str(store), "kernel": kernel, "on": "sim", "calls": [0], "links": links, "tol": None}
    return {**given, "schedules": list(SCHEDULES), "content": digest, **more}


@pytest.mark.parametrize("function", ["needs_it", "needs_it_late"])
def test_states_are_followed_under_every_schedule(store: Path, tmp_path: Path, function: str) -> None:
    (tmp_path / "mine.py").write_text(KERNELS.replace("FACTOR", "1.5"))
    kernel, file = f"{tmp_path / 'mine.py'}:{function}", str(tmp_path / "states.pt")
    followed = rollout.block(**asked_of(store, kernel), keep=[], load_from=None, save_to=file)
    assert (followed.state, followed.kind) == (State.BAD, "bits depend on the schedule")
    assert re.search(
        wording("bisect.schedule-changes-bits", schedule="early", name="state", first="late"), followed.reason
    )
    exact = rollout.steps(**asked_of(store, kernel), judged=[0], k=None)
    assert exact.state is State.BAD
    assert exact.reason.endswith("under early") == (function == "needs_it_late")
    for schedules, state in ((["early"], State.GOOD), (["late"], State.BAD)):
        found = rollout.steps(**asked_of(store, kernel, schedules=schedules), judged=[0], k=None)
        assert (found.state is state) == (function == "needs_it")


def test_bits_that_differ_within_the_bound_are_a_fault_too(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNELS.replace("FACTOR", "1 + 2**-23"))
    exact = rollout.steps(**asked_of(store, f"{tmp_path / 'mine.py'}:needs_it"), judged=[0], k=None)
    assert exact.state is State.BAD
    assert re.search(wording("bisect.schedule-changes-bits", name="state", first="late"), exact.reason)


def test_calls_that_are_no_longer_there_are_not_followed(store: Path, tmp_path: Path) -> None:
    given = asked_of(store, "torch", content="0" * 64)
    with pytest.raises(StoreError, match=wording("bisect.records-changed")):
        rollout.block(**given, keep=[], load_from=None, save_to=str(tmp_path / "states.pt"))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.begin(tmp_path / "state", "record", {}, lambda line: None)


@pytest.fixture
def here(beside: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Probes run in this process."""
    stand_in = beside("here").Here
    monkeypatch.setattr(finding, "ProbeWorker", stand_in)
    monkeypatch.setattr(finding, "TrialWorker", stand_in)
    return stand_in


def swa(path: Path) -> Path:
    with StoreWriter(path, kind="synth", durable=False) as writer:
        calls = [synthesise("swa_decode", lens=(3,), heads=16, seed=seed) for seed in (1, 2)]
        writer.write("0", [draft("swa_decode", call, index=index) for index, call in enumerate(calls)])
    return path


def test_a_call_that_leaves_no_state_is_said_to(session: Session, here: Any, tmp_path: Path) -> None:
    trial = Trial(str(swa(tmp_path / "swa.zarr")), "torch")
    with pytest.raises(BadInputError, match=wording("bisect.carry-stateless", operation="swa_decode")):
        finding.find_bad_call(RecordBisection(trial, carry=True), session)
    assert re.fullmatch(
        wording("bisect.calls-pass", kernel="torch", calls=2, plural="s"),
        text.answer(finding.find_bad_call(RecordBisection(trial), session)),
    )
    (tmp_path / "mine.py").write_text("def kernel(**call):\n    raise RuntimeError('no')\n")
    found = finding.find_bad_call(
        RecordBisection(replace(trial, kernel=f"{tmp_path / 'mine.py'}:kernel")), session
    )
    starts = wording("bisect.starts-stateless", operation="swa_decode")
    assert re.search(f"; {starts}$", text.answer(found))


def test_a_store_without_records(session: Session, here: Any, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "none.zarr", kind="synth", durable=False):
        pass
    with pytest.raises(BadInputError, match=wording("bisect.store-empty")):
        finding.find_bad_call(RecordBisection(Trial(str(tmp_path / "none.zarr"), "torch")), session)


def test_calls_that_fail_together_and_pass_one_by_one(
    session: Session, here: Any, monkeypatch: pytest.MonkeyPatch, beside: Any, tmp_path: Path
) -> None:
    """A verdict that changes by itself leads nowhere, and is no pass either."""
    chain = beside("chains").chain(tmp_path / "chain.zarr", 2)
    run = here.run_trial

    def by_count(self: Any, trial: Trial) -> Verdict:
        found: Verdict = run(self, trial)
        if trial.records is None or len(trial.records) == 1:
            return found
        records = [dict(one) for one in found.facts["records"]]
        records[2]["outcome"] = "numeric mismatch"
        facts = {**found.facts, "records": records}
        return replace(found, state=State.BAD, kind="numeric mismatch", reason="o: off", facts=facts)

    monkeypatch.setattr(here, "run_trial", by_count)
    found = finding.find_bad_call(RecordBisection(Trial(str(chain), "torch")), session)
    assert found.bad
    assert found.first is not None
    assert found.first.number == 2
    apart = re.compile(wording("bisect.fails-apart") + ": o: off")
    assert re.fullmatch(wording("bisect.call-flaky", reason=apart), text.answer(found))


def test_a_call_that_failed_once(
    session: Session, here: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = here.run_trial, []

    def at_first(self: Any, trial: Trial) -> Verdict:
        asked.append(trial)
        found: Verdict = run(self, trial)
        if len(asked) > 1:
            return found
        return replace(found, state=State.BAD, kind="numeric mismatch", reason="o: off")

    monkeypatch.setattr(here, "run_trial", at_first)
    found = finding.find_bad_call(RecordBisection(Trial(str(store), "torch")), session)
    changed = re.compile(wording("bisect.kind-changed", kind="numeric mismatch", other="pass"))
    assert re.fullmatch(wording("bisect.call-flaky", reason=changed), text.answer(found))


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 cut off"])
def test_states_on_disk_that_are_damaged_are_made_again(
    session: Session, here: Any, beside: Any, tmp_path: Path, damage: bytes
) -> None:
    """17 calls of a layer are two blocks. The second is asked again, and needs what the first one left."""
    chain = beside("chains").chain(tmp_path / "chain.zarr", 17)
    asked = RecordBisection(Trial(str(chain), "torch"), layer="0", carry=True)
    first = finding.find_bad_call(asked, session)
    assert not first.bad
    kept = sorted(session.folder.glob("states-*.pt"))
    assert len(kept) == 2
    for file in kept:
        file.write_bytes(damage)
    lines = (session.folder.parent / "probes.jsonl").read_text().splitlines()
    without_second = [line for line in lines if '"block": 1,' not in line]
    assert len(without_second) == len(lines) - 1
    (session.folder.parent / "probes.jsonl").write_text("\n".join(without_second) + "\n")
    again = Session.begin(tmp_path / "state", "record", {}, lambda line: None)
    assert finding.find_bad_call(asked, again) == first
