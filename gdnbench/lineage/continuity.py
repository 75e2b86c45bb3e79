# SPDX-License-Identifier: Apache-2.0
"""Which calls of a layer are recorded without a gap."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdnbench.lineage.table import Chain, Numbers
from gdnbench.store.access_log import AccessFlag


class Continuity:
    """The recorded calls of a chain's layer, numbered from 0, and where calls are missing among them.

    For example, of a layer with recorded steps 0, 1, 2, 5, 6 the calls 3 and 4 (steps 5 and 6) follow a gap.
    Methods take steps of recorded calls only.
    """

    def __init__(self, chain: Chain) -> None:
        self._steps = chain.steps
        rows = chain.rows
        self.at = np.searchsorted(chain.steps, rows["step"])
        """Of each row the number of its call among the recorded ones of the layer."""
        self._missing = np.concatenate([[0], np.cumsum(np.diff(chain.steps) > 1)])
        padding = (rows["flags"] & AccessFlag.PADDING) != 0
        unclaimed = np.zeros(len(chain.steps), dtype=np.int64)
        unclaimed[self.at[(rows["request"] < 0) & ~padding]] = 1
        self._unclaimed = np.cumsum(unclaimed)
        self._calls = np.unique(self.at)
        late = not len(chain.steps) or chain.steps[0] != 0
        self.until = 0 if late else int(np.searchsorted(self._missing, 1))
        """Calls below this number have all earlier calls of the layer recorded."""

    def number(self, step: int) -> int:
        """The number of a step among the recorded ones."""
        return int(np.searchsorted(self._steps, step))

    def all_recorded(self, first: Numbers, second: Numbers) -> NDArray[np.bool_]:
        """Whether, between calls of these numbers, none is missing or without claims."""
        missing = self._missing[second] == self._missing[first]
        return np.asarray(missing & (self._unclaimed[second] == self._unclaimed[first]))

    def contiguous(self, first: int, second: int) -> bool:
        """The same of two steps."""
        one, other = np.array([self.number(first)]), np.array([self.number(second)])
        return bool(self.all_recorded(one, other)[0])

    def apart(self, first: Any, second: Any) -> Any:
        """How many calls of the chain the second step is after the first; of numbers or arrays."""
        one, other = np.searchsorted(self._steps, first), np.searchsorted(self._steps, second)
        return np.searchsorted(self._calls, other) - np.searchsorted(self._calls, one)
