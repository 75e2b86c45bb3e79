# SPDX-License-Identifier: Apache-2.0
"""Cache layouts of swa_decode, byte by byte, against encoders and addresses written out here.

The formats are those of the OCP 8-bit (e4m3: bias 7, no infinity, 0x7F NaN) and MX (ue8m0: bias 127, 0xFF
NaN) specifications; the layouts those of the two engines, in numbers.
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gdnbench_kernels.swa_decode import layouts
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from tests.seeds import drawn, fresh

NAN = math.nan


def e4m3_value(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return NAN
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 0x80 else magnitude


MAGNITUDES = [e4m3_value(code) for code in range(0x7F)]


def e4m3_code(value: float) -> int:
    """Nearest, ties to even, saturated: the first code not below, or the one before it."""
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    if math.isnan(value):
        return 0x7F
    magnitude = abs(value)
    above = min(bisect.bisect_left(MAGNITUDES, magnitude), 0x7E)
    below = max(above - 1, 0)
    up, down = MAGNITUDES[above] - magnitude, magnitude - MAGNITUDES[below]  # exact, by Sterbenz
    nearer_below = down < up or (down == up and below % 2 == 0)
    return sign | (below if nearer_below else above)


def f32(value: float) -> float:
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


def bf16_bytes(value: float) -> bytes:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def bf16_value(two: bytes) -> float:
    found: float = struct.unpack("<f", b"\0\0" + two)[0]
    return found


def group_exponent(values: list[float]) -> int:
    """The least e with 448 * 2^e >= max(amax, 1e-4)."""
    amax = max(f32(1e-4), *map(abs, values))
    exponent = -200
    while 448.0 * 2.0**exponent < amax:
        exponent += 1
    return exponent


def ds_mla_pages(rows: list[list[list[float]]], stride: int) -> bytes:
    """Pages of fp8_ds_mla, each `stride` bytes."""
    pages = bytearray(stride * len(rows))
    for page, tokens in enumerate(rows):
        for offset, row in enumerate(tokens):
            data = page * stride + offset * 576
            scales = page * stride + len(tokens) * 576 + offset * 8
            for group in range(7):
                values = row[64 * group : 64 * group + 64]
                if all(map(math.isfinite, values)):
                    exponent = group_exponent(values)
                    pages[scales + group] = exponent + 127
                    codes = [e4m3_code(value * 2.0**-exponent) for value in values]
                else:
                    pages[scales + group] = 255
                    codes = [0x7F] * 64
                pages[data + 64 * group : data + 64 * group + 64] = bytes(codes)
            for feature in range(64):
                at = data + 448 + 2 * feature
                pages[at : at + 2] = bf16_bytes(row[448 + feature])
    return bytes(pages)


def per_token(rows: list[list[float]], scale_bytes: int) -> tuple[bytes, bytes]:
    """(codes, scales) of per_token_scale, scales of 4 (fp32) or 2 (bf16) bytes."""
    codes, scales = bytearray(), bytearray()
    for row in rows:
        scale = f32(max(map(abs, row)) / 448.0)
        encoded = struct.pack("<f", scale) if scale_bytes == 4 else bf16_bytes(scale)
        scale = struct.unpack("<f", encoded)[0] if scale_bytes == 4 else bf16_value(encoded)
        if scale == 0:
            scale = 1.0
            encoded = struct.pack("<f", 1.0) if scale_bytes == 4 else bf16_bytes(1.0)
        scales += encoded
        codes += bytes(e4m3_code(f32(value / scale)) for value in row)
    return bytes(codes), bytes(scales)


def storage_bytes(tensor: Tensor) -> bytes:
    """All bytes of a tensor's storage: what lies between its pages as well."""
    return bytes(torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).tolist())


