# SPDX-License-Identifier: Apache-2.0
"""Compiles and calls small kernels in each way that there is, with whatever CuTe DSL is first on the path.
Prints a line for each."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor, make_ptr
from cutlass.utils import HardwareInfo

from gdnbench import sim
from tests.sim.host import host_kernels


def rows() -> Any:
    return make_fake_tensor(cutlass.Float32, (cute.sym_int(), 8), (8, 1), assumed_align=16)


def scaled(call: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    x, y = torch.arange(70 * 8.0).view(70, 8), torch.zeros(70, 8)
    call(x, y)
    assert torch.equal(y[:, 0], x[:, 0] * 0.5)
    assert not y[:, 1:].any()


def compiled(**options: Any) -> Any:
    number, count = cutlass.Float32(1), cutlass.Int32(1)
    return sim.compile(host_kernels.scale, rows(), rows(), number, count, make_fake_stream(), **options)


def launched() -> None:
    scaled(lambda x, y: sim.launch(compiled(), x, y, 0.5, 70))


def launched_for_hopper() -> None:
    scaled(lambda x, y: sim.launch(compiled(arch="sm_90a"), x, y, 0.5, 70))


def by_tvm_ffi() -> None:
    scaled(lambda x, y: sim.launch(compiled(options="--enable-tvm-ffi"), x, y, 0.5, 70))


def by_executor() -> None:
    with sim.active():
        scaled(lambda x, y: compiled().to(0)(x, y, 0.5, 70, 0))


def called() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> None:
        tensors = [from_dlpack(tensor).mark_layout_dynamic(leading_dim=1) for tensor in (x, y)]
        host_kernels.scale(*tensors, cutlass.Float32(0.5), cutlass.Int32(70), cuda.CUstream(0))

    with sim.active() as session:
        scaled(call)
        scaled(call)
    assert [len(report.launches) for report in session.reports] == [1, 1]


def by_pointer() -> None:
    data = torch.arange(32.0)
    with sim.active():
        pointer = make_ptr(cutlass.Float32, data.data_ptr(), cute.AddressSpace.gmem, assumed_align=4)
        cute.compile(host_kernels.through_pointer, pointer, make_fake_stream())(pointer, 0)
    assert torch.equal(data, torch.arange(32.0) + 1)


def host_code_alone() -> None:
    with sim.active() as session:
        host_kernels.print_number(5)
    assert [report.launches for report in session.reports] == [()]


def of_another_type() -> None:
    x, y = (from_dlpack(torch.zeros(70, 8, dtype=torch.int32)) for _ in range(2))
    with pytest.raises(sim.LaunchError, match=r"^x is i32; the kernel was compiled for f32$"):
        sim.launch(compiled(), x, y, 0.5, 70)


def with_few_multiprocessors() -> None:
    with sim.active(sms=3):
        assert HardwareInfo().get_max_active_clusters(1) == 3
        example = make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4)
        cute.compile(host_kernels.two_blocks_per_multiprocessor, example, make_fake_stream())


WAYS = (
    launched,
    launched_for_hopper,
    by_tvm_ffi,
    by_executor,
    called,
    by_pointer,
    host_code_alone,
    of_another_type,
    with_few_multiprocessors,
)

if __name__ == "__main__":
    print(version("nvidia-cutlass-dsl"), flush=True)
    for way in WAYS:
        way()
        print(way.__name__, flush=True)
