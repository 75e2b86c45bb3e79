# SPDX-License-Identifier: Apache-2.0
"""indexer_logits: the oracle against a loop over bytes and transformers' module, wrong kernels, refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.diff.compare import diff
from gdnbench.errors import Exit
from gdnbench.judge.record import judge_call
from gdnbench.judge.rule import Bound
from gdnbench.prove.laws import Exact, differences
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.indexer_logits.contract import OPERATION
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

CALLS: dict[str, dict[str, Any]] = {
    "pages": {"lens": (0, 1, 15, 16, 17, 40), "heads": 4, "head_dim": 32, "block_size": 16},
    "three queries, pages apart": {
        "lens": (9, 2, 20),
        "queries": 3,
        "heads": 4,
        "head_dim": 32,
        "block_size": 8,
        "page_gap": 64,
    },
    "packed": {"lens": (7, 0, 5), "queries": 2, "heads": 4, "head_dim": 32, "packed": True},
    "packed, compressed": {
        "lens": (7, 3, 5),
        "queries": 2,
        "heads": 4,
        "head_dim": 32,
        "packed": True,
        "compressed": True,
        "clean_logits": True,
    },
    "bfloat16 keys": {"lens": (7, 5), "heads": 4, "head_dim": 32, "packed": True, "dtype": "bfloat16"},
}


def e4m3(byte: int) -> float:
    """The value of an e4m3 code, by its fields."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if sign else value


TABLE = np.array([e4m3(byte) for byte in range(256)])


