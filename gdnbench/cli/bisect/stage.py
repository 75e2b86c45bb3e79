# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect stage`: which stage of a kernel first goes wrong?"""

from __future__ import annotations

from typing import Annotated

import typer

from gdnbench.cli.bisect.common import (
    FactorOption,
    FreshOption,
    JsonOption,
    KernelEnvOption,
    KernelOption,
    MachineOption,
    OnOption,
    SmsOption,
    StateOption,
    begun,
    finish,
)
from gdnbench.cli.bisect.symptom import (
    NUMBERS,
    ScheduleOption,
    SymptomOptions,
    make_trial,
)
from gdnbench.cli.console import table
from gdnbench.cli.judging import tolerance
from gdnbench.cli.record_options import RecordsArgument, StoreArgument
from gdnbench.errors import BadInputError, Exit


def stage(
    store: StoreArgument,
    kernel: KernelOption,
    records: RecordsArgument = None,
    on: OnOption = "cpu",
    k: FactorOption = None,
    tol: Annotated[
        str | None,
        typer.Option(help="Accept output differences up to ABS or ABS,REL instead of --k. Stages keep --k."),
    ] = None,
    carry: Annotated[
        bool,
        typer.Option("--carry", help="Also run the preceding calls in sequence on the kernel's own states."),
    ] = False,
    symptom: Annotated[
        str | None,
        typer.Option(
            metavar=NUMBERS,
            help="`numbers`: only wrong numbers make a record bad, not a fault that can be skipped.",
        ),
    ] = None,
    schedule: ScheduleOption = None,
    kernel_env: KernelEnvOption = None,
    machine: MachineOption = None,
    sms: SmsOption = None,
    state: StateOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Find the stage of a kernel that first goes wrong: what each adds to the error and what it inherits.

    Looks at the first record that fails.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("state", "fresh")}
    from gdnbench.bisect.stage import text
    from gdnbench.bisect.stage.find import find_bad_stage
    from gdnbench.judge.rule import make_rule

    limits = tolerance(tol)
    if symptom not in (None, NUMBERS):
        raise BadInputError(f"--symptom {symptom}: a stage is judged by its numbers; use `bisect record`")
    make_rule(k)
    make_rule(tol=limits)
    failure = SymptomOptions(symptom, schedule=schedule)
    trial = make_trial(store, kernel, on, records, failure, k=k, tol=limits)
    with begun("stage", arguments, state, fresh) as session:
        found = find_bad_stage(trial, session, carry)
        lines = []
        if found.rows:
            heads = text.heads(found)
            lines += table(heads, text.cells(found), heads[2:6], colours=False).split("\n")
        lines += [f"note: {note}" for note in text.notes(found)]
        lines.append(text.answer(found))
        finish(session, text.as_json(found), lines, Exit.PASS if found.label is None else Exit.MISMATCH, json)
