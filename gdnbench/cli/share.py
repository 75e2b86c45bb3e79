# SPDX-License-Identifier: Apache-2.0
"""`gdnbench share`: a copy of a store that can be given away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.console import print_json, print_line, print_note, progress
from gdnbench.cli.judging import factors, tolerance
from gdnbench.cli.stores import open_store
from gdnbench.errors import BadInputError, Exit
from gdnbench.record_numbers import record_numbers
from gdnbench.units import counted

if TYPE_CHECKING:
    from gdnbench.judge.result import TensorResult
    from gdnbench.share.share import Shared


def share(
    store: Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")],
    out: Annotated[str, typer.Argument(help="Copy to write: a folder or .zip that does not exist yet.")],
    records: Annotated[
        str | None, typer.Argument(help="Numbers of the records, e.g. 0,3-5. Default: all records.")
    ] = None,
    hide: Annotated[
        str,
        typer.Option(
            help="Hide activations by rotation, permutation or synthetic values; `nothing` keeps them."
        ),
    ] = "nothing",
    kernel: Annotated[
        str | None,
        typer.Option(help="Kernel whose verdict the copy must reproduce, as in `replay`."),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="Compare with reference (fp64), recorded (the outputs in the store) or another kernel."
        ),
    ] = "reference",
    on: Annotated[str, typer.Option(help="Device: cpu, cuda, or sim, a simulated GPU.")] = "cpu",
    k: Annotated[
        list[str] | None,
        typer.Option(
            help="Pass errors up to K times torch's error; TENSOR=K sets one tensor. Repeatable. Default: 2."
        ),
    ] = None,
    tol: Annotated[
        str | None, typer.Option(help="Pass differences up to ABS or ABS,REL instead of --k, e.g. 1e-3,1e-2.")
    ] = None,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Pass only if all bits are equal.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Copy records without private metadata, hide activations if asked, and check that failures remain.

    Exit status: 0 the copy is written; 1 it does not show what the store shows, and nothing is written.
    """
    from gdnbench.share.share import share as copy_records

    if kernel is None and (against != "reference" or on != "cpu" or k or tol or bitwise):
        raise BadInputError("--against, --on, --k, --tol and --bitwise say how to replay: give --kernel too")
    factor, by_tensor = factors(k)
    replays: dict[str, Any] | None = None
    if kernel is not None:
        replays = {"kernel": kernel, "against": against, "on": on, "k": factor, "k_by_tensor": by_tensor}
        replays |= {"tol": tolerance(tol), "bitwise": bitwise}
    with open_store(store) as opened, progress("share") as advance:
        every = range(len(opened.records))
        numbers = every if records is None else record_numbers(records, len(opened.records))
        found = copy_records(opened, out, list(numbers), hide=hide, replays=replays, progress=advance)
    if json:
        print_json(_plain(found, out))
    else:
        for line in _lines(found, out):
            print_line(line)
    for line in found.lost:
        print_note(f"gdnbench: {line}")
    raise typer.Exit(Exit.MISMATCH if found.lost else Exit.PASS)


def _lines(found: Shared, out: str) -> Iterator[str]:
    for one in found.shown:
        verdict = f"LOST: {one.lost}" if one.lost else f"{one.source.outcome.value}, in the copy as well"
        yield f"record {one.source.label}: {verdict}"
        if one.source.reason and not one.failing:
            yield f"  {one.source.reason}"
        for ours, theirs in one.failing:
            yield f"  {ours.tensor}: error {_error(ours)} in the source, {_error(theirs)} in the copy"
    if found.lost:
        yield f"nothing is written to {out}: the copy does not show what the store shows"
        return
    if found.shown and not any(one.source.outcome.exit_code == Exit.MISMATCH for one in found.shown):
        yield "no record fails in the source, nor in the copy"
    yield f"left out: {', '.join(found.dropped) or 'nothing'}"
    yield "what remains:"
    yield from (f"- {sentence}" for sentence in found.statement)
    yield f"{out}: {counted(found.records, 'record')}"


def _error(tensor: TensorResult) -> str:
    ratio = _ratio(tensor)
    return "not known" if ratio is None else f"{ratio:.3g}"


def _ratio(tensor: TensorResult) -> float | None:
    return None if tensor.errors is None else tensor.errors.rms_ratio


def _plain(found: Shared, out: str) -> dict[str, Any]:
    return {
        "out": None if found.lost else out,
        "records": found.records,
        "dropped": found.dropped,
        "statement": found.statement,
        "shown": [
            {
                "record": one.source.number,
                "outcome": one.source.outcome.value,
                "lost": one.lost,
                "failing": [
                    {"tensor": ours.tensor, "source": _ratio(ours), "copy": _ratio(theirs)}
                    for ours, theirs in one.failing
                ],
            }
            for one in found.shown
        ],
        "lost": found.lost,
    }
