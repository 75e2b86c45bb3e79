# SPDX-License-Identifier: Apache-2.0
"""The forked process that predicts: whatever happens in it, the program goes on once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict import Predictor
from gdnbench.sim.predict import predictor as predictor_module
from gdnbench.sim.predict.machines import H200
from gdnbench.sim.ptx.parser import parse

PTX = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
ret;
}
"""
REQUEST = LaunchRequest(PTX, "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (), 16, 0)


class TwoPartsError(Exception):
    """An error that pickle cannot make again from its arguments."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


class Interrupted(Exception):
    pass


def predict_with(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], NoReturn], forked: Callable[[], object] = int
) -> None:
    """Predict a launch where the child does `act`; it may not be left. `forked` is called here once it is
    there."""
    children, fork = [], os.fork

    def forking() -> int:
        child = fork()
        if child:
            children.append(child)
            forked()
        return child

    monkeypatch.setattr(os, "fork", forking)
    monkeypatch.setattr(predictor_module, "assemble", lambda *given: None)
    monkeypatch.setattr(predictor_module, "record", lambda *given: act())
    try:
        predictor_module.predict_in_copy(H200, parse(PTX), REQUEST, GlobalMemory())
    finally:
        monkeypatch.setattr(os, "fork", fork)
        (child,) = children
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def fail(error: BaseException) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error

    return act


def killed() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def asleep() -> NoReturn:
    time.sleep(60)
    raise AssertionError


def test_an_error_of_the_child_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="this"):
        predict_with(monkeypatch, fail(UnsupportedError("this")))
    with pytest.raises(RuntimeError, match="TwoPartsError: ab"):
        predict_with(monkeypatch, fail(TwoPartsError("a", "b")))


def test_a_killed_child_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="the process that predicts it was killed"):
        predict_with(monkeypatch, killed)


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            predict_with(monkeypatch, asleep, lambda: signal.setitimer(signal.ITIMER_REAL, 0.2))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_fault_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*given: object) -> NoReturn:
        raise KernelFault(FaultKind.TRAP, "trap")

    monkeypatch.setattr(predictor_module, "predict_in_copy", fault)
    predictor = Predictor(H200)
    predictor(parse(PTX), REQUEST, GlobalMemory())
    assert predictor.refused == "the time of k, which faults: trap"
