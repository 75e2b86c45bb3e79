# SPDX-License-Identifier: Apache-2.0
"""conv_prefill and conv_decode: the definition by torch's conv1d, refusals, windows, and kernels that are
wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.prove.laws import Exact, differences
from gdnbench_kernels.contract import Call, ContractError, Operation
from gdnbench_kernels.conv_decode.cases import cases as decode_cases
from gdnbench_kernels.conv_decode.contract import OPERATION as DECODE
from gdnbench_kernels.conv_prefill.cases import cases as prefill_cases
from gdnbench_kernels.conv_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.messages import wording


def by_torch(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """y [n, D] by torch's grouped conv1d in fp64."""
    inputs = torch.cat([window.double(), x.double().T], dim=1).unsqueeze(0)
    wide = None if bias is None else bias.double()
    y = torch.nn.functional.conv1d(inputs, weight.double().unsqueeze(1), wide, groups=len(weight))[0].T
    return torch.nn.functional.silu(y) if activation == "silu" else y


@pytest.mark.parametrize(
    "case", [c for c in prefill_cases() if "257" not in c.name], ids=lambda case: case.name
)
def test_prefill_is_torchs_conv1d(case: Any) -> None:
    call = PREFILL.synth(**case.options)
    t = call.tensors
    found = run_kernel(PREFILL, "reference", call)
    for n, (start, stop) in enumerate(pairwise(t["cu_seqlens"].tolist())):
        slot = int(t["state_indices"][n]) if "state_indices" in t else 0
        if start == stop or slot < 0:
            continue
        window = torch.zeros(t["weight"].shape[0], t["weight"].shape[1] - 1)
        if "conv_state" in t and bool(t["has_initial_state"][n]):
            window = t["conv_state"][slot]
        expected = by_torch(
            t["x"][start:stop], window, t["weight"], t.get("bias"), call.scalars["activation"]
        )
        # Two orders of a sum of at most 5 terms, and two forms of SiLU, in fp64.
        torch.testing.assert_close(found["y"][start:stop], expected, rtol=1e-13, atol=1e-15, equal_nan=True)
        if "conv_state" in t:
            history = torch.cat([window.to(t["x"].dtype), t["x"][start:stop].T], dim=1)
            left = found["conv_state"][slot]
            assert torch.equal(left.nan_to_num(7), history[:, -left.shape[1] :].double().nan_to_num(7))


@pytest.mark.parametrize(
    "case", [c for c in decode_cases() if "64 sequences" not in c.name], ids=lambda case: case.name
)
def test_decode_is_torchs_conv1d_from_the_window_that_was_accepted(case: Any) -> None:
    call = DECODE.synth(**case.options)
    t = call.tensors
    found = run_kernel(DECODE, "reference", call)
    columns, each = t["weight"].shape[1] - 1, t["state_indices"].shape[1]
    expected_pool = t["conv_state"].double().clone()
    for n, (start, stop) in enumerate(pairwise(t["cu_seqlens"].tolist())):
        slots = t["state_indices"][n].tolist()
        accepted = int(t["num_accepted"][n]) if "num_accepted" in t else 1
        rolling = "num_accepted" in t and each == 1
        read = (
            int(t["read_indices"][n])
            if "read_indices" in t
            else slots[0 if rolling else max(accepted, 1) - 1]
        )
        if read < 0 or start == stop:
            continue
        first = accepted - 1 if rolling else 0
        window = t["conv_state"][read][:, first : first + columns]
        expected = by_torch(
            t["x"][start:stop], window, t["weight"], t.get("bias"), call.scalars["activation"]
        )
        torch.testing.assert_close(found["y"][start:stop], expected, rtol=1e-13, atol=1e-15, equal_nan=True)
        history = torch.cat([window, t["x"][start:stop].T], dim=1).double()
        if rolling:  # every window: the history without its first column
            expected_pool[slots[0], :, : history.shape[1] - 1] = history[:, 1:]
        elif each == 1:
            expected_pool[slots[0]] = history[:, -columns:]
        else:
            for token, slot in enumerate(slots[: stop - start], 1):
                expected_pool[slot] = history[:, token : token + columns]
    assert torch.equal(found["conv_state"].nan_to_num(7), expected_pool.nan_to_num(7))


