# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of calls that the simulator executes, on a GPU that has a time model
(docs/time_model.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.sim.predict import Predictor, Timeline

Timelines: TypeAlias = "list[tuple[str, Timeline]]"
"""Launches with their names, for `gdnbench.sim.predict.write_timelines`."""

_kept: ContextVar[tuple[Timelines | None, str]] = ContextVar("gdnbench_timelines", default=(None, ""))


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
            f"--time predicts for a GPU that has a time model: give --machine {', '.join(MACHINES)}"
        )
    return name


@contextmanager
def timelines_kept(timelines: Timelines | None, name: str) -> Iterator[None]:
    """While `predicting` in this process puts what an SM does in each launch into `timelines`, with names
    that begin with `name`."""
    token = _kept.set((timelines, name))
    try:
        yield
    finally:
        _kept.reset(token)


@contextmanager
def predicting(machine: str | None) -> Iterator[Predictor | None]:
    """While launches on `machine` are predicted before they run; None predicts nothing. Raises
    UnsupportedError if it has no time model."""
    if machine is None:
        yield None
        return
    from gdnbench.sim import settings_apply
    from gdnbench.sim.predict import Predictor, machine_model

    timelines, name = _kept.get()
    found = Predictor(machine_model(machine), timelines=timelines, name=name)
    with settings_apply() as around, settings_apply(replace(around.settings, before=found)):
        yield found
