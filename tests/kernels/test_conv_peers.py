# SPDX-License-Identifier: Apache-2.0
"""vLLM and SGLang as kernels of the convolution: functions of their signatures stand in for the packages.
docs/compatibility.md has runs of the packages themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gdnbench_kernels import peers, sglang_stand_in, vllm_stand_in
from gdnbench_kernels.contract import Operation
from gdnbench_kernels.conv_decode.contract import OPERATION as DECODE
from gdnbench_kernels.conv_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.capture.frameworks import FOLDER, framework
from tests.messages import wording

CALLS: list[tuple[Operation, dict[str, Any]]] = [
    (PREFILL, {"seqlens": (1, 2, 0, 9), "channels": 5, "bias": True, "slots": 5}),
    (PREFILL, {"seqlens": (3, 4), "channels": 5, "pool": False, "activation": "none"}),
    (PREFILL, {"seqlens": (3, 4, 2), "channels": 5, "padding": 0.4, "offsets_dtype": "int64", "slot_gap": 3}),
    (DECODE, {"batch": 4, "slots": 4, "channels": 5, "padding": 0.25}),
    (DECODE, {"batch": 3, "steps": 3, "channels": 5, "bias": True}),
    (DECODE, {"batch": 3, "steps": 3, "channels": 5, "windows": "rolling", "width": 3}),
    (DECODE, {"batch": 5, "steps": 3, "channels": 5, "windows": "rolling", "ragged": True, "seed": 3}),
]
"""Pools without a spare slot have a window in slot 0, which is vLLM's null slot."""


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (vllm_stand_in, sglang_stand_in):
        monkeypatch.setattr(module, "STAND_INS", replace(module.STAND_INS))
    with framework():
        yield


@pytest.mark.parametrize("kernel", ["vllm", "sglang"])
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_it_is_torchs(number: int, kernel: str) -> None:
    operation, options = CALLS[number]
    call = operation.synth(**options)
    if kernel == "sglang" and options.get("ragged"):
        with pytest.raises(NotImplementedError, match=wording("kernels.conv-uneven", peer="SGLang")):
            run_kernel(operation, kernel, call)
        return
    given = {name: tensor.clone() for name, tensor in call.tensors.items()}
    found, expected = run_kernel(operation, kernel, call), run_kernel(operation, "torch", call)
    assert found.keys() == expected.keys()
    # bf16 outputs of fp32 sums in two orders: the last bit may differ.
    torch.testing.assert_close(found["y"], expected["y"], rtol=2.0**-7, atol=2.0**-9, equal_nan=True)
    if "conv_state" in expected:
        assert torch.equal(found["conv_state"], expected["conv_state"])
    for name, tensor in given.items():
        assert torch.equal(call.tensors[name], tensor), name


def test_what_they_do_not_take() -> None:
    refused: list[tuple[Operation, dict[str, Any], str]] = [
        (PREFILL, {"seqlens": (0, 0)}, wording("kernels.conv-no-tokens", peer="vLLM")),
        (
            PREFILL,
            {"seqlens": (3,), "width": 5},
            wording("kernels.conv-most-taps", peer="vLLM", most=4, taps=5),
        ),
        (DECODE, {"batch": 2, "padding": 1.0}, wording("kernels.conv-padding", peer="vLLM")),
        (DECODE, {"batch": 2, "steps": 2, "windows": "each"}, wording("kernels.conv-one-slot", peer="vLLM")),
        (DECODE, {"batch": 2, "read_indices": True}, wording("kernels.conv-reads-own", peer="vLLM")),
    ]
    for operation, options, message in refused:
        with pytest.raises(NotImplementedError, match=message):
            run_kernel(operation, "vllm", operation.synth(**options))
    assert (FOLDER / "vllm").is_dir()
    assert peers.vllm_module("model_executor.layers.mamba.ops.causal_conv1d").NULL_BLOCK_ID == 0
