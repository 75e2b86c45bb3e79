# SPDX-License-Identifier: Apache-2.0
"""Signals that the program handles in the midst of capture: what its handlers raise is the program's."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.capture import capturing, record
from gdnbench.capture.functions import FunctionAdapter
from gdnbench.capture.recorder import HANDLER_RAISED
from gdnbench.store.reader import Store


def stop(number: int, frame: object) -> None:
    raise TimeoutError("of the program")


class Limit:
    def __call__(self, number: int, frame: object) -> None:
        raise TimeoutError("of the program")

    def over(self, mark: str, number: int, frame: object) -> None:
        raise TimeoutError("of the program")


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler) and None
    signal.signal(signal.SIGALRM, before)


@record("gdn_decode")
def step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    state_indices: torch.Tensor,
) -> torch.Tensor:
    return v + 1


def given() -> dict[str, torch.Tensor]:
    q = torch.ones(1, 1, 1, 8)
    gates = {"g": torch.zeros(1, 1, 2), "beta": torch.ones(1, 1, 2)}
    state = torch.zeros(2, 2, 8, 8)
    slots = torch.tensor([[1]], dtype=torch.int32)
    return {"q": q, "k": q, "v": torch.ones(1, 1, 2, 8), **gates, "state": state, "state_indices": slots}


@pytest.mark.every(2)
@pytest.mark.parametrize("handler", [stop, Limit(), functools.partial(Limit().over, "mark")])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_time_limit_that_ends_while_a_call_is_recorded_is_the_programs(
    handled: Callable[[Any], None],
    handler: Callable[..., None],
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled(handler)
    original = getattr(FunctionAdapter, where)

    def late(*args: Any) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return original(*args)

    with capturing(tmp_path / "run.zarr") as counts:
        step(**given())
        with monkeypatch.context() as patch:
            patch.setattr(FunctionAdapter, where, late)
            with pytest.raises(TimeoutError, match="of the program"):
                step(**given())
        step(**given())
    assert (counts.failures, counts.passed_over) == (0, {HANDLER_RAISED: 1})
    assert [one.info.call for one in Store.open(tmp_path / "run.zarr").records] == [0, 2]


def test_an_error_of_ours_in_a_call_that_a_handler_makes_is_counted(
    handled: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> Any:
        raise TimeoutError("of ours")

    handled(lambda number, frame: step(**given()))
    monkeypatch.setattr(FunctionAdapter, "before", fails)
    with capturing(tmp_path / "run.zarr") as counts:
        signal.raise_signal(signal.SIGALRM)
    assert (counts.failures, counts.passed_over) == (1, {})
