# SPDX-License-Identifier: Apache-2.0
"""What `gdnbench trace` and `gdnbench sim --trace` share: a value trace of simulated launches."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError
from gdnbench.printable import printable

if TYPE_CHECKING:
    from gdnbench.trace.request import TraceRequest
    from gdnbench.trace.writer import Told

TRACE = "Write the values that instructions compute into a new value trace, which diff compares."
SELECT = (
    'Instructions to trace: all, or conditions such as "cta=0-3 warp=4 class=load,store lines=10-20'
    ' source=FILE.py:8-9". Default: cta=0.'
)
LIMIT = "Largest size of a trace before compression, in MiB; later events are only counted. Default: 1024."


@contextmanager
def trace_to(
    path: Path | None, select: str | None, limit: int | None, told: Told
) -> Iterator[TraceRequest | None]:
    """Makes a trace at `path`, into which launches are traced until the context ends; then prints its size.

    Yields None without a `path`. Raises BadInputError for a selection that selects nothing, and StoreError if
    `path` exists.
    """
    if path is None:
        if select is not None or limit is not None:
            raise BadInputError("--select and --trace-limit need --trace OUT")
        yield None
        return
    from gdnbench.sim.value_trace import Selection
    from gdnbench.trace.request import DEFAULT, TraceRequest
    from gdnbench.trace.writer import MAX_BYTES, make_trace

    request = TraceRequest(str(path), select or DEFAULT, MAX_BYTES if limit is None else limit << 20, told)
    Selection.parse(request.of)
    make_trace(path)
    try:
        yield request
    finally:
        _print_size(path)


def _print_size(path: Path) -> None:
    from gdnbench.trace.writer import TraceWriter

    found = TraceWriter(path)
    if not found.launches:
        shutil.rmtree(path)
        print(f"no launch was made; {printable(path)} is not written", file=sys.stderr)
        return
    if not found.recorded and not found.dropped:
        print("--select matches no instruction that ran", file=sys.stderr)
    dropped = f", {found.dropped:,} left out at the limit" if found.dropped else ""
    launches = f"{found.launches:,} launch{'' if found.launches == 1 else 'es'}"
    print(f"{found.recorded:,} events of {launches} in {printable(path)}{dropped}", file=sys.stderr)
