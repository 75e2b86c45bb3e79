# SPDX-License-Identifier: Apache-2.0
"""What the compiled kernels of swa_decode refuse before anything is launched, what they take as it lies, and
what they are compiled for. Shapes and addresses alone are looked at, so most of it compiles nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.programs import BLACKWELL
from gdnbench_kernels.swa_decode.launch_args import arch_of, prepare
from gdnbench_kernels.swa_decode.layouts import empty_ds_mla
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from gdnbench_kernels.swa_decode.portable import portable
from gdnbench_kernels.swa_decode.sm100 import sm100
from gdnbench_kernels.swa_decode.synth import synth
from tests.kernels.swa_calls import DS_MLA, PER_TOKEN, same_outputs
from tests.subset import quick

Given = dict[str, Any]


def given(**changes: Any) -> Given:
    """A call: two requests, 8 heads, 3 pages of 16."""
    return {
        "q": torch.zeros(2, 8, 512, dtype=torch.bfloat16),
        "cache": torch.zeros(3, 16, 512, dtype=torch.uint8),
        "inv_scale": torch.ones(48),
        "swa_indices": torch.zeros(2, 128, dtype=torch.int32),
        "swa_lens": torch.zeros(2, dtype=torch.int32),
        "attn_sink": None,
        "scale": None,
        "output_lse": True,
        "cache_layout": PER_TOKEN,
        "index_shape": "TW",
        "o": None,
        "lse": None,
        **changes,
    }


def ds_mla(**changes: Any) -> Given:
    return given(**{"cache": empty_ds_mla(3, 16), "inv_scale": None, "cache_layout": DS_MLA} | changes)


def strided(*strides: int) -> Tensor:
    """Three pages of 16 rows of 512 bytes."""
    return torch.zeros(3 * 16 * 1024, dtype=torch.uint8).as_strided((3, 16, 512), strides)


def off(count: int) -> Tensor:
    """Three pages that begin `count` bytes after an aligned address."""
    return torch.zeros(3 * 8192 + 16, dtype=torch.uint8)[count : count + 3 * 8192].view(3, 16, 512)


WRONG: list[tuple[str, Given]] = [
    (wording("kernels.q-shape", shape="[2, 8, 448]", size=512), {"q": torch.zeros(2, 8, 448).bfloat16()}),
    (wording("kernels.heads-range", heads=129, most=128), {"q": torch.zeros(2, 129, 512).bfloat16()}),
    (wording("kernels.heads-range", heads=0, most=128), {"q": torch.zeros(2, 0, 512).bfloat16()}),
    (
        wording("kernels.cache-shape", shape="[3, 16, 584]", cache_layout="per_token_scale", row=512),
        {"cache": empty_ds_mla(3, 16)},
    ),
    (
        wording("kernels.cache-block-size", block_size=48, known="16, 32, 64, 128, 256"),
        {"cache": torch.zeros(1, 48, 512, dtype=torch.uint8)},
    ),
    (wording("kernels.cache-empty"), {"cache": torch.zeros(0, 16, 512, dtype=torch.uint8)}),
    (
        wording("kernels.cache-strides", strides="[8192, 1024, 1]", page=8192, row=512),
        {"cache": strided(8192, 1024, 1)},
    ),
    (
        wording("kernels.cache-strides", strides="[4096, 512, 1]", page=8192, row=512),
        {"cache": strided(4096, 512, 1)},
    ),
    (
        wording("kernels.inv-scale-layout", state="missing", cache_layout="per_token_scale"),
        {"inv_scale": None},
    ),
    (
        wording("kernels.shape-refused", tensor="inv_scale", shape="[47]", wanted="[48]"),
        {"inv_scale": torch.ones(47)},
    ),
    (wording("kernels.index-shape", index_shape="WT", known="TW, T1W, 1TW"), {"index_shape": "WT"}),
    (
        wording("kernels.indices-shape", shape="[2, 128]", index_shape="T1W", wanted="2, 1, W"),
        {"index_shape": "T1W"},
    ),
    (
        wording("kernels.indices-shape", shape="[128, 2]", index_shape="TW", wanted="2, W"),
        {"swa_indices": torch.zeros(128, 2, dtype=torch.int32)},
    ),
    (
        wording("kernels.window-range", window=129, most=128),
        {"swa_indices": torch.zeros(2, 129, dtype=torch.int32)},
    ),
    (
        wording("kernels.shape-refused", tensor="swa_lens", shape="[3]", wanted="[2]"),
        {"swa_lens": torch.zeros(3, dtype=torch.int32)},
    ),
    (
        wording("kernels.devices-differ", tensor="swa_lens", device="meta", first="q", other="cpu"),
        {"swa_lens": torch.zeros(2, dtype=torch.int32, device="meta")},
    ),
    (
        wording("kernels.shape-refused", tensor="attn_sink", shape="[2]", wanted="[8]"),
        {"attn_sink": torch.zeros(2)},
    ),
    (
        wording("kernels.shape-refused", tensor="o", shape="[2, 8, 448]", wanted="[2, 8, 512]"),
        {"o": torch.zeros(2, 8, 448).bfloat16()},
    ),
    (
        wording("kernels.shape-refused", tensor="lse", shape="[8, 2]", wanted="[2, 8]"),
        {"lse": torch.zeros(8, 2)},
    ),
    (
        wording("kernels.lse-not-wanted"),
        {
            "lse": torch.zeros(2, 8),
            "output_lse": False,
        },
    ),
    (
        wording("kernels.cache-layout", cache_layout="fp4", known="per_token_scale, fp8_ds_mla, bfloat16"),
        {"cache_layout": "fp4"},
    ),
    (
        wording("kernels.elements-shared", tensor="o", strides="[0, 512, 1]"),
        {"o": torch.zeros(1, 8, 512).bfloat16().expand(2, -1, -1)},
    ),
    (
        wording("kernels.elements-shared", tensor="lse", strides="[1, 1]"),
        {"lse": torch.zeros(9).as_strided((2, 8), (1, 1))},
    ),
]
OTHERS: list[tuple[str, Given]] = [
    (wording("kernels.inv-scale-contiguous"), {"inv_scale": torch.ones(96)[::2]}),
    (
        wording("kernels.layout-not-served", known="per_token_scale or fp8_ds_mla", cache_layout="bfloat16"),
        {"cache_layout": "bfloat16"},
    ),
    (
        wording(
            "kernels.dtype-not-taken",
            takes="the compiled kernels take",
            tensor="q",
            known="bfloat16",
            dtype="float16",
        ),
        {"q": torch.zeros(2, 8, 512).half()},
    ),
    (
        wording(
            "kernels.dtype-not-taken",
            takes="the compiled kernels take",
            tensor="cache",
            known="float8_e4m3fn or uint8",
            dtype="bfloat16",
        ),
        {"cache": torch.zeros(3, 16, 512).bfloat16()},
    ),
    (
        wording(
            "kernels.dtype-not-taken",
            takes="the compiled kernels take",
            tensor="inv_scale",
            known="float32 or bfloat16",
            dtype="float64",
        ),
        {"inv_scale": torch.ones(48).double()},
    ),
    (
        wording(
            "kernels.dtype-not-taken",
            takes="the compiled kernels take",
            tensor="swa_indices",
            known="int32",
            dtype="int64",
        ),
        {"swa_indices": torch.zeros(2, 128, dtype=torch.int64)},
    ),
    (wording("kernels.pages-unaligned", align=16, rest=8, stride=8192), {"cache": off(8)}),
    (wording("kernels.pages-unaligned", align=16, rest=0, stride=8200), {"cache": strided(8200, 512, 1)}),
]


@pytest.mark.parametrize(
    ("message", "changes", "error"),
    [
        *((message, changes, ValueError) for message, changes in WRONG),
        *((message, changes, NotImplementedError) for message, changes in OTHERS),
    ],
)
def test_refused_in_one_line(message: str, changes: Given, error: type[Exception]) -> None:
    """ValueError for what no kernel could take, NotImplementedError for what another one could."""
    assert prepare(SwaBufferParams(**given())).tokens == 2
    with pytest.raises(error) as refused:
        prepare(SwaBufferParams(**given(**changes)))
    assert re.fullmatch(message, str(refused.value))


@pytest.mark.parametrize("scale", [torch.nan, torch.inf, 1e39, 10**400])
def test_a_scale_that_float32_does_not_have(scale: float) -> None:
    with pytest.raises(ValueError, match=wording("kernels.scalar-infinite", scalar="scale")):
        prepare(SwaBufferParams(**given(scale=scale)))


@pytest.mark.parametrize("scale", [True, "0.1", torch.tensor(0.1), [1]])
def test_a_scale_that_is_no_number(scale: Any) -> None:
    """A tensor on a GPU would have to be waited for."""
    with pytest.raises(TypeError, match=wording("kernels.not-a-number")):
        prepare(SwaBufferParams(**given(scale=scale)))


def test_outputs_have_memory_of_their_own() -> None:
    """Other CTAs still read what lies there. Those that are copied at the end may lie anywhere."""
    memory = torch.zeros(3 * 8 * 512).bfloat16()
    one, other = memory[: 2 * 8 * 512].view(2, 8, 512), memory[8 * 512 :].view(2, 8, 512)
    for changes, shared in (
        ({"q": one, "o": one}, "q"),
        ({"q": one, "o": other}, "q"),
        ({"o": one, "lse": memory.view(torch.float32)[:16].view(2, 8)}, "lse"),
        ({"inv_scale": torch.ones(48), "lse": None}, None),
    ):
        if shared is None:
            assert prepare(SwaBufferParams(**given(**changes))).tokens == 2
            continue
        said = wording("kernels.memory-shared", tensor="o", other=shared)
        with pytest.raises(ValueError, match=f"^{said}$"):
            prepare(SwaBufferParams(**given(**changes)))
    scales = torch.ones(48)
    with pytest.raises(
        ValueError, match="^" + wording("kernels.memory-shared", tensor="lse", other="inv_scale") + "$"
    ):
        prepare(SwaBufferParams(**given(inv_scale=scales, lse=scales[:16].view(2, 8))))


def test_tensors_without_memory_are_refused() -> None:
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in given().items()}
    with pytest.raises(ValueError, match="^" + wording("kernels.no-memory", tensor="q")):
        prepare(SwaBufferParams(**meta))


@pytest.mark.parametrize("kernel", [portable, sm100])
def test_each_kernel_refuses(kernel: Callable[..., Any]) -> None:
    with pytest.raises(NotImplementedError, match="not in bfloat16"):
        kernel(**given(cache_layout="bfloat16"))


def test_a_cache_is_never_copied() -> None:
    """Pages of either layout are the caller's memory, as far apart as they are; one page has no distance."""
    for call, stride, page in (
        (given(cache=strided(9216, 512, 1)), 9216, 8192),
        (given(cache=strided(9216, 512, 1).view(torch.float8_e4m3fn)), 9216, 8192),
        # 16 tokens of 584 bytes, to a multiple of 576.
        (ds_mla(), 9792, 9344),
        (given(cache=strided(7, 512, 1)[:1], inv_scale=torch.ones(16)), 8192, 8192),
    ):
        pages = prepare(SwaBufferParams(**call)).pages
        assert pages.data_ptr() == call["cache"].data_ptr()
        assert pages.dtype == torch.uint8
        assert (pages.shape[1], pages.stride()) == (page, (stride, 1))


