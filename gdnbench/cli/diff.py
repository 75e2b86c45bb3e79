# SPDX-License-Identifier: Apache-2.0
"""`gdnbench diff`: where and by how much two stores differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gdnbench.cli.console import print_json, print_line, progress
from gdnbench.cli.judging import HEATMAP, factors, finish, tolerance
from gdnbench.cli.stores import open_store
from gdnbench.errors import BadInputError, Exit
from gdnbench.store.address import Address


def diff(
    a: Annotated[
        str, typer.Argument(help="Store to compare: a capture, a run of `replay --save`, or a value trace.")
    ],
    b: Annotated[str, typer.Argument(help="Store to compare A with.")],
    op: Annotated[
        str | None, typer.Option(help="Use only records of this operation, e.g. gdn_decode.")
    ] = None,
    tol: Annotated[
        str | None,
        typer.Option(help="Pass differences up to ABS or ABS,REL, e.g. 1e-3,1e-2. Default: equal bits."),
    ] = None,
    ulp: Annotated[
        float | None,
        typer.Option(
            help="For value traces: pass differences up to this many units in the last place, e.g. 2."
        ),
    ] = None,
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle", help="Judge both stores against the fp64 oracle. One of them must hold the inputs."
        ),
    ] = False,
    k: Annotated[
        list[str] | None,
        typer.Option(help="With --oracle: pass errors up to K times torch's, or TENSOR=K. Default: 2."),
    ] = None,
    heatmap: Annotated[bool, typer.Option("--heatmap", help=HEATMAP)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write a JUnit XML file, e.g. results.xml.")] = None,
) -> None:
    """Compare two stores record by record, tensor by tensor, or two value traces instruction by instruction.

    Exit status: 0 no difference beyond the rule; 1 a difference, or a record that one side lacks.
    """
    if traces(a, b):
        refuse(
            {"--op": op, "--oracle": oracle, "--k": k, "--heatmap": heatmap, "--junit": junit},
            "value traces have no records",
        )
        finish_traces(a, b, tolerance(tol), ulp, json)
    refuse({"--ulp": ulp}, "it is for value traces")
    from gdnbench.diff.compare import diff as diff_stores

    factor, by_tensor = factors(k)
    with open_store(a) as left, open_store(b) as right, progress("diff") as advance:
        report = diff_stores(
            left,
            right,
            tol=tolerance(tol),
            oracle=oracle,
            k=factor,
            k_by_tensor=by_tensor,
            op=op,
            grids=heatmap,
            progress=lambda done, total, _: advance(done, total),
        )
    finish(report, json, junit, heatmap=heatmap)


def traces(a: Address, b: Address) -> bool:
    """Whether both are value traces. BadInputError if one is."""
    from gdnbench.trace.reader import is_trace

    found = [path for path in (a, b) if is_trace(path)]
    if len(found) == 1:
        raise BadInputError(
            f"{found[0]} is a value trace and the other is not; compare two value traces or two runs"
        )
    return bool(found)


def refuse(options: Mapping[str, object], why: str) -> None:
    """BadInputError if one of them is given."""
    given = [name for name, value in options.items() if value]
    if given:
        raise BadInputError(f"{given[0]} does not go here: {why}")


def finish_traces(
    a: Address, b: Address, tolerance: tuple[float, float] | None, ulp: float | None, json: bool
) -> NoReturn:
    """Compare two traces, print what is found, and end the command."""
    from gdnbench.diff.traces.compare import compare
    from gdnbench.diff.traces.judging import Bound
    from gdnbench.diff.traces.report import as_json, report_lines
    from gdnbench.trace.reader import open_trace

    bound = Bound(tolerance, ulp)
    with open_trace(a) as left, open_trace(b) as right, progress("diff") as advance:
        found = compare(left, right, bound, advance)
    code = Exit.PASS if found.equal else Exit.MISMATCH
    if json:
        print_json(as_json(found, int(code)))
    else:
        for line in report_lines(found):
            print_line(line)
    raise typer.Exit(code)
