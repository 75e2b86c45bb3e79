# SPDX-License-Identifier: Apache-2.0
"""User kernels for test_simulated.py: torch computes, and a CuTe DSL kernel moves the output into place."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench_kernels.gdn_decode.contract import OPERATION

BLOCK = 128


@cute.kernel
def copy_kernel(source: cute.Tensor, target: cute.Tensor, count: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * BLOCK + thread
    if index < count:
        target[index] = source[index]


@cute.jit
def copy(source: cute.Tensor, target: cute.Tensor, count: cutlass.Int32, stream: cuda.CUstream):
    copy_kernel(source, target, count).launch(
        grid=[(count + BLOCK - 1) // BLOCK, 1, 1], block=[BLOCK, 1, 1], stream=stream
    )


@functools.cache
def compiled() -> Any:
    """As a kernel's own file would do it: nothing here knows of the simulator."""
    flat = make_fake_tensor(cutlass.BFloat16, (cute.sym_int(),), (1,), assumed_align=2)
    return cute.compile(copy, flat, flat, cutlass.Int32(1), make_fake_stream())


def _computed(tensors: dict[str, Any]) -> Tensor:
    """The output of torch's kernel, which also updates the state."""
    module, _, name = OPERATION.kernels["torch"].target.partition(":")
    function = getattr(importlib.import_module(module), name)
    taken = inspect.signature(function).parameters
    o: Tensor = function(**{name: value for name, value in tensors.items() if name in taken})["o"]
    return o


def calls_a_compiled_kernel(**tensors: Any) -> None:
    o = _computed(tensors)
    compiled()(o.flatten(), tensors["o"].view(-1), o.numel(), cuda.CUstream(0))


def calls_launch(**tensors: Any) -> None:
    o = _computed(tensors)
    sim.launch(compiled(), o.flatten(), tensors["o"].view(-1), o.numel())


def copies_all_but_one(**tensors: Any) -> None:
    o = _computed(tensors)
    compiled()(o.flatten(), tensors["o"].view(-1), o.numel() - 1)


def reads_past_the_end(**tensors: Any) -> None:
    o = _computed(tensors)
    compiled()(o.flatten(), tensors["o"].view(-1), o.numel() + 1)


def launches_nothing(**tensors: Any) -> None:
    tensors["o"].copy_(_computed(tensors))


def passes_a_wrong_type(**tensors: Any) -> None:
    compiled()(tensors["o"].float().flatten(), tensors["o"].view(-1), 1)
