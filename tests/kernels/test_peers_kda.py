# SPDX-License-Identifier: Apache-2.0
"""Other packages' kernels of Kimi Delta Attention: functions of their documented arguments stand in for them,
in fp64. tests/replay/test_kda_simulated.py runs the packages themselves."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench_kernels import sglang_stand_in, vllm_stand_in
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.kda_decode.contract import OPERATION as DECODE
from gdnbench_kernels.kda_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.state_pool import slots_of
from tests.kernels import kda_functions as functions
from tests.seeds import drawn

FLA = {
    "fla": {"__version__": "0.6.0"},
    "fla.ops": {},
    "fla.backends": {"_DISPATCH_DISABLED": True},
    "fla.ops.kda": {
        "chunk_kda": functions.chunk_kda,
        "fused_recurrent_kda": functions.fused_recurrent_kda,
    },
    "fla.ops.kda.fused_recurrent": {"fused_recurrent_kda_fwd": functions.fused_recurrent_kda_fwd},
    "flashinfer": {},
    "flashinfer.kda": {"recurrent_kda": functions.recurrent_kda},
}
ENGINES = {
    "sglang/kernels/ops/attention/fla/kda": "sglang_chunk_kda as chunk_kda",
    "sglang/kernels/ops/attention/fla/fused_recurrent": "fused_recurrent_kda_packed_decode",
    "sglang/kernels/ops/attention/linear/kda_blackwell": "chunk_kda_cutedsl",
    "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent": (
        "fused_sigmoid_gating_delta_rule_update"
    ),
    "sglang/kernels/ops/attention/cutedsl_kda": "cutedsl_fused_sigmoid_gating_kda_update",
    "vllm/models/kimi_k3/nvidia/ops/third_party/kda/chunk": (
        "vllm_chunk_kda as chunk_kda, chunk_kda_with_fused_gate"
    ),
    "vllm/models/kimi_k3/nvidia/ops/third_party/kda/fused_recurrent": (
        "vllm_fused_recurrent_kda_fwd as fused_recurrent_kda_fwd"
    ),
}
"""Modules of the engines, and the functions that they have."""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages' modules have the functions above. The engines' own `__init__` fail, as without a GPU."""
    for name, members in FLA.items():
        module = ModuleType(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name, imported in ENGINES.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"from tests.kernels.kda_functions import {imported}\n")
        for package in (one for one in file.parents if one != tmp_path and one.is_relative_to(tmp_path)):
            fails = package.name not in ("kda",)
            (package / "__init__.py").write_text("raise RuntimeError('no GPU')\n" if fails else "")
    monkeypatch.syspath_prepend(str(tmp_path))
    for stand_in in (sglang_stand_in, vllm_stand_in):
        monkeypatch.setattr(stand_in, "STAND_INS", replace(stand_in.STAND_INS))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (10, 0))


