# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim FILE.ptx:entry`: launch shape, arguments by declared type, and what is refused."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.kernel_files import ADD, PACKED, TWO
from tests.messages import wording
from tests.seeds import drawn

Invoke = Callable[..., Any]  # the fixture `gdnbench`


@pytest.fixture
def add(tmp_path: Path) -> Path:
    path = tmp_path / "add.ptx"
    path.write_text(ADD)
    return path


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "packed.ptx"
    path.write_text(PACKED)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.ptx"
    path.write_text(TWO.replace("{barrier}", "bar.sync 0;"))
    return path


@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
def test_tensors_of_files_and_a_number(gdnbench: Invoke, add: Path, tmp_path: Path, engine: str) -> None:
    random = np.random.default_rng(drawn("sim files"))
    a, b = random.standard_normal((2, 1000), np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    out = tmp_path / "out"
    result = gdnbench(
        *("sim", f"{add}:add", "--grid", "1000/256", "--block", "256", "--engine", engine, "--save", out),
        *(f"@{tmp_path / 'a.npy'}", f"b=@{tmp_path / 'b.npy'}", "c=f32[1000]:nan", "1000"),
    )
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    size = wording("sim.launch-size", grid="4x1x1", block="256x1x1", shared=re.compile(".*"))
    assert lines[1] == "launch 0: add"
    assert re.fullmatch(f"  {size}", lines[2])
    assert [line.split()[:3] for line in lines[-3:]] == [
        [name, "float32", "1000"] for name in ("param_0", "b", "c")
    ]
    assert np.array_equal(torch.load(out / "c.pt", weights_only=True).numpy(), a + b)


def test_numbers_are_packed_by_declared_type(gdnbench: Invoke, packed: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([1, -2, 3], np.int32))
    call = ("sim", packed, "--grid", "1", "--save", tmp_path, "--")
    result = gdnbench(*call, "u8[28]", "1", "-0.5", "65535", "-7", f"@{tmp_path / 'e.npy'}")
    assert result.code == 0
    written = torch.load(tmp_path / "out.pt", weights_only=True).numpy().tobytes()
    assert written == struct.pack("<dfHh3i", 1.0, -0.5, 65535, -7, 1, -2, 3)


@pytest.mark.parametrize(
    "name",
    ["ns::packed<float, 3>", "ns::packed<float,3>", "ns::packed", "packed", "_ZN2ns6packedIfLi3EEEvPhdfts"],
)
def test_an_entry_by_the_names_of_cpp(gdnbench: Invoke, packed: Path, name: str) -> None:
    result = gdnbench("sim", f"{packed}:{name}", "--grid", "1", "u8[28]", 1, 1, 1, 1, "u8[12]", "--json")
    assert result.code == 0
    data = json.loads(result.out)
    assert data["calls"][0]["launches"][0]["block"] == [32, 1, 1]  # .reqntid
    assert [tensor["tensor"] for tensor in data["tensors"]] == ["out", "e"]


def test_dynamic_shared_memory_and_the_checker(gdnbench: Invoke, two: Path, tmp_path: Path) -> None:
    call = ("--grid", "1", "--block", "64", "--shared", "256", "--check", "x=i32[64]:arange")
    result = gdnbench("sim", f"{two}:mirror", *call, "--save", tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "no error found" in result.out
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True), torch.arange(64).flip(0).int())
    two.write_text(TWO.replace("{barrier}", ""))
    result = gdnbench("sim", f"{two}:mirror", *call)
    assert result.code == 1
    store = 1 + TWO.splitlines().index("    st.shared.b32 [%r3], %r2;")
    assert f"PTX line {store} `st.shared.b32 [%r3], %r2;`: st.shared writes (compute)" in result.out
    none = gdnbench("sim", f"{two}:mirror", "--grid", "1", "--block", "64", "x=i32[64]:arange")
    assert none.code == 1
    assert "out-of-bounds access" in none.out


def test_schedules_and_shapes(gdnbench: Invoke, add: Path) -> None:
    tensors = ["f32[{N}]", "f32[{N}]:ones", "f32[{N}]:nan", "{N}"]
    options = ("--grid", "{N}/32", "--block", "32", "--explore", "2", "--vary", "N=31,40")
    result = gdnbench("sim", add, *options, *tensors)
    assert result.code == 0
    assert re.search(r"^N=31 +2  equal  pass$", result.out, re.MULTILINE)
    result = gdnbench("sim", add, *options, *tensors[:3], "41")
    assert result.code == 1
    repeat = re.search(r"repeat: gdnbench (sim .*)", result.out)
    assert repeat is not None
    assert repeat[1].endswith("--grid 31/32 --block 32 -- 'f32[31]' 'f32[31]:ones' 'f32[31]:nan' 41")


def test_a_timeline_and_a_trace(gdnbench: Invoke, add: Path, tmp_path: Path) -> None:
    call = ("sim", add, "--grid", "2", "--block", "32", "f32[64]", "f32[64]", "f32[64]:nan", "64")
    result = gdnbench(*call, "--timeline", tmp_path / "t.json", "--trace", tmp_path / "t.zarr")
    assert result.code == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert re.search(wording("cli.trace-written", launches="1 launch"), result.err)


def test_a_block_that_the_kernel_does_not_take(gdnbench: Invoke, add: Path, packed: Path) -> None:
    result = gdnbench("sim", add, "--grid", "1", "--block", "512", *["f32[8]"] * 3, "8")
    assert result.code == 1
    assert re.search(wording("sim.machine.block-over-maxntid", kernel="add", most=256), result.out)
    result = gdnbench("sim", packed, "--grid", "1", "--block", "64", "u8[28]", 1, 1, 1, 1, "u8[12]")
    assert result.code == 1
    assert "(.reqntid)" in result.out


