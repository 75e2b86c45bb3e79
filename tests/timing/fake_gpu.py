# SPDX-License-Identifier: Apache-2.0
"""A GPU that there is not: tensors for it lie on the CPU, its clock is a fake one, its kernels do nothing.

What the host does for a GPU then runs on any machine: which tensors, streams, events and graphs are asked
for, what compiled kernels are given, in which order. What a device would answer does not.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from gdnbench.timing import cuda_clocks
from gdnbench_kernels import cuda_launch
from tests.timing.fake_cuda import FakeCuda
from tests.timing.fake_nvml import FakeNvml

CPU = torch.device("cpu")


class OnTheCpu(TorchFunctionMode):
    """Gives calls that name the GPU the CPU instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:  # a name is no tensor yet
            return func(*args, **(kwargs or {}))
        given = {name: here(value) for name, value in (kwargs or {}).items()}
        return func(*(here(value) for value in args), **given)


def here(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    return CPU if isinstance(value, str) and value == "cuda" else value


class FakeGpu:
    """An H200 by its properties. `launched` are the names of compiled kernels that were launched, whose
    arguments were checked and packed as for a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.launched: list[str] = []
        self.nvml = FakeNvml()
        cuda = FakeCuda(self.log)
        monkeypatch.setattr(cuda_clocks, "cuda", cuda)
        monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        properties = SimpleNamespace(
            L2_cache_size=1 << 20, uuid="0", multi_processor_count=132, major=9, minor=0, name="fake H200"
        )
        for name, answer in (
            ("is_available", True),
            ("is_initialized", True),
            ("device_count", 1),
            ("current_device", 0),
            ("get_device_name", "fake H200"),
            ("get_device_capability", (9, 0)),
            ("get_device_properties", properties),
            ("mem_get_info", (8 << 30, 8 << 30)),
            ("current_stream", SimpleNamespace(cuda_stream=0)),
            ("synchronize", None),
            ("empty_cache", None),
        ):
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
        generator = torch.Generator
        monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator(here(device)))
        monkeypatch.setattr(cuda_launch, "current", lambda program: (CPU, 0))
        monkeypatch.setattr(
            cuda_launch, "_loaded", lambda program: lambda *values: self.launched.append(program.name)
        )
