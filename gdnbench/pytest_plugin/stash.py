# SPDX-License-Identifier: Apache-2.0
"""The name of the plugin's mark, the stores that a session keeps open between tests, and its virtual GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gdnbench.pytest_plugin.replays import Replays
    from gdnbench.sim.virtual import VirtualGpu

MARK = "gdnbench"
REPLAYS = pytest.StashKey["Replays"]()
GPU: pytest.StashKey[VirtualGpu] = pytest.StashKey()


def replays_of(config: pytest.Config) -> Replays:
    """The replays of this session, created on first use."""
    from gdnbench.pytest_plugin.replays import Replays

    return config.stash.setdefault(REPLAYS, Replays())
