# SPDX-License-Identifier: Apache-2.0
"""`gdnbench explore`: simulate recorded calls under many schedules and compare the bits of their outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gdnbench.cli.checking import ACCEPT, CHECK, VERBOSE, WRITE_ACCEPT, read_accepted
from gdnbench.cli.console import progress
from gdnbench.cli.exploring import conclude, refuse_with, typed
from gdnbench.cli.judging import factors, tolerance
from gdnbench.cli.orders import conclude_orders, schedule_count
from gdnbench.cli.record_options import (
    JUDGE_PANEL,
    OUTPUT_PANEL,
    SIM_PANEL,
    BitwiseOption,
    FactorsOption,
    JsonOption,
    KernelEnvOption,
    MachineOption,
    OpOption,
    RecordsArgument,
    SimulatedKernelOption,
    StagesOption,
    StoreArgument,
    TolOption,
    sms_numbers,
)
from gdnbench.cli.stores import open_store
from gdnbench.errors import BadInputError
from gdnbench.record_numbers import record_numbers

SHAPES = 3
"""Smaller calls that are made of each record, unless `--shapes` says how many."""


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    """The command that repeats a run of an exploration of `store`; `words` are the options of all runs."""

    store: str
    words: tuple[str, ...]

    def __call__(self, number: int, seed: int | None, schedule: str, sms: int | None) -> str:
        made = [] if seed is None else ["--shape", seed]
        gpu = [] if sms is None else ["--sms", sms]
        return typed("replay", self.store, number, *self.words, *gpu, "--schedule", schedule, *made)


def explore(
    store: StoreArgument,
    kernel: SimulatedKernelOption,
    records: RecordsArgument = None,
    schedules: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            help="Number of schedules: late, early, then random ones. all: run each record once and check all"
            " orders of what its mbarriers and barriers do (docs/checker.md).",
            rich_help_panel=SIM_PANEL,
        ),
    ] = "8",
    shapes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of smaller calls to make of each record, and run. Default: 3.",
            rich_help_panel=SIM_PANEL,
        ),
    ] = None,
    kernel_env: KernelEnvOption = None,
    op: OpOption = None,
    k: FactorsOption = None,
    tol: TolOption = None,
    bitwise: BitwiseOption = False,
    stages: StagesOption = False,
    machine: MachineOption = None,
    sms: Annotated[
        str | None,
        typer.Option(
            metavar="N,...",
            help="Number of SMs of the GPU, e.g. 4; or several, e.g. 1,2,4,148: the output bits must be equal"
            " on all. Default: those of the machine.",
            rich_help_panel=SIM_PANEL,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK, rich_help_panel=SIM_PANEL)] = False,
    accept: Annotated[Path | None, typer.Option(help=ACCEPT, rich_help_panel=JUDGE_PANEL)] = None,
    write_accept: Annotated[
        Path | None, typer.Option(help=WRITE_ACCEPT, rich_help_panel=OUTPUT_PANEL)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help=VERBOSE, rich_help_panel=OUTPUT_PANEL)
    ] = False,
    json: JsonOption = False,
) -> None:
    """Simulate records, and smaller calls made of them, under many schedules and compare the output bits.

    Each difference is printed with the command that repeats its run.

    Exit status: 0 all bits are equal and all outputs pass; 1 a difference, mismatch or check error; 3
    something could not run here.
    """
    from gdnbench.judge.rule import make_rule
    from gdnbench.replay.explore import Exploring, explore_gpus, explore_on, explore_records
    from gdnbench.replay.replay import select
    from gdnbench.replay.simulated import replay_gpu
    from gdnbench.sim.explore import fresh_seed
    from gdnbench.sim.explore import schedules as make_schedules

    count = schedule_count("--schedules", schedules)
    if count is None:
        refuse_with("--schedules all", check=check, accept=accept, write_accept=write_accept)
        _refuse_judging(k=k, tol=tol, bitwise=bitwise or None, stages=stages or None, shapes=shapes)
        _check_orders(store, kernel, records, op, sms, json=json, verbose=verbose)
    accepted = read_accepted(accept, write_accept, check=check)
    factor, by_tensor = factors(k)
    rule = make_rule(k=factor, k_by_tensor=by_tensor, tol=tolerance(tol), bitwise=bitwise)
    words: list[object] = ["--kernel", kernel, "--on", "sim"]
    words += ["--kernel-env", kernel_env] if kernel_env is not None else []
    words += ["--machine", machine] if machine is not None else []
    words += ["--accept", accept] if accept is not None else []
    words += [word for one in k or () for word in ("--k", one)]
    words += ["--tol", tol] if tol is not None else []
    words += ["--bitwise"] * bitwise + ["--stages"] * stages + ["--check"] * check
    numbers = sms_numbers(sms)
    only = numbers[0] if len(numbers) == 1 else None
    repeat = RepeatedRun(store, tuple(map(str, words)))
    with open_store(store) as opened, progress("explore") as advance:
        chosen = None if records is None else record_numbers(records, len(opened.records))
        what = Exploring(
            opened.path,
            select(opened, chosen, op),
            kernel,
            make_schedules(count),
            [fresh_seed() for _ in range(SHAPES if shapes is None else shapes)],
            rule,
            repeat,
            stages,
            check,
        )
        if len(numbers) > 1:
            found = explore_gpus(explore_on, what, numbers, advance)
        else:
            with replay_gpu(sms=only):
                found = explore_records(
                    opened,
                    what.numbers,
                    kernel=kernel,
                    schedules=what.schedules,
                    seeds=what.seeds,
                    rule=rule,
                    command=lambda number, seed, under: repeat(number, seed, under, only),
                    stages=stages,
                    check=check,
                    progress=advance,
                )
    conclude(found, accepted, write_accept, json=json, verbose=verbose)


def _refuse_judging(**given: object) -> None:
    """BadInputError for an option, by name, that says how outputs are judged or which calls are made."""
    for name, value in given.items():
        if value is not None and value != []:
            raise BadInputError(
                f"--schedules all runs records as they are and judges no output: leave out --{name}"
            )


def _check_orders(
    store: str,
    kernel: str,
    records: str | None,
    op: str | None,
    sms: str | None,
    *,
    json: bool,
    verbose: bool,
) -> NoReturn:
    from gdnbench.replay.orders import check_records
    from gdnbench.replay.replay import select
    from gdnbench.replay.simulated import replay_gpu

    numbers = sms_numbers(sms)
    if len(numbers) > 1:
        raise BadInputError(f"--sms {sms}: --schedules all runs on one GPU: give one number")
    with open_store(store) as opened, progress("explore") as advance:
        chosen = None if records is None else record_numbers(records, len(opened.records))
        with replay_gpu(sms=numbers[0] if numbers else None):
            found = check_records(opened, select(opened, chosen, op), kernel, advance.say)
    conclude_orders(found.launches, found.failed, faulty=found.faulty, json=json, verbose=verbose)
