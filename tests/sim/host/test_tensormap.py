# SPDX-License-Identifier: Apache-2.0
"""TMA descriptors: what CuTe DSL's compiled host code encodes from random tensors is what `decode` reads."""

from __future__ import annotations

import ctypes
import functools
import random
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor

from gdnbench.sim.errors import LaunchError, UnsupportedError
from gdnbench.sim.host import cutlass_dsl
from gdnbench.sim.host.capture import capture_launches
from gdnbench.sim.host.encode_tiled import encode_tiled
from gdnbench.sim.machine.tensormap import BIT_LARGE, ENCODED_BYTES, TensorMap, decode_tensormap
from tests.messages import wording
from tests.sim.host import host_kernels
from tests.subset import quick

BF16, F16, F32, U8 = (
    (cutlass.BFloat16, torch.bfloat16, "bf16"),
    (cutlass.Float16, torch.float16, "f16"),
    (cutlass.Float32, torch.float32, "f32"),
    (cutlass.Uint8, torch.uint8, "u8"),
)
# (type, box, bits of the swizzle: 0 none, 1 32 bytes, 2 64, 3 128). The inner box fits the swizzle.
CASES = [
    (BF16, (64, 8, 2), 3),
    (BF16, (32, 16), 2),
    (BF16, (16, 2, 3, 4, 5), 1),
    (F16, (64,), 0),
    (F16, (8, 256), 0),
    (F32, (32, 4, 2, 3), 3),
    (F32, (16, 7), 2),
    (U8, (128, 8), 3),
    (U8, (256, 3, 2), 0),
    ((cutlass.Int16, torch.int16, "u16"), (16, 3), 0),
    ((cutlass.Int32, torch.int32, "u32"), (8, 5, 4), 1),
    ((cutlass.Int64, torch.int64, "u64"), (16, 2), 3),
    ((cutlass.Float64, torch.float64, "f64"), (2, 9), 0),
]
POOL = torch.zeros(1 << 21, dtype=torch.int64)


