# SPDX-License-Identifier: Apache-2.0
"""The shipped captures of batches over pools: that their heads remember, and that faults of states, slots and
stale entries change their exact result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gdnbench.judge.calls import compact_call
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import slots_of
from gdnbench_kernels.gdn_decode.reference import reference as exact_decode
from gdnbench_kernels.gdn_prefill.reference import reference as exact_prefill
from gdnbench_kernels.swa_decode.layouts import read_rows
from gdnbench_kernels.swa_decode.window import attended

FOLDER = Path(__file__).resolve().parents[1] / "captures"
SLOW, FAST = 0, 1
"""The value heads of the recorded layer: one remembers hundreds of tokens, one about ten."""
NOT_OF_REFERENCES = ("chunk_size", "final_state_dtype", "beta_max", "offsets")
NAMES = ("packed_states", "chunked", "batched_decode", "drafts", "swa_lse")


def opened(name: str) -> Store:
    return Store.open(FOLDER / f"{name}.zarr.zip")


@pytest.fixture(params=NAMES)
def shipped(request: pytest.FixtureRequest) -> Iterator[tuple[str, Store]]:
    with opened(request.param) as store:
        yield request.param, store


def calls(name: str) -> list[Call]:
    with opened(name) as store:
        return [
            compact_call(record, operation(record.info.op), torch.device("cpu")) for record in store.records
        ]


def changed(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


def exact(call: Call) -> dict[str, Tensor]:
    """The fp64 result. Of gdn_decode `state` is the pool after the call."""
    if "cu_seqlens" in call.tensors:
        return dict(exact_prefill(**arguments(call)))
    pool = call.tensors["state"].clone()
    found = exact_decode(**arguments(changed(call, state=pool)))
    return {"state": pool, **found}


def arguments(call: Call) -> dict[str, object]:
    given = {**call.tensors, **call.scalars, **call.conventions}
    return {name: one for name, one in given.items() if name not in NOT_OF_REFERENCES}


def difference(found: Tensor, wanted: Tensor, head_axis: int) -> list[float]:
    """Of each head: the norm of the difference, as a share of the norm of what is wanted."""
    pairs = zip(found.double().unbind(head_axis), wanted.double().unbind(head_axis), strict=True)
    return [float((one - other).norm() / other.norm()) for one, other in pairs]


@pytest.mark.every(2)
def test_replays(shipped: tuple[str, Store]) -> None:
    _, store = shipped
    for against in ("reference", "recorded"):
        report = replay(store, kernel="torch", against=against)
        assert [(r.number, r.reason) for r in report.records if r.outcome is not Outcome.PASS] == []


def test_shapes() -> None:
    for name in NAMES[:4]:
        for call in calls(name):
            assert call.tensors["q"].shape[-2:] == (1, 128)
            assert call.tensors["v"].shape[-2:] == (2, 128)
            assert call.conventions["state_layout"] == "VK"


def test_heads_remember() -> None:
    """The slow head keeps most of a state over a typical chunk; the fast one forgets it within a hundred
    tokens."""
    for name in ("packed_states", "chunked"):
        for call in calls(name):
            median = -call.tensors["g"].double().median(0).values
            assert median[SLOW] < 1e-3
            assert 1e-2 < median[FAST] < 0.2


def test_packed_sequences() -> None:
    (call,) = calls("packed_states")
    lengths = call.tensors["cu_seqlens"].diff().tolist()
    assert lengths == [65, 1, 139]
    given = call.tensors["initial_state"].flatten(1).any(1).tolist()
    assert given == [False, True, True]


@pytest.mark.parametrize("name", ["packed_states", "chunked"])
def test_initial_states_matter(name: str) -> None:
    for call in calls(name):
        state = call.tensors["initial_state"]
        if not state.any():
            continue
        wanted = exact(call)
        for wrong in (torch.zeros_like(state), state.mT.contiguous(), state.flip(1), state.flip(0)):
            if torch.equal(wrong, state):
                continue  # one sequence
            found = exact(changed(call, initial_state=wrong))
            o = difference(found["o"], wanted["o"], 1)
            assert o[SLOW] > 0.5
            assert o[FAST] > 0.1
            assert difference(found["final_state"], wanted["final_state"], 1)[SLOW] > 0.4


def test_pieces_carry_their_state() -> None:
    first, *rest = pieces = calls("chunked")
    assert [len(call.tensors["q"]) for call in pieces] == [80, 64, 66]
    assert not first.tensors["initial_state"].any()
    with opened("chunked") as store:
        finals = [record.after["final_state"].read() for record in store.records]
    for call, carried in zip(rest, finals, strict=False):
        assert torch.equal(call.tensors["initial_state"], carried)


def test_keys_of_a_chunk_are_alike() -> None:
    """Inverting I - A in place of I + A goes wrong only where keys are alike."""
    (call,) = calls("packed_states")
    k = torch.nn.functional.normalize(call.tensors["k"][66 : 66 + 139, 0].double(), dim=1)
    cosines = (k[:64] @ k[:64].T).tril(-1)
    assert float((cosines > 0.9).double().sum()) > 500


def batch_slots(call: Call) -> list[int]:
    return [int(slot) for slot in call.tensors["state_indices"][:, 0]]


def test_requests_join_and_leave() -> None:
    steps = calls("batched_decode")
    assert [batch_slots(call) for call in steps] == [[4, -1, 1, -1], [1, 2, -1, -1]]
    assert {call.tensors["state"].shape[0] for call in steps} == {6}
    with opened("batched_decode") as store:
        pools = [record.after["state"].read() for record in store.records]
    for call, pool in zip(steps[1:], pools, strict=False):
        assert torch.equal(call.tensors["state"], pool)


@pytest.mark.parametrize("name", ["batched_decode", "drafts"])
def test_slots_matter(name: str) -> None:
    for call in calls(name):
        active = slots_of(call).active
        indices = call.tensors["state_indices"].clone()
        indices[active] = indices[active.roll(1)]
        wanted, swapped = exact(call), exact(changed(call, state_indices=indices))
        turned = exact(changed(call, state=call.tensors["state"].mT.contiguous()))
        for found in (swapped, turned):
            assert min(difference(found["o"][active], wanted["o"][active], 2)) > 0.5
            assert min(difference(found["state"], wanted["state"], 1)) > 0.05


def test_accepted_tokens_matter() -> None:
    (call,) = calls("drafts")
    accepted = call.tensors["num_accepted"]
    active = slots_of(call).active
    assert active.tolist() == [0, 2]
    assert call.tensors["state_indices"].tolist() == [[6, 1, 9, 4], [-1] * 4, [8, 3, -1, -1]]
    assert accepted[[0, 2]].tolist() == [2, 1]
    wanted = exact(call)
    for wrong in (1, 3, 4):
        one = torch.tensor([wrong, 0, 1], dtype=torch.int32)
        found = exact(changed(call, num_accepted=one))
        o = difference(found["o"][:1], wanted["o"][:1], 2)
        assert o[SLOW] > 0.03
        assert o[FAST] > 0.1


def test_windows_of_served_pages() -> None:
    found = calls("swa_lse")
    kinds = [(call.conventions["cache_layout"], call.tensors["cache"].shape[1]) for call in found]
    assert kinds == [("per_token_scale", 16), ("fp8_ds_mla", 64), ("fp8_ds_mla", 32)]
    for call in found:
        lens = call.tensors["swa_lens"]
        assert lens.tolist() == [128, 128, 37, 0]
        assert call.scalars["output_lse"]
        sinks = call.tensors["attn_sink"]
        assert sinks.min() < -3
        assert sinks.max() > 3
        check_stale(call)
        pages = [set((row[:n] // call.tensors["cache"].shape[1]).tolist()) for row, n in rows(call)]
        assert pages[0] & pages[1]
        assert not pages[2] & (pages[0] | pages[1])
    with opened("swa_lse") as store:
        for record in store.records:
            lse = record.after["lse"].read()
            assert lse[:3].isfinite().all()
            assert (lse[3] == -torch.inf).all()
            assert not record.after["o"].read()[3].any()


def rows(call: Call) -> list[tuple[Tensor, int]]:
    return list(zip(call.tensors["swa_indices"], call.tensors["swa_lens"].tolist(), strict=True))


def check_stale(call: Call) -> None:
    """Past a length lie slots of other requests, slots of rows of NaN, and numbers that are no slots."""
    indices, cache = call.tensors["swa_indices"].long(), call.tensors["cache"]
    slots = cache.shape[0] * cache.shape[1]
    counts = attended(indices, call.tensors["swa_lens"])
    past = torch.arange(indices.shape[1]) >= call.tensors["swa_lens"].unsqueeze(1)
    stale = indices[past]
    outside = (stale < 0) | (stale >= slots)
    assert outside.any()
    inside = stale[~outside]
    assert set(inside.tolist()) & set(indices[counts].tolist())
    layout: Mapping[str, str] = call.conventions
    values = read_rows(cache, call.tensors.get("inv_scale"), inside, layout["cache_layout"], torch.float64)
    assert values.isnan().any()
    assert values.isfinite().all(1).any()
