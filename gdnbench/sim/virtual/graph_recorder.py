# SPDX-License-Identifier: Apache-2.0
"""What records the operations of a CUDA graph while it is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class GraphRecorder(Protocol):
    """Keeps each operation of a captured graph, which every replay runs."""

    def add(self, operation: Callable[[], object]) -> None: ...
