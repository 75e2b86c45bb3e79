# SPDX-License-Identifier: Apache-2.0
"""`--on-lineage` keeps the calls around a broken chain, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.claims import Claims
from gdnbench.capture.outcome import Outcome
from gdnbench.errors import BadInputError
from gdnbench.lineage.finding import Finding
from gdnbench.lineage.online import OnlineLineage
from gdnbench.store.reader import Store
from gdnbench.store.sealer import Progress
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_claims import in_step
from tests.capture.test_graphs import Engine
from tests.lineage.serving.calls import gdn_decode, gdn_prefill
from tests.messages import wording

ON_LINEAGE = CaptureOptions(on_lineage=True, around=1)


def serve(engine: Engine, steps: int, run: Callable[[], None], spoil: int | None = None) -> None:
    """Decode steps of three requests, which began before.

    `spoil`: before this step slot 0 of the second layer gets what slot 4 has.
    """
    for number in range(steps):
        engine.next_step()
        if number == spoil:
            engine.states[1][0] = engine.states[1][4]
        in_step(run, Claims(["a", "b", "c"], torch.tensor([10, 20, 30]) + number))


def kept(store: Path) -> list[tuple[int | None, int, str]]:
    with Store.open(store) as opened:
        infos = [one.info for one in opened.records]
    return [(info.layer_index, info.step, info.dispatch["trigger"]) for info in infos]


WANTED = [
    # The call with number 7 is that of layer 1 in step 3.
    (1, 2, "around:call 7"),
    (0, 3, "around:call 7"),
    (1, 3, "lineage:shared-slot"),
    (0, 4, "around:call 7"),
    (1, 4, "around:call 7"),
]


def test_a_state_of_another_request_keeps_the_calls_around_it(tmp_path: Path) -> None:
    engine = Engine()
    with capturing(tmp_path / "run.zarr", ON_LINEAGE) as counts:
        serve(engine, 8, engine.forward, spoil=3)
    assert (counts.failures, counts.first_failure) == (0, None)
    assert (counts.looked_at, counts.triggered) == (16, 1)
    assert kept(tmp_path / "run.zarr") == WANTED


@pytest.mark.parametrize("in_graph", [False, True])
def test_on_a_device_digests_alone_are_waited_for(tmp_path: Path, in_graph: bool) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams, ON_LINEAGE) as counts:
        if in_graph:
            with graph_of(graph):
                engine.forward()
        serve(engine, 8, graph.replay if in_graph else engine.forward, spoil=3)
    assert (counts.failures, counts.first_failure) == (0, None)
    assert (counts.looked_at, counts.triggered) == (16, 1)
    assert kept(tmp_path / "run.zarr") == WANTED


def test_right_chains_keep_nothing(tmp_path: Path) -> None:
    """Nor do slots that change hands, nor requests that nobody names."""
    engine, streams = Engine(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams, ON_LINEAGE) as counts:
        serve(engine, 3, engine.forward)
        engine.next_step([8, 0, 1])
        in_step(engine.forward, Claims(["d", "b", "e"], [5, 23, None]))
        engine.forward()
    assert (counts.failures, counts.looked_at, counts.triggered) == (0, 10, 0)


def test_a_layer_whose_calls_overtake_one_another_is_named() -> None:
    online = OnlineLineage()
    for layer, step in (("one", 0), ("two", 0), ("two", 2), ("one", 1), ("two", 1), ("two", 3)):
        online.add_call(layer, step, {})
    assert online.out_of_order() == ["two"]


def test_the_summary_says_which_layers_were_not_checked_to_the_end(tmp_path: Path) -> None:
    def end(name: str, layers: list[str]) -> dict[str, Any]:
        return {"event": "closed", "process": name, "unfollowed": layers}

    notes = [end("a", ["b", "a"]), end("b", ["a"])]
    lines = Outcome.from_notes(tmp_path, 0, Progress(), (), notes, None).summary(tmp_path)
    said = wording("lineage.not-to-the-end", layers="2 layers", name="a")
    assert sum(re.fullmatch(said, line) is not None for line in lines) == 1


def test_calls_may_not_be_left_out() -> None:
    with pytest.raises(BadInputError, match=wording("capture.lineage-beside-every")):
        CaptureOptions(on_lineage=True, every=2)


def test_the_check_learns_that_states_come_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the claims of each call; what follows of it, tests/lineage/test_odd_engines.py tests."""
    add_call, learned = OnlineLineage.add_call, []

    def spy(lineage: OnlineLineage, *arguments: Any) -> list[Finding]:
        learned.append(bool(arguments[4]))
        return add_call(lineage, *arguments)

    monkeypatch.setattr(OnlineLineage, "add_call", spy)
    engine = Engine()
    with capturing(tmp_path / "run.zarr", ON_LINEAGE) as counts:
        for elsewhere in (False, True):
            in_step(engine.forward, Claims(["a", "b", "c"], [4, 5, 6], elsewhere=elsewhere))
    assert (counts.failures, learned) == (0, [False, False, True, True])


@pytest.mark.parametrize(("dtype", "spoiled"), [("float32", True), ("float32", False), ("bfloat16", False)])
def test_the_first_step_after_the_prompts(tmp_path: Path, dtype: str, spoiled: bool) -> None:
    """The states of the prompts come before any call that uses the pool itself. Rounded to a pool of another
    dtype they cannot be compared with its rows."""
    pool = torch.zeros(4, 2, 16, 16, dtype=getattr(torch, dtype))
    drawn = torch.Generator().manual_seed(5)

    def tokens(*lead: int) -> dict[str, Tensor]:
        q, k, v = (torch.randn(*lead, 2, 16, generator=drawn) for _ in range(3))
        g, beta = -torch.rand(*lead, 2, generator=drawn), torch.rand(*lead, 2, generator=drawn)
        return {"q": q, "k": k, "v": v, "g": g, "beta": beta}

    with capturing(tmp_path / "run.zarr", CaptureOptions(on_lineage=True)) as counts:
        offsets = torch.tensor([0, 5, 8], dtype=torch.int32)
        _, left = gdn_prefill(**tokens(8), cu_seqlens=offsets, request_ids="ab", positions=[0, 0])
        pool[1:3] = left.to(pool.dtype)
        if spoiled:
            pool[1] = pool[2]
        indices = torch.tensor([[1], [2]], dtype=torch.int32)
        gdn_decode(**tokens(2, 1), state=pool, state_indices=indices, request_ids="ab", positions=[5, 3])
    assert (counts.failures, counts.first_failure, counts.looked_at) == (0, None, 2)
    assert counts.triggered == spoiled