def test_a_step_goes_on_from_the_drafts_that_were_accepted() -> None:
    """Steps of 3 tokens of which 1 to 3 are accepted give what one prefill of the accepted tokens gives."""
    taps, channels, steps = 4, 5, 3
    make = torch.Generator().manual_seed(1)
    weight = torch.randn(channels, taps, generator=make)
    pool = torch.zeros(2, channels, taps - 1 + steps - 1)
    kept, outputs, accepted = [], [], 1
    for wanted in (1, 3, 2, 1, 3):
        x = torch.randn(steps, channels, generator=make)
        tensors = {
            "x": x,
            "weight": weight,
            "cu_seqlens": torch.tensor([0, steps]),
            "conv_state": pool,
            "state_indices": torch.tensor([[1]]),
            "num_accepted": torch.tensor([accepted], dtype=torch.int32),
        }
        call = Call(tensors, {}, {})
        DECODE.validate(call)
        found = run_kernel(DECODE, "torch", call)
        pool = found["conv_state"]
        kept.append(x[:wanted])
        outputs.append(found["y"][:wanted])
        accepted = wanted
    whole = torch.cat(kept)
    tensors = {"x": whole, "weight": weight, "cu_seqlens": torch.tensor([0, len(whole)])}
    assert torch.equal(torch.cat(outputs), run_kernel(PREFILL, "torch", Call(tensors, {}, {}))["y"])


def edited(call: Call, **tensors: Tensor | None) -> Call:
    found = {**call.tensors, **{name: tensor for name, tensor in tensors.items() if tensor is not None}}
    gone = {name for name, tensor in tensors.items() if tensor is None}
    return Call({n: t for n, t in found.items() if n not in gone}, call.scalars, call.conventions)


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


P = PREFILL.synth(seqlens=(3, 0, 4), channels=6)
D = DECODE.synth(batch=3, channels=6)
R = DECODE.synth(batch=3, channels=6, steps=2, windows="rolling")
E = DECODE.synth(batch=3, channels=6, steps=2, windows="each")
REFUSALS: list[tuple[Operation, Call, str]] = [
    (PREFILL, edited(P, cu_seqlens=ints(1, 3, 3, 7)), wording("kernels.offsets-start", value=1)),
    (
        PREFILL,
        edited(P, cu_seqlens=ints(0, 4, 3, 7)),
        wording("kernels.offsets-decrease", index=2, value=3, previous=1, value_before=4),
    ),
    (
        PREFILL,
        edited(P, cu_seqlens=ints(0, 3, 3, 9)),
        wording("kernels.offsets-past", index=3, value=9, tokens=7),
    ),
    (
        PREFILL,
        edited(P, state_indices=ints(0, 1, 4)),
        wording("kernels.slot-range", place="state_indices[2]", value=4, last=3),
    ),
    (
        PREFILL,
        edited(P, state_indices=ints(2, 1, 2)),
        wording("kernels.slot-race", place="state_indices[2]", slot=2, other="state_indices[0]"),
    ),
    (
        PREFILL,
        edited(P, conv_state=P.tensors["conv_state"][:, :, :2]),
        wording("kernels.conv-columns", columns=2, why="a window is W - 1 inputs", wanted=3),
    ),
    (
        PREFILL,
        edited(P, conv_state=P.tensors["conv_state"].float()),
        wording(
            "kernels.dtypes-differ", tensor="conv_state", dtype="float32", other="x", other_dtype="bfloat16"
        ),
    ),
    (
        PREFILL,
        edited(P, conv_state=None, has_initial_state=None),
        wording("kernels.conv-without-pool", tensor="state_indices"),
    ),
    (
        PREFILL,
        edited(P, state_indices=None),
        wording("kernels.conv-slots-missing"),
    ),
    (
        PREFILL,
        edited(P, weight=P.tensors["weight"][:, :1]),
        wording("kernels.conv-taps", taps=1),
    ),
    (
        PREFILL,
        Call(P.tensors, {"activation": "gelu"}, {}),
        wording("kernels.conv-activation", given="gelu", known="silu or none"),
    ),
    (
        DECODE,
        edited(D, num_accepted=ints(1, 1, 1), read_indices=ints(0, 1, 2)),
        "read_indices and num_accepted are both given",
    ),
    (
        DECODE,
        edited(D, state_indices=ints([2], [1], [2])),
        wording("kernels.conv-slot-race", place="state_indices[2]", slot=2, other="state_indices[0]"),
    ),
    (
        DECODE,
        edited(D, state_indices=ints([0], [1], [2]), read_indices=ints(3, 0, 3)),
        wording("kernels.conv-slot-read", sequence=1, slot=0, place="state_indices[0]"),
    ),
    (
        DECODE,
        edited(R, num_accepted=ints(1, 3, 1)),
        wording("kernels.conv-accepted", place="num_accepted[1]", count=3, most=2),
    ),
    (
        DECODE,
        edited(R, cu_seqlens=ints(0, 3, 4, 6)),
        wording("kernels.conv-tokens", place="cu_seqlens[1]", sequence=0, tokens=3, most=2),
    ),
    (
        DECODE,
        edited(E, cu_seqlens=ints(0, 3, 4, 6)),
        wording("kernels.conv-tokens", place="cu_seqlens[1]", sequence=0, tokens=3, most=2),
    ),
    (
        DECODE,
        edited(D, state_indices=torch.zeros(3, 0, dtype=torch.int32)),
        wording("kernels.conv-no-slots"),
    ),
]