FILES = ["f32[8]", "f32[8]", "f32[8]"]
ONE = ["--grid", "1", "--block", "32"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{add}", *ONE, *FILES], 2, wording("sim.host.parameter-missing", label="param_3", type="u32")),
        (["{add}", *ONE, *FILES, "1", "2"], 2, wording("sim.host.parameter-count", wanted=4, given=5)),
        (
            ["{add}", *ONE, *FILES, "f32[8]"],
            2,
            wording("sim.host.parameter-no-pointer", label="param_3", type="u32"),
        ),
        (["{add}", *ONE, "3", *FILES], 2, wording("sim.host.parameter-pointer", label="param_0", value=3)),
        (
            ["{add}", *ONE, *FILES, "1.5"],
            2,
            wording("sim.host.parameter-no-integer", label="param_3", type="u32", value=1.5),
        ),
        (
            ["{add}", *ONE, *FILES, str(2**32)],
            2,
            wording("sim.host.parameter-too-wide", label="param_3", type="u32", value=2**32, bits=32),
        ),
        (
            ["{add}", *ONE, *FILES, "'x'"],
            2,
            wording("sim.host.parameter-value", label="param_3", type="u32", value="x"),
        ),
        (["{add}", *ONE, "a=f32[8]", "a=f32[8]", "f32[8]", "8"], 2, wording("cli.argument-name-taken")),
        (["{add}", *ONE, "param_1=f32[8]", *FILES], 2, wording("cli.argument-name-taken", label="param_1")),
        (
            ["{packed}", "--grid", "1", "u8[28]", "1", "1e39", "1", "1", "u8[12]"],
            2,
            wording("sim.host.parameter-too-large", label="b", type="f32", value=1e39),
        ),
        (
            ["{packed}", "--grid", "1", "u8[28]", "1", "1", "1", "1", "7"],
            2,
            wording("sim.host.parameter-struct", label="e", size=12, value=7),
        ),
        (
            ["{packed}", "--grid", "1", "u8[28]", "1", "1", "1", "1", "u8[11]"],
            2,
            wording("sim.host.parameter-struct-size", label="e", size=12, given=11),
        ),
        (["{two}", *ONE], 2, wording("sim.host.entry-unnamed", kernels="mirror, nothing")),
        (
            ["{two}:mirrors", *ONE],
            2,
            wording("sim.host.entry-unknown", name="mirrors", kernels="mirror, nothing"),
        ),
        (["{two}:nothing", "--block", "32"], 2, wording("cli.launch-needs-grid")),
        (["{two}:nothing", "--grid", "1"], 2, wording("cli.launch-needs-block")),
        (
            ["{two}:nothing", "--grid", "1,0x2", "--block", "1"],
            2,
            wording("cli.extents-wrong", option="grid"),
        ),
        (["{two}:nothing", "--grid", "1/0", "--block", "1"], 2, wording("cli.extents-wrong", option="grid")),
        (
            ["{two}:nothing", "--grid", "1", "--block", "1,2,3,4"],
            2,
            wording("cli.extents-wrong", option="block", text="1,2,3,4"),
        ),
        (["{two}:nothing", *ONE, "--shared", "-1"], 2, wording("cli.shared-wrong", text="-1")),
        (["{two}:nothing", *ONE, "-D", "X"], 2, wording("cli.option-of-cuda", option="define")),
        (["{two}:nothing", *ONE, "-I", "."], 2, wording("cli.option-of-cuda", option="include")),
        (["{two}:nothing", *ONE, "--arch", "sm_100a"], 2, wording("cli.option-of-cuda", option="arch")),
        (["module:function", "--grid", "1"], 2, wording("cli.option-of-files", option="grid")),
        (["{two}:nothing", *ONE, "--vary", "N=1"], 2, wording("cli.vary-without-explore")),
        (["{two}:nothing", *ONE, "--explore", "2", "--vary", "N=1"], 2, wording("cli.vary-unused")),
        (["missing.ptx:add", *ONE], 2, "missing.ptx: No such file"),
        (["{empty}", *ONE], 2, wording("sim.host.no-entry")),
        (["{two}:nothing", *ONE, "--seed", str(2**64)], 2, wording("cli.seed-too-wide", seed=2**64)),
    ],
)
def test_refusals_in_one_line(
    gdnbench: Invoke, add: Path, packed: Path, two: Path, arguments: list[str], code: int, message: str
) -> None:
    empty = two.with_name("empty.ptx")
    empty.write_text("")
    given = [argument.format(add=add, packed=packed, two=two, empty=empty) for argument in arguments]
    result = gdnbench("sim", *given)
    assert (result.code, result.out) == (code, "")
    assert len(result.err.splitlines()) == 1
    assert re.search(message, result.err)


def test_a_file_that_is_no_ptx(gdnbench: Invoke, tmp_path: Path) -> None:
    (tmp_path / "no.ptx").write_bytes(b"\xff\xfe")
    result = gdnbench("sim", tmp_path / "no.ptx", *ONE)
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("cli.file-no-text"), result.err)
    (tmp_path / "no.ptx").write_text(".version 8.8\n.target sm_100a\n.entry k() { nosuch.b32 %r1; }\n")
    result = gdnbench("sim", tmp_path / "no.ptx", *ONE)
    assert (result.code, result.out) == (3, "")
    assert "nosuch" in result.err
