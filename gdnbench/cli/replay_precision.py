# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --precision fp64`: which errors of a kernel are rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from gdnbench.cli.console import print_json, print_lines, progress, table
from gdnbench.cli.sim_precision import FP64, constants_and_losses
from gdnbench.cli.stores import open_store
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.replay.precision import PrecisionResult
    from gdnbench.store.address import Address

PRECISION_HELP = (
    "With --on sim: also compute every float in fp64, and say of each output, and stage with --stages,"
    " whether its error is rounding or the formula's. The only value is fp64. The kernel is interpreted: 20"
    " times slower."
)


def check_precision(precision: str | None, on: str, others: Mapping[str, Any]) -> None:
    """BadInputError for another precision, another device, or options that do not go together; `others` has
    the values of those, by their names."""
    if precision is None:
        return
    if precision != FP64:
        raise BadInputError(f"--precision {precision!r} does not exist; there is {FP64}")
    if on != "sim":
        raise BadInputError(f"--precision {FP64} is done by the simulator: --on sim, not {on}")
    given = [name for name, value in others.items() if value]
    if given:
        raise BadInputError(
            f"--precision {FP64} compares with the fp64 reference alone: omit {', '.join(given)}"
        )


def run_precision(
    store: Address,
    records: str | None,
    op: str | None,
    kernel: str,
    *,
    stages: bool,
    keep_going: bool,
    json: bool,
) -> None:
    """Replay the records, print what was found, and end the command with its exit code."""
    from gdnbench.record_numbers import record_numbers
    from gdnbench.replay.precision import exit_code, replay_precision
    from gdnbench.replay.replay import select

    with open_store(store) as opened, progress("replay in fp64") as advance:
        chosen = None if records is None else record_numbers(records, len(opened.records))
        numbers = select(opened, chosen, op)
        how = {"stages": stages, "keep_going": keep_going}
        found = replay_precision(opened, numbers, kernel, **how, progress=advance)
    if json:
        print_json({"kernel": kernel, "precision": FP64, "records": [one.as_json() for one in found]})
    else:
        for one in found:
            print_lines("\n".join(_described(one)))
    raise typer.Exit(exit_code(found))


def _described(result: PrecisionResult) -> Iterator[str]:
    yield f"record {result.number} ({result.op}), {result.seconds:.1f} s"
    if result.failure is not None:
        yield f"  {result.failure.outcome}: {result.failure.reason}"
        return
    rows = [
        (
            one.tensor,
            "stage" if one.stage else "output",
            f"{one.error / (one.size or 1):.2e}",
            f"{one.fp64_error / (one.size or 1):.2e}",
            f"{_gone(one.error, one.fp64_error)}",
            f"{100 * one.shadowed / max(one.elements, 1):.0f}%",
            str(one.cause),
        )
        for one in result.tensors
    ]
    headers = ("tensor", "", "error", "in fp64", "falls by", "shadowed", "the error is")
    yield table(headers, rows, right=("error", "in fp64", "falls by", "shadowed"))
    yield from constants_and_losses(result.constants or {}, result.lost)
    for fault in result.faults:
        yield f"fault: {fault}"
    for note in result.notes:
        yield f"note: {note}"


def _gone(error: float, fp64_error: float) -> str:
    """By what factor an error falls."""
    if not error:
        return "-"
    return "to 0" if not fp64_error else f"{error / fp64_error:.3g}"
