# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled CuTe DSL kernels go to the virtual GPU, which also answers the DSL's device queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gdnbench.sim.deadline import TimeLimit
from gdnbench.sim.errors import CannotSimulateError, LaunchError
from gdnbench.sim.host import cutlass_dsl
from gdnbench.sim.host.arguments import map_leaves
from gdnbench.sim.host.capture import capture_launches
from gdnbench.sim.host.device import described_device
from gdnbench.sim.host.device_queries import device_queries_answered
from gdnbench.sim.host.dsl_calls import calls_go_to
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.libcuda import provide_libcuda
from gdnbench.sim.virtual.refusals import note_refusal
from gdnbench.sim.virtual.torch_backend import cpu_alias


@contextmanager
def cutlass_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block compiled functions launch on `gpu`, and are compiled for it with their PTX kept."""

    def call(compiled: Any, *args: Any, **kwargs: Any) -> None:
        arguments = [map_leaves(f"argument {number}", value, _on_gpu) for number, value in enumerate(args)]
        named = {name: map_leaves(name, value, _on_gpu) for name, value in kwargs.items()}
        try:
            with TimeLimit(gpu.settings.timeout), described_device(gpu.device, questions=gpu.questions):
                captured = capture_launches(compiled, arguments, named)
        except CannotSimulateError as error:
            note_refusal(error)
            raise
        gpu.run(captured.module, captured.requests, captured.regions)

    try:
        with (
            cutlass_dsl.keep_ptx(gpu.machine.arch),
            device_queries_answered(gpu.asked_device),  # in every thread
            calls_go_to(call),
        ):
            yield
    finally:
        if provide_libcuda():  # the driver that stays finds no device
            cutlass_dsl.decide_arch_without_gpu()


def _on_gpu(name: str, value: Any) -> Any:
    """A CUDA tensor as the simulator takes it. Raises LaunchError for a tensor elsewhere."""
    if not isinstance(value, Tensor):
        return value
    if not value.is_cuda:
        raise LaunchError(f"{name} is on {value.device}: a kernel takes tensors on cuda")
    return cpu_alias(value.detach())