@functools.cache
def compiled(dtype: Any, box: tuple[int, ...], bits: int) -> Any:
    """`describe` for any tensor of that rank and type; strides must be multiples of 16 bytes."""
    units = max(1, 128 // dtype.width)
    strides = (1, *(cute.sym_int64(divisibility=units) for _ in box[1:]))
    fake = make_fake_tensor(dtype, tuple(cute.sym_int() for _ in box), strides, assumed_align=16)
    return cutlass_dsl.compile_kept(
        host_kernels.describe, fake, box, bits, make_fake_stream(), arch="sm_100a"
    )


def random_tensor(torch_dtype: torch.dtype, rank: int, rng: random.Random) -> torch.Tensor:
    """A view of the pool with any shape, with padding between the modes, at any multiple of 16 bytes."""
    pool = POOL.view(torch_dtype)
    unit = 16 // pool.element_size()
    shape, strides, step = [], [], 1
    for mode in range(rank):
        shape.append(rng.choice((1, 2, 3, 7, 8, 16, 20, rng.randrange(1, 40))))
        strides.append(step)
        step = -(-step * shape[-1] // unit) * unit + unit * rng.choice((0, 0, 1, 5))
        if mode == 0 and rng.random() < 0.5:
            shape[0] *= 8
            step = step * 8
    if step > pool.numel() // 2:
        return random_tensor(torch_dtype, rank, rng)
    return torch.as_strided(pool, shape, strides, unit * rng.randrange(64))


def descriptor(dtype: Any, box: tuple[int, ...], bits: int, tensor: torch.Tensor) -> bytes:
    (request,) = capture_launches(compiled(dtype, box, bits), (tensor,)).requests
    assert len(request.params[0]) == 128
    return request.params[0]


@pytest.mark.every(3)
@pytest.mark.parametrize(("kind", "box", "bits"), CASES, ids=str)
def test_descriptor_of_compiled_host_code(kind: Any, box: tuple[int, ...], bits: int) -> None:
    dtype, torch_dtype, name = kind
    rng = random.Random(f"{name}{box}")
    for _ in range(25):
        tensor = random_tensor(torch_dtype, len(box), rng)
        size = tensor.element_size()
        assert decode_tensormap(descriptor(dtype, box, bits, tensor)) == TensorMap(
            address=tensor.data_ptr(),
            dtype=name,
            element_bytes=size,
            dims=tuple(tensor.shape),
            strides=tuple(stride * size for stride in tensor.stride()),
            box=box,
            element_strides=(1,) * len(box),
            swizzle=(0, 32, 64, 128)[bits],
        )


def test_only_the_first_64_bytes_count() -> None:
    tensor = random_tensor(torch.bfloat16, 3, random.Random(0))
    data = descriptor(cutlass.BFloat16, (64, 8, 2), 3, tensor)
    assert decode_tensormap(data[:ENCODED_BYTES] + b"\xa5" * 64) == decode_tensormap(data[:ENCODED_BYTES])


def test_strides_beyond_32_bits_and_an_empty_dimension() -> None:
    """The fake tensor of a far stride is never touched: only its descriptor is made."""
    size, far = 2, 5 << 34
    tensor = torch.as_strided(POOL.view(torch.bfloat16), (64, 0, 0), (1, 64, far))
    read = decode_tensormap(descriptor(cutlass.BFloat16, (64, 8, 2), 3, tensor))
    assert read.dims == (64, 0, 0)
    assert read.strides == (size, 64 * size, far * size)


@pytest.mark.parametrize(
    ("at", "bits", "what"),
    [
        (8, 0x01, "known version"),
        (9, 0x08, "interleave 1"),
        (9, 0x10, "interleave 2"),
        (10, 0x40, wording("sim.machine.map-flags", bits="0x00400000")),
        (10, 0x10, "atom 2"),
        (11, 0x80, wording("sim.machine.map-flags", bits="0x80000000")),
        (8, 0x50, "rank 8"),
        (9, 0x02, wording("sim.machine.map-element-type", code=14)),
        (30, 0x01, wording("sim.machine.map-stride-bits")),
        (54, 0x80, wording("sim.machine.map-element-bits")),
        (60, 0x01, wording("sim.machine.map-last-bytes")),
    ],
)
def test_bits_that_are_not_modelled_are_refused(at: int, bits: int, what: str) -> None:
    tensor = torch.as_strided(POOL.view(torch.bfloat16), (64, 3, 2), (1, 64, 192))
    data = bytearray(descriptor(cutlass.BFloat16, (64, 8, 2), 3, tensor)[:ENCODED_BYTES])
    data[at] ^= bits
    with pytest.raises(UnsupportedError, match=what):
        decode_tensormap(bytes(data))


def test_tf32() -> None:
    tensor = torch.as_strided(POOL.view(torch.float32), (32, 3), (1, 32))
    rounded = decode_tensormap(descriptor(cutlass.TFloat32, (32, 2), 3, tensor))
    plain = decode_tensormap(descriptor(cutlass.Float32, (32, 2), 3, tensor))
    assert (rounded.tf32, plain.tf32) == (True, False)
    assert replace(rounded, tf32=False) == plain
    data = descriptor(cutlass.TFloat32, (32, 2), 3, tensor)[:ENCODED_BYTES]
    assert driver_call(rounded, 11, 3)[:ENCODED_BYTES] == data


def array(values: tuple[int, ...], kind: Any) -> Any:
    return (kind * max(len(values), 1))(*values)


def driver_call(map_: TensorMap, data_type: int, swizzle: int, fill: int = 0) -> bytes:
    """cuTensorMapEncodeTiled as host code would call it."""
    out = ctypes.create_string_buffer(128)
    dims, box = array(map_.dims, ctypes.c_uint64), array(map_.box, ctypes.c_uint32)
    strides = array(map_.strides[1:], ctypes.c_uint64)
    steps = array(map_.element_strides, ctypes.c_uint32)
    pointers = [ctypes.addressof(values) for values in (dims, strides, box, steps)]
    encode_tiled(ctypes.addressof(out), data_type, map_.rank, map_.address, *pointers, 0, swizzle, 2, fill)
    return out.raw


CUDA_DATA_TYPES = {"u8": 0, "u16": 1, "u32": 2, "u64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}


@pytest.mark.parametrize(("kind", "box", "bits"), CASES, ids=str)
def test_the_driver_call_encodes_what_compiled_host_code_does(
    kind: Any, box: tuple[int, ...], bits: int
) -> None:
    dtype, torch_dtype, name = kind
    rng = random.Random(f"driver{name}{box}")
    for _ in range(5):
        data = descriptor(dtype, box, bits, random_tensor(torch_dtype, len(box), rng))[:ENCODED_BYTES]
        assert driver_call(decode_tensormap(data), CUDA_DATA_TYPES[name], bits)[:ENCODED_BYTES] == data


@pytest.mark.parametrize(
    ("dtype", "internal", "name", "data_type"),
    quick(
        (
            (cutlass.Float4E2M1FN, None, "b4x16", 13),
            (cutlass.Float4E2M1FN, cutlass.Uint8, "b4x16_p64", 14),
            (cutlass.Float6E3M2FN, None, "b6x16_p32", 15),
        ),
        1,
    ),
)
def test_elements_of_less_than_a_byte(dtype: Any, internal: Any, name: str, data_type: int) -> None:
    """The element types that CuTe DSL's encoder writes. CUtensorMapDataType 13 to 15 (cuda.h of CUDA 13) are
    16U4_ALIGN8B, 16U4_ALIGN16B and 16U6_ALIGN16B."""
    offset = -POOL.data_ptr() % 32
    tensor = from_dlpack(
        torch.as_strided(POOL.view(torch.uint8), (256, 8), (1, 256), offset), assumed_align=32
    )
    tensor.element_type = dtype
    compiled = cutlass_dsl.compile_kept(
        host_kernels.describe, tensor, (128, 8), 3, make_fake_stream(), internal, arch="sm_100a"
    )
    (request,) = capture_launches(compiled, (tensor,)).requests
    data = request.params[0][:ENCODED_BYTES]
    read = decode_tensormap(data)
    assert (read.dtype, read.dims, read.box) == (name, (256, 8), (128, 8))
    assert driver_call(read, data_type, 3)[:ENCODED_BYTES] == data


def test_what_only_the_driver_call_can_say() -> None:
    """CuTe DSL's own encoder sets neither: NaN as fill, strides of elements."""
    assert decode_tensormap(driver_call(LEGAL, 9, 3, fill=1)) == changed(fill_nan=True)
    strided = changed(element_strides=(1, 4))
    assert decode_tensormap(driver_call(strided, 9, 3)) == strided


@pytest.mark.parametrize(("rows", "large"), [(512, False), (513, True)])
def test_the_flag_of_a_far_dimension(rows: int, large: bool) -> None:
    """Row 512 of a pitch of 256 bytes starts 128 KiB from the first."""
    tensor = torch.as_strided(POOL.view(torch.float16), (8, rows), (1, 128))
    data = descriptor(cutlass.Float16, (8, 256), 0, tensor)[:ENCODED_BYTES]
    assert bool(int.from_bytes(data[8:12], "little") & BIT_LARGE) is large
    assert driver_call(decode_tensormap(data), 6, 0)[:ENCODED_BYTES] == data


LEGAL = TensorMap(0x1000, "bf16", 2, (64, 8), (2, 128), (64, 8), (1, 1), 128)


def changed(**fields: Any) -> TensorMap:
    return replace(LEGAL, **fields)


@pytest.mark.parametrize(
    ("map_", "what"),
    [
        (changed(address=0x1008), wording("sim.host.map-address")),
        (changed(strides=(2, 120)), "strides"),
        (changed(dims=(0, 8)), "extents"),
        (changed(box=(64, 257)), "box"),
        (changed(box=(4, 8)), wording("sim.host.map-box-multiple")),
        (changed(box=(128, 8)), wording("sim.host.map-box-wide")),
        (changed(element_strides=(1, 9)), wording("sim.host.map-element-strides")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_driver_refuses(map_: TensorMap, what: str) -> None:
    driver_call(LEGAL, 9, 3)
    with pytest.raises(LaunchError, match=what):
        driver_call(map_, 9, 3)
