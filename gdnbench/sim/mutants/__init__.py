# SPDX-License-Identifier: Apache-2.0
"""Mutants of a kernel's synchronisation, generated from its PTX, and the judge that finds what detects
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.mutants.generate import mutants
    from gdnbench.sim.mutants.judge import KILLED, Judge, Judgement, Outcome
    from gdnbench.sim.mutants.launches import Keeper, KeptLaunch, Tensor
    from gdnbench.sim.mutants.mutant import Kind, Mutant

__all__ = [
    "KILLED",
    "Judge",
    "Judgement",
    "Keeper",
    "KeptLaunch",
    "Kind",
    "Mutant",
    "Outcome",
    "Tensor",
    "mutants",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.mutants.generate": "mutants",
        "gdnbench.sim.mutants.judge": "KILLED Judge Judgement Outcome",
        "gdnbench.sim.mutants.launches": "Keeper KeptLaunch Tensor",
        "gdnbench.sim.mutants.mutant": "Kind Mutant",
    },
)
