# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect commit`: which commit made a kernel wrong, or slower?"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gdnbench.cli.bisect.common import (
    BitwiseOption,
    FactorOption,
    FreshOption,
    JsonOption,
    KernelEnvOption,
    MachineOption,
    OnOption,
    SmsOption,
    StateOption,
    TolOption,
    begun,
    finish,
)
from gdnbench.cli.bisect.symptom import (
    BaselineOption,
    ScheduleOption,
    SymptomOption,
    SymptomOptions,
    TensorOption,
    make_trial,
)
from gdnbench.cli.judging import tolerance
from gdnbench.cli.record_options import RecordsArgument, StoreArgument
from gdnbench.errors import BadInputError

TIME = (
    "With --on sim --machine h200, b200 or b300: find the commit that made the kernel slower, by its"
    " predicted time. Commits whose kernel is wrong are skipped."
)


def check_predicted(on: str, *, symptom: str | None, any_kind: bool) -> None:
    """BadInputError for options that do not go with `--time`."""
    from gdnbench.replay.simulated import SIM

    if on != SIM:
        raise BadInputError(
            f"--time compares predicted times: --on {SIM}, not {on}; `gdnbench time` measures"
        )
    if symptom is not None or any_kind:
        option = "--any-kind" if symptom is None else "--symptom"
        raise BadInputError(f"{option} is about failures, which --time skips: give only one of them")


def commit(
    store: StoreArgument,
    good: Annotated[
        str, typer.Option(help="Revision where the kernel is right, or with --time fast, e.g. v1.0.")
    ],
    bad: Annotated[
        str, typer.Option(help="Revision where the kernel is wrong, or with --time slow, e.g. main.")
    ],
    kernel: Annotated[
        str,
        typer.Option(
            help="package.module:function or FILE.py:function, of the repository or of this folder."
        ),
    ],
    records: RecordsArgument = None,
    repo: Annotated[
        Path, typer.Option(help="Git repository to bisect. Its checkout is not changed.")
    ] = Path(),
    on: OnOption = "cpu",
    k: FactorOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    build: Annotated[
        str | None,
        typer.Option(help="Shell command that builds a revision. A revision that fails to build is skipped."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Python interpreter that replays; gdnbench must be installed there.")
    ] = None,
    path: Annotated[
        str, typer.Option(help="Folder of the repository that imports start from, e.g. python.")
    ] = "",
    also: Annotated[
        list[str] | None,
        typer.Option(help="File or folder that the kernel reads without importing it. Repeatable."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which a replay counts as hung.")] = 600.0,
    same_kind: Annotated[
        bool,
        typer.Option(
            "--same-kind/--any-kind",
            help="Count only failures of the same kind as the bad revision's, or of any kind.",
        ),
    ] = True,
    submodules: Annotated[bool, typer.Option("--submodules", help="Also check out submodules.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="With --on sim: an error of the race checker also counts as bad."),
    ] = False,
    symptom: SymptomOption = None,
    tensor: TensorOption = None,
    schedule: ScheduleOption = None,
    baseline: BaselineOption = None,
    time: Annotated[bool, typer.Option("--time", help=TIME)] = False,
    kernel_env: KernelEnvOption = None,
    machine: MachineOption = None,
    sms: SmsOption = None,
    state: StateOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Find the commit of a git repository that made a kernel wrong, or with --time slower."""
    arguments = {name: value for name, value in locals().items() if name not in ("state", "fresh")}
    from gdnbench.bisect.commit.axis import bisect_commits
    from gdnbench.bisect.commit.walk import CommitBisection
    from gdnbench.judge.rule import make_rule
    from gdnbench.replay.predicting import machine_to_predict
    from gdnbench.replay.simulated import SIM

    limits = tolerance(tol)
    make_rule(k, None, limits, bitwise)  # refuses what contradicts itself before anything runs
    if check and on != SIM:
        raise BadInputError(f"--check is done by the simulator: --on {SIM}, not {on}")
    failure = SymptomOptions(symptom, tensor, schedule, baseline, check)
    predict = None
    if time:
        check_predicted(on, symptom=symptom, any_kind=not same_kind)
        predict = machine_to_predict(machine)
    trial = make_trial(store, kernel, on, records, failure, k=k, tol=limits, bitwise=bitwise)
    trial = replace(trial, predict=predict)
    bisection = CommitBisection(
        trial,
        Path(repo),
        good,
        bad,
        sys.executable if python is None else python,
        timeout,
        path,
        tuple(also or ()),
        build,
        submodules,
        same_kind,
    )
    with begun("commit", arguments, state, fresh) as session:
        answer = bisect_commits(bisection, session)
        finish(session, answer.found, answer.lines, answer.exit_code, json)
