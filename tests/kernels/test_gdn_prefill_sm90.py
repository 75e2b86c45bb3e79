# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill in one kernel for Hopper, in the simulator: against the oracles, and against itself."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.kernel_figures import figures, limits
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill import kernel_sm90_fused
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sm90_fused import launch_sm90
from gdnbench_kernels.gdn_prefill.sm90_plan import WIDE, Tuning, planned
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS, sm90_source
from gdnbench_kernels.gdn_prefill.synth import synth
from gdnbench_kernels.plan import SMEM_LIMIT
from tests.kernels.guarded_outputs import Outputs, guarded, same_outputs
from tests.subset import quick

TUNING = Tuning()
BATCH: dict[str, Any] = {"seqlens": (1, 64, 65, 0, 200), "heads": (1, 2), "initial_state": True}


def run(call: Call, tuning: Tuning = TUNING, ctas: int | None = None, **settings: Any) -> Outputs:
    """The outputs of the kernel, in guarded memory."""
    params = PrefillParams(**call.tensors, **call.scalars)
    with guarded(OPERATION, call, **settings) as (outputs, _):
        launch_sm90(params, tuning, outputs["o"], outputs["final_state"], ctas)
    return outputs


def assert_passes(call: Call, **options: Any) -> Outputs:
    """Within twice torch's error, all of a tensor and the worst (sequence, head) of it."""
    outputs = run(call, **options)
    results = judge_stages(OPERATION, call, outputs, Bound())
    assert [result.tensor for result in results] == list(outputs)
    assert [f"{result.tensor}: {reason}" for result in results for reason in result.reasons] == []
    return outputs


CALLS: dict[str, dict[str, Any]] = {
    "a batch": BATCH,
    "keys of correlation 0.99": {"seqlens": (200,), "key_correlation": 0.99, "beta": 1.0},
    "equal keys, open gates": {"seqlens": (129,), "key_correlation": 1.0, "beta": 1.0, "gate_span": 0.01},
    "gates of 1e5 a chunk": {"seqlens": (150, 64), "gate_span": 1e5},
    "NaN behind a tail": {"seqlens": (65, 129, 65), "nan_at": (65, 194)},
    "beta to 2": {"seqlens": (129,), "key_correlation": 1.0, "beta": 2.0, "gate_span": 0.01},
    "four value heads of a key head": {"seqlens": (65,), "heads": (2, 8)},
}


@pytest.mark.every(2)
@pytest.mark.parametrize("options", quick(CALLS.values(), 1, 3, ids=CALLS))
def test_outputs(options: dict[str, Any]) -> None:
    assert_passes(synth(**{"heads": (1, 2), "initial_state": True} | options))


@pytest.mark.slow  # three more programs
def test_a_sequence_has_the_same_bits_on_any_ctas_by_any_plan() -> None:
    call = synth(**BATCH)
    usual = run(call)
    assert same_outputs(run(call, ctas=3), usual)
    assert same_outputs(run(call, ctas=1), usual)
    assert same_outputs(run(call, replace(TUNING, inverters=1, keys=3)), usual)
    assert same_outputs(run(call, replace(TUNING, values=1, outputs=1), ctas=3), usual)
    assert same_outputs(run(call, WIDE, ctas=2), usual)


@pytest.mark.slow  # the race checker
@pytest.mark.parametrize("ctas", [None, 1])
def test_no_races(ctas: int | None) -> None:
    run(synth(**BATCH), ctas=ctas, check=True)


@pytest.mark.parametrize("stages", [{"keys": 3}, {"squares": 1}])
def test_two_inverters_refuse_odd_stages(stages: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="even stages"):
        replace(TUNING, **stages)


def test_the_registers_of_a_cta_are_those_of_an_sm() -> None:
    with pytest.raises(ValueError, match="registers per lane"):
        replace(TUNING, state_registers=232)


@pytest.mark.parametrize("beta_max", [1.0, 2.0])
@pytest.mark.parametrize("slices", TUNINGS)
def test_plans_fit(slices: int, beta_max: float) -> None:
    assert planned(TUNINGS[slices].for_beta(beta_max), beta_max > 1).smem_bytes <= SMEM_LIMIT


def test_the_header_quotes_the_plan() -> None:
    tables = planned(TUNING).tables()
    assert f"\n\n{tables}\n\n" in str(kernel_sm90_fused.__doc__), f"the tables are now\n{tables}"


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
@pytest.mark.parametrize("beta_max", quick([1.0, 2.0], 0))
@pytest.mark.parametrize("slices", TUNINGS)
def test_the_assembler_lets_products_overlap(slices: int, beta_max: float, tmp_path: Path) -> None:
    """It says so (C7510 and its like) where it makes each product wait for the one before. Nothing spills."""
    made = program(sm90_source(1, 2, "float32", "float32", beta_max, TUNINGS[slices]), "sm_90a")
    source, target = tmp_path / "prefill.ptx", tmp_path / "prefill.cubin"
    source.write_text(made.ptx)
    command = ["ptxas", "-arch=sm_90a", "-v", "-o", str(target), str(source)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores" in said.stderr + said.stdout
    assert "C75" not in said.stderr + said.stdout
    assert limits(figures(made)) == []
