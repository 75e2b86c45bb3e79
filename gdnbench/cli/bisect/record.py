# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect record`: which captured call is the first bad one?"""

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
    TolOption,
    begun,
    finish,
)
from gdnbench.cli.bisect.symptom import (
    NUMBERS,
    BaselineOption,
    FailureOption,
    ScheduleOption,
    SymptomOptions,
    TensorOption,
    make_trial,
)
from gdnbench.cli.judging import tolerance
from gdnbench.cli.record_options import RecordsArgument, StoreArgument
from gdnbench.errors import BadInputError, Exit


def record(
    store: StoreArgument,
    kernel: KernelOption,
    records: RecordsArgument = None,
    layer: Annotated[
        str | None, typer.Option(help="Use only calls of this layer: its name or number.")
    ] = None,
    carry: Annotated[
        bool,
        typer.Option(
            "--carry",
            help="If every call passes alone, run the calls in sequence on the kernel's own states.",
        ),
    ] = False,
    any: Annotated[
        bool, typer.Option("--any", help="Stop at any bad call, the cheapest first, instead of the earliest.")
    ] = False,
    on: OnOption = "cpu",
    k: FactorOption = None,
    tol: TolOption = None,
    symptom: FailureOption = None,
    tensor: TensorOption = None,
    schedule: ScheduleOption = None,
    baseline: BaselineOption = None,
    kernel_env: KernelEnvOption = None,
    machine: MachineOption = None,
    sms: SmsOption = None,
    state: StateOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Find the first bad call of a capture, and whether its error starts there or arrives with its state."""
    arguments = {name: value for name, value in locals().items() if name not in ("state", "fresh")}
    from gdnbench.bisect.record import text
    from gdnbench.bisect.record.find import RecordBisection, as_json, find_bad_call
    from gdnbench.judge.rule import make_rule

    limits = tolerance(tol)
    make_rule(k, None, limits)
    if carry and symptom not in (None, NUMBERS):
        raise BadInputError(f"--carry follows numbers: give it without --symptom {symptom}")
    failure = SymptomOptions(symptom, tensor, schedule, baseline)
    trial = make_trial(store, kernel, on, records, failure, k=k, tol=limits)
    with begun("record", arguments, state, fresh) as session:
        found = find_bad_call(RecordBisection(trial, layer, any, carry), session)
        answer = text.answer(found)
        lines = [*(f"note: {note}" for note in text.notes(found)), answer]
        code = Exit.MISMATCH if found.bad else Exit.PASS
        finish(session, {**as_json(found), "answer": answer}, lines, code, json)
