# SPDX-License-Identifier: Apache-2.0
"""Machine code with its control bits, and which PTX instruction it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict import machine_code as under_test
from gdnbench.sim.predict.machine_code import (
    MachineInstruction,
    arch_of,
    assemble,
    machine_code,
    tool,
    with_lines,
)
from gdnbench.sim.ptx.parser import parse
from tests.sim.predict.tools import toolkit

PTX = """.version 8.8
.target sm_90a
.address_size 64
.file 1 "given.py"
.visible .entry k(.param .u64 out)
{
.reg .b32 %r<8>; .reg .b64 %d<4>; .reg .f32 %f<4>;
.loc 1 7 0
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %d1, %r0, 4;
add.u64 %d2, %d0, %d1;
ld.global.f32 %f0, [%d2];
ex2.approx.f32 %f1, %f0;
st.global.f32 [%d2+1024], %f1;
ret;
}
"""

# What nvdisasm of CUDA 13.0 prints, shortened. The control words are read by hand: bits 41 to 44 of the upper
# half are the stall, 45 yield, 46 to 48 the scoreboard of the result, 49 to 51 that of the operands, 52 to 57
# those that are waited for.
LISTING = """
	.section	.text.k2,"ax",@progbits
	//## File "kernel", line 9
        /*0000*/                   EXIT ;    /* 0x000000000000794d */
                                             /* 0x000fea0003800000 */
	.section	.text.k,"ax",@progbits
	//## File "kernel", line 5
        /*0040*/                   LDG.E R0, desc[UR4][R2.64] ;  /* 0x0000000402007981 */
                                                                 /* 0x000ea2000c1e1900 */
	//## File "kernel", line 6
        /*0050*/              @!P0 MUFU.EX2 R5, R0 ;             /* 0x0000000000058308 */
                                                                 /* 0x004e620000000800 */
        /*0060*/                   IADD3 R1, R1, 0x1, RZ ;       /* 0x0000000101017810 */
                                                                 /* 0x002fca0007ffe0ff */
"""


def test_control_bits() -> None:
    """0x000ea2.. >> 41 = 0b0_0111_0101_0001: stall 1, yield 1, result 2, operands none (7), no waits."""
    assert list(under_test._parse(LISTING, "k")) == [
        MachineInstruction(4, "LDG.E", 1, 0, 2, None),
        MachineInstruction(5, "MUFU.EX2", 1, 0b000100, 1, None),
        MachineInstruction(5, "IADD3", 5, 0b000010, None, None),
    ]


def test_each_instruction_has_a_line_of_its_own() -> None:
    module = parse(PTX)
    text = with_lines(module, module.kernels["k"]).split("\n")
    assert "given.py" not in "\n".join(text)
    assert [text[text.index(f".loc 1 {pc + 1} 0") + 1].split()[0] for pc in (0, 4, 5, 6)] == [
        "ld.param.u64",
        "ld.global.f32",
        "ex2.approx.f32",
        "st.global.f32",
    ]


def test_ptxas_code_belongs_to_its_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load at pc 4 is an LDG with a scoreboard, which the MUFU for pc 5 waits for; ptxas scales its
    operand and result, so there are multiplications for pc 5 too. The store is for pc 6."""
    toolkit(monkeypatch)
    module = parse(PTX)
    found = machine_code(module, module.kernels["k"], "sm_90a")
    (load,) = [code for code in found if code.opcode.startswith("LDG")]
    (special,) = [code for code in found if code.opcode.startswith("MUFU")]
    (store,) = [code for code in found if code.opcode.startswith("STG")]
    assert (load.pc, special.pc, store.pc) == (4, 5, 6)
    assert load.result is not None
    first_use = next(code for code in found[found.index(load) + 1 :] if code.waits >> load.result & 1)
    assert first_use.pc == 5
    assert special.result is not None
    assert any(code.waits >> special.result & 1 for code in found[found.index(special) + 1 :])


LOOP = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<1>;
ld.param.u64 %d0, [out];
mov.u32 %r0, 0;
mov.u32 %r1, 1;
again: mul.hi.u32 %r1, %r1, %r1;
add.u32 %r0, %r0, 1;
setp.lt.u32 %p1, %r0, 1000;
@%p1 bra again;
st.global.u32 [%d0], %r1;
ret;
}
"""


def test_a_loop_s_body_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas would unroll the loop four times. Its multiplication, pc 3, is one IMAD.HI."""
    toolkit(monkeypatch)
    for text in (LOOP, LOOP.replace("again: ", "again:\n")):
        module = parse(text)
        found = machine_code(module, module.kernels["k"], "sm_90a")
        assert [code.opcode for code in found if code.pc == 3] == ["IMAD.HI.U32"]


def test_a_tool_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "ptxas"
    broken.write_bytes(b"\x7fELF, but no program")
    broken.chmod(0o755)
    (tmp_path / "nvdisasm").symlink_to(broken)
    monkeypatch.setenv("PATH", str(tmp_path))
    module = parse(LOOP)
    with pytest.raises(UnsupportedError, match=f"{broken} does not start"):
        machine_code(module, module.kernels["k"], "sm_90")


def test_ptxas_refusals_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit(monkeypatch)
    module = parse(PTX)
    with pytest.raises(UnsupportedError, match="ptxas"):
        machine_code(module, module.kernels["k"], "sm_1")


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(under_test, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="nvdisasm of the CUDA toolkit"):
        tool("nvdisasm")


def test_the_disk_keeps_machine_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another process finds it, and one with another ptxas does not."""
    toolkit(monkeypatch)
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(under_test, "_kept", {})
    module = parse(PTX)
    made = machine_code(module, module.kernels["k"], "sm_90a")
    monkeypatch.setattr(under_test, "_assemble", lambda *given: ())
    monkeypatch.setattr(under_test, "_kept", {})
    assemble(module, module.kernels["k"], "sm_90a")
    assert not under_test._kept
    assert machine_code(module, module.kernels["k"], "sm_90a") == made != ()
    monkeypatch.setattr(under_test, "_kept", {})
    monkeypatch.setattr(under_test, "tool", lambda name: __file__)
    assert machine_code(module, module.kernels["k"], "sm_90a") == ()


@pytest.mark.parametrize(
    ("target", "arch"), [("sm_90a", "sm_90a"), ("sm_100f", "sm_100f"), ("sm_80", "sm_100a")]
)
def test_what_runs_on_later_gpus_is_assembled_for_the_machine(target: str, arch: str) -> None:
    assert arch_of(parse(PTX.replace("sm_90a", target)), "b200") == arch
