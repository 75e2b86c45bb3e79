# SPDX-License-Identifier: Apache-2.0
"""FlashInfer as a kernel of both operations: its own host functions and kernels, on a virtual GPU."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim.virtual import VirtualGpu, cuda_alias, virtual_gpu
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn import l2_normalise, per_value_head
from gdnbench_kernels.gdn_decode import flashinfer as decode
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_decode.contract import slots_of
from gdnbench_kernels.gdn_decode.gates import Gates
from gdnbench_kernels.gdn_prefill import flashinfer as prefill
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.messages import wording
from tests.seeds import drawn
from tests.subset import quick

# FlashInfer was written against an older CuTe DSL, whose names have moved; others warn of long loops.
pytestmark = pytest.mark.filterwarnings("ignore")

FOLDER = "GDNBENCH_THIRD_PARTY"
D = 128
# A sum in fp32 of 128 terms, in any order, relative to the sum of their absolute values: 128 roundings of
# 2^-24, 16 more on the way to a term, and approximate exponentials, logarithms and roots, each within 2^-22:
# three behind a term, and two in the gate's exponent, whose error counts as often as the exponent is large
# (below 4.5 where gate_span is 4 on average and at most; checked): (128 + 16) 2^-24 + 12 2^-22.
F32 = 192 * 2.0**-24
BF16 = 2.0**-8


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlashInfer can be imported; skips where it is not, fails where it has to be."""
    folder = os.environ.get(FOLDER)
    if folder:
        monkeypatch.syspath_prepend(folder)
    if PathFinder.find_spec("flashinfer") is None:
        missing = pytest.fail if folder else pytest.skip
        missing(f"flashinfer-python is not installed, {FOLDER} is {folder}: see tests/sim/third_party")
    yield
    assert not [name for name in sys.modules if name.split(".")[0] == "flashinfer"]


@contextmanager
def on_gpu() -> Iterator[VirtualGpu]:
    """Inside this block kernels are simulated on a virtual B200 of four multiprocessors."""
    with programs_simulated(), virtual_gpu(sms=4) as gpu:
        yield gpu


