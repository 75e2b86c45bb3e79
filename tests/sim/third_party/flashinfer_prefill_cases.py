"""FlashInfer's prefill kernel through the demo's adapter: on records, and once in each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from waits import add_waits

from gdnbench import sim
from gdnbench.replay.kernels import load_function
from gdnbench.replay.replay import replay
from gdnbench.sim import simulate
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
    names: list[str], outputs: dict[str, list[torch.Tensor]], wait: bool, **tensors: torch.Tensor
) -> list[str]:
    """Fills the outputs, of which there is one for each engine. `wait` puts a tcgen05.wait::ld behind each
    tcgen05.ld."""
    kernel = load_function(ADAPTER).function
    capture = simulate.capture

    def capture_waiting(compiled: Any, *call: Any) -> Any:
        add_waits(compiled)
        return capture(compiled, *call)

    reports: list[str] = []
    simulate.capture = capture_waiting if wait else capture
    try:
        for number, name in enumerate(names):
            with sim.active(sim.Settings(engine=name)) as session:
                filled = {output: made[number] for output, made in outputs.items()}
                kernel(**tensors, **filled, scale=128**-0.5)
            reports += [str(report) for report in session.reports]
    finally:
        simulate.capture = capture
    return reports