def as_bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def hard_rows(blocks: int, block_size: int, seed: int) -> Tensor:
    """Normal rows of magnitudes 2^-60 .. 2^60, and rows of what rounding goes wrong on; fp32."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(blocks * block_size, 512, generator=generator)
    rows *= 2.0 ** torch.randint(-60, 61, (blocks * block_size, 1), generator=generator).float()
    rows[0] = 0
    rows[1] = -0.0
    rows[2, :] = 1e-5  # below the least amax of fp8_ds_mla
    rows[3] = rows[3].sign() * 2.0**-149  # fp32's least subnormal: its scale underflows
    for row, k in ((4, 0), (5, -9), (6, 40)):  # amax 448 * 2^k, and the next fp32 above it
        rows[row] = torch.rand(512, generator=generator) * 2.0**k
        rows[row, ::64] = 448 * 2.0**k
        rows[row + 3] = rows[row]
        rows[row + 3, ::64] = torch.nextafter(rows[row, 0], torch.tensor(torch.inf))
    # Every midpoint of two codes, their neighbours in fp32, and the subnormals' ties, at scale 1.
    middles = torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(MAGNITUDES)])
    for row, values in (
        (10, middles),
        (11, torch.nextafter(middles, torch.tensor(0.0))),
        (12, torch.nextafter(middles, torch.tensor(1e9))),
        (13, -middles),
    ):
        rows[row] = 448.0
        for start in range(0, 448, 64):  # in every group, beside its amax of 448
            part = values[start % 126 :][:60]
            rows[row, start : start + len(part)] = part
    rows[14] = torch.rand(512, generator=generator) * torch.finfo(torch.float32).max
    rows[15, 64:128] = 0
    return rows.view(blocks, block_size, 512)


def test_the_encoders_here() -> None:
    """Values from the tables of the OCP specification, and a round trip of every code."""
    assert (MAGNITUDES[0x7E], MAGNITUDES[1], MAGNITUDES[7], MAGNITUDES[8]) == (
        448,
        2**-9,
        0.875 * 2**-6,
        2**-6,
    )
    assert all(e4m3_code(e4m3_value(code)) == code for code in range(256) if code & 0x7F != 0x7F)
    assert [e4m3_code(x) for x in (2**-10, 3 * 2**-10, 1e9, -449.0, 17.0, 19.0)] == [
        0,
        2,
        0x7E,
        0xFE,
        0x58,
        0x5A,
    ]


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_ds_mla_bytes(block_size: int) -> None:
    blocks = max(1, 64 // block_size) + (block_size == 64)
    rows = hard_rows(blocks, block_size, seed=block_size)
    cache = layouts.pack_ds_mla(rows)
    # 576 is 9 * 64: the data is a multiple of it, the scales take one more for every 72 tokens.
    stride = block_size * 576 + 576 * -(-block_size * 8 // 576)
    assert cache.shape == (blocks, block_size, 584)
    assert cache.stride() == (stride, 584, 1)
    assert storage_bytes(cache) == ds_mla_pages(rows.tolist(), stride)


def test_the_page_of_the_field() -> None:
    """64 tokens: 64 x 576 bytes, 64 x 8, padded to a multiple of 576."""
    assert layouts.page_stride(64) == 37440
    cache = layouts.empty_ds_mla(3, 64)
    data, scales = layouts.ds_mla_parts(cache)
    assert (data.storage_offset(), scales.storage_offset()) == (0, 36864)
    assert data.stride() == (37440, 576, 1)
    assert scales.stride() == (37440, 8, 1)
    # Pages that a slice of a larger pool begins with, further apart than that.
    held = torch.zeros(5 * 40000, dtype=torch.uint8).as_strided((3, 64, 584), (40000, 584, 1), 1000)
    data, scales = layouts.ds_mla_parts(held[1:])
    assert (data.storage_offset(), scales.storage_offset()) == (41000, 41000 + 36864)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_per_token_bytes(block_size: int, scale_dtype: torch.dtype) -> None:
    blocks = max(1, 64 // block_size)
    rows = hard_rows(blocks, block_size, seed=block_size + 1)
    cache, inv_scale = layouts.pack_per_token_scale(rows, scale_dtype)
    assert cache.shape == (blocks, block_size, 512)
    assert (cache.dtype, inv_scale.dtype) == (torch.float8_e4m3fn, scale_dtype)
    codes, scales = per_token(rows.flatten(0, 1).tolist(), scale_dtype.itemsize)
    assert as_bytes(cache) == codes
    assert as_bytes(inv_scale) == scales


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_any_strides_and_either_dtype(dtype: torch.dtype) -> None:
    wide = hard_rows(2, 32, seed=5).to(dtype)
    assert bool(wide.isfinite().all())
    held = torch.zeros(512, 32, 2, dtype=dtype).copy_(wide.permute(2, 1, 0)).permute(2, 1, 0)
    assert not held.is_contiguous()
    stride = layouts.page_stride(32)
    assert storage_bytes(layouts.pack_ds_mla(held)) == ds_mla_pages(wide.tolist(), stride)
    cache, inv_scale = layouts.pack_per_token_scale(held)
    assert (as_bytes(cache), as_bytes(inv_scale)) == per_token(wide.flatten(0, 1).float().tolist(), 4)


@pytest.mark.parametrize("wrong", [NAN, math.inf, -math.inf])
def test_what_has_no_scale_is_nan(wrong: float) -> None:
    """A group of fp8_ds_mla, a row of per_token_scale; the rope part keeps its value, neighbours theirs."""
    rows = torch.randn(1, 16, 512, generator=torch.Generator().manual_seed(1))
    spoilt = rows.clone()
    spoilt[0, 3, 70] = wrong  # group 1
    spoilt[0, 5, 500] = wrong  # rope
    packed = layouts.pack_ds_mla(spoilt)
    expected = bytearray(ds_mla_pages(spoilt.nan_to_num(1.0, 1.0, 1.0).tolist(), layouts.page_stride(16)))
    expected[3 * 576 + 64 : 3 * 576 + 128] = b"\x7f" * 64
    expected[16 * 576 + 3 * 8 + 1] = 255
    at = 5 * 576 + 448 + 2 * 52
    found = bytearray(storage_bytes(packed))
    value = bf16_value(bytes(found[at : at + 2]))
    assert value == wrong or (math.isnan(wrong) and math.isnan(value))
    found[at : at + 2] = expected[at : at + 2]
    assert found == expected
    back = layouts.unpack(packed, None, CacheLayout.FP8_DS_MLA, torch.float32)
    assert back[0, 3, 64:128].isnan().all()
    assert int(back.isnan().sum()) == 64 + math.isnan(wrong)

    for scale_dtype in (torch.float32, torch.bfloat16):
        cache, inv_scale = layouts.pack_per_token_scale(spoilt, scale_dtype)
        back = layouts.unpack(cache, inv_scale, CacheLayout.PER_TOKEN_SCALE, torch.float32)
        assert inv_scale.isnan().nonzero().flatten().tolist() == [3, 5]
        assert back.isnan().any(-1).nonzero().tolist() == [[0, 3], [0, 5]]
        assert back.isnan().sum() == 2 * 512
        clean, whole = layouts.pack_per_token_scale(rows, scale_dtype)
        kept = [row for row in range(16) if row not in (3, 5)]
        assert as_bytes(cache.view(torch.uint8)[0, kept]) == as_bytes(clean.view(torch.uint8)[0, kept])
        assert torch.equal(inv_scale[kept], whole[kept])


def test_every_byte_of_ds_mla_is_worth_what_its_format_says() -> None:
    """All 256 codes under all 256 scales; fp64, where no product is rounded."""
    cache = layouts.empty_ds_mla(4, 64)
    data, scales = layouts.ds_mla_parts(cache)
    codes = torch.arange(448, dtype=torch.int64) % 256
    data[..., :448] = codes.to(torch.uint8)
    scales[..., :7] = torch.arange(256, dtype=torch.uint8).view(4, 64, 1)
    found = layouts.unpack(cache, None, "fp8_ds_mla", torch.float64).view(256, 512)
    values = torch.tensor([e4m3_value(code) for code in codes.tolist()], dtype=torch.float64)
    for scale in range(256):
        expected = values * (2.0 ** (scale - 127) if scale < 255 else NAN)
        torch.testing.assert_close(found[scale, :448], expected, rtol=0, atol=0, equal_nan=True)
    assert bool((found[:, 448:] == 0).all())


def test_every_code_of_per_token_scale_is_worth_what_its_format_says() -> None:
    cache = torch.arange(512).remainder(256).to(torch.uint8).expand(1, 16, 512).contiguous()
    inv_scale = torch.tensor([2.0**-149, 0.1, 1.0, 448.0, NAN, *([3.0] * 11)])
    for held in (cache, cache.view(torch.float8_e4m3fn)):
        found = layouts.unpack(held, inv_scale, "per_token_scale", torch.float64)[0]
        for row, scale in enumerate(inv_scale.double().tolist()):
            expected = [e4m3_value(code % 256) * scale for code in range(512)]
            wanted = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(found[row], wanted, rtol=0, atol=0, equal_nan=True)


def _ds_mla(rows: Tensor) -> tuple[Tensor, None]:
    return layouts.pack_ds_mla(rows), None


PACKERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor | None]]] = {
    "fp8_ds_mla": _ds_mla,
    "per_token_scale": layouts.pack_per_token_scale,
}


@pytest.mark.parametrize("layout", PACKERS)
@pytest.mark.parametrize("seed", [3, fresh(drawn("swa layouts", 31))])
def test_what_comes_back_is_within_the_formats_rounding(layout: str, seed: int) -> None:
    rows = torch.randn(2, 64, 512, generator=torch.Generator().manual_seed(seed)) * 5
    cache, inv_scale = PACKERS[layout](rows)
    back = layouts.unpack(cache, inv_scale, layout, torch.float32)
    # Half of e4m3's 2^-3 of a value, or of its subnormals' 2^-9, at a scale of at most 2 amax / 448.
    allowed = rows.abs() * 2.0**-4 + 2.0**-10 * 2 * rows.abs().amax(-1, keepdim=True) / 448
    assert bool(((back - rows).abs() <= allowed * (1 + 2.0**-20)).all()), f"seed {seed}"
    slots = torch.tensor([[5, 127], [64, 0]])
    some = layouts.read_rows(cache, inv_scale, slots, layout, torch.bfloat16)
    assert torch.equal(some, back.view(128, 512)[slots].bfloat16())


@pytest.mark.parametrize("layout", PACKERS)
def test_on_another_device(layout: str) -> None:
    """meta: shapes, dtypes and strides are those of the CPU, and nothing is read back to the host."""
    here, there = torch.ones(3, 64, 512), torch.ones(3, 64, 512, device="meta")
    cache, inv_scale = PACKERS[layout](here)
    other, other_scale = PACKERS[layout](there)
    assert (other.shape, other.dtype, other.stride()) == (cache.shape, cache.dtype, cache.stride())
    assert (inv_scale is None) == (other_scale is None)
    back = layouts.unpack(other, other_scale, layout, torch.bfloat16)
    assert (back.shape, back.dtype, back.device.type) == ((3, 64, 512), torch.bfloat16, "meta")
