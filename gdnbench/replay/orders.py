# SPDX-License-Identifier: Apache-2.0
"""All orders of the launches of records: each record runs once on the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay import kernels
from gdnbench.replay.failure import Failure
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import SIM
from gdnbench.sim import Settings, active
from gdnbench.sim.protocol import CheckedLaunch, OrdersOfLaunches
from gdnbench.store.reader import Store


@dataclass(slots=True)
class CheckedRecords:
    """By record, what was found of its launches, and why it did not run to its end. `faulty`: a
    kernel did something illegal, or its outputs cannot be right."""

    launches: dict[str, Sequence[CheckedLaunch]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    faulty: bool = False


def check_records(
    store: Store, numbers: Sequence[int], kernel: str, advance: Callable[[str], None] | None = None
) -> CheckedRecords:
    """Check all orders of each launch that `kernel` makes for each of these records. BadInputError if there
    is no such kernel."""
    kernels.check_name(kernel, SIM)
    runner, found = InProcess(kernel, SIM, False, False), CheckedRecords()
    try:
        for number in numbers:
            record, name = store.records[number], f"record {number}"
            orders = OrdersOfLaunches(advance=advance)
            with active(Settings(before=orders)):
                left = runner.run_record(record, operation(record.info.op))
            if isinstance(left, Failure):
                found.failed[name] = f"{left.outcome}: {left.reason}"
                found.faulty |= left.outcome.exit_code is Exit.MISMATCH
            found.launches[name] = orders.launches
    finally:
        runner.close()
    return found
