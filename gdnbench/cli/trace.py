"""`gdnbench trace`: replay recorded calls on the simulator and write what its instructions compute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import progress
from gdnbench.cli.judging import factors, finish, tolerance
from gdnbench.cli.record_options import (
    AgainstOption,
    BitwiseOption,
    FactorsOption,
    IsolateOption,
    JsonOption,
    OpOption,
    RecordsArgument,
    SimulatedKernelOption,
    StagesOption,
    StoreArgument,
    TimeoutOption,
    TolOption,
)
from gdnbench.cli.tracing import LIMIT, SELECT, trace_to
from gdnbench.record_numbers import record_numbers
from gdnbench.store.recover import open_store


def trace(
    store: StoreArgument,
    out: Annotated[Path, typer.Argument(help="The value trace to write: a new folder.")],
    kernel: SimulatedKernelOption,
    records: RecordsArgument = None,
    select: Annotated[str | None, typer.Option(help=SELECT)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=LIMIT)] = None,
    against: AgainstOption = "reference",
    op: OpOption = None,
    k: FactorsOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    stages: StagesOption = False,
    isolate: IsolateOption = None,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Replay records on the simulator and write what chosen instructions compute into a value trace.

      gdnbench trace run.zarr a.zarr 3 --kernel sm100 --select "cta=0 warp=4 class=load,store"

    `gdnbench diff A B` of two traces names the first difference. The outputs are judged as in `gdnbench
    replay`.

    Exit status: 0 all pass; 1 a mismatch, crash or hang; 3 something could not run here.
    """
    from gdnbench.replay.replay import replay

    factor, by_tensor = factors(k)
    with (
        progress("trace") as advance,
        trace_to(out, select, limit, advance.say) as request,
        open_store(store) as opened,
    ):
        report = replay(
            opened,
            kernel=kernel,
            against=against,
            on="sim",
            op=op,
            records=None if records is None else record_numbers(records, len(opened.records)),
            k=factor,
            k_by_tensor=by_tensor,
            tol=tolerance(tol),
            bitwise=bitwise,
            stages=stages,
            isolate=isolate,
            timeout=timeout,
            trace=request,
            progress=lambda done, total, _: advance(done, total),
        )
    finish(report, json, None, report.exit_code)
