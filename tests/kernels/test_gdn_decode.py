# SPDX-License-Identifier: Apache-2.0
"""Numerics of gdn_decode: the oracle against plain numpy, other kernels against the oracle, the slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

Measure = Callable[[Tensor, Tensor], float]

ROUNDOFF = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24}
# fp32 sums of at most 128 terms, twice a token (S k and S q), over at most 4 tokens.
SUMS = 2 * 4 * 128 * 2**-24
# fp64 sums of at most 128 terms, twice a token, over at most 4 tokens.
EXACT = 2 * 4 * 128 * 2**-53

AWKWARD: dict[str, dict[str, Any]] = {
    "plain": {"batch": 3},
    "grouped heads, K > V": {"batch": 2, "heads": (2, 6), "head_dim": (24, 16)},
    "padding": {"batch": 6, "padding": 0.5, "slots": 40, "head_dim": (8, 24)},
    "speculative": {"batch": 4, "steps": 3, "speculative": True, "padding": 0.25, "head_dim": (16, 8)},
    "draft tokens, none accepted before": {"batch": 2, "steps": 4, "head_dim": (8, 8)},
    "every other convention": {
        "batch": 3,
        "steps": 2,
        "speculative": True,
        "head_dim": (24, 16),
        "gate": "linear",
        "state_layout": "KV",
        "qk": "raw",
        "offsets_dtype": "int64",
    },
    "bf16 state, beta to 2": {"batch": 3, "state_dtype": "bfloat16", "beta": (0.0, 2.0), "head_dim": (16, 8)},
    "fp16 state and inputs": {"batch": 3, "state_dtype": "float16", "dtype": "float16", "head_dim": (16, 8)},
    "fp32": {"batch": 3, "dtype": "float32", "head_dim": (16, 8)},
    "raw gates": {"batch": 3, "steps": 2, "gate": "raw", "head_dim": (16, 8)},
    "raw gates, beta to 2, dt_bias in bf16": {
        "batch": 3,
        "gate": "raw",
        "gate_span": 50.0,
        "beta": (0.0, 2.0),
        "dt_bias_dtype": "bfloat16",
        "state_layout": "KV",
        "head_dim": (16, 8),
    },
    "reads other slots, holes": {
        "batch": 4,
        "steps": 3,
        "read_indices": "own",
        "holes": 0.5,
        "padding": 0.25,
        "head_dim": (8, 24),
    },
    "all read one slot": {"batch": 3, "read_indices": "shared", "head_dim": (8, 8)},
    "reads what it writes last": {"batch": 3, "steps": 3, "read_indices": "last", "head_dim": (8, 8)},
    "slots apart": {"batch": 3, "slots": 7, "slot_gap": 24, "head_dim": (8, 8)},
    "all padding": {"batch": 3, "padding": 1.0, "head_dim": (8, 8)},
    "no sequences": {"batch": 0, "head_dim": (8, 8)},
}


def made(**options: Any) -> Call:
    call = OPERATION.synth(**options)
    OPERATION.validate(call)
    return call


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return Call({**call.tensors, **tensors}, call.scalars, call.conventions)


def written_out(call: Call, plain: Any) -> tuple[np.ndarray, np.ndarray]:
    """o (NaN where nothing is promised) and the pool, sequence by sequence, straight from the contract."""
    indices = call.tensors["state_indices"].tolist()
    accepted = call.tensors["num_accepted"].tolist() if "num_accepted" in call.tensors else [1] * len(indices)
    reads = [slots[count - 1] for slots, count in zip(indices, accepted, strict=True)]
    if "read_indices" in call.tensors:
        reads = call.tensors["read_indices"].tolist()
    pool = plain.array("state").copy()
    if call.conventions["state_layout"] == "KV":
        pool = pool.swapaxes(-1, -2).copy()
    before = pool.copy()
    o = np.full(call.tensors["v"].shape, np.nan)
    for i, slots in enumerate(indices):
        if reads[i] == -1:
            continue
        state = before[reads[i]].copy()
        for token, slot in enumerate(slots):
            for head in range(len(state)):
                o[i, token, head] = plain.step(state[head], (i, token), head)
            if slot != -1:
                pool[slot] = state
    return o, pool.swapaxes(-1, -2) if call.conventions["state_layout"] == "KV" else pool


@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_oracle_matches_the_recurrence_written_out(options: dict[str, Any], naive: Any) -> None:
    call = made(**{"head_dim": (12, 8)} | options)
    o, pool = written_out(call, naive(call))
    before = call.tensors["state"].clone()
    found = run_kernel(OPERATION, "reference", call)
    assert found["o"].dtype == found["state"].dtype == torch.float64
    np.testing.assert_allclose(found["o"].numpy(), o, rtol=0, atol=EXACT * np.nanmax(np.abs(o), initial=1))
    np.testing.assert_allclose(found["state"].numpy(), pool, rtol=0, atol=EXACT * np.abs(pool).max(initial=1))
    assert call.tensors["state"].equal(before)


@pytest.mark.parametrize("options", AWKWARD.values(), ids=AWKWARD)
def test_torch_kernel_errs_by_its_roundings(options: dict[str, Any], relative_error: Measure) -> None:
    call = made(**options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "torch"))
    active = ~expected["o"].isnan()
    assert found["o"].dtype == call.tensors["v"].dtype
    assert found["state"].dtype == call.tensors["state"].dtype
    o_bound = ROUNDOFF[options.get("dtype", "bfloat16")] + SUMS
    state_bound = ROUNDOFF[options.get("state_dtype", "float32")] + SUMS
    assert relative_error(found["o"][active], expected["o"][active]) < o_bound
    assert relative_error(found["state"], expected["state"]) < state_bound


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_slots_that_no_sequence_owns_keep_their_bits(kernel: str) -> None:
    call = made(batch=6, steps=2, speculative=True, padding=0.5, slots=20, head_dim=(8, 8))
    pool = call.tensors["state"].clone()
    touched = OPERATION.touched(call)["state"]
    untouched = torch.ones(20, dtype=torch.bool)
    untouched[touched] = False
    pool[untouched] = torch.nan  # must neither spread nor change
    found = run_kernel(OPERATION, kernel, with_tensors(call, state=pool))
    assert found["state"][untouched].isnan().all()
    assert not found["state"][touched].isnan().any()
    active = call.tensors["state_indices"][:, 0] != -1
    assert not found["o"][active].isnan().any()
    assert sorted(set(call.tensors["state_indices"].flatten().tolist()) - {-1}) == touched.tolist()


def test_kernels_with_padding_throughout_write_nothing() -> None:
    call = made(batch=3, steps=2, padding=1.0, head_dim=(8, 8))
    for kernel in ("reference", "torch"):
        found = run_kernel(OPERATION, kernel, call)
        assert found["state"].to(torch.float32).equal(call.tensors["state"])


def test_a_token_without_a_slot_still_counts(naive: Any) -> None:
    """-1 inside a running sequence: that state is written nowhere, the next token builds on it."""
    call = made(batch=2, steps=3, slots=9, head_dim=(8, 8), dtype="float32")
    indices = torch.tensor([[4, -1, 2], [-1, 5, 6]], dtype=torch.int32)
    call = with_tensors(call, state_indices=indices)
    OPERATION.validate(call)
    o, pool = written_out(call, naive(call))
    found = run_kernel(OPERATION, "reference", call)
    np.testing.assert_allclose(found["state"].numpy(), pool, rtol=0, atol=EXACT * np.abs(pool).max())
    np.testing.assert_allclose(found["o"].numpy(), o, rtol=0, atol=EXACT * np.nanmax(np.abs(o)))
    assert np.isnan(o[1]).all()  # sequence 1 reads slot -1: padding
    assert OPERATION.touched(call)["state"].tolist() == [2, 4]


def test_the_slot_that_is_read_decides_who_is_padding(naive: Any) -> None:
    call = made(batch=2, steps=2, slots=5, head_dim=(8, 8), dtype="float32")
    call = with_tensors(
        call,
        state_indices=torch.tensor([[-1, 3], [2, -1]], dtype=torch.int32),
        num_accepted=torch.tensor([2, 2], dtype=torch.int32),
    )
    OPERATION.validate(call)
    o, pool = written_out(call, naive(call))
    assert np.isnan(o[1]).all()
    for kernel in ("reference", "torch"):
        found = run_kernel(OPERATION, kernel, call)
        assert found["o"][1].isnan().all()
        np.testing.assert_allclose(found["o"].numpy(), o, rtol=0, atol=SUMS * np.nanmax(np.abs(o)))
        np.testing.assert_allclose(found["state"].numpy(), pool, rtol=0, atol=SUMS * np.abs(pool).max())
    assert OPERATION.touched(call)["state"].tolist() == [3]


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_speculative_decode_reads_the_accepted_slot(accepted: int) -> None:
    call = made(batch=1, steps=3, slots=3, head_dim=(8, 8), dtype="float32")
    call = with_tensors(
        call,
        state_indices=torch.tensor([[2, 0, 1]], dtype=torch.int32),
        num_accepted=torch.tensor([accepted], dtype=torch.int32),
    )
    OPERATION.validate(call)
    read = [2, 0, 1][accepted - 1]
    moved = call.tensors["state"].clone()
    moved[2] = call.tensors["state"][read]
    plain = with_tensors(call, state=moved, num_accepted=torch.tensor([1], dtype=torch.int32))
    expected, found = (run_kernel(OPERATION, "reference", each) for each in (plain, call))
    assert found["o"].equal(expected["o"])
    assert found["state"].equal(expected["state"])


def test_decode_continues_a_prefill() -> None:
    """The prefill oracle over 6 tokens, and over 2 followed by decode calls of 3 and 1, in fp64."""
    whole = PREFILL.synth(seqlens=(6,), head_dim=(16, 8), dtype="float32", initial_state=True)
    expected = run_kernel(PREFILL, "reference", whole)
    rows = {name: whole.tensors[name] for name in ("q", "k", "v", "g", "beta")}
    head = {name: tensor[:2] for name, tensor in rows.items()}
    head |= {"cu_seqlens": torch.tensor([0, 2]), "initial_state": whole.tensors["initial_state"]}
    first = run_kernel(PREFILL, "reference", Call(head, whole.scalars, whole.conventions))
    outs, state = [first["o"]], first["final_state"]
    for start, stop in ((2, 5), (5, 6)):
        tensors = {name: tensor[start:stop].unsqueeze(0) for name, tensor in rows.items()}
        tensors |= {"state": state, "state_indices": torch.zeros(1, stop - start, dtype=torch.int32)}
        step = run_kernel(OPERATION, "reference", Call(tensors, whole.scalars, whole.conventions))
        outs.append(step["o"][0])
        state = step["state"]
    scale = float(expected["o"].abs().max())
    assert (torch.cat(outs) - expected["o"]).abs().max() < EXACT * scale
    assert (state - expected["final_state"]).abs().max() < EXACT * float(state.abs().max())


def test_state_is_carried_unrounded_within_a_call() -> None:
    """Two tokens in one call differ from one a call through a bf16 pool: only the latter rounds between."""
    both = made(batch=1, steps=2, state_dtype="bfloat16", dtype="float32", head_dim=(16, 8))
    both = with_tensors(both, state_indices=torch.tensor([[0, 0]], dtype=torch.int32))
    together = run_kernel(OPERATION, "torch", both)
    exact = run_kernel(OPERATION, "reference", both)
    # Nothing is rounded to bf16 on the way to the second token's output.
    assert (together["o"] - exact["o"]).abs().max() < SUMS * float(exact["o"].abs().max())
    state = both.tensors["state"]
    for token in range(2):
        tensors = {name: both.tensors[name][:, token : token + 1] for name in ("q", "k", "v", "g", "beta")}
        tensors |= {"state": state, "state_indices": torch.zeros(1, 1, dtype=torch.int32)}
        apart = run_kernel(OPERATION, "torch", Call(tensors, both.scalars, both.conventions))
        state = apart["state"]
    assert (apart["o"][:, 0] - exact["o"][:, 1]).abs().max() > SUMS * float(exact["o"].abs().max())


@pytest.mark.parametrize("kernel", ["reference", "torch", "hf"])
def test_nan_stays_in_its_sequence(kernel: str) -> None:
    if kernel == "hf":
        pytest.importorskip("transformers")
    options: dict[str, Any] = {"batch": 3, "slots": 5, "state_layout": "KV"}
    clean, poisoned = (run_kernel(OPERATION, kernel, made(**options, nan_at=nan)) for nan in ((), (1,)))
    slot = int(made(**options).tensors["state_indices"][1, 0])
    others = [i for i in range(5) if i != slot]
    assert clean["o"][[0, 2]].equal(poisoned["o"][[0, 2]])
    assert poisoned["o"][1].isnan().all()
    assert clean["state"][others].equal(poisoned["state"][others])
    assert poisoned["state"][slot].isnan().all()


def test_sequences_go_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    call = made(batch=5, steps=2, padding=0.2, head_dim=(8, 8))
    expected = run_kernel(OPERATION, "torch", call)
    two_states = 2 * 4 * 8 * 8 * 4
    monkeypatch.setattr("gdnbench_kernels.delta_decode.recurrence.STATE_BYTES_AT_ONCE", two_states)
    found = run_kernel(OPERATION, "torch", call)
    # Each sequence and head is a product of its own; only the order of sums inside may differ.
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=2**-7, atol=SUMS, equal_nan=True)


@pytest.mark.parametrize(
    "options", [{"qk": "raw"}, {"padding": 0.5, "slots": 9}, {"state_dtype": "bfloat16"}], ids=str
)
def test_transformers_agrees_with_the_oracle(options: dict[str, Any], relative_error: Measure) -> None:
    pytest.importorskip("transformers")
    call = made(batch=4, state_layout="KV", **options)
    expected, found = (run_kernel(OPERATION, name, call) for name in ("reference", "hf"))
    active = ~expected["o"].isnan()
    assert relative_error(found["o"][active], expected["o"][active]) < ROUNDOFF["bfloat16"] + SUMS
    state_bound = ROUNDOFF[options.get("state_dtype", "float32")] + SUMS
    assert relative_error(found["state"], expected["state"]) < state_bound


@pytest.mark.parametrize(
    ("options", "scalars", "message"),
    [
        ({"steps": 2}, {}, wording("kernels.hf-tokens", tokens=2)),
        ({}, {"scale": 1.0}, wording("kernels.hf-scale", wanted="0.353553391", given=1)),
    ],
)
def test_transformers_refuses_what_it_cannot_do(
    options: dict[str, Any], scalars: dict[str, float], message: str
) -> None:
    pytest.importorskip("transformers")
    call = made(batch=2, state_layout="KV", head_dim=(8, 8), **options)
    with pytest.raises(NotImplementedError, match=message):
        run_kernel(OPERATION, "hf", Call(call.tensors, {**call.scalars, **scalars}, call.conventions))