@pytest.mark.parametrize(("operation", "call", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_it_refuses(operation: Operation, call: Call, message: str) -> None:
    with pytest.raises(ContractError) as refused:
        operation.validate(call)
    assert re.match(f"{operation.name}: {message}", str(refused.value))
    assert "\n" not in str(refused.value)


def test_a_slot_that_was_not_captured_is_named() -> None:
    call, message = (
        edited(P, state_indices=ints(2, 0, 1)),
        wording("kernels.conv-slot-not-captured", tensor="state_indices", slot=2),
    )
    assert PREFILL.renumber is not None
    with pytest.raises(ContractError, match=message):
        PREFILL.renumber(call, {"conv_state": [0, 1]})


def test_a_pool_of_the_rows_that_a_call_touches_gives_the_same() -> None:
    for operation, call in ((PREFILL, P), (DECODE, D), (DECODE, R), (DECODE, E)):
        rows = operation.touched(call)["conv_state"]
        assert operation.renumber is not None
        places = operation.renumber(call, {"conv_state": rows.tolist()})
        small = edited(call, conv_state=call.tensors["conv_state"][rows], **places)
        operation.validate(small)
        whole, part = (run_kernel(operation, "torch", one) for one in (call, small))
        assert torch.equal(whole["y"], part["y"])
        assert torch.equal(whole["conv_state"][rows], part["conv_state"])
        assert operation.shrinking is not None
        assert operation.shrinking.placed is not None
        back = operation.shrinking.placed(small, {"conv_state": rows.tolist()})
        theirs = {name: call.tensors[name][call.tensors["cu_seqlens"].diff() > 0] for name in back}
        for name, indices in back.items():
            assert torch.equal(indices[call.tensors["cu_seqlens"].diff() > 0], theirs[name])


def test_accesses() -> None:
    (one,) = PREFILL.accesses(edited(P, has_initial_state=torch.tensor([True, True, False])))  # type: ignore[misc]
    slots = P.tensors["state_indices"].tolist()
    assert one.reads.tolist() == [[0, slots[0], 0]]
    assert one.writes.tolist() == [[0, slots[0], 3], [2, slots[2], 4]]
    assert one.tokens.tolist() == [3, 0, 4]
    (one,) = DECODE.accesses(edited(R, num_accepted=ints(2, 1, 2)))  # type: ignore[misc]
    slots = R.tensors["state_indices"][:, 0].tolist()
    assert one.reads.tolist() == [[n, slot, 0] for n, slot in enumerate(slots)]
    assert one.writes.tolist() == [[n, slot, t] for n, slot in enumerate(slots) for t in (1, 2)]
    assert (one.columns, one.read_columns.tolist()) == (3, [1, 0, 1])  # type: ignore[union-attr]
    assert one.write_columns.tolist() == [0, 1] * 3  # type: ignore[union-attr]
    (one,) = DECODE.accesses(E)  # type: ignore[misc]
    named = E.tensors["state_indices"].tolist()
    assert one.writes.tolist() == [[n, named[n][t], t + 1] for n in range(3) for t in (0, 1)]
    assert one.columns is None
    without = edited(P, conv_state=None, state_indices=None, has_initial_state=None)
    assert PREFILL.accesses is not None
    assert PREFILL.accesses(without) == ()


def test_who_owns_a_slot_is_known_from_the_index_tensors() -> None:
    """As `gdnbench diff` asks, which reads no floating tensor."""
    slots = P.tensors["state_indices"].tolist()
    regions = PREFILL.partition(edited(P, conv_state=None), "conv_state").regions
    assert [(one.start, one.sequence) for one in regions] == sorted((slots[n], n) for n in (0, 2))


def test_cost() -> None:
    """By hand: 7 tokens of 6 channels and 4 taps in bf16, two windows of which one is read."""
    assert PREFILL.work is not None
    cost = PREFILL.work(edited(P, has_initial_state=torch.tensor([True, False, False])))
    indices = 4 * 4 + 3 * 4 + 3
    assert (cost.read, cost.written) == (
        7 * 6 * 2 + 6 * 4 * 2 + 6 * 3 * 2 + indices,
        7 * 6 * 2 + 2 * 6 * 3 * 2,
    )
    assert cost.flop == 2 * 4 * 7 * 6
    assert DECODE.work is not None
    rolling = DECODE.work(R)  # 3 sequences of 2 tokens: a window read, 4 columns written
    assert rolling.written == 6 * 6 * 2 + 3 * 4 * 6 * 2


def leaks(future: bool) -> Callable[..., dict[str, Tensor]]:
    """A prefill that reads the token after (`future`), or the sequence before instead of the window."""

    def kernel(call: Call) -> dict[str, Tensor]:
        found = run_kernel(PREFILL, "torch", call)
        shifted = call.tensors["x"].roll(-1 if future else 1, 0)
        return {**found, "y": found["y"] + 0.1 * shifted}

    return kernel


@pytest.mark.parametrize("future", [True, False])
def test_the_laws_find_a_leak(future: bool) -> None:
    call = PREFILL.synth(seqlens=(5, 9, 4), channels=16, initial_states=1.0)
    exact = Exact(PREFILL, call, {})
    kernel = leaks(future)
    assert PREFILL.laws is not None
    wrong = {
        variant.law
        for variant in PREFILL.laws.variants(PREFILL, call)
        for one in differences(variant.pieces, kernel(call), kernel(variant.call), exact)
        if one.wrong
    }
    assert {"causality", "sequences"} <= wrong


def test_the_leeway_is_of_fp32_and_far_below_bf16() -> None:
    call = PREFILL.synth(seqlens=(40,), dtype="float32", x_scale=3.0)
    exact, leeway = run_kernel(PREFILL, "reference", call)["y"], PREFILL.leeway(call, "y")
    assert leeway is not None
    taps = call.tensors["weight"].float()
    rounded = torch.nn.functional.silu(
        torch.nn.functional.conv1d(
            torch.nn.functional.pad(call.tensors["x"].T, (3, 0))[None], taps[:, None], groups=len(taps)
        )
    )[0].T
    assert bool(((rounded.double() - exact).abs() <= leeway + exact.abs() * 2.0**-24).all())
    assert float((leeway / call.tensors["x"].abs().amax()).max()) < 2.0**-18
    assert PREFILL.leeway(call, "conv_state") is None
