# SPDX-License-Identifier: Apache-2.0
"""Traces of a kernel of a few lines of PTX, whose values anybody can tell: no compiler, no tensor core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.sim import Observed, run_ptx
from gdnbench.sim.value_trace import Selection
from gdnbench.trace.writer import TraceWriter, make_trace

Edit = tuple[str, str]
Traced = Callable[..., Path]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """Traces a launch: `traced(name, x, rounds=3, edits=..., source=...)` is the path of the store."""

    from tests.trace import sums

    alive = []  # so that no two launches have their tensors at one address

    def run(
        name: str,
        x: Any = None,
        *,
        rounds: int = 3,
        grid: int = 1,
        edits: tuple[Edit, ...] = (),
        source: str | None = None,
        of: str = "all",
        limit: int | None = None,
        launches: int = 1,
        wrap: Callable[[Observed], Observed] = lambda observed: observed,
    ) -> Path:
        path, file = tmp_path / f"{name}.zarr", tmp_path / f"{name}.py"
        file.write_text(sums.SOURCE if source is None else source)
        text = sums.PTX.replace("@FILE@", str(file))
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        values = np.arange(sums.LANES, dtype=np.float32) if x is None else np.asarray(x, np.float32)
        if not path.exists():
            make_trace(path)
        writer = TraceWriter(path) if limit is None else TraceWriter(path, limit)
        for _ in range(launches):
            given = values.copy()
            z = np.zeros(sums.LANES, np.float32)
            alive.append((given, z))
            observed = wrap(Observed(writer.launch(Selection.parse(of), {})))
            run_ptx(text, "sums", (grid, 1, 1), (sums.LANES, 1, 1), [given, z, rounds], observed=observed)
        return path

    return run
