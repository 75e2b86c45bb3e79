# SPDX-License-Identifier: Apache-2.0
"""The adapter of FlashInfer, on functions with its signatures that compute the definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from tests.capture.frameworks import framework
from tests.messages import wording

H, HV, D, SLOTS = 2, 4, 8, 9
PREFILL, DECODE = "gdn_prefill", "gdn_decode"
PLAIN, PRETRANSPOSE = "gated_delta_rule_decode", "gated_delta_rule_decode_pretranspose"
MTP, CHUNK = "gated_delta_rule_mtp", "chunk_gated_delta_rule"


@pytest.fixture
def flashinfer() -> Iterator[None]:
    with framework():
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def packed(tokens: int = 10) -> dict[str, Any]:
    unit = torch.nn.functional.normalize
    return {
        "q": unit(random(tokens, H, D, seed=1), dim=-1).bfloat16(),
        "k": unit(random(tokens, H, D, seed=2), dim=-1).bfloat16(),
        "v": random(tokens, HV, D).bfloat16(),
        "g": (-random(tokens, HV).abs()).exp(),
        "beta": random(tokens, HV).sigmoid(),
        "cu_seqlens": torch.tensor([0, 3, 3, tokens]),
    }


def drafted(batch: int, steps: int, **more: Any) -> dict[str, Any]:
    return {
        "q": random(batch, steps, H, D, seed=1).bfloat16(),
        "k": random(batch, steps, H, D, seed=2).bfloat16(),
        "v": random(batch, steps, HV, D).bfloat16(),
        "A_log": random(HV),
        "a": random(batch, steps, HV, seed=3).bfloat16(),
        "dt_bias": random(HV, seed=4),
        "b": random(batch, steps, HV, seed=5).bfloat16(),
        **more,
    }


def captured(path: Path, function: str, given: dict[str, Any]) -> tuple[Any, Counts, StoredRecord | None]:
    module = "flashinfer.gdn_prefill" if function == CHUNK else "flashinfer.gdn_decode"
    with capturing(path) as counts:
        result = getattr(import_module(module), function)(**given)
    if not counts.records:
        return result, counts, None
    (record,) = Store.open(path).records
    return result, counts, record


def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def indices(record: StoredRecord) -> dict[str, list[Any]]:
    """The slots by number in the caller's pool, -1 as it is."""
    names = ("state_indices", "read_indices")
    return {name: record.before[name].read().tolist() for name in names if name in record.before}


def assert_replays(path: Path) -> None:
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def assert_valid(record: StoredRecord) -> None:
    before = {one: handle.read() for one, handle in record.before.items() if one not in record.info.pools}
    for name, pool in record.info.pools.items():
        whole = torch.zeros(pool.slots, *record.before[name].meta.shape[1:])
        before[name] = whole.to(record.before[name].read().dtype)
    operation(record.info.op).validate(Call(before, record.info.scalars, record.info.conventions))


