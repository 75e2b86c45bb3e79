# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's prefill kernel through the demo's adapter: on records, and once in each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gdnbench import sim
from gdnbench.replay.kernels import load_function
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store

ADAPTER = f"{Path(__file__).parents[3] / 'scripts' / 'demo_flashinfer.py'}:gdn_prefill"


def records(store: str, results: list[dict[str, Any]]) -> str:
    """Replays a store against the float64 oracle; `results` gets what became of each record."""
    with Store.open(Path(store)) as opened:
        report = replay(opened, kernel=ADAPTER, on="sim", isolate=False)
    results += [
        {
            "outcome": str(result.outcome),
            "why": [result.reason, *(text for tensor in result.tensors for text in tensor.reasons)],
            "judged": [tensor.tensor for tensor in result.tensors if tensor.judged],
            "simulated": any(note.startswith("simulated: 1 launch") for note in result.notes),
        }
        for result in report.records
    ]
    return ""


def engines(
    names: list[str],
    outputs: dict[str, list[torch.Tensor]],
    check: bool,
    found: list[list[tuple[str, ...]]],
    **tensors: torch.Tensor,
) -> list[str]:
    """Fills the outputs, of which there is one for each engine, and `found` with what the checker finds: of
    each engine (verdict, cause, memory, line of the second access)."""
    kernel = load_function(ADAPTER).function
    reports: list[str] = []
    for number, name in enumerate(names):
        with sim.active(sim.Settings(engine=name, check=check)) as session:
            filled = {output: made[number] for output, made in outputs.items()}
            kernel(**tensors, **filled, scale=128**-0.5)
        reports += [str(report) for report in session.reports]
        evidence = [f.evidence for report in session.reports for f in report.findings if f.evidence]
        found.append(
            [
                (one.verdict.value, one.cause, one.memory, str(one.second and one.second.place.line))
                for one in evidence
            ]
        )
    return reports
