#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""How much gdn_prefill's split into segments adds to the rounding of the fused kernel.

    python scripts/benchmarks/segment_rounding.py                       about ten minutes of one core
    python scripts/benchmarks/segment_rounding.py --tokens 600 --segments 64

A row is a call of one sequence whose gates hardly close, with equal or similar keys and beta up to 1 or 2, on
the simulator. The table has the RMS errors of `sm100_fused_cp` against the fp64 oracle as multiples of those
of `sm100_fused`, and what part of its limit the largest one takes. Exit status: 0 all are within their limits
(twice torch's error), 1 one is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from torch import Tensor

from gdnbench.cli.console import table
from gdnbench.errors import Exit
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import judge_stages
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.synth import synth

BETAS, CORRELATIONS = (1.0, 2.0), (1.0, 0.99, 0.9)
SPAN = 0.06
"""The expected sum of |g| over a chunk: a gate of 1e-3 a token."""


def judged(kernel: Callable[..., dict[str, Tensor]], call: Call) -> dict[str, TensorResult]:
    """By name, what becomes of the outputs."""
    with active(), programs_simulated():
        outputs = kernel(**call.tensors, **call.scalars)
    return {result.tensor: result for result in judge_stages(OPERATION, call, outputs, Bound())}


def rms(result: TensorResult) -> float:
    assert result.errors is not None
    return float(result.errors.rms)


def of_limit(result: TensorResult) -> float:
    """The RMS error as a part of twice torch's."""
    assert result.yardstick is not None
    return rms(result) / (2 * float(result.yardstick.rms))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2500)
    parser.add_argument("--segments", type=int, nargs="+", default=(64, 512), help="tokens of a segment")
    options = parser.parse_args()
    lines, code = [], Exit.PASS
    for beta in BETAS:
        for correlation in CORRELATIONS:
            call = synth(
                seqlens=(options.tokens,),
                heads=(1, 1),
                initial_state=True,
                beta=beta,
                key_correlation=correlation,
                gate_span=SPAN,
            )
            fused = judged(sm100_fused, call)
            for segment in options.segments:
                split = judged(partial(sm100_fused_cp, segment=segment), call)
                if any(result.reasons for result in (*fused.values(), *split.values())):
                    code = Exit.MISMATCH
                ratios = [f"{rms(split[name]) / rms(fused[name]):.2f}" for name in ("o", "final_state")]
                worst = max(of_limit(result) for result in split.values())
                lines.append((f"{beta:g}", f"{correlation:g}", segment, *ratios, f"{worst:.2f}"))
                print(*lines[-1], file=sys.stderr, flush=True)
    print(table(("beta", "keys alike", "segment", "o", "final state", "of limit"), lines, ()))
    return code


if __name__ == "__main__":
    sys.exit(main())
