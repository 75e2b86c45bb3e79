# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay` and `sim` with `--precision fp64`: refusals, right and wrong kernels, a sum in PTX."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.kernel_files import ADD
from tests.messages import wording

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
DECODE, PREFILL = CAPTURES / "decode.zarr.zip", CAPTURES / "prefill.zarr.zip"


def test_another_precision(gdnbench: Invoke) -> None:
    result = gdnbench("replay", DECODE, 0, "--kernel", "cute", "--on", "sim", "--precision", "fp128")
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("replay.precision-unknown", precision="fp128", known="fp64"), result.err)


def test_another_device(gdnbench: Invoke) -> None:
    result = gdnbench("replay", DECODE, 0, "--precision", "fp64")
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("replay.precision-device", precision="fp64", on="cpu"), result.err)


def test_options_that_judge_otherwise(gdnbench: Invoke) -> None:
    options = ("--kernel", "cute", "--on", "sim", "--precision", "fp64", "--against", "torch", "--check")
    result = gdnbench("replay", DECODE, 0, *options)
    assert (result.code, result.out) == (2, "")
    others = "--against, --check"
    assert re.search(wording("replay.precision-alone", precision="fp64", others=others), result.err)


def test_the_rounding_of_a_kernel_in_a_file(gdnbench: Invoke, tmp_path: Path) -> None:
    """A sum of two f32 is rounded by half a unit of 2^-23 of it at most, and not all 256 sums are exact."""
    file = tmp_path / "add.ptx"
    file.write_text(ADD)
    launch = ("--grid", 1, "--block", 256, "f32[256]", "f32[256]", "f32[256]:nan", 256)
    result = gdnbench("sim", f"{file}:add", *launch, "--precision", "fp64", "--json")
    assert result.code == 0
    precision = json.loads(result.out)["precision"]
    (tensor,) = precision["tensors"]
    assert (tensor["shadowed"], tensor["elements"]) == (256, 256)
    assert 0 < tensor["rounding"] <= 2.0**-24 * tensor["largest"]
    assert precision["lost"] == []


def test_sim_observes_one_thing_at_a_time(gdnbench: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "add.ptx"
    file.write_text(ADD)
    result = gdnbench("sim", f"{file}:add", "--precision", "fp64", "--check")
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("sim.precision-alone", precision="fp64", option="--check"), result.err)


# The project's decode kernel, handed q and k of the heads in `order` by a user's function.
HEADS = """
import torch
from gdnbench_kernels.gdn_decode.cute import cute


def kernel(q, k, v, g, beta, state, state_indices, scale, o, **rest):
    heads, values = k.shape[2], v.shape[2]
    order = torch.arange(values) {order}
    q, k = q[:, :, order].contiguous(), k[:, :, order].contiguous()
    cute(q=q, k=k, v=v, g=g, beta=beta, state=state, state_indices=state_indices.int(), scale=scale, o=o)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "code", "causes"),
    [
        ("// (values // heads)", 0, {"rounding", "rounding, and an approximation"}),
        ("% heads", 1, {"formula"}),
    ],
)
def test_a_wrong_map_of_heads_is_an_error_of_the_formula(
    gdnbench: Invoke, tmp_path: Path, order: str, code: int, causes: set[str]
) -> None:
    """The kernel has a polynomial for exp, whose error of 1e-9 is left of the right one."""
    file = tmp_path / "heads.py"
    file.write_text(HEADS.replace("{order}", order))
    options = ("--kernel", f"{file}:kernel", "--on", "sim", "--precision", "fp64", "--json")
    result = gdnbench("replay", DECODE, 0, *options)
    assert result.code == code
    (record,) = json.loads(result.out)["records"]
    assert {one["cause"] for one in record["tensors"]} <= causes
    for one in record["tensors"]:
        left = one["fp64_error"] / one["error"]
        assert left > 0.99 if code else left < 0.05


@pytest.mark.slow
def test_a_right_kernel_of_prefill_has_rounding_errors_alone(gdnbench: Invoke) -> None:
    """All stages and outputs of one chunk fall by more than 2^29, to 1e-12 of their largest number."""
    options = ("--kernel", "sm100", "--on", "sim", "--precision", "fp64", "--stages", "--json")
    result = gdnbench("replay", PREFILL, 1, *options)
    assert result.code == 0
    (record,) = json.loads(result.out)["records"]
    tensors = {one["tensor"]: one for one in record["tensors"]}
    assert {"A", "Ai", "U", "W", "V_new", "o", "final_state"} <= tensors.keys()
    for one in tensors.values():
        assert one["cause"] in ("rounding", "exact")
        assert one["fp64_error"] <= 1e-12 * one["largest"]
    assert tensors["o"]["error"] > 1e-4 * tensors["o"]["largest"]
    assert record["lost"] == []


@pytest.mark.slow
def test_products_of_wgmma_are_shadowed(gdnbench: Invoke) -> None:
    """A sliding window with wgmma, P in registers: its output falls to 1e-12 of its largest number."""
    store = CAPTURES / "swa_lse.zarr.zip"
    result = gdnbench("replay", store, 0, "--kernel", "wgmma", "--on", "sim", "--precision", "fp64", "--json")
    assert result.code == 0
    (record,) = json.loads(result.out)["records"]
    for one in record["tensors"]:
        assert one["fp64_error"] <= 1e-12 * one["largest"] < one["error"]
