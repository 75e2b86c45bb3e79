# SPDX-License-Identifier: Apache-2.0
"""The commands on records of swa_decode, in every cache layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording
from tests.subset import quick

Invoke = Callable[..., Any]  # the fixture `gdnbench`

LAYOUTS = ("per_token_scale", "fp8_ds_mla", "bfloat16")
MADE = ("--lens", "20,0,33", "--heads", "2", "--spare-pages", "100", "--holes", "0.2", "--sink", "0")


@pytest.fixture(params=LAYOUTS)
def windows(request: pytest.FixtureRequest, gdnbench: Invoke, tmp_path: Path) -> tuple[str, Path]:
    """A store of two records, of which 1 page of 101 is attended to, and its cache layout."""
    store = tmp_path / "windows.zarr"
    result = gdnbench(
        "synth", store, "--op", "swa_decode", "--cache-layout", request.param, "--count", "2", *MADE
    )
    assert (result.code, result.out) == (0, f"2 swa_decode records in {store}\n")
    return request.param, store


def test_ls_and_show(gdnbench: Invoke, windows: tuple[str, Path]) -> None:
    layout, store = windows
    result = gdnbench("ls", store, "--json")
    assert result.code == 0
    sizes = json.loads(result.out)[0]["sizes"]
    assert {name: sizes[name] for name in ("T", "H", "W", "block_size")} == {
        "T": 3,
        "H": 2,
        "W": 128,
        "block_size": 64,
    }
    shown = json.loads(gdnbench("show", store, 0, "--json").out)
    tensors = {tensor["name"]: tensor for tensor in shown["tensors"]}
    last = 584 if layout == "fp8_ds_mla" else 512
    assert tensors["cache"]["shape"] == [1, 64, last]
    assert ("inv_scale" in tensors) == (layout == "per_token_scale")
    assert gdnbench("show", store, 0).code == 0


def test_replay_and_verify(gdnbench: Invoke, windows: tuple[str, Path]) -> None:
    _, store = windows
    assert gdnbench("verify", store).code == 0
    for against in ("reference", "recorded"):
        result = gdnbench("replay", store, "--kernel", "torch", "--against", against)
        assert result.code == 0, result.out + result.err
        assert "2 records: 2 pass" in result.out
    # A multiple of 0 fails o; lse has a tolerance of its own, which no multiple changes.
    result = gdnbench("replay", store, "--kernel", "torch", "--k", "0")
    assert result.code == 1
    assert "lse: " not in result.out


@pytest.mark.parametrize("windows", quick(LAYOUTS, LAYOUTS.index("per_token_scale")), indirect=True)
def test_runs_are_diffed(gdnbench: Invoke, windows: tuple[str, Path], tmp_path: Path) -> None:
    _, store = windows
    for kernel in ("torch", "reference"):
        assert gdnbench("replay", store, "--kernel", kernel, "--save", tmp_path / kernel).code == 0
    assert gdnbench("diff", tmp_path / "torch", tmp_path / "torch").code == 0
    assert gdnbench("diff", store, tmp_path / "torch").code == 0
    assert gdnbench("diff", tmp_path / "torch", tmp_path / "reference").code == 1
    assert gdnbench("diff", store, tmp_path / "reference", "--oracle").code == 0


def test_options_are_listed(gdnbench: Invoke, tmp_path: Path) -> None:
    result = gdnbench("synth", tmp_path / "no.zarr", "--op", "swa_decode", "--options")
    assert result.code == 0
    for option in ("--lens", "--cache-layout", "--holes", "--nan-at", "--spread"):
        assert option in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lens", "129"), wording("kernels.lens-range", window=128, given=129)),
        (
            ("--cache-layout", "fp8"),
            wording(
                "kernels.cache-layout", cache_layout="fp8", known="per_token_scale, fp8_ds_mla, bfloat16"
            ),
        ),
        (("--heads", "129"), "swa_decode: " + wording("kernels.heads-range", heads=129, most=128)),
        (("--block-size", "24"), wording("kernels.block-size", block_size=24, known="16, 32, 64, 128, 256")),
        (
            ("--window", "0", "--lens", "0"),
            "swa_decode: " + wording("kernels.window-range", window=0, most=128),
        ),
    ],
)
def test_what_cannot_be_made(
    gdnbench: Invoke, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = gdnbench("synth", tmp_path / "no.zarr", "--op", "swa_decode", *options)
    assert result.code == 2
    assert re.search(message, result.err)
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "no.zarr").exists()


UNSETTLED = "kernels.layout-unsettled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cache-layout", "nvfp4"), wording(UNSETTLED, where="cache_layout", layout="nvfp4")),
        (("--extra-layout", "fp4_mxfp8"), wording(UNSETTLED, where="extra_layout", layout="fp4_mxfp8")),
        (("--window", "133"), wording("kernels.window-wide", window=133, most=128)),
    ],
)
def test_what_cannot_be_made_for_v4(
    gdnbench: Invoke, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = gdnbench("synth", tmp_path / "no.zarr", "--op", "v4_decode", "--heads", "2", *options)
    assert result.code == 2
    assert re.fullmatch(f"gdnbench: v4_decode: {message}", result.err.strip())
    assert not (tmp_path / "no.zarr").exists()
