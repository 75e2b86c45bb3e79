# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the processes that probes run in: they run here."""

from __future__ import annotations

import importlib
from typing import Any

from gdnbench.bisect import trial as trials
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import Verdict


class Here:
    """A TrialWorker and a ProbeWorker at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run_trial(self, trial: Trial) -> Verdict:
        return trials.run_trial(trial)

    def run_probe(self, probe: str, **arguments: Any) -> Verdict:
        self.asked.append(probe)
        module, _, function = probe.partition(":")
        found: Verdict = getattr(importlib.import_module(module), function)(**arguments)
        return Verdict.from_json(found.to_json(), "here")

    def close(self) -> None:
        pass
