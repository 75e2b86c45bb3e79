# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that commands on recorded calls share, and the panels of `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gdnbench.errors import BadInputError

KERNEL_PANEL = "Kernel and records"
JUDGE_PANEL = "Verdict"
SIM_PANEL = "Simulator (--on sim)"
PROCESS_PANEL = "Processes"
TIME_PANEL = "Time"
OUTPUT_PANEL = "Output"

KERNELS = "reference, torch, hf, sm100, package.module:function or FILE.py:function."

LONGEST = 1e6
"""Seconds of the longest timeout, 11 days; the system waits for at most 2^31 milliseconds."""


def positive_seconds(timeout: float | None) -> float | None:
    """The value of `--timeout`; BadInputError for NaN and for one that is no time to wait."""
    if timeout is not None and not 0 < timeout <= LONGEST:
        raise BadInputError(f"--timeout is {timeout:g}; it must be above 0 and at most {LONGEST:g} seconds")
    return timeout


def _look_into(ctx: typer.Context, folder: Path | None) -> Path | None:
    """The value of `--kernel-env`, whose packages are found until the command ends."""
    if folder is not None:
        from gdnbench.replay.kernel_packages import kernel_packages

        ctx.with_resource(kernel_packages(folder))
    return folder


def _on_machine(ctx: typer.Context, machine: str | None) -> str | None:
    """The value of `--machine`, which holds until the command ends."""
    if machine is not None:
        from gdnbench.replay.simulated import replay_gpu

        ctx.with_resource(replay_gpu(machine=machine))
    return machine


def _with_sms(ctx: typer.Context, sms: int | None) -> int | None:
    """The value of `--sms`, which holds until the command ends."""
    if sms is not None:
        from gdnbench.replay.simulated import replay_gpu

        ctx.with_resource(replay_gpu(sms=sms))
    return sms


def sms_numbers(text: str | None) -> list[int]:
    """ "4" -> [4], "1,2,148" -> [1, 2, 148], None -> []; BadInputError for anything else."""
    if text is None:
        return []
    numbers = text.split(",")
    if not all(one.isascii() and one.isdecimal() and len(one) < 7 and int(one) for one in numbers):
        raise BadInputError(f"--sms {text!r} is not a number of SMs, such as 4, or several, such as 1,2,148")
    found = [int(one) for one in numbers]
    if len(set(found)) != len(found):
        raise BadInputError(f"--sms {text!r} names a number twice")
    return found


def check_on_simulator(on: str, machine: str | None, sms: int | None) -> None:
    """BadInputError for `--machine` and `--sms` of kernels that are not simulated."""
    if on != "sim" and (machine is not None or sms is not None):
        raise BadInputError("--machine and --sms describe a simulated GPU: give --on sim too")


StoreArgument = Annotated[str, typer.Argument(help="Store to read: a folder, .zip or URL.")]
RecordsArgument = Annotated[
    str | None, typer.Argument(help="Records to take, for example 0,3-5. Default: all records.")
]
OpOption = Annotated[
    str | None, typer.Option(help="Take only records of this operation.", rich_help_panel=KERNEL_PANEL)
]
AgainstOption = Annotated[
    str,
    typer.Option(help="Compare with reference, recorded, or another kernel.", rich_help_panel=KERNEL_PANEL),
]
SimulatedKernelOption = Annotated[
    str, typer.Option(help=f"Kernel to simulate: {KERNELS}", rich_help_panel=KERNEL_PANEL)
]
KERNEL_ENV = "Folder with the kernel's packages, from pip install --no-deps --target FOLDER."
MACHINE = (
    "With --on sim: the GPU that the kernel is compiled for and sees, b200 or b300 (148 SMs), h200 or h100"
    " (132 SMs). Default: that of the kernel, b200 if it runs on several."
)
SMS = (
    "With --on sim: number of SMs of the GPU, e.g. 4. Persistent kernels then take more tiles per CTA."
    " Default: those of the machine."
)
KernelEnvOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help=KERNEL_ENV, rich_help_panel=KERNEL_PANEL, callback=_look_into),
]
KernelEnvOptionWithoutPanel = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help=KERNEL_ENV, callback=_look_into)
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        help=MACHINE,
        rich_help_panel=SIM_PANEL,
        callback=_on_machine,
    ),
]
SmsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help=SMS,
        rich_help_panel=SIM_PANEL,
        callback=_with_sms,
    ),
]
MachineOptionWithoutPanel = Annotated[str | None, typer.Option(help=MACHINE, callback=_on_machine)]
SmsOptionWithoutPanel = Annotated[int | None, typer.Option(min=1, metavar="N", help=SMS, callback=_with_sms)]
FactorsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Pass errors up to K times torch's error; TENSOR=K sets one tensor. Repeatable. Default: 2.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
TolOption = Annotated[
    str | None,
    typer.Option(
        help="Pass differences up to ABS or ABS,REL instead of --k, e.g. 1e-3,1e-2.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
BitwiseOption = Annotated[
    bool, typer.Option("--bitwise", help="Pass only if every bit is equal.", rich_help_panel=JUDGE_PANEL)
]
StagesOption = Annotated[
    bool,
    typer.Option(
        "--stages",
        help="Also judge the stages: the intermediate tensors that the kernel exposes.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
IsolateOption = Annotated[
    bool | None,
    typer.Option(
        help="Run the kernel in a process of its own. Default: yes for functions of yours, and on cuda.",
        rich_help_panel=PROCESS_PANEL,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which a record counts as hung.",
        rich_help_panel=PROCESS_PANEL,
        callback=positive_seconds,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, no table.", rich_help_panel=OUTPUT_PANEL)
]
