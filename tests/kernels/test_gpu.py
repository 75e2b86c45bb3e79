# SPDX-License-Identifier: Apache-2.0
"""The GPU of a call whose tensors are on the CPU: what kernels are compiled for, and how many CTAs they
have."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Questions, active, current_session, settings_apply
from gdnbench_kernels.gpu import calls_for, capability_of, multiprocessors
from gdnbench_kernels.programs import BLACKWELL, SM90, SM100, SM103, arch_of
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.swa_decode.contract import OPERATION as SWA_DECODE
from tests.messages import wording

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Gpu:
    capability: tuple[int, int] | None
    count: int = 5
    name: str = "a GPU"

    def sms(self, arch: str) -> int:
        return self.count


def test_without_a_gpu() -> None:
    """148 SMs of a B200, 132 of an H100 and an H200: NVIDIA's data sheets."""
    assert multiprocessors(CPU) == multiprocessors(CPU, SM100) == 148
    assert multiprocessors(CPU, SM90) == 132
    assert capability_of(CPU) is None
    assert arch_of(CPU, (SM90, SM100), "this kernel") == SM100


def test_on_a_gpu_that_is_named() -> None:
    with calls_for(Gpu((9, 0))):
        assert multiprocessors(CPU) == multiprocessors(CPU, SM90) == 5
        assert arch_of(CPU, (SM90, SM100), "this kernel") == SM90
        with pytest.raises(NotImplementedError) as refused:
            arch_of(CPU, (SM100, SM103), "this kernel")
        with calls_for(Gpu(None, 6)):
            assert multiprocessors(CPU) == 6
            assert arch_of(CPU, (SM90, SM100), "this kernel") == SM100
    assert re.fullmatch(wording("kernels.capability", gpu="a GPU", major=9, minor=0), str(refused.value))


def test_the_simulators_gpu() -> None:
    """That of the innermost block; the question for its SMs is noted."""
    with programs_simulated():
        assert multiprocessors(CPU) == 148
        with settings_apply(machine="h200"):
            assert (multiprocessors(CPU), capability_of(CPU)) == (132, (9, 0))
        asked = Questions()
        with settings_apply(sms=3, questions=asked):
            assert not asked.multiprocessors
            assert (multiprocessors(CPU), multiprocessors(CPU, SM90), capability_of(CPU)) == (3, 3, None)
            assert asked.multiprocessors
    assert current_session() is None


def test_a_kernel_of_another_machine_is_refused() -> None:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    from gdnbench.synth import synthesise

    call = synthesise("swa_decode", heads=8, lens=(5,))
    with (
        active(machine="b200"),
        programs_simulated(),
        pytest.raises(NotImplementedError, match="sm_90a alone"),
    ):
        run_kernel(SWA_DECODE, "wgmma", call)
    with active(machine="h100"), programs_simulated(), pytest.raises(NotImplementedError) as refused:
        run_kernel(SWA_DECODE, "sm100", call)
    assert re.fullmatch(wording("kernels.capability", gpu="NVIDIA H100 80GB HBM3"), str(refused.value))
    assert SM100 in BLACKWELL


@pytest.mark.slow  # compiles a kernel of its own
def test_a_persistent_kernel_on_gpus_of_several_sizes() -> None:
    """Five tiles: a CTA for each SM, and four for each tile on a B200. The bits are equal. The checker finds
    nothing, and says on the B200 that no CTA took a second tile. tests/sim/test_check_kernels.py checks the
    other kernels."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    from gdnbench.synth import synthesise

    call = synthesise("swa_decode", heads=8, lens=(5, 17, 128, 0, 40))
    bits = []
    for sms, ctas, notes in ((1, 1, []), (2, 2, []), (148, 20, [wording("sim.no-second-tile", ctas=20)])):
        with active(sms=sms, check=True) as session, programs_simulated():
            bits.append(run_kernel(SWA_DECODE, "sm100", call)["o"])
        (report,) = session.reports
        assert report.ok
        assert [launch.ctas for launch in report.launches] == [ctas]
        found = [finding.message for finding in report.findings if finding.kind == "ring reuse"]
        assert [bool(re.fullmatch(*pair)) for pair in zip(notes, found, strict=True)] == [True] * len(notes)
    assert all(torch.equal(bits[0].view(torch.int16), other.view(torch.int16)) for other in bits[1:])
