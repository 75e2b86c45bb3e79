# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim --machine --sms` of a function or a file: the GPU that its kernel sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Invoke
from tests.messages import wording

# Writes the number of multiprocessors into every element, and the element's number.
COUNT = """
.version 8.8
.target {target}
.address_size 64
.visible .entry count(.param .u64 sms, .param .u64 numbers)
{{
    .reg .b32 %r<4>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [sms];
    ld.param.u64 %d2, [numbers];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    mov.u32 %r2, %nsmid;
    st.global.u32 [%d1], %r2;
    st.global.u32 [%d2], %r1;
    ret;
}}
"""


def file(folder: Path, target: str = "sm_90") -> Path:
    path = folder / "count.ptx"
    path.write_text(COUNT.format(target=target))
    return path


CALL = ("--grid", "1", "--block", "8", "u32[8]:0", "u32[8]:0")


def test_a_kernel_of_a_file_sees_the_gpu(gdnbench: Invoke, tmp_path: Path) -> None:
    """%nsmid: of a B200 and an H200 by NVIDIA's data sheets, of a B300 by its cudnn-frontend, or as many as
    are asked for."""
    for target, options, sms in (
        ("sm_100a", (), 148),
        ("sm_103a", (), 148),
        ("sm_100f", ("--machine", "b300", "--sms", "9"), 9),  # one family
        ("sm_90", ("--machine", "h200"), 132),
        ("sm_90", ("--machine", "b200"), 148),  # PTX without a suffix runs on later GPUs
        ("sm_90a", ("--sms", "7"), 7),
        ("sm_90a", ("--machine", "h100", "--sms", "7"), 7),
    ):
        ran = gdnbench("sim", file(tmp_path, target), *options, *CALL, "--save", tmp_path / "out")
        assert ran.code == 0, ran.err
        assert torch.load(tmp_path / "out" / "sms.pt").tolist() == [sms] * 8


def test_a_kernel_for_another_gpu(gdnbench: Invoke, tmp_path: Path) -> None:
    for target, machine, device in (
        ("sm_100a", "h200", "H200"),
        ("sm_90a", "b200", "B200"),
        ("sm_100a", "b300", "B300"),
        ("sm_103f", "b200", "B200"),
    ):
        ran = gdnbench("sim", file(tmp_path, target), "--machine", machine, *CALL)
        assert ran.code == 3
        assert re.search(wording("sim.host.wrong-gpu", target=target, device=device), ran.err)


def test_bits_that_depend_on_the_number_of_sms(gdnbench: Invoke, tmp_path: Path) -> None:
    """Processes of their own run the numbers; the commands repeat the two runs."""
    ran = gdnbench("sim", file(tmp_path), *CALL, "--explore", "1", "--sms", "148,4")
    assert ran.code == 1, ran.err
    assert re.search(r"as given, --sms 148 +1 +equal +pass\n", ran.out)
    assert re.search(r"as given, --sms 4 +1 +differ +FAIL\n", ran.out)
    sentence = wording(
        "sim.sms-depends",
        tensor="sms",
        place="sms[0]",
        value=4.0,
        sms=4,
        other=148.0,
        against=148,
        elements=8,
        size=8,
    )
    assert re.search(f"as given: {sentence}\n", ran.out)
    for begin, sms in (("repeat:", 4), ("and:   ", 148)):
        assert re.search(f"  {begin} gdnbench sim .* --sms {sms} ", ran.out)
    assert re.search(wording("cli.explore-sms-differ", differ=1, shapes=1), ran.out)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sms", "0"), wording("cli.sms-wrong", text="0")),
        (("--sms", "4,"), wording("cli.sms-wrong", text="4,")),
        (("--sms", "4,4"), wording("cli.sms-twice", text="4,4")),
        (("--sms", "1,4"), wording("cli.sms-without-explore", text="1,4")),
    ],
)
def test_numbers_that_are_refused(
    gdnbench: Invoke, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    ran = gdnbench("sim", file(tmp_path), *options, *CALL)
    assert (ran.code, ran.out) == (2, "")
    assert re.search(sentence, ran.err)


FUNCTION = """
import torch
from gdnbench import sim
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse

MODULE = parse({text!r})


def count():
    kernel = PtxKernel(MODULE, "count", (1, 1, 1), (8, 1, 1))
    sim.launch(kernel, torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32))
"""


def test_a_function_and_an_architecture_of_another_machine(gdnbench: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    path = tmp_path / "count.py"
    path.write_text(FUNCTION.format(text=COUNT.format(target="sm_90a")))
    ran = gdnbench("sim", f"{path}:count", "--machine", "h200", "--sms", "2")
    assert ran.code == 0, ran.err
    ran = gdnbench("sim", f"{path}:count", "--machine", "h200", "--arch", "sm_100a")
    assert ran.code == 2
    assert re.search(wording("sim.host.arch-of-machine", arch="sm_100a", machine="h200"), ran.err)
