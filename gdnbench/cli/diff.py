"""`gdnbench diff`: where and by how much two stores differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.console import progress
from gdnbench.cli.judging import factors, finish, tolerance
from gdnbench.store.recover import open_store


def diff(
    a: Annotated[Path, typer.Argument(help="A store: a capture, or a run saved by replay --save.")],
    b: Annotated[Path, typer.Argument(help="The store to compare it with.")],
    op: Annotated[str | None, typer.Option(help="Only records of this operation.")] = None,
    tol: Annotated[
        str | None,
        typer.Option(help="Pass at this difference, ABS or ABS,REL, instead of equal bits."),
    ] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Judge both sides by the fp64 oracle; needs inputs in one store.")
    ] = False,
    k: Annotated[
        list[str] | None, typer.Option(help="With --oracle: pass at k times torch's error, or TENSOR=K.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One object instead of a table.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Also write a JUnit XML file.")] = None,
) -> None:
    """Compare two stores record by record, tensor by tensor.

    Exit status: 0 no difference beyond the rule; 1 a difference, or a record that one side lacks.
    """
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
            progress=lambda done, total, _: advance(done, total),
        )
    finish(report, json, junit)
