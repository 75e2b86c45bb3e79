# SPDX-License-Identifier: Apache-2.0
"""Small calls of both operations, and edits of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL


def prefill(**options: Any) -> Call:
    return PREFILL.synth(**{"seqlens": (3, 0, 4), "head_dim": (8, 4), "initial_state": True} | options)


def decode(**options: Any) -> Call:
    return DECODE.synth(
        **{"batch": 3, "steps": 2, "slots": 8, "head_dim": (8, 4), "speculative": True} | options
    )


def edited(call: Call, edit: Callable[[dict[str, Tensor]], object]) -> Call:
    tensors = {name: tensor.clone() for name, tensor in call.tensors.items()}
    edit(tensors)
    return Call(tensors, call.scalars, call.conventions)


def put(name: str, position: tuple[int, ...], value: float) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name][position] = value

    return edit


def swap(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = change(tensors[name])

    return edit


def add(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], None]:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensor

    return edit
