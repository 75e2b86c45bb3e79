# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect input`: the smallest record that still fails."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnbench.cli.bisect.common import (
    BitwiseOption,
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
    print_progress,
)
from gdnbench.cli.bisect.symptom import (
    BaselineOption,
    FailureOption,
    ScheduleOption,
    SymptomOptions,
    TensorOption,
)
from gdnbench.cli.console import table
from gdnbench.cli.judging import tolerance
from gdnbench.cli.record_options import StoreArgument
from gdnbench.errors import BadInputError, Exit
from gdnbench.record_numbers import record_numbers
from gdnbench.store.address import absolute_address, folder_to_write

if TYPE_CHECKING:
    from gdnbench.bisect.input.shrink import Shrunk


def input(
    store: StoreArgument,
    record: Annotated[str, typer.Argument(help="Number of the record, e.g. 3.")],
    kernel: KernelOption,
    on: OnOption = "cpu",
    k: FactorOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    stages: Annotated[
        bool, typer.Option("--stages", help="Also count a failing stage of the kernel as a failure.")
    ] = False,
    same_tensor: Annotated[
        bool,
        typer.Option(
            "--same-tensor", help="Count only failures of a tensor that failed in the original record."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Store to write. Default: STORE-RECORD-small.zarr in the current folder."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="Also write a Python file that reproduces the failure without gdnbench."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="End within this many seconds, e.g. 240, and keep the smallest record so far. At most a"
            " third goes to repeated replays of the record itself."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which a replay counts as hung.")] = 600.0,
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
    """Shrink a record that fails to the smallest that still does, and simplify its values.

    Ctrl-C and --budget leave the smallest so far in --out; the same command again goes on.
    """
    arguments = {name: value for name, value in locals().items() if name not in ("state", "fresh")}
    begin = time.monotonic()  # the budget counts imports too
    from gdnbench.bisect.flakiness import Steadiness
    from gdnbench.bisect.input.result import (
        answer,
        check_out,
        check_script,
        rows,
        to_json,
        write_script,
        write_store,
    )
    from gdnbench.bisect.input.shrink import Options, default_out, shrink
    from gdnbench.bisect.trial import Trial
    from gdnbench.bisect.verdict import State
    from gdnbench.judge.rule import make_rule
    from gdnbench.store.recover import open_store

    limits = tolerance(tol)
    make_rule(k, None, limits, bitwise)  # refuses what contradicts itself before anything runs
    with open_store(store) as opened:
        numbers = record_numbers(record, len(opened.records))
        if len(numbers) != 1:
            raise BadInputError(f"record {record!r} is not one record; give its number")
        failure = SymptomOptions(symptom, tensor, schedule, baseline)
        more = failure.trial_arguments(opened, numbers, on)
        more["stages"] |= stages
        written = folder_to_write(out) if out is not None else default_out(store, numbers[0])
        check_out(written)
        if script is not None:
            check_script(Path(script))
        with begun("input", arguments, state, fresh) as session:

            def keep(found: Shrunk) -> None:
                write_store(found, written)
                print_progress(f"the smallest record is in {written}")
                if script is not None:
                    reason = write_script(found, written, Path(script))
                    print_progress(f"no {script}: {reason}" if reason else f"python {script} reproduces it")

            trial = Trial(
                absolute_address(store), kernel, on, tuple(numbers), None, k, limits, bitwise, **more
            )
            found = shrink(
                opened.records[numbers[0]],
                trial,
                Options(same_tensor, budget, timeout, begin),
                session,
                keep,
            )
    lines = [*(f"note: {note}" for note in found.notes), answer(found)]
    if found.shrinker is not None:
        lines[:0] = table(("", "before", "after"), rows(found), ("before", "after"), colours=False).split(
            "\n"
        )
    code = Exit.MISMATCH
    flaky = found.first.facts.get("steadiness") == Steadiness.FLAKY  # whichever its first run was
    if not flaky and found.first.state is State.GOOD:
        code = Exit.PASS
    elif not flaky and found.first.state is State.SKIP:
        code = Exit.CANNOT_RUN
    finish(session, to_json(found), lines, code, json)
