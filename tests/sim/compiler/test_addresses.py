# SPDX-License-Identifier: Apache-2.0
"""No address that a kernel computes, and no constant one, reaches memory of the host: both engines report
the same fault.

The accesses run in a process of their own: an engine that crashes fails the test instead of ending it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.seeds import drawn
from tests.sim.compiler.address_cases import FORMS

ADDRESSES = 6  # about twice as many of each kind, for each instruction


def run(seed: int, addresses: int) -> list[dict[str, str]]:
    """What both engines did at each address."""
    command = [sys.executable, "-m", "tests.sim.compiler.address_cases", str(seed), str(addresses)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    last = lines[-1]["access"] if lines else "nothing"
    assert ran.returncode == 0, f"seed {seed}: ended with {ran.returncode} at {last}\n{ran.stderr}"
    return [line for line in lines if "compiled" in line]


def check(seed: int, addresses: int) -> None:
    found = run(seed, addresses)
    for one in found:
        where = f"seed {seed}, {one['access']}"
        assert one["compiled"] == one["interpreter"], where
        assert "wrote beside" not in one["compiled"], where
    kinds = Counter(one["compiled"].partition(":")[0] for one in found)
    for kind in ("done", "out-of-bounds access", "misaligned access"):
        assert kinds[kind] > len(FORMS), kinds


@pytest.mark.slow
def test_both_engines_fault_alike_at_every_address() -> None:
    check(drawn("addresses"), ADDRESSES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_more_addresses() -> None:
    check(drawn("more addresses"), 30)
