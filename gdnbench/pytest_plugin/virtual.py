# SPDX-License-Identifier: Apache-2.0
"""`pytest --gdnbench-virtual MACHINE`: a test session with a virtual GPU."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from gdnbench.pytest_plugin.stash import GPU
from gdnbench.sim.errors import SimError
from gdnbench.sim.virtual import Request, VirtualGpu, findings_text, kernel_rows, launches_of, virtual_gpu


def start_gpu(config: pytest.Config, machine: str, sms: int | None, *, check: bool) -> None:
    """Make the session's GPU, and one for each Python process that a test starts, until pytest ends."""
    from gdnbench.sim import Settings

    stack = ExitStack()
    try:
        gpu = stack.enter_context(virtual_gpu(machine, sms, Settings(check=check)))
    except SimError as error:
        raise pytest.UsageError(f"--gdnbench-virtual: {error}") from None
    os.environ.update(Request(machine, sms, {"check": check}).environment())
    config.add_cleanup(stack.close)
    config.stash[GPU] = gpu


def write_summary(reporter: pytest.TerminalReporter, gpu: VirtualGpu) -> None:
    """One line for each kernel, then what was found and what was refused."""
    launches = [launch for report in gpu.reports for launch in launches_of(report)]
    reporter.section(f"virtual GPU {gpu.machine.name}, {gpu.device.multiprocessors} SMs")
    for row in kernel_rows(launches):
        found = f", {row.errors} errors, {row.review} to review" if row.errors or row.review else ""
        count = f"{row.launches} launches, {row.instructions:,} warp instructions, {row.seconds:.2f} s"
        reporter.write_line(f"{row.kernel}: {count}{found}")
    if not launches:
        reporter.write_line("no kernel was launched")
    for text in findings_text(launches):
        reporter.write_line(text)
    for error in dict.fromkeys(map(str, gpu.refusals)):
        reporter.write_line(f"refused: {error}")
