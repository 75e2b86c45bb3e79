# SPDX-License-Identifier: Apache-2.0
"""The result of the stage axis: a row for each stage and output, and the outputs with exact stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gdnbench.bisect.verdict import Verdict

TensorFacts = Mapping[str, Any]
"""A judged tensor, see `place.as_facts`."""


@dataclass(frozen=True, slots=True)
class Row:
    """A stage or output. `chained`: as the kernel computes it. `alone` shows what it adds: as its step
    computes it from exact stages; without steps, as the kernel does, against the exact step on its stages.

    `carried`: whether the outputs pass that exact steps compute from the kernel's stages up to this one, see
    `explain`; None where that cannot be computed. `hidden`: stages before it that the kernel does not show.
    """

    name: str
    stage: bool
    chained: TensorFacts | None
    alone: TensorFacts | None
    step: str = ""
    crash: str = ""  # why its step left nothing
    inherits: bool = False  # whether a stage that it is made of is off
    carried: Mapping[str, Any] | None = None
    hidden: tuple[str, ...] = ()

    @property
    def adds(self) -> bool:
        return bool(self.crash) or (self.alone is not None and not self.alone["passed"])

    @property
    def wrong(self) -> bool:
        return self.chained is not None and not self.chained["passed"]

    @property
    def explains(self) -> bool:
        """Whether its error and those before it suffice for that of the outputs, as far as is known."""
        return self.carried is None or not self.carried["passed"] if self.stage else self.wrong


@dataclass(frozen=True, slots=True)
class Graft:
    """The outputs with the stages `exact` replaced by exact values."""

    exact: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Chain:
    """The record and the `before` calls that its state comes from, on the kernel's own states: as the kernel
    is, and with the stage `exact` so in each."""

    before: int
    exact: str
    own: Verdict
    mended: Verdict


@dataclass(frozen=True, slots=True)
class StageResult:
    """`label` names the bad record; None if every record passes. `flaky` is the spread of a flaky one."""

    kernel: str
    label: str | None
    rows: tuple[Row, ...] = ()
    grafts: tuple[Graft, ...] = ()
    chain: Chain | None = None
    outputs: Verdict | None = None
    steps: bool = False
    tolerance: bool = False  # whether outputs are held to one
    same_bits: bool | None = None
    flaky: str = ""
    by_schedule: str = ""
    passing: int = 0
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Row | None:
        """The first stage in the order of the contract that adds more error than its bound and explains that
        of the outputs. If none does: of those that add, the first that moves the outputs most."""
        adding = [row for row in self.rows if row.adds]
        explaining = next((row for row in adding if row.explains), None)
        return explaining or max(adding, key=self._moves, default=None)

    def _moves(self, row: Row) -> float:
        """By how much the stage raises the error of the outputs over its limit."""
        ratio = before = 0.0
        for one in self.rows:
            if one.carried is not None:
                before, ratio = ratio, float(one.carried["ratio"])
            if one is row:
                return ratio - before if one.carried is not None else 0.0
        return 0.0
