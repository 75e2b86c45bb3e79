# SPDX-License-Identifier: Apache-2.0
"""Cluster launch control: who does which tile, and what a kernel must not do.

Expectations are the PTX ISA's ("clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel"), and
the CUDA Programming Guide's, 4.12, for what may follow a request that failed."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

from gdnbench import sim
from gdnbench.sim.checker.cluster_uses import START
from gdnbench.sim.checker.cta_exit import TRANSACTIONS
from gdnbench.sim.checker.happens_before import Cause
from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.host.ptx_kernel import PtxKernel
from gdnbench.sim.machine.async_queue import Schedule
from gdnbench.sim.machine.launch_control import encode_response
from gdnbench.sim.machine.launch_grants import LaunchGrants
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.ring_reuse import RING_REUSE
from tests.messages import wording
from tests.sim.clusters.launch_control_kernels import (
    ALONE,
    ASK,
    ENGINES,
    FENCE,
    MULTICAST,
    PIPELINE,
    PIPELINE_BLOCK,
    PIPELINE_WORDS,
    SYNC,
    WAIT,
    WORDS,
    WORK,
    findings,
    run,
)
from tests.subset import quick

SCHEDULES = ("late", "early", *(f"random:{seed}" for seed in range(1, 5)))


def check_done(y: np.ndarray, who: np.ndarray, cluster: int = 1) -> list[int]:
    """Every tile was done, by one CTA, which did its own first. Returns the CTA of each tile."""
    np.testing.assert_array_equal(y.reshape(-1), 3 * np.arange(y.size))
    assert (who == who[:, :1]).all()
    by = who[:, 0].tolist()
    assert all(by[cta] == cta for cta in by)
    # The CTA of a rank does the tiles of that rank: it has the response of its whole cluster.
    assert all(cta % cluster == tile % cluster for tile, cta in enumerate(by))
    return by


@pytest.mark.parametrize(("schedule", "engine"), quick(product(SCHEDULES, ENGINES), 0, 3, 5))
def test_each_tile_is_done_once(schedule: str, engine: str) -> None:
    y, who, result = run(ALONE, engine=engine, schedule=schedule)
    by = check_done(y, who)
    started = set(by)
    if schedule[0] != "r":  # two fit; under `random` a failed request lets another one start
        assert started == {0, 1}
    assert result.counters.busy_ctas == len(started)
    assert result.counters.most_tiles == max(Counter(by).values())


@pytest.mark.parametrize(
    ("size", "schedule", "engine"), quick(product((2, 4), SCHEDULES, ENGINES), 0, 3, 5, 13)
)
def test_clusters_take_whole_clusters(size: int, schedule: str, engine: str) -> None:
    y, who, _ = run(MULTICAST, 24, sms=4, cluster=size, engine=engine, schedule=schedule)
    by = check_done(y, who, size)
    assert all(len({cta // size for cta in by[at : at + size]}) == 1 for at in range(0, 24, size))


@pytest.mark.parametrize("schedule", quick(["late", "random:3"], 1))
def test_grants_are_of_the_schedule_alone(schedule: str) -> None:
    """The same in both engines and with any number of threads."""
    one = run(ALONE, 40, sms=2, schedule=schedule)[1]
    for engine, threads in (("compiled", 1), ("compiled", 3), ("interpreter", 2)):
        np.testing.assert_array_equal(
            one, run(ALONE, 40, sms=2, schedule=schedule, engine=engine, threads=threads)[1]
        )


@pytest.mark.parametrize(("schedule", "engine"), quick(product(SCHEDULES, ENGINES), 4))
def test_ctas_that_run_in_turns(schedule: str, engine: str) -> None:
    """Atomics of global memory: CTAs could wait for each other, so that all run in one thread."""
    counts = ALONE.replace("st.global.b32 [%by], %own;", "atom.global.add.u32 %r2, [%by], 1;")
    _, count, _ = run(counts, 40, sms=2, schedule=schedule, engine=engine)
    assert (count == 0).all()  # from -1, once
    assert not findings(counts, ctas=40, sms=2, schedule=schedule, engine=engine)


def test_seeds_differ() -> None:
    assert len({run(ALONE, schedule=f"random:{seed}")[1].tobytes() for seed in range(4)}) == 4


@pytest.mark.parametrize("schedule", ["late", "early", "random:1", "random:2"])
def test_every_cluster_is_in_one_queue(schedule: str) -> None:
    plan = LaunchGrants.plan(20, 6, Schedule.parse(schedule))
    assert [queue[0] for queue in plan.queues] == list(range(6))
    assert sorted(sum(plan.queues, ())) == list(range(20))
    assert len(LaunchGrants.plan(4, 6, Schedule.parse(schedule)).queues) == 4


def test_a_cluster_that_asks_once_leaves_the_others_to_start() -> None:
    once = ALONE.replace(f"{FENCE}bra next;\n", WORK)
    _, who, result = run(once)
    by = who[:, 0].tolist()
    assert -1 not in by
    assert max(Counter(by).values()) == 2
    assert result.counters.busy_ctas == 7


def test_requests_may_fail_while_clusters_are_pending() -> None:
    """Of some seeds a CTA that is no longer pending has started after another had exited."""
    assert any(len(set(run(ALONE, 30, schedule=f"random:{seed}")[1][:, 0].tolist())) > 2 for seed in range(4))


COORDINATES = ALONE.replace(
    "mov.u32 %own, %ctaid.x;",
    "mov.u32 %own, %ctaid.x;\nmov.u32 %r2, %ctaid.y;\nmov.u32 %r3, %ctaid.z;\n"
    "mad.lo.u32 %r3, %r3, 3, %r2;\nmad.lo.u32 %own, %r3, 2, %own;",
).replace(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%tile, _, _, _}, %response;",
    "".join(
        f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 %r{number}, %response;\n"
        for number, axis in enumerate("xyz", 2)
    )
    + "mad.lo.u32 %r4, %r4, 3, %r3;\nmad.lo.u32 %tile, %r4, 2, %r2;",
)


@pytest.mark.parametrize("engine", quick(ENGINES, 1))
def test_coordinates_of_three_dimensions(engine: str) -> None:
    x = np.arange(24 * WORDS, dtype=np.int32)
    y, who = (np.full((24, WORDS), -1, np.int32) for _ in range(2))
    sim.run.run_ptx(
        COORDINATES, "k", (2, 3, 4), (32, 1, 1), [x, y, who], 200_000, engine=engine, multiprocessors=3
    )
    check_done(y, who)


def test_the_bits_of_a_response() -> None:
    """ptxas (CUDA 13.0, sm_100a) takes the first word for x, the halves of the second for y and z, and bit 0
    of the third for is_canceled."""
    words = np.frombuffer(encode_response((70_000, 0x8001, 0x9002)), np.uint32)
    assert words[:2].tolist() == [70_000, 0x9002_8001]
    assert words[2] & 1
    assert not np.frombuffer(encode_response(None), np.uint32)[2] & 1


TWO = f"""@%one mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar+8], 16;
@%one {ASK}.b128 [answer+16], [bar+8];
"""
AGAIN = """ld.shared.b128 %response, [answer];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %ok, %response;
"""
ONE_REQUEST = ALONE.split("next:")[0] + (
    f"bar.sync 0;\n@%one mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16;\n"
    f"@%one {ASK}.b128 [answer], [bar];\n{WAIT}@@\ndone:\nret;\n}}\n"
)
"""A launch of one CTA, whose requests fail."""


@dataclass(frozen=True)
class Pair:
    """A kernel of a CTA whose request fails; `@@` is `bad` in the faulty one and `good` in its twin."""

    text: str
    bad: str
    good: str
    kind: FaultKind
    says: str


FAULTS = {
    "asks again after a failure": Pair(
        ONE_REQUEST,
        AGAIN + TWO,
        TWO + AGAIN,
        FaultKind.LAUNCH_CONTROL,
        wording("sim.machine.grant-failure-seen"),
    ),
    "reads before the response": Pair(
        ONE_REQUEST.replace(f"{WAIT}@@", "@@").replace(
            "bar.sync 0;", "st.shared.v2.b64 [answer], {0, 0};\nbar.sync 0;"
        ),
        AGAIN + WAIT,
        WAIT + AGAIN,
        FaultKind.LAUNCH_CONTROL,
        wording("sim.machine.grant-no-response"),
    ),
    "misaligned": Pair(
        ONE_REQUEST.replace("[answer], [bar]", "[answer@@], [bar]").replace(f"{WAIT}@@", WAIT),
        "+8",
        "+16",
        FaultKind.MISALIGNED,
        wording("sim.machine.grant-misaligned"),
    ),
}
ENDED = MULTICAST.split("next:")[0] + (
    f"barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n@@\n"
    f"@%one mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16;\n"
    f"mov.u32 %r3, 0;\nspin: add.u32 %r3, %r3, 1;\nsetp.lt.u32 %p, %r3, 10000;\n@%p bra spin;\n"
    f"@%leader {ASK}.multicast::cluster::all.b128 [answer], [bar];\n{WAIT}"
    "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nret;\n}\n"
)
LEAVES = "setp.ne.u32 %p, %rank, 0;\n@%p exit;\n"
IN_CLUSTERS = {
    "a CTA has exited": Pair(ENDED, LEAVES, "", FaultKind.EXITED, wording("sim.machine.cta-exited", rank=1)),
    "mbarrier of another CTA": Pair(
        ENDED.replace("@@", "")
        .replace("[answer], [bar];", "[answer], [%first];")
        .replace("@%leader", "mov.u32 %r4, bar;\nmapa.shared::cluster.u32 %first, %r4, @@;\n@%leader"),
        "1",
        "0",
        FaultKind.BARRIER,
        wording("sim.machine.cluster-other-mbarrier"),
    ),
}


@pytest.mark.parametrize(("name", "engine"), quick(product([*FAULTS, *IN_CLUSTERS], ENGINES), 0, 3, 4, 7))
def test_faults(name: str, engine: str) -> None:
    pair, ctas = (FAULTS[name], 1) if name in FAULTS else (IN_CLUSTERS[name], 2)
    with pytest.raises(KernelFault, match=pair.says) as caught:
        run(pair.text.replace("@@", pair.bad), ctas, cluster=ctas, engine=engine)
    assert caught.value.kind is pair.kind
    assert caught.value.place is not None
    run(pair.text.replace("@@", pair.good), ctas, cluster=ctas, engine=engine)


@pytest.mark.parametrize("engine", quick(ENGINES, 0))
def test_the_first_cta_of_a_failed_request(engine: str) -> None:
    """It is undefined: all ones here, with a note. CuTe DSL asks for it and uses it only after a success."""
    first = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r2, %response;\n"
    store = "st.global.b32 [%who], %r2;\n"
    text = ONE_REQUEST.replace("@@", f"mov.u32 %r2, 7;\n{AGAIN}@@ {first}{store}")
    _, who, result = run(text.replace("@@", ""), 1, engine=engine)
    assert who[0, 0] == -1
    (note,) = result.notes
    assert re.fullmatch(wording("sim.machine.grant-failed-cta"), note.message)
    _, who, result = run(text.replace("@@", "@%ok"), 1, engine=engine)
    assert who[0, 0] == 7
    assert not result.notes


def test_each_lane_cancels_one() -> None:
    all_lanes = ALONE.replace(f"@%one {ASK}.b128", f"setp.lt.u32 %p, %t, 3;\n@%p {ASK}.b128").replace(
        "_, [bar], 16;", "_, [bar], 48;"
    )
    _, who, result = run(all_lanes, 7, smem=200_000)
    assert any(
        re.fullmatch(wording("sim.machine.grant-lanes", lanes=3), note.message) for note in result.notes
    )
    # The third response of three is what remains, and the tiles of the first two are lost.
    assert who[:, 0].tolist() == [0, -1, -1, 0, -1, -1, 0]


@dataclass(frozen=True)
class Change:
    """ALONE with `before` replaced by `after` has findings of these causes, before this fault ends it."""

    before: str
    after: str
    causes: set[object]
    fault: FaultKind | None = None
    block: int = 32


RACES = {
    "a read before the response": Change(WAIT, "", {Cause.IN_FLIGHT}),
    "a response over one that is read": Change("bar.sync 0;", "", {Cause.RACE}, FaultKind.DEADLOCK, block=64),
    "no fence before the next request": Change(FENCE, "", {Cause.PROXY}),
    "two requests into one place": Change(
        f"@%one {ASK}.b128 [answer], [bar];",
        f"@%one {ASK}.b128 [answer], [bar];\n@%one {ASK}.b128 [answer], [bar];",
        {Cause.IN_FLIGHT, TRANSACTIONS},
        FaultKind.DEADLOCK,
    ),
    "bytes that nobody expects": Change(
        "mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [bar], 16;",
        "mbarrier.arrive.shared::cta.b64 _, [bar];",
        {TRANSACTIONS},
        FaultKind.DEADLOCK,
    ),
}


@pytest.mark.parametrize(("name", "engine"), quick(product(RACES, ENGINES), 0, 5, 8))
def test_races(name: str, engine: str) -> None:
    """Kernels that are right as they are, and wrong with one thing changed. Under `early` the response is
    there even if nobody has waited for it."""
    it = RACES[name]
    assert ALONE.count(it.before) == 1
    text = ALONE.replace(it.before, it.after)
    found = findings(text, fault=it.fault, block=it.block, ctas=9, engine=engine, schedule="early")
    assert it.causes <= {one.cause for one in found}
    assert not findings(ALONE, block=it.block, ctas=9, engine=engine, schedule="early")


@pytest.mark.parametrize(("schedule", "engine"), quick(product(SCHEDULES, ENGINES), 5))
def test_right_kernels_have_no_finding(schedule: str, engine: str) -> None:
    assert not findings(ALONE, engine=engine, schedule=schedule)
    assert not findings(MULTICAST, ctas=12, cluster=2, sms=2, engine=engine, schedule=schedule)


@pytest.mark.parametrize(
    ("size", "schedule", "engine"), quick(product((1, 2, 4), SCHEDULES, ENGINES), 13, 16)
)
def test_a_pipeline_of_responses(size: int, schedule: str, engine: str) -> None:
    """One cluster does all tiles but where a request fails."""
    options = {
        "ctas": 16,
        "cluster": size,
        "sms": size,
        "smem": 200_000,
        "block": PIPELINE_BLOCK,
        "words": PIPELINE_WORDS,
        "engine": engine,
        "schedule": schedule,
    }
    y, _, result = run(PIPELINE, **options)
    np.testing.assert_array_equal(y.reshape(-1), 3 * np.arange(y.size))
    if schedule[0] != "r":
        assert result.counters.most_tiles == 16 // size
    assert not findings(PIPELINE, **options)


def test_a_multicast_needs_that_all_have_started() -> None:
    apart = MULTICAST.replace(f"next:\n{SYNC}", "next:\n", 1)
    assert START in {one.cause for one in findings(apart, ctas=2, cluster=2, sms=2, schedule="early")}


def ring_notes(ctas: int, sms: int, smem: int) -> list[str]:
    x = torch.zeros(ctas, WORDS, dtype=torch.int32)
    kernel = PtxKernel(parse(ALONE), "k", (ctas, 1, 1), (32, 1, 1), smem)
    with sim.settings_apply(sim.Settings(), check=True, sms=sms):
        report = sim.launch(kernel, x, x.clone(), x.clone())
    return [finding.message for finding in report.findings if finding.kind == RING_REUSE]


def test_the_note_on_ring_reuse() -> None:
    """A kernel that no program asked a number of SMs for. The number that the note names gives CTAs a second
    tile."""
    (note,) = ring_notes(6, 8, 200_000)
    assert re.fullmatch(wording("sim.no-second-tile", busy=6, ctas=6, sms=3), note)
    assert not ring_notes(6, 3, 200_000)
    (note,) = ring_notes(3, 8, 1000)
    assert re.fullmatch(wording("sim.one-sm", ctas=3), note)
    (note,) = ring_notes(1, 8, 1000)
    assert re.fullmatch(wording("sim.one-cluster"), note)


@pytest.mark.parametrize(
    ("text", "target", "refused"),
    [
        (ALONE, "sm_90a", ""),
        (ALONE, "sm_100", None),
        (MULTICAST, "sm_100", ".multicast::cluster::all"),
        (MULTICAST, "sm_103a", None),
    ],
)
def test_targets(text: str, target: str, refused: str | None) -> None:
    """What ptxas of CUDA 13.0 takes."""
    text = text.replace("sm_100a", target)
    if refused is None:
        parse(text)
        return
    with pytest.raises(UnsupportedError) as caught:
        parse(text)
    assert caught.value.what == f"clusterlaunchcontrol.try_cancel{refused} for .target {target}"


@pytest.mark.parametrize("schedule", ["late", "early", "random:1", "random:2", "random:3"])
def test_preferred_clusters_are_of_one_shape(schedule: str) -> None:
    y, who, _ = run(
        MULTICAST, 24, sms=4, cluster=2, schedule=schedule, preferred_cluster=(4, 1, 1), engine="compiled"
    )
    check_done(y, who, 2)
