"""Predicts the time of calls that the simulator executes, on a GPU that has a time model
(docs/time_model.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gdnbench.sim import Settings, active
from gdnbench.sim.predict import Prediction, Predictor, machine_model


@dataclass(frozen=True, slots=True)
class PredictedCall:
    """The launches of a call, one after the other."""

    machine: str
    launches: tuple[Prediction, ...]

    @classmethod
    def of(cls, predictor: Predictor) -> PredictedCall | None:
        """What was predicted; None if a launch could not be, or there was none."""
        if predictor.refused or not predictor.launches:
            return None
        return cls(predictor.machine.name, tuple(predictor.launches))

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.launches)

    @property
    def range(self) -> tuple[float, float]:
        """Seconds between which the call moves with the parameters that nobody has published. Launches move
        together: they share the parameters."""
        return sum(each.low for each in self.launches), sum(each.high for each in self.launches)

    @property
    def longest(self) -> Prediction:
        """The launch that takes most of the time."""
        return max(self.launches, key=lambda each: each.seconds)


@contextmanager
def predicting(machine: str) -> Iterator[Predictor]:
    """While launches on `machine` are predicted before they run. Raises UnsupportedError if it has no time
    model."""
    found = Predictor(machine_model(machine))
    with active(Settings(profile=True, before=found)):
        yield found
