"""What `sim` and `replay` share of `--trace`: a value trace of simulated launches."""

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

TRACE = "Write the values that instructions compute into a new store, a value trace, for diff."
OF = 'Of which: "cta=0-3 warp=4 class=load,store lines=10-20 source=FILE.py:8-9", or all. Default: cta=0.'
LIMIT = "MiB that a trace may hold before compression; what is left out is counted. Default: 1024."


@contextmanager
def trace_to(
    path: Path | None, of: str | None, limit: int | None, told: Told
) -> Iterator[TraceRequest | None]:
    """While launches may be traced, to a store that is made for them; says at the end, whatever it is, how
    much is in it. None if no trace is asked for. BadInputError for a selection that selects nothing,
    StoreError if there is something at `path`."""
    if path is None:
        if of is not None or limit is not None:
            raise BadInputError("--of and --trace-limit say what goes to a trace: give --trace OUT too")
        yield None
        return
    from gdnbench.sim.value_trace import Selection
    from gdnbench.trace.request import DEFAULT, TraceRequest
    from gdnbench.trace.writer import MAX_BYTES, make_trace

    request = TraceRequest(str(path), of or DEFAULT, MAX_BYTES if limit is None else limit << 20, told)
    Selection.parse(request.of)
    make_trace(path)
    try:
        yield request
    finally:
        _tell(path)


def _tell(path: Path) -> None:
    from gdnbench.trace.writer import TraceWriter

    found = TraceWriter(path)
    if not found.launches:
        shutil.rmtree(path)
        print(f"no launch was made; {printable(path)} is not written", file=sys.stderr)
        return
    if not found.recorded and not found.dropped:
        print("nothing that ran is among what --of asks for", file=sys.stderr)
    dropped = f", {found.dropped:,} left out at the limit" if found.dropped else ""
    launches = f"{found.launches:,} launch{'' if found.launches == 1 else 'es'}"
    print(f"{found.recorded:,} events of {launches} in {printable(path)}{dropped}", file=sys.stderr)