def on_cuda(given: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with tensors on CUDA of the same memory."""
    return {name: cuda_alias(x) if isinstance(x, Tensor) else x for name, x in given.items()}


def made(**options: Any) -> Call:
    call = DECODE.synth(heads=(1, 2), gate="raw", **options)
    DECODE.validate(call)
    return call


def sizes_of(call: Call) -> tuple[Tensor, Tensor]:
    """Of the pool and of o: the recurrence on absolute values, what the results are sums of, in fp64."""
    tensors, f64 = call.tensors, torch.float64
    gates = Gates("raw", tensors["A_log"], tensors["dt_bias"], 1.0)
    g, beta = gates.log_decay(tensors["g"], f64), gates.beta(tensors["beta"], f64)
    assert g.min() > -4.5
    raw = call.conventions["qk"] == "raw"
    q, k = ((l2_normalise(tensors[x], f64) if raw else tensors[x].to(f64)).abs() for x in ("q", "k"))
    v, pool = tensors["v"].double().abs(), tensors["state"].double().abs()
    out, plan = torch.zeros_like(v), slots_of(call)
    for n, read, write in zip(plan.active.tolist(), plan.read.tolist(), plan.write.tolist(), strict=True):
        state = pool[read].clone()
        for t, slot in enumerate(write):
            qt, kt = (per_value_head(x[n, t], v.shape[2], 0) for x in (q, k))
            state = g[n, t].exp()[:, None, None] * state
            update = beta[n, t, :, None] * (v[n, t] + (state @ kt[..., None])[..., 0])
            state = state + update[..., None] * kt[:, None]
            out[n, t] = D**-0.5 * (state @ qt[..., None])[..., 0]
            pool[slot] = state
    return pool, out


CASES: dict[str, dict[str, Any]] = {
    "fp32, raw q and k, padding": {"batch": 3, "padding": 0.4, "qk": "raw"},
    "fp32, read from elsewhere": {"batch": 2, "read_indices": "shared"},
    "fp32, drafted tokens, padding": {
        "batch": 3,
        "steps": 3,
        "speculative": True,
        "padding": 0.4,
        "qk": "raw",
    },
    "bf16": {"batch": 2, "state_dtype": "bfloat16", "qk": "raw"},
    "bf16, drafted tokens": {"batch": 2, "steps": 2, "speculative": True, "state_dtype": "bfloat16"},
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", quick(CASES, 2, 3))
def test_decode(name: str, installed: None) -> None:
    options = CASES[name] | {"gate_span": 1.0, "seed": drawn(f"flashinfer {name}", 31)}
    call = made(**options)
    found = given_to(DECODE, call)
    with on_gpu() as gpu:
        decode.flashinfer(**on_cuda(found))
        assert gpu.reports
    exact = run_kernel(DECODE, "reference", call)
    pool_size, out_size = sizes_of(call)
    tokens = call.tensors["q"].shape[1]
    # Each token adds its errors to those before it.
    summed = tokens * F32 * pool_size
    rounds = BF16 if call.tensors["state"].dtype == torch.bfloat16 else 0.0
    error = (found["state"].double() - exact["state"]).abs()
    assert (error <= summed + rounds * (exact["state"].abs() + summed)).all(), options
    untouched = torch.ones(len(error), dtype=torch.bool)
    untouched[slots_of(call).written] = False
    assert torch.equal(found["state"][untouched], call.tensors["state"][untouched])
    # A sum over the state, whose terms are sums themselves; then one rounding to bf16.
    on = slots_of(call).active
    summed = 2 * tokens * F32 * out_size[on]
    error = (found["o"].double() - exact["o"])[on].abs()
    assert (error <= summed + BF16 * (exact["o"][on].abs() + summed)).all(), options


def given_to(operation: Operation, call: Call, **others: Tensor) -> dict[str, Any]:
    """What a kernel is given of a call: copies of its tensors, and outputs of NaN."""
    tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
    outputs = {
        name: torch.full(shape, torch.nan, dtype=dtype)
        for name, (shape, dtype) in operation.outputs(call).items()
    }
    return {**tensors, **outputs, "qk": call.conventions["qk"], **others}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32, drafted tokens, padding", "bf16"])
def test_a_prepared_launch_of_decode(name: str, installed: None) -> None:
    """It leaves the pool alone until it is launched, and then does what the kernel does, bit for bit."""
    call = made(**CASES[name])
    plain, timed = given_to(DECODE, call), given_to(DECODE, call)
    with on_gpu() as gpu:
        decode.flashinfer(**on_cuda(plain))
        launch = decode.prepare(**on_cuda(timed))
        assert torch.equal(timed["state"], call.tensors["state"])
        before = len(gpu.reports)
        launch()
        assert len(gpu.reports) == before + 1
    for tensor in ("state", "o"):
        on = slice(None) if tensor == "state" else slots_of(call).active
        assert torch.equal(timed[tensor][on], plain[tensor][on])


@pytest.mark.slow
def test_outputs_that_cannot_be_written_in_place(installed: None) -> None:
    """FlashInfer writes to a buffer of ours, which is copied."""
    call = made(batch=2)
    plain, other = given_to(DECODE, call), given_to(DECODE, call)
    other["o"] = torch.full((2, 1, 2, 2 * D), torch.nan, dtype=torch.bfloat16)[..., ::2]
    with on_gpu():
        decode.flashinfer(**on_cuda(plain))
        given = on_cuda(other)
        assert decode.flashinfer(**given)["o"] is given["o"]
    assert torch.equal(other["o"], plain["o"])


@pytest.mark.slow
def test_prefill(installed: None, stage_errors: Callable[..., Any]) -> None:
    """Sequences of more than a chunk, of none and of few tokens, twice on the same buffers."""
    call = PREFILL.synth(
        seqlens=(70, 0, 3), heads=(1, 2), initial_state=True, gate="linear", key_correlation=0.5
    )
    given = given_to(PREFILL, call)
    with on_gpu() as gpu:
        launch = prefill.prepare_plain(**on_cuda(given))
        first = {name: given[name].clone() for name in ("o", "final_state")}
        for name in first:
            given[name].fill_(torch.nan)
        assert set(launch()) == set(first)
        assert len(gpu.reports) == 2
    log = PREFILL.convert(call, {"gate": "log"})
    for result in stage_errors(log, {name: given[name] for name in first}):
        assert result.passed, result.reasons
    for name, tensor in first.items():
        assert torch.equal(tensor, given[name])


TAKES = re.compile(".* takes")
DECODE_REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "head dims": ({"head_dim": (64, 128)}, {}, "takes K = V = 128, not K = 64 and V = 128"),
    "fp16": (
        {"dtype": "float16"},
        {},
        wording("kernels.dtype-not-taken", takes=TAKES, tensor="q", known="bfloat16", dtype="float16"),
    ),
    "fp16 states": (
        {"state_dtype": "float16"},
        {},
        wording(
            "kernels.dtype-not-taken",
            takes=TAKES,
            tensor="state",
            known="float32 or bfloat16",
            dtype="float16",
        ),
    ),
    "fp32 a": (
        {"steps": 2, "gate_dtype": "float32"},
        {},
        wording("kernels.dtype-not-taken", takes=TAKES, tensor="a", known="bfloat16", dtype="float32"),
    ),
    "beta to 2": ({}, {"beta_max": 2.0}, "at most 1; beta_max is 2"),
    "padding of bf16 states": (
        {"batch": 4, "padding": 0.5, "state_dtype": "bfloat16"},
        {},
        wording("kernels.slot-zero"),
    ),
}


@pytest.mark.parametrize("name", DECODE_REFUSALS)
def test_decode_refuses(name: str) -> None:
    options, more, why = DECODE_REFUSALS[name]
    call = made(**options)
    with pytest.raises(NotImplementedError, match=why):
        decode.prepare(**given_to(DECODE, call) | more)


def test_decode_refuses_a_token_without_a_slot() -> None:
    call = made(batch=2, steps=2)
    given = given_to(DECODE, call)
    given["state_indices"][1, 1] = -1
    with pytest.raises(NotImplementedError, match=wording("kernels.padding-writes")):
        decode.flashinfer(**given)


def test_decode_refuses_slots_that_lie_apart() -> None:
    """Of fp32, for several tokens: FlashInfer indexes the pool with an axis too few, and does not compile."""
    given = given_to(DECODE, made(batch=2, steps=2))
    pool = given["state"]
    apart = torch.zeros(len(pool), 3, *pool.shape[2:])
    given["state"] = apart[:, :2].copy_(pool)
    with pytest.raises(NotImplementedError, match=wording("kernels.slots-strided")):
        decode.flashinfer(**given)
    given["state"] = pool.transpose(2, 3)
    with pytest.raises(NotImplementedError, match=wording("kernels.slots-unaligned")):
        decode.flashinfer(**given)


PREFILL_REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "head dims": ({"head_dim": (128, 64)}, {}, "takes K = V = 128, not K = 128 and V = 64"),
    "fp32": (
        {"dtype": "float32"},
        {},
        wording(
            "kernels.dtype-not-taken",
            takes=TAKES,
            tensor="q, k and v",
            known="bfloat16 or float16",
            dtype="float32",
        ),
    ),
    "chunks": ({}, {"chunk_size": 32}, "takes chunks of 64 tokens, not of 32"),
    "no tokens": ({"seqlens": (0, 0)}, {}, "launches nothing for no tokens"),
    "states of two dtypes": (
        {"initial_state": True},
        {"final_state_dtype": "bfloat16"},
        "takes states of one dtype",
    ),
}


@pytest.mark.parametrize("name", PREFILL_REFUSALS)
def test_prefill_refuses(name: str) -> None:
    options, more, why = PREFILL_REFUSALS[name]
    call = PREFILL.synth(**{"seqlens": (5, 3), "heads": (1, 2), "gate": "linear", **options})
    with pytest.raises(NotImplementedError, match=why):
        prefill.flashinfer(**given_to(PREFILL, call) | more)


def test_a_gate_that_is_not_raw_has_no_way_to_flashinfer() -> None:
    call = DECODE.synth(batch=1, heads=(1, 2))
    with pytest.raises(
        ValueError, match=wording("kernels.convention-fixed", name="gate", current="log", wanted="raw")
    ):
        run_kernel(DECODE, "flashinfer", call)
