# SPDX-License-Identifier: Apache-2.0
"""What listeners of phases hear, here and from a worker process."""

from __future__ import annotations

import os

import pytest

from gdnbench import phases
from gdnbench.phases import State, begin, enter, listening, sending
from gdnbench.workers.pickled_call import Progress, call_in_process


def test_a_listener_hears_subject_phase_and_detail() -> None:
    heard: list[State] = []
    enter("nobody listens")
    with listening(heard.append):
        begin("record 3")
        enter("simulate", "1 of 2 CTAs")
        with listening(lambda state: None):
            enter("judge")
        enter("simulate", "2 of 2 CTAs")
    enter("nobody listens")
    assert [str(state) for state in heard] == [
        "record 3",
        "record 3, simulate 1 of 2 CTAs",
        "record 3, simulate 2 of 2 CTAs",
    ]


def test_how_far_a_phase_is_is_sent_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, heard = [0.0], list[State]()
    monkeypatch.setattr(phases.time, "monotonic", lambda: now[0])
    send = sending(heard.append)
    for now[0], phase, detail in ((1.0, "a", "1"), (1.1, "a", "2"), (1.3, "a", "3"), (1.31, "b", "1")):
        send(State("", phase, detail))
    assert [(state.phase, state.detail) for state in heard] == [("a", "1"), ("a", "3"), ("b", "1")]
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a process that a kernel forked
    send(State("", "c"))
    assert len(heard) == 3


def work(text: str, progress: Progress) -> str:
    """Called in a worker process."""
    enter("simulate", text)
    return text


@pytest.mark.slow  # a process that imports torch
def test_a_worker_process_tells_its_parent() -> None:
    heard: list[str] = []
    with listening(lambda state: heard.append(str(state))):
        begin("record 0")
        assert call_in_process(work, "1 of 4 CTAs", what="a process") == "1 of 4 CTAs"
    assert heard == ["record 0", "record 0, simulate 1 of 4 CTAs"]
