"""gdn_prefill by segments, in the simulator: against the oracles, the fused kernel and itself."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.synth import synth


def run(call: Call, segment: int = 64, **settings: Any) -> dict[str, Any]:
    with active(Settings(**settings)) as session, programs_simulated():
        outputs = sm100_fused_cp(**call.tensors, **call.scalars, segment=segment)
    assert [finding.message for report in session.reports for finding in report.findings] == []
    return outputs


def test_outputs() -> None:
    call = synth(seqlens=(65, 0, 250), heads=(1, 1), initial_state=True)
    results = judge_stages(OPERATION, call, run(call), Bound())
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []
