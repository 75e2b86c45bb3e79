# SPDX-License-Identifier: Apache-2.0
"""Seeds of tests: the same in every default run, new ones with `pytest --fresh-seeds`.

    @pytest.mark.parametrize("seed", [0, fresh(drawn("rotation"))])

`--fresh-seeds` draws a number for the run and prints it in pytest's header; `--fresh-seeds=N` repeats a run.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

VARIABLE = "GDNBENCH_TEST_SEED"
"""Of the run: conftest.py sets it, so that the processes of pytest-xdist and subprocesses agree."""


def drawn(name: str, bits: int = 32) -> int:
    """A seed below 2**bits for `name`: fixed in a default run, another one in each run with fresh seeds."""
    digest = hashlib.sha256(f"{os.environ.get(VARIABLE, '0')} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % (1 << bits)


def fresh(value: Any) -> Any:
    """A parameter that repeats its test with a drawn seed: `scripts/test --full` runs it."""
    return pytest.param(value, id="fresh", marks=pytest.mark.slow)
