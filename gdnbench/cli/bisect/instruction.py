# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect instruction`: which value of a kernel first differs between two versions?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.bisect.common import FreshOption, JsonOption, StateOption, begun, finish
from gdnbench.cli.judging import tolerance as limits
from gdnbench.cli.record_options import StoreArgument
from gdnbench.store.address import absolute_address

_VERSION = "of the kernel: package.module:function or FILE.py:function."
_PATH = "Folder to import the {} version from first."


def instruction(
    store: StoreArgument,
    record: Annotated[int, typer.Argument(help="Number of the record, e.g. 3.")],
    good: Annotated[str, typer.Option(help=f"The good version {_VERSION}")],
    bad: Annotated[str, typer.Option(help=f"The bad version {_VERSION}")],
    good_path: Annotated[Path | None, typer.Option(help=_PATH.format("good"))] = None,
    bad_path: Annotated[Path | None, typer.Option(help=_PATH.format("bad"))] = None,
    stage: Annotated[
        str | None, typer.Option(help="Compare the launch that computes this stage, e.g. Ai.")
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="Accept differences between launches up to ABS or ABS,REL.")
    ] = None,
    integers: Annotated[
        bool, typer.Option("--integers", help="Also compare loads and stores of integers.")
    ] = False,
    cta: Annotated[int | None, typer.Option(min=0, help="Index of the CTA to trace, e.g. 0.")] = None,
    check_ends: Annotated[
        bool, typer.Option(help="First replay both versions to find out whether one is flaky.")
    ] = True,
    state: StateOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Find the first instruction whose value differs beyond rounding between two versions of a CuTe DSL
    kernel, both on the simulator."""
    arguments = {name: value for name, value in locals().items() if name not in ("state", "fresh")}
    from gdnbench.bisect.instruction.find import InstructionBisection, find_instruction
    from gdnbench.bisect.verdict import State
    from gdnbench.errors import Exit

    folders = tuple(None if path is None else Path(path).resolve() for path in (good_path, bad_path))
    request = InstructionBisection(
        absolute_address(store),
        record,
        good,
        bad,
        (folders[0], folders[1]),
        stage,
        limits(tolerance),
        integers,
        cta,
        check_ends,
    )
    with begun("instruction", arguments, state, fresh) as session:
        found = find_instruction(request, session)
        lines = list(found.facts["lines"])
        bad_state = found.state is State.BAD
        data = {**found.facts, "found": found.kind, "reason": found.reason}
        finish(session, data, lines, Exit.MISMATCH if bad_state else Exit.PASS, json)
