# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a call: the sum of the times of its launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gdnbench.sim.predict.launch import Prediction
from gdnbench.sim.predict.predictor import KILLED, Predictor


@dataclass(frozen=True, slots=True)
class PredictedCall:
    """The launches of a call, one after the other."""

    machine: str
    launches: tuple[Prediction, ...]

    @classmethod
    def of(cls, predictor: Predictor) -> PredictedCall | None:
        """The predicted launches; None if one could not be predicted, or the call launched nothing."""
        if predictor.refused or not predictor.launches:
            return None
        return cls(predictor.machine.name, tuple(predictor.launches))

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.launches)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most seconds within the ranges of the parameters that nobody has published. The
        ranges of launches add up, since launches share the parameters."""
        return sum(each.low for each in self.launches), sum(each.high for each in self.launches)

    @property
    def floor(self) -> float:
        """Seconds that the launches take at least, one after the other."""
        return sum(each.floor for each in self.launches)

    @property
    def longest(self) -> Prediction:
        """The launch that takes most of the time."""
        return max(self.launches, key=lambda each: each.seconds)


NO_LAUNCH = "a call that launches nothing"


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """The predicted time of one call of `kernel`. `call` is None where there is no time; `no_time` says
    why."""

    kernel: str
    call: PredictedCall | None
    no_time: str = ""

    @classmethod
    def of(cls, kernel: str, predictor: Predictor) -> PredictedTime:
        """The time that the predictor found for the call that has ended."""
        call = PredictedCall.of(predictor)
        return cls(kernel, call, "" if call is not None else predictor.refused or NO_LAUNCH)

    @property
    def killed(self) -> bool:
        """Whether there is no time since a process was killed, so that another try may give one."""
        return self.no_time.endswith(KILLED)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON. Seconds; `bound` is what bounds the longest launch; null if there is no time."""
        call = self.call
        found: dict[str, Any] = {"kernel": self.kernel, "no_time": self.no_time, "machine": None}
        found |= dict.fromkeys(("seconds", "low", "high", "bound"))
        if call is not None:
            low, high = call.range
            found |= {"machine": call.machine, "seconds": call.seconds, "low": low, "high": high}
            found["bound"] = call.longest.bound
        return {**found, "launches": [] if call is None else [asdict(each) for each in call.launches]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PredictedTime:
        """The time that `to_json` described. KeyError or TypeError for anything else."""
        launches = tuple(Prediction(**each) for each in data["launches"])
        call = PredictedCall(data["machine"], launches) if launches else None
        return cls(data["kernel"], call, data["no_time"])