def by_hand(call: Call) -> list[np.ndarray]:
    """The logits of each query's keys, from the bytes of pages, in NumPy."""
    t = call.tensors
    q = TABLE[t["q"].view(torch.uint8).numpy()] if t["q"].element_size() == 1 else t["q"].double().numpy()
    found = []
    for row, length in enumerate(t["lens"].tolist()):
        if "cache" in t:
            table = t["block_table"][row // (len(q) // len(t["block_table"]))].tolist()
            size, features = t["cache"].shape[1], q.shape[2]
            memory = t["cache"].untyped_storage()
            raw = np.frombuffer(bytes(memory), np.uint8)
            keys, scales = np.zeros((length, features)), np.zeros(length)
            for j in range(length):
                page = table[j // size] * t["cache"].stride(0)
                code = page + j % size * features
                keys[j] = TABLE[raw[code : code + features]]
                scale = page + size * features + 4 * (j % size)
                scales[j] = np.frombuffer(raw[scale : scale + 4].tobytes(), np.float32)[0]
        else:
            start = int(t["row_starts"][row])
            chosen = t["k"][start : start + length]
            keys = TABLE[chosen.view(torch.uint8).numpy()] if "k_scale" in t else chosen.double().numpy()
            scales = (
                t["k_scale"][start : start + length].double().numpy() if "k_scale" in t else np.ones(length)
            )
        scores = np.maximum(q[row] @ (keys * scales[:, None]).T, 0)
        found.append((t["weights"][row].double().numpy()[:, None] * scores).sum(0))
    return found


def first_column(call: Call, row: int) -> int:
    absolute = "row_starts" in call.tensors and not call.scalars.get("compressed", False)
    return int(call.tensors["row_starts"][row]) if absolute else 0


@pytest.mark.parametrize("name", CALLS)
def test_oracle_and_torch_are_the_loop_over_bytes(name: str) -> None:
    call = OPERATION.synth(**CALLS[name])
    OPERATION.validate(call)
    expected = by_hand(call)
    shape, dtype = OPERATION.outputs(call)["logits"]
    exact, torchs = (run_kernel(OPERATION, kernel, call)["logits"] for kernel in ("reference", "torch"))
    assert exact.shape == torchs.shape == shape
    assert (exact.dtype, torchs.dtype) == (torch.float64, dtype)
    for row, values in enumerate(expected):
        columns = slice(first_column(call, row), first_column(call, row) + len(values))
        # fp64 sums of 32 products of a score and of 4 heads, in another order; fp32 likewise, scales outside.
        size = np.abs(values).max(initial=0) * 4
        np.testing.assert_allclose(exact[row, columns].numpy(), values, rtol=0, atol=size * 40 * 2**-53)
        np.testing.assert_allclose(torchs[row, columns].numpy(), values, rtol=0, atol=size * 40 * 2**-24)
        assert int(exact[row].isfinite().sum()) == len(values)


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_no_packed_keys(kernel: str, starts: bool, compressed: bool) -> None:
    """Two queries at the begin of a prompt, whose first window is not complete."""
    tensors = {
        "q": torch.ones(2, 3, 4),
        "weights": torch.ones(2, 3),
        "lens": torch.zeros(2, dtype=torch.int32),
        "k": torch.ones(0, 4),
    }
    if starts:
        tensors["row_starts"] = torch.zeros(2, dtype=torch.int32)
    call = Call(tensors, {"columns": 5, "compressed": compressed, "clean_logits": True}, {})
    OPERATION.validate(call)
    assert run_kernel(OPERATION, kernel, call)["logits"].tolist() == [[-math.inf] * 5] * 2


def test_transformers_scorer_gives_the_same() -> None:
    config = pytest.importorskip("transformers").DeepseekV4Config(
        hidden_size=48, index_n_heads=4, index_head_dim=32
    )
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4IndexerScorer

    torch.manual_seed(0)
    scorer = DeepseekV4IndexerScorer(config)
    q, keys, hidden = torch.randn(2, 3, 4, 32), torch.randn(2, 9, 32), torch.randn(2, 3, 48)
    with torch.no_grad():
        expected = scorer(q, keys, hidden).flatten(0, 1)
        weights = scorer.weights_proj(hidden) * scorer.weights_scaling * scorer.softmax_scale
    tensors = {
        "q": q.flatten(0, 1),
        "weights": weights.flatten(0, 1),
        "lens": torch.full((6,), 9, dtype=torch.int32),
        "k": keys.flatten(0, 1),
        "row_starts": torch.tensor([0, 0, 0, 9, 9, 9], dtype=torch.int32),
    }
    call = Call(tensors, {"compressed": True, "columns": 9}, {})
    OPERATION.validate(call)
    found = run_kernel(OPERATION, "reference", call)["logits"]
    # 32 products and 4 heads in fp32, of logits up to a few; weights are rounded thrice.
    bound = float(expected.abs().max()) * 4 * (40 + 3) * 2**-24
    assert float((found - expected).abs().max()) <= bound


def as_kernel(change: Callable[[Tensor, Call], Tensor]) -> Callable[[Call], dict[str, Tensor]]:
    return lambda call: {"logits": change(run_kernel(OPERATION, "torch", call)["logits"].clone(), call)}


def stale_columns(logits: Tensor, call: Call) -> Tensor:
    gone = OPERATION.stale(call, "logits", tuple(logits.shape))
    assert gone is not None
    return logits.masked_fill(gone, torch.nan)


WRONG: dict[str, Callable[[Tensor, Call], Tensor]] = {
    "gain of 1 %": lambda logits, call: logits * 1.01,
    "last key": lambda logits, call: logits.index_fill(
        1, torch.tensor([int(call.tensors["lens"][0]) - 1]), 0.0
    ),
    "next request": lambda logits, call: logits.roll(1, 0),
    "next column": lambda logits, call: logits.roll(1, 1),
    "no negative logits": lambda logits, call: logits.relu(),
}


def passes(call: Call, kernel: Callable[[Call], dict[str, Tensor]]) -> bool:
    return all(result.passed for result in judge_call(OPERATION, call, kernel(call), Bound(), {}))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_fail(name: str) -> None:
    call = OPERATION.synth(lens=(64, 50), heads=8)
    assert not passes(call, as_kernel(WRONG[name]))


def test_stale_columns_may_hold_anything_unless_clean() -> None:
    options: dict[str, Any] = {"lens": (64, 50, 3), "heads": 4, "head_dim": 32}
    call = OPERATION.synth(**options)
    assert passes(call, as_kernel(stale_columns))
    clean = OPERATION.synth(**options, clean_logits=True)
    assert OPERATION.stale(clean, "logits", (3, 64)) is None
    assert passes(clean, as_kernel(lambda logits, call: logits))
    assert not passes(clean, as_kernel(lambda logits, _: stale_columns(logits, call)))


def test_fp8_sums_of_14_bits_pass() -> None:
    """Products of a step cut to 2^-13 of the largest, as Hopper's tensor cores do. The yardstick is fp32, so
    that such a kernel fails without the leeway."""
    call = OPERATION.synth(lens=(64, 33), heads=16)

    def cut(call: Call) -> dict[str, Tensor]:
        t = call.tensors
        found = run_kernel(OPERATION, "torch", call)["logits"].clone()
        from gdnbench_kernels.indexer_logits.keys import read_pages

        for row, length in enumerate(t["lens"].tolist()):
            codes, scales = (
                part.flatten(0, 1)[:length] for part in read_pages(t["cache"], t["block_table"][row, :1])
            )
            products = t["q"][row].double().unsqueeze(1) * codes.double()
            total = torch.zeros(products.shape[:2], dtype=torch.float64)
            for step in products.split(32, dim=2):
                terms = torch.cat([total.unsqueeze(2), step], dim=2)
                unit = torch.exp2(terms.abs().amax(2, keepdim=True).log2().floor() - 13)
                total = (terms / unit).trunc().sum(2) * unit.squeeze(2)
            found[row, :length] = ((t["weights"][row].double() @ total.relu()) * scales).float()
        return {"logits": found}

    assert passes(call, cut)
    (strict,) = judge_call(replace(OPERATION, leeway=lambda call, name: None), call, cut(call), Bound(), {})
    assert not strict.passed


def in_another_order(call: Call, cut: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, Tensor]:
    """What sums of fp32 over the elements from last to first give, of operands that were `cut`."""
    t = call.tensors
    q, k = (cut(t[name]).flip(-1) for name in ("q", "k"))
    found = run_kernel(OPERATION, "torch", call)["logits"].clone()
    starts = t.get("row_starts", torch.zeros_like(t["lens"])).tolist()
    for row, (first, length) in enumerate(zip(starts, t["lens"].tolist(), strict=True)):
        keys = slice(first, first + length)
        scores = (q[row] @ k[keys].T.contiguous()).relu()
        found[row, keys] = t["weights"][row] @ scores
    return {"logits": found}


def test_fp32_sums_in_another_order_pass() -> None:
    """Of three logits torch's largest error is by chance far below that of another order, in a call of ten or
    of two, by what instructions this CPU's products have: without the leeway such a call fails."""
    strict = replace(OPERATION, leeway=lambda call, name: None)
    failed = 0
    for seed in range(60):
        call = OPERATION.synth(lens=(3,), heads=8, packed=True, dtype="float32", seed=seed)
        assert passes(call, in_another_order)
        (without,) = judge_call(strict, call, in_another_order(call), Bound(), {})
        failed += not without.passed
    assert failed


def test_operands_cut_to_tf32_fail() -> None:
    """They err by 2^-10 of a product, 16,384 times as much as a rounding to fp32."""
    call = OPERATION.synth(lens=(40, 9), heads=8, packed=True, dtype="float32", seed=15)
    assert passes(call, in_another_order)
    assert not passes(
        call,
        lambda call: in_another_order(call, lambda x: (x.view(torch.int32) & ~0x1FFF).view(torch.float32)),
    )


def broken_laws(kernel: Callable[[Call], dict[str, Tensor]], call: Call) -> set[str]:
    assert OPERATION.laws is not None
    exact, whole = Exact(OPERATION, call, {}), kernel(call)
    return {
        one.law
        for one in OPERATION.laws.variants(OPERATION, call)
        if any(
            found.wrong for found in differences(one.pieces, whole, kernel(one.call), exact, bits=one.exact)
        )
    }


def test_laws() -> None:
    call = OPERATION.synth(lens=(20, 7), heads=4, head_dim=32, block_size=16)
    assert broken_laws(as_kernel(stale_columns), call) == set()
    assert broken_laws(as_kernel(lambda logits, _: logits + 1), call) == {"weights"}
    assert "queries" in broken_laws(as_kernel(lambda logits, _: logits - logits[:, :1].sum()), call)

    def reads_whole_pages(logits: Tensor, call: Call) -> Tensor:
        return logits + call.tensors["cache"].float().mean()

    assert "unread keys" in broken_laws(as_kernel(reads_whole_pages), call)


def test_stores_differ_in_columns_of_keys_alone(tmp_path: Any) -> None:
    record = draft("indexer_logits", synthesise("indexer_logits", lens=(20, 7), heads=4, head_dim=32))

    def kept(name: str, column: int) -> Store:
        held = record.after["logits"]
        data = held.data.clone()
        data[1, column] = 9.0
        changed: RecordDraft = replace(record, after={"logits": TensorDraft(data, held.meta)})
        with StoreWriter(tmp_path / name, kind="capture", durable=False) as writer:
            writer.write("0", [changed])
        return Store.open(tmp_path / name)

    a, b, c = kept("a", 7), kept("b", 8), kept("c", 6)
    assert diff(a, b).exit_code is Exit.PASS
    assert diff(a, b, oracle=True).exit_code is Exit.PASS
    assert diff(a, c).exit_code is Exit.MISMATCH
    for store in (a, b, c):
        store.close()


def refused(call: Call, **tensors: Tensor) -> str:
    with pytest.raises(ContractError) as error:
        OPERATION.validate(Call({**call.tensors, **tensors}, call.scalars, {}))
    return str(error.value)


def test_refusals() -> None:
    call = OPERATION.synth(lens=(20, 7), heads=4, head_dim=32, block_size=16)
    table = call.tensors["block_table"].clone()
    table[0, 1] = -1
    text = wording(
        "kernels.logits-page", place="block_table[0, 1]", page=-1, last=len(call.tensors["cache"]) - 1
    )
    assert re.search(text, refused(call, block_table=table))
    lens = torch.tensor([20, -1], dtype=torch.int32)
    assert re.search(wording("kernels.logits-lens", place="lens[1]", given=-1), refused(call, lens=lens))
    assert re.search(
        wording("kernels.logits-form", given="cache, block_table, k"), refused(call, k=torch.zeros(2, 32))
    )
    assert re.search(
        wording("kernels.logits-queries", queries=2, requests=3),
        refused(call, block_table=torch.zeros(3, 2, dtype=torch.int32)),
    )


def test_smaller_calls_are_valid() -> None:
    shrinking = OPERATION.shrinking
    assert shrinking is not None
    for options in ({"queries": 2, "block_size": 16}, {"packed": True}):
        call = OPERATION.synth(lens=(20, 7, 0), heads=4, head_dim=32, **options)  # type: ignore[arg-type]
        whole = run_kernel(OPERATION, "reference", call)["logits"]
        for axis in shrinking.axes(OPERATION, call):
            if axis.units <= axis.least:
                continue
            OPERATION.validate(axis.keep(range(axis.units)))
            few = axis.keep([axis.units - 1])
            OPERATION.validate(few)
            if axis.name == "queries":
                assert torch.equal(run_kernel(OPERATION, "reference", few)["logits"], whole[-1:])
        assert shrinking.extent(call)["head"] == 4
