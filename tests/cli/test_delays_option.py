# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim --check --delays FILE`: the instruction that CUTracer is to delay."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.predict.tools import toolkit

Invoke = Callable[..., Any]  # the fixture `gdnbench`

# Two warps. The first reads what the second one has written, which the barrier orders; then the second one
# writes it again, which nothing orders after the read.
LATE_READER = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry late(.param .u64 out)
{
.reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<2>; .reg .b16 %h<2>;
.shared .align 4 .b32 box[64];
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
shl.b32 %r1, %r0, 2;
mov.u32 %r2, box;
add.s32 %r3, %r2, %r1;
st.shared.u32 [%r3], %r0;
bar.sync 0;
cvt.u16.u32 %h0, %r1;
setp.ge.u32 %p0, %r0, 32;
@%p0 bra again;
ld.shared.u32 %r5, [%r3+128];
mul.wide.u32 %d1, %r0, 4;
add.u64 %d2, %d0, %d1;
st.global.u32 [%d2], %r5;
ret;
again:
st.shared.u16 [%r3], %h0;
ret;
}
"""


def test_a_late_reader(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read and the second store are delayed; the first store and the one to global memory are not."""
    toolkit(monkeypatch)
    kernel, delays = tmp_path / "late.ptx", tmp_path / "d.json"
    kernel.write_text(LATE_READER)
    call = ("sim", f"{kernel}:late", "--grid", "1", "--block", "64", "i32[64]", "--check")
    result = gdnbench(*call, "--delays", delays)
    assert result.code == 1
    assert "1 of 1" in result.err
    ((name, found),) = json.loads(delays.read_text())["kernels"].items()
    assert (name.split("_")[0], found["kernel_name"]) == ("late", "late")
    points = [*found["instrumentation_points"].values()]
    words = " ".join(one["sass"] for one in points).split()
    assert (len(points), words.count("LDS"), words.count("STS.U16")) == (2, 1, 1)
    assert all(one["on"] and one["pc"] % 16 == 0 for one in points)  # instructions have 128 bits
    # The same instructions under CUTracer's name, from a pipe: the file is read once.
    seen = {**found, "kernel_name": "late()", "kernel_checksum": "1f"}
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        json.dump({"kernels": {"late()_1f": seen}}, pipe)
    gdnbench(*call, "--delays", delays, "--delays-dump", f"/dev/fd/{reader}")
    os.close(reader)
    assert [*json.loads(delays.read_text())["kernels"]] == ["late()_1f"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--delays", "d.json"), "--check"),
        (("--check", "--delays-dump", "d.json"), "--delays"),
        (("--check", "--time", "--delays", "d.json"), "--time"),
    ],
)
def test_options_that_do_not_go_together(gdnbench: Invoke, options: tuple[str, ...], says: str) -> None:
    result = gdnbench("sim", "k.ptx:k", *options)
    assert result.code == 2
    assert says in result.err


def test_without_the_tools(gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnbench.sim.predict.machine_code.shutil.which", lambda name: None)
    monkeypatch.setattr("gdnbench.sim.predict.machine_code.find_spec", lambda name: None)
    result = gdnbench("sim", "k.ptx:k", "--check", "--delays", "d.json")
    assert result.code == 3
    assert "gdnbench[predict]" in result.err
