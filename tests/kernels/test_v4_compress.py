# SPDX-License-Identifier: Apache-2.0
"""v4_compress: the oracle against transformers' modules call by call and a NumPy loop, wrong kernels,
refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge.record import judge_call
from gdnbench.judge.rule import Bound
from gdnbench.prove.laws import Exact, differences
from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.v4_compress.contract import OPERATION
from tests.messages import wording

SMALL: dict[str, Any] = {"features": 16, "rope_dim": 8}
HCA: dict[str, Any] = {"ratio": 16, "overlap": False, "block_size": 8}
CALLS: dict[str, dict[str, Any]] = {
    "CSA": {},
    "CSA, one token each": {"seqlens": (1, 1, 1, 1), "starts": (0, 3, 4, 7)},
    "CSA, raw, all pages": {"norm": False, "rope_dim": 0, "freed": False, "entries_dtype": "float32"},
    "HCA": {"seqlens": (40, 3, 1), "starts": (5, 30, 15), **HCA},
    "fp32, scores far apart": {"score_spread": 40.0, "dtype": "float32", "entries_dtype": "float32"},
}


def by_hand(call: Call) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Entries by token, and the state, token by token in NumPy: each keeps its kv and score before a window
    is closed, so that all slots are read from the state of a list that grows."""
    t = {name: one.double().numpy() for name, one in call.tensors.items()}
    ratio, overlap = int(call.scalars["ratio"] or 0), bool(call.scalars["overlap"])
    columns = t["kv"].shape[1]
    features, size = columns // (1 + overlap), t["state"].shape[1]
    state, entries = t["state"].copy(), {}
    for n, start in enumerate(t["starts"].astype(int)):
        table = t["block_table"][n].astype(int)
        first, last = t["cu_seqlens"][n : n + 2].astype(int)
        known: dict[int, np.ndarray] = {}
        for position in range(start):
            page = table[position // size] if position // size < len(table) else -1
            if page >= 0:
                known[position] = t["state"][page, position % size]
        for row in range(first, last):
            position = start + row - first
            z = t["score"][row] + t["ape"][position % ratio]
            known[position] = np.concatenate([t["kv"][row], z])
            page = table[position // size]
            if page >= 0:
                state[page, position % size] = known[position]
            if (position + 1) % ratio:
                continue
            xs, zs = [], []
            for p in range(position - (1 + overlap) * ratio + 1, position + 1):
                if p < 0:
                    continue
                current = overlap and p > position - ratio
                half = slice(features, 2 * features) if current else slice(0, features)
                xs.append(known[p][:columns][half])
                zs.append(known[p][columns:][half])
            weights = np.exp(np.array(zs) - np.max(zs, 0))
            entry = (weights / weights.sum(0) * np.array(xs)).sum(0)
            if "norm_weight" in t:
                entry = entry / np.sqrt((entry**2).mean() + 1e-6) * t["norm_weight"]
            if "rope" in t:
                cos, sin = np.split(t["rope"][position + 1 - ratio], 2)
                turned = (entry[-2 * len(cos) :: 2] + 1j * entry[1 - 2 * len(cos) :: 2]) * (cos + 1j * sin)
                entry[-2 * len(cos) :: 2], entry[1 - 2 * len(cos) :: 2] = turned.real, turned.imag
            entries[row] = entry
    return entries, state


@pytest.mark.parametrize("name", CALLS)
def test_oracle_and_torch_are_the_loop(name: str) -> None:
    call = OPERATION.synth(**{**SMALL, **CALLS[name]})
    OPERATION.validate(call)
    entries, state = by_hand(call)
    exact, torchs = (run_kernel(OPERATION, kernel, call) for kernel in ("reference", "torch"))
    rows = [region.start for region in OPERATION.partition(call, "entries").regions]
    assert rows == sorted(entries)
    for row in rows:
        # A weight's exponent is a difference of scores up to 200, off by 200 u; 32 slots; norm and rotation.
        size = np.abs(entries[row]).max() + 1
        np.testing.assert_allclose(exact["entries"][row], entries[row], rtol=0, atol=300 * size * 2**-53)
        unit = 2**-8 if call.scalars["entries_dtype"] == "bfloat16" else 300 * 2**-24
        np.testing.assert_allclose(
            torchs["entries"][row].float(), entries[row], rtol=unit, atol=300 * size * 2**-24
        )
    np.testing.assert_array_equal(exact["state"].numpy(), state)
    np.testing.assert_allclose(torchs["state"].numpy(), state, rtol=2**-24, atol=0)


Compressor = Callable[[Tensor, int], Tensor]


def transformers_compressor(kind: str) -> tuple[Any, Any]:
    """A module of transformers with random weights, in fp64 but for its own casts, and its cache."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as module

    config = transformers.DeepseekV4Config(
        hidden_size=24,
        head_dim=16,
        num_attention_heads=2,
        q_lora_rank=8,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=4,
        partial_rotary_factor=0.5,
    )
    config.compress_rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 6}
    torch.manual_seed(1)
    of = getattr(module, f"DeepseekV4{kind}Compressor")(config)
    for parameter in of.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return of, getattr(module, f"DeepseekV4{kind}Cache")(config)


@pytest.mark.parametrize(("kind", "ratio", "overlap"), [("CSA", 4, True), ("HCA", 6, False)])
def test_entries_are_those_of_transformers_over_calls(kind: str, ratio: int, overlap: bool) -> None:
    """A prompt of 9 tokens, a chunk of 2, then single tokens, with the state from call to call."""
    of, cache = transformers_compressor(kind)
    lengths = [9, 2, *[1] * 9]
    total, size = sum(lengths), 3
    hidden = torch.randn(1, total, 24)
    with torch.no_grad():
        kv, score = of.kv_proj(hidden)[0], of.gate_proj(hidden)[0]
        positions = torch.arange(total)[None]
        cos, sin = of.rotary_emb(hidden, position_ids=positions, layer_type="compress")
    rope = torch.cat([cos[0], sin[0]], dim=1)
    pages = -(-total // size)
    state = torch.full((pages, size, 2 * kv.shape[1]), torch.nan)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(0))[None].to(torch.int32)
    found: list[Tensor] = []
    begin = 0
    for length in lengths:
        end = begin + length
        with torch.no_grad():
            latent = torch.randn(1, length, 8)
            args = hidden[:, begin:end], latent, positions[:, begin:end], SimpleNamespace(layers=[cache]), 0
            expected = of(*args)[0][0, 0]
        tensors = {
            "kv": kv[begin:end],
            "score": score[begin:end],
            "ape": of.position_bias.detach(),
            "cu_seqlens": torch.tensor([0, length], dtype=torch.int32),
            "starts": torch.tensor([begin], dtype=torch.int32),
            "state": state,
            "block_table": table,
            "norm_weight": of.kv_norm.weight.detach(),
            "rope": rope,
        }
        scalars = {
            "ratio": ratio,
            "overlap": overlap,
            "eps": float(of.kv_norm.variance_epsilon),
            "entries_dtype": "float32",
        }
        call = Call(tensors, scalars, {})
        OPERATION.validate(call)
        result = run_kernel(OPERATION, "reference", call)
        state = result["state"].float()
        found += [result["entries"][one.start] for one in OPERATION.partition(call, "entries").regions]
        begin = end
        assert len(found) == len(expected) == end // ratio
    # fp32 there: exponents up to 10 off by 10 u, 8 slots, a norm of 16, a rotation; entries are up to 5.
    torch.testing.assert_close(torch.stack(found).float(), expected, rtol=0, atol=5 * 60 * 2**-24)


def as_kernel(change: Callable[[Call], Call]) -> Callable[[Call], dict[str, Tensor]]:
    return lambda call: run_kernel(OPERATION, "torch", change(call))


def changed(name: str, by: Callable[[Tensor], Tensor]) -> Callable[[Call], Call]:
    return lambda call: replace(call, tensors={**call.tensors, name: by(call.tensors[name])})


def scalar(name: str, value: Any) -> Callable[[Call], Call]:
    return lambda call: replace(call, scalars={**call.scalars, name: value})


def swap_halves(one: Tensor) -> Tensor:
    return one.roll(one.shape[1] // 2, 1)


WRONG: dict[str, Callable[[Call], dict[str, Tensor]]] = {
    "halves of kv swapped": as_kernel(changed("kv", swap_halves)),
    "ape one place off": as_kernel(changed("ape", lambda ape: ape.roll(1, 0))),
    "no ape": as_kernel(changed("ape", torch.zeros_like)),
    "scores of half the size": as_kernel(changed("score", lambda score: score / 2)),
    "eps of 1e-1": as_kernel(scalar("eps", 0.1)),
    "rope one position off": as_kernel(changed("rope", lambda rope: rope.roll(1, 0))),
    "weight of the norm left out": as_kernel(changed("norm_weight", torch.ones_like)),
    "starts one later": as_kernel(changed("starts", lambda starts: starts + 1)),
}


def passes(call: Call, kernel: Callable[[Call], dict[str, Tensor]]) -> bool:
    return all(result.passed for result in judge_call(OPERATION, call, kernel(call), Bound(), {}))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_fail(name: str) -> None:
    call = OPERATION.synth(seqlens=(9, 6), starts=(0, 8), freed=False, poison=False, **SMALL)
    assert passes(call, as_kernel(lambda one: one))
    assert not passes(call, WRONG[name])


def test_a_kernel_that_keeps_no_state_fails() -> None:
    call = OPERATION.synth(**SMALL)

    def forgets(call: Call) -> dict[str, Tensor]:
        return {**run_kernel(OPERATION, "torch", call), "state": call.tensors["state"]}

    results = judge_call(OPERATION, call, forgets(call), Bound(), {})
    assert {one.tensor: one.passed for one in results} == {"state": False, "entries": True}


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
    call = OPERATION.synth(**SMALL)
    assert broken_laws(as_kernel(lambda one: one), call) == set()
    of_all = as_kernel(
        lambda one: changed("score", lambda score: score + one.tensors["kv"].float().mean())(one)
    )
    assert {"causality", "sequences"} <= broken_laws(of_all, call)
    reads_all = as_kernel(
        lambda one: changed("ape", lambda ape: ape + one.tensors["state"].nan_to_num(9.0).mean())(one)
    )
    assert "unused pages" in broken_laws(reads_all, OPERATION.synth(**SMALL, poison=False, norm=False))


def refused(call: Call, **tensors: Tensor) -> str:
    with pytest.raises(ContractError) as error:
        OPERATION.validate(Call({**call.tensors, **tensors}, call.scalars, {}))
    return str(error.value)


def test_refusals() -> None:
    call = OPERATION.synth(**SMALL)
    table = call.tensors["block_table"]
    lost = refused(call, block_table=torch.full_like(table, -1))
    assert re.search(wording("kernels.compress-lost", position=0, sequence=0, page=-1), lost)
    twice = table.clone()
    twice[3] = twice[1]
    assert re.search(wording("kernels.compress-shared"), refused(call, block_table=twice))
    short = refused(call, rope=call.tensors["rope"][:4])
    assert re.search(wording("kernels.compress-rope", given=4, position=4), short)
    late = refused(call, cu_seqlens=call.tensors["cu_seqlens"] + 1)
    assert re.search(wording("kernels.compress-offsets", tokens=14), late)
    assert re.search(
        wording("kernels.compress-ratio", given=4, rows=3), refused(call, ape=call.tensors["ape"][:3])
    )
    wide = refused(call, state=call.tensors["state"][..., 1:])
    assert re.search(wording("kernels.compress-state", width=63, columns=32), wide)


def test_smaller_calls_give_the_same_entries() -> None:
    call = OPERATION.synth(**SMALL)
    shrinking = OPERATION.shrinking
    assert shrinking is not None
    axes = {axis.name: axis for axis in shrinking.axes(OPERATION, call)}
    whole = run_kernel(OPERATION, "reference", call)["entries"]
    one = axes["sequences"].keep([1])
    OPERATION.validate(one)
    torch.testing.assert_close(
        run_kernel(OPERATION, "reference", one)["entries"], whole[1:10], rtol=0, atol=0
    )
    few = axes["tokens of a sequence"].keep([0, 1])
    OPERATION.validate(few)
    assert few.tensors["cu_seqlens"].tolist() == [0, 1, 3, 3, 5]
    pages = axes["pages not used"].keep([])
    OPERATION.validate(pages)
    torch.testing.assert_close(run_kernel(OPERATION, "reference", pages)["entries"], whole, rtol=0, atol=0)