SMALL: dict[str, Any] = {"heads": (1, 2), "head_dim": (16, 16)}
EQUAL: dict[str, Any] = {"heads": (2, 2), "head_dim": (16, 16)}
LARGE: dict[str, Any] = {"heads": (1, 1), "head_dim": (128, 128)}
LAYER = {"gate": "bounded", "beta_form": "logit", "qk": "raw"}
RAW = {**LAYER, "gate": "raw"}
BF16 = {"state_dtype": "bfloat16", "gate_dtype": "bfloat16", "beta_dtype": "bfloat16"}
PACKED = {"seqlens": (5, 0, 18), "initial_state": True}
CASES: dict[str, tuple[str, Operation, dict[str, Any]]] = {
    "fla": ("fla", PREFILL, {**SMALL, **PACKED}),
    "fla, layer, KV, bf16 states": (
        "fla",
        PREFILL,
        {**SMALL, **PACKED, **LAYER, "state_layout": "KV", "state_dtype": "bfloat16", "beta": (0.0, 2.0)},
    ),
    "fla, safe": ("fla_safe", PREFILL, {**SMALL, "seqlens": (9,), **LAYER}),
    "flashinfer": ("flashinfer", PREFILL, {**LARGE, **PACKED, **LAYER}),
    "flashinfer, small-bh, no states": (
        "flashinfer_small_bh",
        PREFILL,
        {**LARGE, "seqlens": (5, 3), **LAYER, "final_state_dtype": "bfloat16"},
    ),
    "flashinfer, persistent": (
        "flashinfer_persistent",
        PREFILL,
        {**LARGE, "heads": (8, 8), "seqlens": (3, 2), **LAYER},
    ),
    "sglang": ("sglang", PREFILL, {**EQUAL, **PACKED}),
    "sglang, layer": ("sglang", PREFILL, {**EQUAL, **PACKED, **LAYER, "offsets_dtype": "int64"}),
    "sglang, CuTe DSL": ("sglang_cutedsl", PREFILL, {**LARGE, "heads": (4, 4), **PACKED, **RAW}),
    "vllm": ("vllm", PREFILL, {**EQUAL, **PACKED}),
    "vllm, layer, no states": ("vllm", PREFILL, {**EQUAL, "seqlens": (5, 3), **LAYER}),
    "fla, decode": ("fla", DECODE, {**SMALL, "batch": 3, "padding": 0.4}),
    "fla, decode, KV, layer": (
        "fla",
        DECODE,
        {**SMALL, "batch": 2, **LAYER, "state_layout": "KV", "read_indices": "shared", "beta": (0.0, 2.0)},
    ),
    "fla, pool": ("fla_pool", DECODE, {**SMALL, "batch": 3, "padding": 0.4, **RAW, "state_layout": "KV"}),
    "fla, pool, drafts": ("fla_pool", DECODE, {**SMALL, "batch": 2, "steps": 3, "speculative": True}),
    "flashinfer, decode": ("flashinfer", DECODE, {**LARGE, "batch": 3, "padding": 0.4, **LAYER, **BF16}),
    "flashinfer, drafts": (
        "flashinfer",
        DECODE,
        {**LARGE, "heads": (1, 2), "batch": 2, "steps": 3, "speculative": True, **BF16},
    ),
    "flashinfer, other slots": (
        "flashinfer",
        DECODE,
        {**LARGE, "batch": 2, "read_indices": "shared", **BF16},
    ),
    "flashinfer, K3": (
        "flashinfer_k3",
        DECODE,
        {**LARGE, "heads": (12, 12), "batch": 2, "padding": 0.5, **LAYER, **BF16},
    ),
    "sglang, packed": ("sglang", DECODE, {**SMALL, "batch": 4, "padding": 0.3, "slot_gap": 24, **LAYER}),
    "sglang, drafts": (
        "sglang",
        DECODE,
        {**SMALL, "batch": 3, "steps": 3, "speculative": True, "holes": 0.2, **RAW},
    ),
    "sglang, decode, CuTe DSL": (
        "sglang_cutedsl",
        DECODE,
        {**LARGE, "batch": 3, "padding": 0.3, **RAW, "dt_bias_dtype": "bfloat16"},
    ),
    "vllm, decode": ("vllm", DECODE, {**EQUAL, "batch": 4, "padding": 0.3, **LAYER}),
    "vllm, drafts, log": ("vllm", DECODE, {**EQUAL, "batch": 2, "steps": 3, "speculative": True}),
}
# The stand-ins compute in fp64 and round a result once, 2^-9 for bf16 and 2^-24 for fp32, twice its worst; a
# convention that replay converts before the call adds a rounding of q and k to bf16, or of g or beta to fp32.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-23}
CONVERTED = {True: 2.0**-8, False: 0.0}


def made(name: str) -> tuple[str, Operation, Call]:
    kernel, operation, options = CASES[name]
    call = operation.synth(**{"seed": drawn(f"kda {name}", 31), "gate_span": (0.1, 200.0), **options})
    operation.validate(call)
    return kernel, operation, call


def assert_near(operation: Operation, call: Call, found: dict[str, Tensor], rounded: bool) -> None:
    exact = run_kernel(operation, "reference", call)
    assert set(found) == set(exact)
    for name, tensor in exact.items():
        promised = ~tensor.isnan()
        x, y = found[name].double()[promised], tensor[promised]
        near = ROUNDOFF[found[name].dtype] + CONVERTED[rounded]
        assert (x - y).norm() <= near * y.norm(), name
    if "state" in found:
        untouched = torch.ones(len(found["state"]), dtype=torch.bool)
        untouched[slots_of(call).written] = False
        assert torch.equal(found["state"][untouched], call.tensors["state"][untouched])


@pytest.mark.parametrize("name", CASES)
def test_what_the_functions_are_given(name: str, stand_ins: None) -> None:
    kernel, operation, call = made(name)
    before = {of: tensor.clone() for of, tensor in call.tensors.items()}
    found = run_kernel(operation, kernel, call)
    rounded = kernel == "sglang_cutedsl" and operation is PREFILL and call.conventions["qk"] == "raw"
    assert_near(operation, call, found, rounded)
    for of, tensor in before.items():
        assert of == "state" or torch.equal(call.tensors[of], tensor), of


