# SPDX-License-Identifier: Apache-2.0
"""Kernels of PTX texts in Python: names of C++, and arguments that a command line cannot write."""

from __future__ import annotations

import struct

import pytest
import torch

from gdnbench import sim
from gdnbench.sim.demangle import demangled, names_called, short_name
from gdnbench.sim.errors import LaunchError, UnsupportedError
from gdnbench.sim.host.ptx_kernel import PtxKernel, entry_named, parameter_names
from gdnbench.sim.ptx import entry_names, keep_entry, parse
from tests.cli.kernel_files import ADD, PACKED
from tests.messages import wording
from tests.seeds import drawn

# Mangled by hand, by the Itanium C++ ABI, "Mangling".
DECLARATIONS = {
    "_Z4gemmIfLi64EEvPT_PKS0_if": "void gemm<float, 64>(float*, float const*, int, float)",
    "_ZN1a4overEPi": "a::over(int*)",
    "_ZN1a4overEPf": "a::over(float*)",
    "plain": "plain",
}

# x[0] = the bits of all parameters but the first, as 16 bits each.
SMALL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry small(.param .u64 .ptr out, .param .b16 a, .param .f16 b, .param .u64 .ptr null)
{
    .reg .b16 %h<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    ld.param.b16 %h1, [a];
    ld.param.b16 %h2, [b];
    ld.param.u64 %rd2, [null];
    st.global.b16 [%rd1], %h1;
    st.global.b16 [%rd1+2], %h2;
    st.global.b64 [%rd1+8], %rd2;
    ret;
}
"""


# Thread 1 of each block prints "block " and its block's number.
PRINTS = """.version 8.8
.target sm_100a
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[9] = {98, 108, 111, 99, 107, 32, 37, 100, 0};
.visible .entry prints()
{
    .local .align 8 .b8 args[8];
    .reg .pred %p;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p, %r1, 1;
    @%p ret;
    mov.u32 %r2, %ctaid.x;
    st.local.u32 [args], %r2;
    mov.b64 %rd1, text;
    cvta.global.u64 %rd1, %rd1;
    mov.b64 %rd2, args;
    cvta.local.u64 %rd2, %rd2;
    { .param .b64 f; .param .b64 a; .param .b32 r;
    st.param.b64 [f], %rd1; st.param.b64 [a], %rd2;
    call.uni (r), vprintf, (f, a); }
    ret;
}
"""


def test_names_of_cpp() -> None:
    assert {name: demangled(name) for name in DECLARATIONS} == DECLARATIONS
    assert [*map(short_name, DECLARATIONS)] == ["gemm<float, 64>", "a::over", "a::over", "plain"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("gemm", ["_Z4gemmIfLi64EEvPT_PKS0_if"]),
        ("gemm<float,64>", ["_Z4gemmIfLi64EEvPT_PKS0_if"]),
        ("gemm<float, 32>", []),
        ("a::over(int *)", ["_ZN1a4overEPi"]),
        ("over", ["_ZN1a4overEPi", "_ZN1a4overEPf"]),
        ("plain", ["plain"]),
        ("plai", []),
    ],
)
def test_what_a_name_can_mean(wanted: str, found: list[str]) -> None:
    assert names_called(wanted, DECLARATIONS) == found


def test_an_ambiguous_name_lists_the_mangled_ones() -> None:
    with pytest.raises(LaunchError, match=wording("sim.cuda-kernels-several", name="over", file="k.ptx")):
        entry_named([*DECLARATIONS], "over", "k.ptx")
    assert entry_named([*DECLARATIONS], "gemm", "k.ptx") == "_Z4gemmIfLi64EEvPT_PKS0_if"


SEVERAL = """.version 8.8
.target sm_100a
.address_size 64
.const .b32 table = -5;
/* .entry commented() { */
.visible .entry first(.param .u64 x)
{
    .pragma "nounroll }";
    nosuch.b32 %r1; // }
    { bra END; }
}
// .entry said() {
    .weak .entry second(.param .u64 x) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [x];
    ld.const.b32 %r1, [table];
    st.global.b32 [%rd1], %r1;
    ret; }
