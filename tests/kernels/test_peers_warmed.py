# SPDX-License-Identifier: Apache-2.0
"""Launches of other people's kernels are compiled and tuned once for calls that are alike to a compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gdnbench_kernels.peers import PeerLaunch, call_kind, warmed_up
from tests.seeds import drawn


def call(**more: Any) -> dict[str, Any]:
    return {"q": torch.zeros(2, 64, dtype=torch.bfloat16), "scale": 0.5, "o": None, **more}


@pytest.mark.parametrize(
    ("more", "alike"),
    [
        ({}, True),
        ({"q": torch.ones(2, 64, dtype=torch.bfloat16)}, True),
        ({"q": torch.zeros(3, 64, dtype=torch.bfloat16)}, False),
        ({"q": torch.zeros(2, 64)}, False),
        ({"q": torch.zeros(2, 128, dtype=torch.bfloat16)[:, ::2]}, False),
        ({"q": torch.zeros(2 * 64 + 1, dtype=torch.bfloat16)[1:].view(2, 64)}, False),  # 2 bytes further
        ({"scale": 0.25}, False),
        ({"o": torch.zeros(1)}, False),
    ],
)
def test_which_calls_are_alike(more: dict[str, Any], alike: bool) -> None:
    assert (call_kind("one", call()) == call_kind("one", call(**more))) == alike
    assert call_kind("one", call()) != call_kind("other", call())


def test_the_first_of_a_kind_is_called_and_its_pool_restored() -> None:
    """A launch that fails does not count as the first."""
    called: list[str] = []
    pool, slots = torch.arange(4.0), torch.tensor([1, 3])

    def launch(name: str, fails: bool = False) -> PeerLaunch:
        def run() -> None:
            called.append(name)
            pool[slots] = -1
            if fails:
                raise RuntimeError("compiler")

        return PeerLaunch(run, lambda result: {})

    once = ("test", drawn("peers warmed"))
    with pytest.raises(RuntimeError, match="compiler"):
        warmed_up(launch("broken", fails=True), pool, slots, once)
    pool.copy_(torch.arange(4.0))
    for name in ("first", "second"):
        warmed_up(launch(name), pool, slots, once)
    warmed_up(launch("always"), pool, slots)
    assert called == ["broken", "first", "always"]
    assert torch.equal(pool, torch.arange(4.0))