def test_tensors_that_lie_as_kernels_need_them_are_taken_as_they_are() -> None:
    """Slices of a larger batch's metadata too, which begin anywhere."""
    lens, rows = torch.zeros(5, dtype=torch.int32)[3:], torch.zeros(5, 200, dtype=torch.int32)
    call = given(
        swa_lens=lens,
        swa_indices=rows[3:, :128],
        attn_sink=torch.zeros(9)[1:],
        o=torch.zeros(2, 8, 512).bfloat16(),
        lse=torch.zeros(3, 8)[1:],
    )
    found = prepare(SwaBufferParams(**call))
    for name, tensor in (
        ("q", found.q),
        ("inv_scale", found.inv_scale),
        ("swa_indices", found.indices),
        ("swa_lens", found.lens),
        ("attn_sink", found.attn_sink),
        ("o", found.o),
        ("lse", found.lse),
    ):
        assert tensor is not None
        assert tensor.data_ptr() == call[name].data_ptr(), name


@pytest.mark.slow
@pytest.mark.parametrize("kernel", quick([portable, sm100], 1))
def test_strided_and_unaligned_tensors_are_taken(kernel: Callable[..., Any]) -> None:
    """Those that a kernel cannot be given are copied, outputs back."""
    call = synth(lens=(17, 3), heads=8, sink=0.0, cache_layout=DS_MLA, seed=4)
    tensors = call.tensors
    with active(), programs_simulated():
        plain = kernel(**tensors, **call.scalars, **call.conventions)
        o = torch.zeros(2, 512, 8).bfloat16().transpose(1, 2)
        lse = torch.zeros(8, 2).T
        unaligned = torch.zeros(2 * 8 * 512 + 1).bfloat16()[1:].view(2, 8, 512).copy_(tensors["q"])
        changed = {
            "q": unaligned,
            "swa_indices": tensors["swa_indices"].T.contiguous().T,
            "swa_lens": tensors["swa_lens"].repeat_interleave(2)[::2],
            "attn_sink": tensors["attn_sink"].repeat_interleave(2)[::2],
        }
        found = kernel(**{**tensors, **changed}, **call.scalars, **call.conventions, o=o, lse=lse)
    assert found["o"] is o
    assert found["lse"] is lse
    assert same_outputs({name: x.contiguous() for name, x in found.items()}, plain)
    assert bool((plain["o"] != 0).any())


@pytest.mark.parametrize(
    ("capability", "either", "tcgen05"),
    [((9, 0), "sm_90a", None), ((10, 0), "sm_100a", "sm_100a"), ((10, 3), "sm_103a", "sm_103a")],
)
def test_what_is_compiled_for_a_gpu(
    capability: tuple[int, int], either: str, tcgen05: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Something")
    device = torch.device("cuda", 0)
    assert arch_of(device) == either
    if tcgen05 is not None:
        assert arch_of(device, BLACKWELL) == tcgen05
        return
    with pytest.raises(NotImplementedError) as refused:
        arch_of(device, BLACKWELL)
    assert re.fullmatch(
        wording(
            "kernels.capability",
            kernel="this kernel of swa_decode",
            wanted="10.0, 10.3",
            gpu="NVIDIA Something",
            major=9,
            minor=0,
        ),
        str(refused.value),
    )


def test_a_gpu_that_nothing_is_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Something")
    with pytest.raises(NotImplementedError, match=r"9\.0, 10\.0, 10\.3; NVIDIA Something has 12\.0"):
        arch_of(torch.device("cuda", 0))
