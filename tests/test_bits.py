# SPDX-License-Identifier: Apache-2.0
"""Bit views against numpy's and ml_dtypes' own idea of the same bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gdnbench.bits import DTYPES, dtype_name, from_bits, logical, meta_of, to_bits
from gdnbench.errors import BadInputError
from tests.messages import wording

EIGHT_BIT = [name for name in DTYPES if name.startswith("float8")]


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_every_fp8_code_survives_and_means_what_ml_dtypes_says(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    tensor = from_bits(codes, name)
    assert dtype_name(tensor.dtype) == name
    assert np.array_equal(to_bits(tensor), codes)
    # e8m0's code 0 is 2**-127, an fp32 subnormal that torch may flush: compared from code 1 on.
    first = 1 if name == "float8_e8m0fnu" else 0
    ours = tensor.to(torch.float32).numpy()[first:]
    theirs = codes.view(getattr(ml_dtypes, name)).astype(np.float32)[first:]
    assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize(("name", "theirs"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
def test_every_16_bit_pattern_survives(name: str, theirs: type) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    storage = logical(name).storage
    tensor = from_bits(patterns.view(storage), name)
    assert np.array_equal(to_bits(tensor).view(np.uint16), patterns)
    assert np.array_equal(tensor.float().numpy(), patterns.view(theirs).astype(np.float32), equal_nan=True)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_any_fp32_pattern_survives(patterns: list[int]) -> None:
    bits = np.array(patterns, np.uint32)
    tensor = from_bits(bits.view(np.float32), "float32")
    assert np.array_equal(to_bits(tensor).view(np.uint32), bits)


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 4), (2, 3)])
def test_shapes_and_storage_dtypes(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(getattr(torch, name))
    bits = to_bits(tensor)
    back = from_bits(bits, name)
    assert bits.dtype == logical(name).storage
    assert bits.shape == shape == tuple(back.shape)
    assert back.dtype == tensor.dtype


def test_contiguous_cpu_tensors_are_not_copied() -> None:
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    bits = to_bits(tensor)
    bits[1] = 0x3F80
    assert tensor.tolist() == [0.0, 1.0, 0.0, 0.0]
    from_bits(bits, "bfloat16")[2] = 1.0
    assert bits[2] == 0x3F80


def test_strided_tensors_are_gathered_in_c_order() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    assert np.array_equal(to_bits(base.t()[::2]), base.numpy().T[::2])


def test_read_only_bits_are_copied() -> None:
    bits = np.zeros(2, np.float32)
    bits.flags.writeable = False
    from_bits(bits, "float32")[0] = 1.0
    assert bits[0] == 0.0


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(BadInputError, match=wording("bits.dtype-refused", dtype="torch.complex64")):
        dtype_name(torch.complex64)
    with pytest.raises(BadInputError, match=wording("bits.dtype-unknown", name="float4")):
        logical("float4")
    with pytest.raises(
        BadInputError,
        match=wording("bits.width-differs", dtype="bfloat16", storage="uint16", given="float32"),
    ):
        from_bits(np.zeros(2, np.float32), "bfloat16")
    with pytest.raises(BadInputError, match=wording("bits.layout-refused", layout="torch.sparse_coo")):
        to_bits(torch.eye(3).to_sparse())


def test_meta_says_how_the_caller_held_it() -> None:
    held = torch.zeros(10, 8, dtype=torch.bfloat16)[2:6, ::2].t()
    meta = meta_of(held.contiguous(), ("K", "T"), held)
    assert (meta.dtype, meta.shape, meta.axes) == ("bfloat16", (4, 4), ("K", "T"))
    assert (meta.caller_shape, meta.caller_strides, meta.caller_offset) == ((4, 4), (2, 8), 16)
    with pytest.raises(BadInputError, match=wording("bits.axes-count", count=2)):
        meta_of(held, ("T",))
