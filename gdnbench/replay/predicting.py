"""Predicts the time of calls that the simulator executes, on a GPU that has a time model
(docs/time_model.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.sim.predict import Predictor


def modelled_machine(machine: str | None) -> str | None:
    """The name of the GPU, None unless its time can be predicted. InputError for an unknown one."""
    if machine is None:
        return None
    from gdnbench.sim.predict import MACHINES
    from gdnbench.sim.virtual import machine_named

    name = machine_named(machine).name
    return name if name in MACHINES else None


def machine_to_predict(machine: str | None) -> str:
    """The name of the GPU. BadInputError unless its time can be predicted."""
    from gdnbench.sim.predict import MACHINES

    name = modelled_machine(machine)
    if name is None:
        raise BadInputError(
            f"--time predicts for a GPU that has a time model: give --machine {' or '.join(MACHINES)}"
        )
    return name


@contextmanager
def predicting(machine: str | None) -> Iterator[Predictor | None]:
    """While launches on `machine` are predicted before they run; None predicts nothing. Raises
    UnsupportedError if it has no time model."""
    if machine is None:
        yield None
        return
    from gdnbench.sim import settings_apply
    from gdnbench.sim.predict import Predictor, machine_model

    found = Predictor(machine_model(machine))
    with settings_apply() as around, settings_apply(replace(around.settings, before=found)):
        yield found
