# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C where Python drops it ends a command all the same."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from typing import Any

import pytest

from gdnbench.workers.interrupt import recorded_interrupt


def lost(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException] | None]:
    """Ctrl-C in a callback of the garbage collector; what Python has dropped."""
    dropped: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))

    def callback(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)
    return dropped


def test_ctrl_c_in_a_callback_of_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_interrupt() as interrupt:
        interrupt.raise_if_received()
        assert lost(monkeypatch) == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            interrupt.raise_if_received()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_elsewhere_is_raised_where_it_comes() -> None:
    with recorded_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_programs_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with recorded_interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            interrupt.raise_if_received()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_beside_the_main_thread_nothing_is_installed() -> None:
    found: list[object] = []

    def beside() -> None:
        with recorded_interrupt():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
