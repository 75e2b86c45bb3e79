# SPDX-License-Identifier: Apache-2.0
"""`portable` with `kernel="faster"`: what it launches, and that its rule is what was measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode import dispatch
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.portable import portable
from gdnbench_kernels.swa_decode.wgmma import wgmma
from tests.kernels import swa_calls
from tests.kernels.swa_calls import PER_TOKEN, Outputs, made, request_of, same_outputs

DOCS = Path(__file__).parents[2] / "docs" / "swa_decode.md"
SM90, SM100 = "sm_90a", "sm_100a"

Calls = tuple[Call, Outputs, Outputs]


def run(call: Call, **options: Any) -> Outputs:
    return swa_calls.run(portable, call, options)


@pytest.fixture(scope="module")
def both() -> Calls:
    """A call, what `portable` and what `wgmma` make of it: of 64 heads and full windows some bits differ."""
    call = made(cache_layout=PER_TOKEN, heads=64, lens=(128, 128))
    plain, other = run(call, arch=SM90), swa_calls.run(wgmma, call, {})
    assert not same_outputs(plain, other)
    return call, plain, other


@pytest.fixture
def from_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "WGMMA_FROM", {(CacheLayout.PER_TOKEN_SCALE, 64): 2})


@pytest.mark.slow  # 256 requests are simulated
@pytest.mark.usefixtures("from_two")
def test_from_as_many_requests_on_it_is_wgmma(both: Calls) -> None:
    call, _, other = both
    assert same_outputs(run(call, arch=SM90, kernel="faster"), other)


@pytest.mark.slow  # `both` is costly
@pytest.mark.usefixtures("from_two")
def test_else_it_is_mma_sync(both: Calls) -> None:
    call, plain, _ = both
    assert same_outputs(run(call, arch=SM100, kernel="faster"), plain)
    fewer = run(request_of(call, 1), arch=SM90, kernel="faster")
    assert same_outputs(fewer, {name: tensor[1:] for name, tensor in plain.items()})


@pytest.mark.slow  # `both` is costly
@pytest.mark.usefixtures("from_two")
def test_unasked_it_is_never_wgmma(both: Calls) -> None:
    call, plain, _ = both
    assert same_outputs(run(call, arch=SM90), plain)


def test_another_name_is_refused() -> None:
    call = made(lens=(1,))
    with pytest.raises(ValueError, match=wording("kernels.kernel-word", kernel="wgmma")):
        portable(**call.tensors, **call.scalars, **call.conventions, kernel="wgmma")


def measured() -> dict[tuple[str, int, str], list[tuple[int, float]]]:
    """By layout, heads and kernel: (requests, us) of the documentation's first table of both."""
    text = DOCS.read_text()
    header = re.search(r"^\| layout \| heads \| kernel \|(.*) requests \|$", text, re.MULTILINE)
    assert header
    table = text[header.start() :].partition("\n\n")[0]
    batches = [int(batch) for batch in header[1].split("|")]
    found = {}
    for layout, heads, kernel, times in re.findall(
        r"^\| (\w+) \| (\d+) \| `(portable|wgmma)` \|(.*)\|$", table, re.MULTILINE
    ):
        numbers = [float(cell.split()[0]) for cell in times.split("|")]
        found[layout, int(heads), kernel] = list(zip(batches, numbers, strict=True))
    return found


@pytest.mark.parametrize(("layout", "heads"), dispatch.WGMMA_FROM)
def test_the_rule_is_what_was_measured(layout: CacheLayout, heads: int) -> None:
    table = measured()
    pairs = zip(table[layout, heads, "portable"], table[layout, heads, "wgmma"], strict=True)
    slower = [batch for (batch, ours), (_, others) in pairs if others >= ours]
    later = [batch for batch, _ in table[layout, heads, "wgmma"] if batch > max(slower, default=0)]
    assert dispatch.WGMMA_FROM[layout, heads] == min(later)
