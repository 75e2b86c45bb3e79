# SPDX-License-Identifier: Apache-2.0
"""Tensors of CuTe's own runtime are held to the types that a kernel was compiled for, as torch's are."""

from __future__ import annotations

import functools
import re
import struct
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.capture import capture_launches
from tests.messages import wording
from tests.sim.host import host_kernels


@functools.cache
def scale() -> Any:
    """x [rows, 8] of packed rows; y [rows, n] of rows whose stride is a multiple of 4; both aligned to 16."""
    x = make_fake_tensor(cutlass.Float32, (cute.sym_int(), 8), (8, 1), assumed_align=16)
    y = make_fake_tensor(
        cutlass.Float32,
        (cute.sym_int(), cute.sym_int()),
        (cute.sym_int64(divisibility=4), 1),
        assumed_align=16,
    )
    number, count = cutlass.Float32(1), cutlass.Int32(1)
    return sim.compile(host_kernels.scale, x, y, number, count, make_fake_stream())


def x_of(tensor: Tensor) -> Any:
    return from_dlpack(tensor).mark_compact_shape_dynamic(0)


def y_of(tensor: Tensor) -> Any:
    return from_dlpack(tensor).mark_layout_dynamic(1)


def rows() -> tuple[Tensor, Tensor]:
    return torch.arange(70 * 8.0).view(70, 8), torch.zeros(70, 12)


def test_the_argument_is_what_a_torch_tensor_is_passed_as() -> None:
    x, y = rows()
    (mine,) = capture_launches(scale(), (x_of(x), y_of(y), 1.0, 70)).requests
    (torchs,) = capture_launches(scale(), (x, y, 1.0, 70)).requests
    assert struct.unpack_from("<Qi", mine.params[0]) == struct.unpack_from("<Qi", torchs.params[0])
    assert mine.params[1:] == torchs.params[1:]
    sim.launch(scale(), x_of(x), y_of(y), 2.0, 70)
    assert torch.equal(y[:, 0], 2 * x[:, 0])


def test_strides_that_depend_on_dynamic_extents_are_dynamic() -> None:
    """CuTe's runtime decides that only when it fills the argument struct (CUTLASS's `mamba2_ssd.py`)."""
    x, y = rows()
    compact = from_dlpack(y).mark_compact_shape_dynamic(0)
    compact = compact.mark_compact_shape_dynamic(1, stride_order=y.dim_order())
    sim.launch(scale(), x_of(x), compact, 2.0, 70)
    assert torch.equal(y[:, 0], 2 * x[:, 0])


def bad_arguments() -> dict[str, tuple[Any, Any, str]]:
    x, y = rows()
    unaligned = torch.ones(70 * 8 + 1)[1:].view(70, 8)
    return {
        "dtype": (x_of(x.bfloat16()), y_of(y), "^x is bf16; the kernel was compiled for f32$"),
        "integers": (x_of(x.int()), y_of(y), "^x is i32; the kernel was compiled for f32$"),
        "rank": (
            from_dlpack(torch.ones(8)),
            y_of(y),
            "^x has 1 dimensions; the kernel was compiled for 2$",
        ),
        "extent": (x_of(x[:, :4].contiguous()), y_of(y), "^x has extent 4 in dimension 1; .* for 8$"),
        "stride": (from_dlpack(torch.ones(70, 9)[:, :8]), y_of(y), "^x has stride 9 in dimension 0; .* 8$"),
        "divisor": (
            x_of(x),
            y_of(torch.zeros(70, 13)),
            "^y has stride 13 in dimension 0; .* multiple of 4$",
        ),
        "alignment": (x_of(unaligned), y_of(y), "^x is not aligned to 16 bytes, as the kernel was told$"),
        "static where it is dynamic": (
            from_dlpack(x),
            y_of(y),
            wording("sim.host.cute-layout", name="x", own="(70,8):(8,1)", wanted="(?,8):(8,1)"),
        ),
        "dynamic where it is static": (
            x_of(x),
            x_of(y),
            wording("sim.host.cute-layout", name="y", own="(?,12):(12,1)", wanted="(?,?):(?{i64},1)"),
        ),
        "narrow strides": (
            x_of(x),
            from_dlpack(y, use_32bit_stride=True).mark_layout_dynamic(1),
            wording("sim.host.cute-layout", name="y", own="(?,?):(?,1)", wanted="(?,?):(?{i64},1)"),
        ),
        "fake": (
            make_fake_tensor(cutlass.Float32, (70, 8), (8, 1)),
            y_of(y),
            wording("sim.host.cute-fake-tensor", name="x"),
        ),
    }


@pytest.mark.parametrize("wrong", bad_arguments())
def test_arguments_that_do_not_fit(wrong: str) -> None:
    x, y, message = bad_arguments()[wrong]
    with pytest.raises(LaunchError, match=message) as caught:
        capture_launches(scale(), (x, y, 1.0, 1))
    assert "\n" not in str(caught.value)


def test_marks_do_not_matter_where_nothing_is_dynamic() -> None:
    """The kernel then reads nothing but the pointer."""
    example = make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4)
    data = torch.arange(32.0)
    compiled = sim.compile(host_kernels.uses_shared, example, make_fake_stream())
    sim.launch(compiled, from_dlpack(data).mark_layout_dynamic(0))
    assert torch.equal(data, torch.arange(32.0).flip(0))


def test_a_tensor_for_a_number() -> None:
    x, y = rows()
    with pytest.raises(LaunchError, match=re.escape("factor is a tensor; the kernel takes f32")):
        capture_launches(scale(), (x_of(x), y_of(y), y_of(y), 1))


def test_the_element_type_that_the_program_sets_counts() -> None:
    """As for 4-bit types, which torch stores as bytes."""
    example = make_fake_tensor(cutlass.Int32, (32,), (1,))
    compiled = sim.compile(
        host_kernels.add_pair, (example, example), None, cutlass.Int32(0), make_fake_stream()
    )
    source = from_dlpack(torch.arange(32.0))
    source.element_type = cutlass.Int32
    target = torch.zeros(32, dtype=torch.int32)
    capture_launches(compiled, ((source, target), None, 1))
    with pytest.raises(LaunchError, match=r"^pair\[0\] is f32; the kernel was compiled for i32$"):
        capture_launches(compiled, ((from_dlpack(torch.arange(32.0)), target), None, 1))


def test_tensors_for_a_tvm_ffi_entry() -> None:
    pytest.importorskip("tvm_ffi")
    example = make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4)
    compiled = sim.compile(host_kernels.add_one, example, [], options="--enable-tvm-ffi")
    data = torch.arange(32.0)
    sim.launch(compiled, from_dlpack(data, enable_tvm_ffi=True))
    assert torch.equal(data, torch.arange(32.0) + 1)
    with pytest.raises(LaunchError, match="dtype"):
        sim.launch(compiled, from_dlpack(data.int(), enable_tvm_ffi=True))