REFUSALS: dict[str, tuple[str, Operation, dict[str, Any], str]] = {
    "fla, drafts": ("fla", DECODE, {**SMALL, "steps": 2}, "one state a sequence"),
    "fla, pool, other slots": (
        "fla_pool",
        DECODE,
        {**SMALL, "read_indices": "shared"},
        "sequence's own tokens",
    ),
    "fla, no tokens": ("fla", PREFILL, {**SMALL, "seqlens": (0,)}, "launches nothing for no tokens"),
    "fla, safe, raw": ("fla_safe", PREFILL, {**SMALL, "seqlens": (3,), **RAW}, "not raw ones"),
    "fla, safe, below -5": (
        "fla_safe",
        PREFILL,
        {**SMALL, "seqlens": (3,), "gate_span": 2000.0},
        "gates of -5 a token or more",
    ),
    "flashinfer, heads": (
        "flashinfer",
        PREFILL,
        {**LARGE, "heads": (1, 2), "seqlens": (5,), **LAYER},
        "as many key heads as value heads, not 1 and 2",
    ),
    "flashinfer, one token": ("flashinfer", PREFILL, {**LARGE, "seqlens": (2, 0), **LAYER}, "not 2 and 2"),
    "flashinfer, beta": (
        "flashinfer",
        PREFILL,
        {**LARGE, "seqlens": (5,), **LAYER, "beta": (0.0, 2.0)},
        "at most 1; beta_max is 2",
    ),
    "flashinfer, small-bh, fp32": (
        "flashinfer_small_bh",
        PREFILL,
        {**LARGE, "seqlens": (5,), **LAYER},
        "takes states as bfloat16, not as float32",
    ),
    "flashinfer, persistent, heads": (
        "flashinfer_persistent",
        PREFILL,
        {**LARGE, "seqlens": (5,), **LAYER},
        "a multiple of 8 heads, not 1",
    ),
    "flashinfer, persistent, bound": (
        "flashinfer_persistent",
        PREFILL,
        {**LARGE, "heads": (8, 8), "seqlens": (5,), **LAYER, "lower_bound": -6.0},
        "a lower_bound of -5 or more, not -6.0",
    ),
    "flashinfer, decode, fp32 states": (
        "flashinfer",
        DECODE,
        {**LARGE, **LAYER},
        "takes state as bfloat16, not as float32",
    ),
    "flashinfer, decode, gates of value heads": (
        "flashinfer",
        DECODE,
        {**LARGE, "heads": (1, 2), **LAYER, **BF16},
        "A_log and dt_bias of key heads",
    ),
    "flashinfer, K3": ("flashinfer_k3", DECODE, {**LARGE, **LAYER, **BF16}, "H = Hv = 12"),
    "sglang, beta": (
        "sglang",
        DECODE,
        {**SMALL, **LAYER, "beta": (0.0, 2.0)},
        "computes beta as sigmoid\\(b\\), at most 1",
    ),
    "sglang, heads": ("sglang", PREFILL, {**SMALL, "seqlens": (5,)}, "as many key heads as value heads"),
    "sglang, CuTe DSL, heads": (
        "sglang_cutedsl",
        PREFILL,
        {**LARGE, "heads": (6, 6), "seqlens": (5,)},
        "takes a multiple of 4 heads, not 6",
    ),
    "vllm, forms": (
        "vllm",
        PREFILL,
        {**EQUAL, "seqlens": (5,), "beta_form": "logit"},
        "a log gate with a value of beta",
    ),
    "vllm, padding alone": ("vllm", DECODE, {**EQUAL, "padding": 1.0}, "every sequence is padding"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str, stand_ins: None) -> None:
    kernel, operation, options, why = REFUSALS[name]
    with pytest.raises(NotImplementedError, match=why):
        run_kernel(operation, kernel, operation.synth(**options))


@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
def test_flashinfers_prefill_needs_its_device(
    capability: tuple[int, int], stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere recurrent_kda calls a decode kernel, which computes one token of each sequence."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    with pytest.raises(NotImplementedError, match=r"runs on compute capability 10\.x"):
        run_kernel(PREFILL, "flashinfer", made("flashinfer")[2])