.entry third() { nosuch.b32 %r1; }
"""


def test_a_kernel_beside_others_that_are_refused() -> None:
    assert entry_names(SEVERAL) == ["first", "second", "third"]
    with pytest.raises(UnsupportedError, match="nosuch"):
        parse(SEVERAL)
    module = parse(keep_entry(SEVERAL, "second"))
    assert [*module.kernels] == ["second"]
    line = 1 + SEVERAL.splitlines().index("    st.global.b32 [%rd1], %r1;")
    assert line in [instruction.place.line for instruction in module.kernels["second"].instructions]
    x = torch.zeros(1, dtype=torch.int32)
    assert sim.launch(PtxKernel(module, "second", (1, 1, 1), (1, 1, 1)), x).ok
    assert x.item() == -5


def test_parameters_as_bytes() -> None:
    kernel = PtxKernel(parse(PACKED), "_ZN2ns6packedIfLi3EEEvPhdfts", (1, 1, 1), (32, 1, 1))
    generator = torch.Generator().manual_seed(drawn("ptx kernel"))
    by_value = bytes(torch.randint(256, (12,), dtype=torch.uint8, generator=generator).tolist())
    out = torch.zeros(28, dtype=torch.uint8)
    report = sim.launch(kernel, out, 2, 0.5, -1, 1, by_value)
    assert report.ok
    assert bytes(out.tolist()) == struct.pack("<dfhh", 2.0, 0.5, -1, 1) + by_value


def test_floats_of_16_bits_and_a_null_pointer() -> None:
    kernel = PtxKernel(parse(SMALL), "small", (1, 1, 1), (1, 1, 1))
    out = torch.full((8,), -1, dtype=torch.int16)
    assert sim.launch(kernel, out, 1.5, 1 / 3, None).ok
    assert out[:1].view(torch.float16).item() == 1.5
    assert out[1:2].view(torch.float16).item() == torch.tensor(1 / 3).half().item()
    assert out.tolist()[4:] == [0, 0, 0, 0]


def test_arguments_have_no_names() -> None:
    kernel = PtxKernel(parse(ADD), "add", (1, 1, 1), (32, 1, 1))
    assert parameter_names(kernel.kernel) == ("param_0", "param_1", "param_2", "param_3")
    x = torch.zeros(32)
    with pytest.raises(LaunchError, match=wording("sim.host.parameter-named", kernel="add", names="n")):
        sim.launch(kernel, x, x, x, n=32)


def test_settings_of_the_enclosing_block() -> None:
    kernel = PtxKernel(parse(ADD), "add", (1, 1, 1), (32, 1, 1), labels=("a", "b", "c", "n"))
    a, b, c = torch.randn(32), torch.randn(32), torch.full((32,), torch.nan)
    with sim.settings_apply(sim.Settings(engine="interpreter", schedule="early"), check=True) as session:
        sim.launch(kernel, a, b, c, 32)
    (report,) = session.reports
    assert (report.engine, report.schedule, report.checked) == ("interpreter", "early", True)
    assert torch.equal(c, a + b)


def test_blocks_inside_one_another() -> None:
    """The innermost block has the reports; it takes what it was not given from the block around it, which
    goes on as before."""
    kernel = PtxKernel(parse(ADD), "add", (1, 1, 1), (32, 1, 1), labels=("a", "b", "c", "n"))
    a, b, c = torch.randn(32), torch.randn(32), torch.full((32,), torch.nan)
    with sim.settings_apply(sim.Settings(schedule="early"), sms=3, reachable=[a]) as outer:
        with sim.settings_apply(check=True, reachable=[b]) as inner:
            sim.launch(kernel, a, b, c, 32)
            with sim.settings_apply(sim.Settings(schedule="random:4"), sms=2) as innermost:
                sim.launch(kernel, a, b, c, 32)
        sim.launch(kernel, a, b, c, 32)
    assert [(one.schedule, one.checked) for one in inner.reports] == [("early", True)]
    assert [(one.schedule, one.checked) for one in innermost.reports] == [("random:4", False)]
    assert [(one.schedule, one.checked) for one in outer.reports] == [("early", False)]
    assert (outer.sms, inner.sms, innermost.sms) == (3, 3, 2)
    assert [one.data_ptr() for one in inner.reachable] == [b.data_ptr(), a.data_ptr()]
    assert inner.asked is outer.asked


def test_active_inside_other_blocks() -> None:
    """CuTe DSL's functions go to the simulator once, in the outermost `active`."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    with sim.settings_apply(sim.Settings(schedule="early"), sms=3) as outer:
        assert not outer.patched
        with sim.active() as inner:
            assert (inner.settings.schedule, inner.sms, inner.patched) == ("early", 3, True)
            with sim.active(sim.Settings(schedule="late"), check=True) as innermost:
                assert innermost.patched
                assert (innermost.settings.schedule, innermost.settings.check) == ("late", True)
        assert not outer.patched


def test_the_report_has_what_a_kernel_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the blocks, whatever the schedule; also as `gdnbench sim` prints the launch."""
    kernel = PtxKernel(parse(PRINTS), "prints", grid=(3, 1, 1), block=(2, 1, 1))
    for schedule in ("late", "random:3"):
        (launched,) = sim.launch(kernel, schedule=schedule).launches
        assert launched.printed == tuple(
            f"block ({block}, 0, 0), thread (1, 0, 0): block {block}" for block in range(3)
        )
        assert str(launched).endswith("\n  printf: 3 texts")
        assert sorted(capsys.readouterr().err.splitlines()) == [
            f"prints, {line}" for line in launched.printed
        ]
