# SPDX-License-Identifier: Apache-2.0
"""A tensor gets back the strides, the offset and the surroundings that the caller's had."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from gdnbench.poison import poison, poisoned
from gdnbench.record import TensorMeta
from gdnbench.replay import strides
from gdnbench.replay.strides import as_held
from tests.messages import wording

CPU = torch.device("cpu")


def meta(caller: Tensor, stored: Tensor) -> TensorMeta:
    name = str(stored.dtype).removeprefix("torch.")
    shape = tuple(stored.shape)
    held = tuple(caller.shape), caller.stride(), int(caller.storage_offset())
    return TensorMeta(name, shape, ("x",) * stored.ndim, *held, "cpu")


def buffer(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape).to(dtype)


CALLERS = {
    "contiguous": lambda: buffer(4, 3, 2),
    "slice": lambda: buffer(6, 5, 4)[1:4, 2:, :3],
    "transposed": lambda: buffer(4, 3, 2).transpose(0, 2),
    "expanded": lambda: buffer(4, 1, 2).expand(4, 3, 2),
    "overlapping": lambda: buffer(20).as_strided((4, 3), (2, 1), 5),
    "0-d": lambda: buffer(3)[1],
    "empty": lambda: buffer(4, 0, 2),
}


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64])
def test_values_strides_and_offset_come_back(name: str, dtype: torch.dtype) -> None:
    caller = CALLERS[name]()
    stored = caller.contiguous().to(dtype)
    held = as_held(stored, meta(caller, stored), CPU)
    assert held.note is None
    assert held.tensor.stride() == caller.stride() or caller.numel() == 0
    assert held.tensor.storage_offset() == caller.storage_offset()
    assert torch.equal(held.tensor.float(), stored.float())


def test_the_surroundings_are_poisoned() -> None:
    caller = buffer(6, 5, 4)[1:4, 2:, :3]
    stored = caller.contiguous()
    held = as_held(stored, meta(caller, stored), CPU).tensor
    everything = held.new_empty(0).set_(held.untyped_storage())
    assert int(poisoned(everything).sum()) == everything.numel() - stored.numel()
    assert bool(torch.isnan(everything[:2].float()).all())


def test_batches_that_were_flattened() -> None:
    """[B, T, H, K] recorded as [B * T, H, K]: rebuilt where a view of that shape exists."""
    caller = buffer(2, 3, 8, 4)[:, :, 2:4]
    stored = caller.contiguous().view(6, 2, 4)
    held = as_held(stored, meta(caller, stored), CPU)
    assert held.note is None
    assert held.tensor.stride() == (32, 4, 1)
    caller = buffer(2, 8, 3, 4).transpose(1, 2)
    stored = caller.contiguous().view(6, 8, 4)
    held = as_held(stored, meta(caller, stored), CPU)
    assert held.note is not None
    assert "no view of [2, 3, 8, 4] has shape [6, 8, 4]" in held.note
    assert torch.equal(held.tensor, stored)


def test_collapsed_heads_are_said() -> None:
    caller, stored = buffer(6, 4, 4)[:, :, ::2], buffer(6, 2, 2)
    held = as_held(stored, meta(caller, stored), CPU)
    reason = re.compile(wording("replay.caller-held", shape=[6, 4, 2], stored=[6, 2, 2]))
    assert held.note is not None
    assert re.fullmatch(wording("replay.strides-not-rebuilt", strides=[16, 4, 2], reason=reason), held.note)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strides, "STORAGE_BYTES", 4096)
    caller = torch.empty(1 << 20, dtype=torch.bfloat16)[300_001:300_005]
    stored = buffer(4)
    held = as_held(stored, meta(caller, stored), CPU)
    assert held.tensor.storage_offset() == 300_001 % 256
    assert held.note is not None
    assert re.fullmatch(wording("replay.offset-reduced", offset=300_001, reduced=300_001 % 256), held.note)
    caller = torch.empty(1 << 20, dtype=torch.bfloat16)[:: 1 << 18]
    held = as_held(stored, meta(caller, stored), CPU)
    assert held.note is not None
    assert "not rebuilt" in held.note
    assert torch.equal(held.tensor, stored)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_poison_is_nan_that_arithmetic_does_not_make(dtype: torch.dtype) -> None:
    filled = poison(torch.empty(3, dtype=dtype))
    assert bool(torch.isnan(filled.double()).all())
    assert bool(poisoned(filled).all())
    if dtype.itemsize > 1:  # fp8 has one NaN a sign
        made = torch.tensor([float("nan"), float("inf")], dtype=torch.float64).to(dtype)
        assert not bool(poisoned(made - made).any())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool])
def test_poison_of_integers(dtype: torch.dtype) -> None:
    filled = poison(torch.empty(3, dtype=dtype))
    assert bool(poisoned(filled).all())
    assert not bool(poisoned(torch.zeros(3, dtype=dtype)).any())