POOL = {"initial_state": random(SLOTS, HV, D, D), "initial_state_indices": ints(4, 1, 7)}
DECODES: dict[str, tuple[str, dict[str, Any], dict[str, list[Any]]]] = {
    "plain": (PLAIN, drafted(3, 1, state=random(3, HV, D, D)), {"state_indices": [[0], [1], [2]]}),
    "pretranspose": (
        PRETRANSPOSE,
        drafted(3, 1, state=random(3, HV, D, D)),
        {"state_indices": [[0], [1], [2]]},
    ),
    "pretranspose, a pool": (
        PRETRANSPOSE,
        drafted(3, 1, state=None, **POOL),
        {"state_indices": [[4], [1], [7]]},
    ),
    "pretranspose, a pool, padding": (
        PRETRANSPOSE,
        drafted(3, 1, state=None, **{**POOL, "initial_state_indices": ints(4, -1, 7, dtype=torch.int64)}),
        {"state_indices": [[4], [-1], [7]]},
    ),
    "pretranspose, from slot to slot": (
        PRETRANSPOSE,
        drafted(3, 1, state=None, **POOL, output_state_indices=ints(0, 2, 3), use_qk_l2norm=True, scale=0.3),
        {"state_indices": [[0], [2], [3]], "read_indices": [4, 1, 7]},
    ),
    "pretranspose, bf16, several tokens in place": (
        PRETRANSPOSE,
        drafted(2, 3, state=random(2, HV, D, D).bfloat16()),
        {"state_indices": [[-1, -1, 0], [-1, -1, 1]], "read_indices": [0, 1]},
    ),
    "mtp, a slot of each token": (
        MTP,
        drafted(
            2,
            2,
            **{**POOL, "initial_state_indices": ints(4, 1)},
            ssm_state_indices=torch.tensor([[0, 2], [3, 5]], dtype=torch.int32),
            disable_state_update=False,
        ),
        {"state_indices": [[0, 2], [3, 5]], "read_indices": [4, 1]},
    ),
    "mtp, nothing written": (
        MTP,
        drafted(3, 2, **POOL),
        {"state_indices": [[-1, -1]] * 3, "read_indices": [4, 1, 7]},
    ),
    "mtp, the last token's state": (
        MTP,
        drafted(
            3,
            2,
            **{**POOL, "initial_state_indices": ints(4, 1, 7, dtype=torch.int64)},
            disable_state_update=False,
        ),
        {"state_indices": [[-1, 4], [-1, 1], [-1, 7]], "read_indices": [4, 1, 7]},
    ),
    "mtp, the last token's state to another slot": (
        MTP,
        drafted(3, 2, **POOL, disable_state_update=False, output_state_indices=ints(0, 2, 3)),
        {"state_indices": [[-1, 0], [-1, 2], [-1, 3]], "read_indices": [4, 1, 7]},
    ),
    "mtp, states kept apart": (
        MTP,
        drafted(
            3, 2, **POOL, disable_state_update=True, intermediate_states_buffer=torch.zeros(3, 2, HV, D, D)
        ),
        {"state_indices": [[-1, -1]] * 3, "read_indices": [4, 1, 7]},
    ),
    "mtp, inputs kept in a ring": (
        MTP,
        drafted(3, 3, **POOL, disable_state_update=True, cache_replayssm=True),
        {"state_indices": [[-1, -1, -1]] * 3, "read_indices": [4, 1, 7]},
    ),
}
KEPT = {
    "mtp, states kept apart": "intermediate_states_buffer",
    "mtp, inputs kept in a ring": "the ring of inputs (replayssm)",
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", DECODES)
def test_decode(name: str, flashinfer: None, tmp_path: Path) -> None:
    function, given, slots = DECODES[name]
    given = {one: x.clone() if isinstance(x, Tensor) else x for one, x in given.items()}
    given.setdefault("use_qk_l2norm", False)
    pool = "initial_state" if given.get("initial_state") is not None else "state"
    was = given[pool].clone()
    (o, _), counts, record = captured(tmp_path / "run.zarr", function, given)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert record is not None
    assert record.info.op == DECODE
    assert indices(record) == slots
    assert record.info.conventions == {
        "gate": "raw",
        "state_layout": "KV" if function == PLAIN else "VK",
        "qk": "raw" if given["use_qk_l2norm"] else "normalised",
    }
    for ours, theirs in {
        "q": "q",
        "v": "v",
        "g": "a",
        "beta": "b",
        "A_log": "A_log",
        "dt_bias": "dt_bias",
    }.items():
        assert torch.equal(record.before[ours].read(), given[theirs]), ours
    assert torch.equal(record.after["o"].read(), o)
    kept = record.info.pools["state"]
    rows = list(kept.rows)
    assert kept.slots == len(was)
    assert torch.equal(record.before["state"].read(), was[rows])
    assert torch.equal(record.after["state"].read(), given[pool][rows])
    assert record.info.dispatch.get("not_recorded") == KEPT.get(name)
    assert_valid(record)
    assert_replays(tmp_path / "run.zarr")


STATES = random(3, HV, D, D)
PREFILLS: dict[str, dict[str, Any]] = {
    "no states": {},
    "no gates": {"g": None, "beta": None},
    "states": {"initial_state": STATES, "output_final_state": True},
    "buffers": {
        "initial_state": STATES.bfloat16(),
        "output_final_state": True,
        "output": torch.zeros(10, HV, D).bfloat16(),
        "output_state": torch.zeros(3, HV, D, D).bfloat16(),
        "use_qk_l2norm_in_kernel": True,
        "scale": 0.0,
    },
    "rows of a pool": {
        "initial_state": random(SLOTS, HV, D, D),
        "output_final_state": True,
        "output_state": torch.zeros(SLOTS, HV, D, D),
        "state_indices": ints(6, 0, 3),
        "scale": 0.2,
    },
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", PREFILLS)
def test_prefill(name: str, flashinfer: None, tmp_path: Path) -> None:
    given = {**packed(), **PREFILLS[name]}
    result, counts, record = captured(tmp_path / "run.zarr", CHUNK, given)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    assert record is not None
    assert record.info.op == PREFILL
    assert record.info.conventions == {
        "gate": "linear",
        "state_layout": "VK",
        "qk": "raw" if given.get("use_qk_l2norm_in_kernel") else "normalised",
    }
    assert record.info.scalars["scale"] == (given.get("scale") or D**-0.5)
    for one in ("q", "k", "v", "g", "beta", "cu_seqlens"):
        if given[one] is not None:
            assert torch.equal(record.before[one].read(), given[one]), one
    if "state_indices" in given:
        rows = given["state_indices"].tolist()
        assert torch.equal(record.before["initial_state"].read(), given["initial_state"][rows])
        assert torch.equal(record.after["final_state"].read(), given["output_state"][rows])
    elif given.get("output_final_state"):
        assert torch.equal(record.before["initial_state"].read(), given["initial_state"])
        assert torch.equal(record.after["final_state"].read(), result[1])
    else:
        assert "final_state" not in record.after
    o = result[0] if isinstance(result, tuple) else result
    assert torch.equal(record.after["o"].read(), o)
    assert_valid(record)
    assert_replays(tmp_path / "run.zarr")


@pytest.mark.parametrize(
    ("function", "given", "reason"),
    [
        (CHUNK, {**packed(), "k": random(10, 1, D).bfloat16()}, wording("capture.heads-differ")),
        (CHUNK, {**packed(), "v": random(10, 1, D).bfloat16()}, wording("capture.fewer-value-heads")),
        (CHUNK, {**packed(), "v": random(10, HV, D)}, wording("capture.dtypes-differ")),
        (CHUNK, {**packed(), "output": torch.zeros(10, HV, D)}, wording("capture.output-dtype")),
        (
            CHUNK,
            {**packed(), "initial_state": STATES.to(torch.float8_e4m3fn)},
            wording("capture.states-dtype", dtype="float8_e4m3fn"),
        ),
        (
            PRETRANSPOSE,
            drafted(
                1, 1, state=None, initial_state=random(2, HV, 2, D // 2, D), initial_state_indices=ints(1)
            ),
            wording("capture.states-halved"),
        ),
    ],
)
def test_calls_that_no_operation_describes(
    function: str,
    given: dict[str, Any],
    reason: str,
    flashinfer: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "flashinfer.gdn_prefill" if function == CHUNK else "flashinfer.gdn_decode"
    computes = "tokens_of" if function == CHUNK else "_tokens"
    monkeypatch.setattr(import_module(module), computes, lambda *args: (torch.zeros(()), []))
    _, counts, record = captured(tmp_path / "run.zarr", function, given)
    assert (record, counts.failures) == (None, 0)
    ((found, calls),) = counts.passed_over.items()
    assert re.match(reason, found)
    assert calls == 1


def test_the_package_itself_hands_out_what_is_captured(flashinfer: None, tmp_path: Path) -> None:
    package = import_module("flashinfer")
    with capturing(tmp_path / "run.zarr") as counts:
        package.chunk_gated_delta_rule(**packed())
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
