# SPDX-License-Identifier: Apache-2.0
"""Reads a process's ranks in the parallel groups of a serving engine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping


def parallel_ranks(module: str, kinds: Iterable[str]) -> Mapping[str, tuple[int, int]]:
    """Rank and size of this process for each kind of parallelism (tp, pp, dp) whose group `module` holds
    (`_TP`, ...).

    {} if `module` is not imported.
    """
    state = sys.modules.get(module)
    groups = {kind: getattr(state, f"_{kind.upper()}", None) for kind in kinds}
    return {
        kind: (int(group.rank_in_group), int(group.world_size))
        for kind, group in groups.items()
        if group is not None
    }
