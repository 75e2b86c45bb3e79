# SPDX-License-Identifier: Apache-2.0
"""The shipped captures of Kimi Delta Attention: that one head remembers and the other forgets at once, and
that faults of gates, states, slots and accepted tokens change their exact result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.judge.calls import compact_call
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.kda_decode.reference import reference as exact_decode
from gdnbench_kernels.kda_prefill.reference import reference as exact_prefill

FOLDER = Path(__file__).resolve().parents[1] / "captures"
NAMES = ("kda_prefill", "kda_decode")
SLOW, FAST = 0, 1
"""The heads of the recorded layers: one remembers, the other forgets at once."""
NOT_OF_REFERENCES = ("chunk_size", "final_state_dtype", "offsets")
LOWER_BOUND = -5.0


def opened(name: str) -> Store:
    return Store.open(FOLDER / f"{name}.zarr.zip")


@pytest.fixture(params=NAMES)
def shipped(request: pytest.FixtureRequest) -> Iterator[Store]:
    with opened(request.param) as store:
        yield store


def calls(name: str) -> list[Call]:
    with opened(name) as store:
        return [
            compact_call(record, operation(record.info.op), torch.device("cpu")) for record in store.records
        ]


def changed(call: Call, scalars: Mapping[str, Any] | None = None, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, {**call.scalars, **(scalars or {})}, call.conventions)


def exact(call: Call) -> dict[str, Tensor]:
    """The fp64 result. Of kda_decode `state` is the pool after the call."""
    given = {**call.tensors, **call.scalars, **call.conventions}
    given = {name: one for name, one in given.items() if name not in NOT_OF_REFERENCES}
    if "cu_seqlens" in call.tensors:
        return dict(exact_prefill(**given))
    given["state"] = call.tensors["state"].clone()
    return {**exact_decode(**given), "state": given["state"]}


def difference(found: Tensor, wanted: Tensor, head_axis: int) -> list[float]:
    """Of each head: the norm of the difference, as a share of the norm of what is wanted."""
    pairs = zip(found.double().unbind(head_axis), wanted.double().unbind(head_axis), strict=True)
    return [float((one - other).norm() / other.norm()) for one, other in pairs]


def log_decays(call: Call) -> Tensor:
    """[T, Hv, K]"""
    return gates_of_call(call).log_decay(call.tensors["g"], torch.float64).flatten(0, -3)


@pytest.mark.every(2)
@pytest.mark.parametrize("against", ["reference", "recorded"])
@pytest.mark.parametrize("kernel", ["torch", "reference"])
def test_replays(shipped: Store, kernel: str, against: str) -> None:
    report = replay(shipped, kernel=kernel, against=against)
    assert [(r.number, r.reason) for r in report.records if r.outcome is not Outcome.PASS] == []


def test_contents() -> None:
    """As captures/README.md has them: served forms of gate and beta, bfloat16 states, heads of 128."""
    packed, first, second = calls("kda_prefill")
    decode, drafts = calls("kda_decode")
    gates = ["bounded", "raw", "raw", "raw", "bounded"]
    for call, gate in zip((packed, first, second, decode, drafts), gates, strict=True):
        wanted = {"gate": gate, "beta_form": "logit", "state_layout": "VK", "qk": "raw"}
        assert wanted.items() <= call.conventions.items()
        assert call.tensors["q"].shape[-1] == call.tensors["v"].shape[-1] == 128
        assert call.tensors["g"].dtype == call.tensors["beta"].dtype == torch.bfloat16
        assert call.scalars.get("lower_bound") == (LOWER_BOUND if gate == "bounded" else None)
    assert packed.tensors["cu_seqlens"].tolist() == [0, 33, 34, 48]
    assert "initial_state" not in packed.tensors
    assert [len(call.tensors["q"]) for call in (first, second)] == [35, 13]
    with opened("kda_prefill") as store:
        finals = [record.after["final_state"].read() for record in store.records]
    assert {state.dtype for state in finals} == {torch.bfloat16}
    assert torch.equal(second.tensors["initial_state"], finals[1])
    assert drafts.tensors["num_accepted"].tolist() == [2, 1]
    assert (decode.tensors["q"].shape[:3], drafts.tensors["q"].shape[:3]) == ((2, 1, 2), (2, 3, 1))


def test_one_head_remembers_and_one_forgets_at_once() -> None:
    """Half of the slow head's channels keep half of themselves for 60 tokens and more. The fast head has
    tokens and channels that keep nothing: those with the bound reach it, those without go far past it, so
    that a factor exp(-g) of a chunk of 64 overflows fp32 (at 88.7)."""
    packed, *pieces = calls("kda_prefill")
    for call in (packed, *pieces):
        decays = log_decays(call)
        assert float(-decays[:, SLOW].median()) < 0.0116  # ln 2 / 60
        fast = decays[:, FAST]
        assert float(fast.min()) < (-4.9 if call is packed else -20)
        assert float(fast.sum(0).min()) < -88.7
    assert float(log_decays(packed).min()) >= LOWER_BOUND


@pytest.mark.parametrize("number", range(3))
def test_gates_matter(number: int) -> None:
    """Without the bias, or the head's rate, or with one gate for all channels, the result is another."""
    call = calls("kda_prefill")[number]
    wanted = exact(call)["o"]
    g, A_log, dt_bias = (call.tensors[name] for name in ("g", "A_log", "dt_bias"))
    for wrong in (
        {"dt_bias": torch.zeros_like(dt_bias)},
        {"A_log": A_log.flip(0)} if number else {"dt_bias": dt_bias.flip(1)},
        {"g": g.mean(-1, keepdim=True).expand_as(g).contiguous()},
    ):
        assert max(difference(exact(changed(call, **wrong))["o"], wanted, 1)) > 0.1, wrong.keys()


def test_initial_states_matter() -> None:
    for call in calls("kda_prefill")[1:]:
        state, wanted = call.tensors["initial_state"], exact(call)
        for wrong in (torch.zeros_like(state), state.mT.contiguous(), state.flip(1)):
            found = exact(changed(call, initial_state=wrong))
            assert difference(found["o"], wanted["o"], 1)[SLOW] > 0.3
            assert difference(found["final_state"], wanted["final_state"], 1)[SLOW] > 0.2


def test_sequences_of_a_row_are_apart() -> None:
    (call, *_), (whole,) = calls("kda_prefill"), [torch.tensor([0, 48, 48, 48], dtype=torch.int32)]
    wanted, found = exact(call)["o"], exact(changed(call, cu_seqlens=whole))["o"]
    assert difference(found[34:], wanted[34:], 1)[SLOW] > 0.1
    assert torch.equal(found[:33], wanted[:33])


def test_states_in_their_slots_matter() -> None:
    for call in calls("kda_decode"):
        wanted = exact(call)
        turned = exact(changed(call, state=call.tensors["state"].mT.contiguous()))
        assert difference(turned["o"][:1], wanted["o"][:1], 2)[SLOW] > 0.3


def test_accepted_tokens_matter() -> None:
    call = calls("kda_decode")[1]
    wanted = exact(call)
    for wrong in (1, 3):
        found = exact(changed(call, num_accepted=torch.tensor([wrong, 1], dtype=torch.int32)))
        assert difference(found["o"][:1], wanted["o"][:1], 2)[SLOW] > 0.03
