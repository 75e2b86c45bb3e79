# SPDX-License-Identifier: Apache-2.0
"""Whose sequences a call has: what the engine's step knows is in the record of each call below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import Tensor

from gdnbench.capture import capturing, record, runtime
from gdnbench.capture.adapter import Observation, Target
from gdnbench.capture.adapters.transformers_steps import STEPS, CacheSteps
from gdnbench.capture.claims import Claims
from gdnbench.errors import BadInputError
from gdnbench.lineage import claims as lineage_claims
from gdnbench.lineage.check import tables_of
from gdnbench.store.reader import Store
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_graphs import Engine, step
from tests.capture.test_transformers import tiny_model
from tests.messages import wording


def claims_of(store: Path) -> list[Any]:
    return [stored.info.dispatch.get("lineage") for stored in Store.open(store).records]


def prefix(tokens: list[int]) -> str:
    """The first 8 bytes of BLAKE3 of the ids as int64, little-endian."""
    return blake3(torch.tensor(tokens, dtype=torch.int64).numpy().tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Runner:
    """An engine's adapter: a step's own argument is what is known of it."""

    steps: tuple[Target, ...] = (Target("engine", "execute"),)
    framework: str = "engine"

    def step(self, target: Target, arguments: Mapping[str, Any]) -> Any:
        if arguments["known"] == "fails":
            raise RuntimeError("no batch")
        return arguments["known"]

    def claims(self, known: Any, observation: Observation) -> Claims | None:
        return known(observation) if callable(known) else known


def in_step(function: Callable[[], None], known: Any) -> None:
    """Run `function` below a step of the engine."""

    def execute(known: Any) -> None:
        function()

    capture = runtime.innermost()
    assert capture is not None
    capture.session.wrap_step(Runner(), Runner().steps[0], execute)(known)  # type: ignore[arg-type]


def batch(*requests: str | None, at: int = 0) -> Claims:
    return Claims(list(requests), [at + n for n in range(len(requests))])


def test_calls_below_a_step_have_its_claims(tmp_path: Path) -> None:
    engine = Engine()
    with capturing(tmp_path / "run.zarr") as counts:
        engine.forward()
        in_step(engine.forward, batch("a", "b", None))
        in_step(engine.forward, None)
        in_step(engine.forward, batch("a", "b").padded(3))
    assert (counts.failures, counts.records, counts.unclaimed) == (0, 8, {})
    first = {"requests": ["a", "b", None], "positions": [0, 1, 2], "padding": []}
    second = {"requests": ["a", "b", None], "positions": [0, 1, None], "padding": [2]}
    assert claims_of(tmp_path / "run.zarr") == [None, None, first, first, None, None, second, second]


def test_a_step_that_cannot_be_understood_costs_no_record(tmp_path: Path) -> None:
    engine = Engine()

    def unknown(observation: Observation) -> Claims:
        raise KeyError("batch")

    with capturing(tmp_path / "run.zarr") as counts:
        in_step(engine.forward, "fails")
        in_step(engine.forward, unknown)
    assert (counts.failures, counts.records) == (0, 4)
    assert [(error.partition(" (")[0], count) for error, count in counts.unclaimed.items()] == [
        ("RuntimeError: no batch", 1),
        ("KeyError: 'batch'", 2),
    ]
    assert claims_of(tmp_path / "run.zarr") == [None] * 4


def test_a_replay_has_the_claims_of_its_own_step(tmp_path: Path) -> None:
    """Positions that only the device knows are copied before the replay, and not waited for."""
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    positions = torch.tensor([7, 8, 9])
    seen: list[tuple[str, ...]] = []

    def known(name: str) -> Callable[[Observation], Claims]:
        def claims(observation: Observation) -> Claims:
            seen.append(tuple(sorted(observation.tensors)))
            return Claims([name, name + "2", None], positions, padding=[2])

        return claims

    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            in_step(engine.forward, known("captured"))
        assert seen == []
        in_step(graph.replay, known("r"))
        positions += 1
        in_step(graph.replay, known("s"))
        positions.fill_(-5)
        graph.replay()
    assert (counts.failures, counts.first_failure, counts.unclaimed) == (0, None, {})
    assert seen == [("state", "state_indices")] * 4
    r = {"requests": ["r", "r2", None], "positions": [7, 8, 9], "padding": [2]}
    s = {"requests": ["s", "s2", None], "positions": [8, 9, 10], "padding": [2]}
    assert claims_of(tmp_path / "run.zarr") == [r, r, s, s, None, None]


@record(
    "gdn_decode",
    lineage={"requests": "batch.ids", "positions": "at", "slots": "state_indices_flat", "padding": "pad"},
)
def named_step(
    batch: Any, at: Tensor, state_indices_flat: Tensor, pad: tuple[int, ...], **tensors: Tensor
) -> None:
    step.__wrapped__(**tensors)  # type: ignore[attr-defined]


@dataclass
class Batch:
    ids: Any


def test_parameters_name_the_requests(tmp_path: Path) -> None:
    """Of lists, and of tensors on a device."""
    engine, streams = Engine(), StandInStreams()
    ids, at = torch.tensor([12, -1, 4]), torch.tensor([0, -1, 30])
    slots = torch.tensor([4, 0, 7])
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        named_step(Batch(["a", "b", "c"]), at, slots, (1,), **engine.call())
        named_step(Batch(ids), at, slots, (), **engine.call())
    assert (counts.failures, counts.first_failure) == (0, None)
    same = {"positions": [0, None, 30], "slots": [4, 0, 7]}
    assert claims_of(tmp_path / "run.zarr") == [
        {"requests": ["a", "b", "c"], "padding": [1], **same},
        {"requests": ["12", None, "4"], "padding": [], **same},
    ]


@record("gdn_decode", lineage={"requests": "ids"}, layer="module.layer_idx")
def layered_step(module: Any, ids: tuple[str, ...], **tensors: Tensor) -> None:
    step.__wrapped__(**tensors)  # type: ignore[attr-defined]


@dataclass
class Numbered:
    layer_idx: Any


def test_a_function_names_its_layer(tmp_path: Path) -> None:
    """By an index or a name. Without one, no call is judged: the states of layers would overwrite each
    other."""
    engine = Engine()
    with capturing(tmp_path / "run.zarr") as counts:
        for layer in (0, 3, "mtp", 3):
            layered_step(Numbered(layer), ("a", "b", "c"), **engine.call())
        named_step(Batch(["a"] * 3), torch.zeros(3), torch.zeros(3), (), **engine.call())
    assert (counts.failures, counts.first_failure) == (0, None)
    infos = [stored.info for stored in Store.open(tmp_path / "run.zarr").records]
    assert [(info.layer, info.layer_index, info.step, info.has_layer) for info in infos] == [
        ("layers.0", 0, 0, True),
        ("layers.3", 3, 0, True),
        ("mtp", None, 0, True),
        ("layers.3", 3, 1, True),
        ("named_step", None, 0, False),
    ]
    (table,) = tables_of(Store.open(tmp_path / "run.zarr"))
    layerless = table.rows["layer"] == table.layers.index("named_step")
    assert (table.rows["request"][layerless] == -1).all()
    assert (table.rows["request"][~layerless] >= 0).all()
    with pytest.raises(BadInputError, match=wording("capture.lineage-place", name="layer", place="a b")):
        record("gdn_decode", layer="a b")


def test_a_graph_keeps_what_a_call_said_only_if_it_is_a_tensor(tmp_path: Path) -> None:
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    ids, at, slots = torch.tensor([1, 2, 3]), torch.tensor([0, 0, 0]), torch.tensor([4, 0, 7])
    call, names = engine.call(), Batch(["a", "b", "c"])
    with capturing_stand_in(tmp_path / "run.zarr", streams) as counts:
        with graph_of(graph):
            named_step(Batch(ids + 0), at, slots, (1,), **call)
        other = StandInGraph()
        with graph_of(other):
            named_step(names, at, slots, (1,), **call)
        ids += 10
        at += 5
        graph.replay()
        other.replay()
    assert (counts.failures, counts.first_failure) == (0, None)
    made = {"requests": ["11", "12", "13"], "positions": [5, 5, 5], "padding": [], "slots": [4, 0, 7]}
    assert claims_of(tmp_path / "run.zarr") == [made, None]


@pytest.mark.parametrize(
    ("lineage", "message"),
    [
        ({"request": "ids"}, wording("capture.lineage-field", name="request")),
        ({"requests": "a b"}, wording("capture.lineage-place", name="requests", place="a b")),
        ({"positions": "at"}, wording("capture.lineage-without-requests")),
    ],
)
def test_a_field_or_place_that_cannot_be_is_refused(lineage: dict[str, str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        record("gdn_decode", lineage=lineage)


@pytest.mark.parametrize("slots", [[-7, 3], torch.tensor([-7, 3])])
def test_a_negative_slot_is_unknown(slots: Any) -> None:
    """An engine may mark padding with any negative slot; `gdnbench lineage` refuses all but -1."""
    claims = Claims(["a", "b"], [0, 0], slots=slots)
    written = claims.as_json(claims.bundled())
    assert written["slots"] == [-1, 3]
    assert lineage_claims.claims_of({"lineage": written}, "record").slots == (-1, 3)


def test_claims_of_some_sequences() -> None:
    whole = Claims(["a", "b", None], [1, 2, None], [2], ["0" * 16, None, None], [5, 6, -1])
    assert whole.of_sequences([2, 0]).as_json({}) == {
        "requests": [None, "a"],
        "positions": [None, 1],
        "padding": [0],
        "prefixes": [None, "0" * 16],
        "slots": [-1, 5],
    }
    with pytest.raises(ValueError, match=wording("capture.claims-uneven", count=1, more=2, name="positions")):
        Claims(["a"], [1, 2])
    with pytest.raises(ValueError, match=wording("capture.claims-too-many", here=3, count=2)):
        whole.padded(2)


def test_rows_of_transformers_caches_are_requests(tmp_path: Path) -> None:
    """Prefill, two tokens, and a forward pass that makes its own cache."""
    model = tiny_model("qwen3_next")
    ids = torch.arange(2 * 5).reshape(2, 5) % 60 + 1
    with capturing(tmp_path / "run.zarr") as counts:
        out = model.generate(ids, max_new_tokens=3, do_sample=False).tolist()
        made = model(ids, use_cache=True)
        cache = made["cache"] if "cache" in made else made["past_key_values"]
        model(ids[:, :1], cache=cache)
    assert (counts.failures, counts.unclaimed) == (0, {})
    layers = sum(kind == "linear_attention" for kind in model.config.layer_types)
    found = claims_of(tmp_path / "run.zarr")[:: 2 * layers]  # the convolution, and the delta rule
    first = int(found[0]["requests"][0].removeprefix("cache").partition("/")[0])  # other tests had caches
    rows = [[f"cache{cache}/row{row}" for row in (0, 1)] for cache in (first, first + 1)]
    lengths = (0, 5, 6, 0, 5)
    assert [one["requests"] for one in found] == [rows[0]] * 3 + [rows[1]] * 2
    assert [one["positions"] for one in found] == [[length] * 2 for length in lengths]
    assert [one["slots"] for one in found] == [[0, 1]] * 3 + [[2, 3]] * 2
    wanted = [[prefix(row[:length]) for row in out] for length in lengths]
    assert [one["prefixes"] for one in found] == wanted


class Cache:
    """Stands for a cache object whose length nobody knows."""


def test_rows_that_move_begin_new_requests() -> None:
    """Beam search takes rows from others, assisted decoding removes tokens."""
    steps, cache = CacheSteps(), Cache()
    forward, created = STEPS[0], next(one for one in STEPS if one.function.endswith("__init__"))
    of_cache = {one.function.rpartition(".")[2]: one for one in STEPS}

    def passed(tokens: list[list[int]]) -> Any:
        return steps.step(forward, {"input_ids": torch.tensor(tokens), "cache": cache})

    steps.step(forward, {"input_ids": torch.tensor([[1, 2], [3, 4]]), "cache": None})
    steps.step(created, {"self": cache})
    known = passed([[5], [6]])
    assert (known.position, known.prefixes) == (2, [prefix([1, 2]), prefix([3, 4])])
    before = known.requests
    steps.step(of_cache["reorder_cache"], {"self": cache, "beam_idx": torch.tensor([0, 0])})
    known = passed([[7], [8]])
    assert known.requests[0] == before[0]
    assert known.requests[1] not in before
    assert (known.position, known.prefixes) == (3, [prefix([1, 2, 5])] * 2)
    steps.step(of_cache["crop"], {"self": cache, "tokens_to_remove": 1})
    known, last = passed([[9], [9]]), known.requests
    assert not set(known.requests) & {*before, *last}
    assert (known.position, known.prefixes) == (3, None)
    steps.step(of_cache["crop"], {"self": cache, "max_length": 2})
    assert passed([[9], [9]]).position == 2
    steps.step(of_cache["reset"], {"self": cache})
    assert passed([[9], [9]]).position == 0
