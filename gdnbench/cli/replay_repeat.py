# SPDX-License-Identifier: Apache-2.0
"""`gdnbench replay --schedule --shape`: one run of `gdnbench explore` again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.store.reader import Store

SCHEDULE_HELP = "Simulate under this schedule, in this process: late, early or random:SEED."
SHAPE_HELP = "Simulate the smaller call that `gdnbench explore` made of the record with this seed."


def check_repeated(on: str, schedule: str | None, shape: int | None, isolate: bool | None) -> None:
    """BadInputError where `--schedule` and `--shape` cannot be."""
    if schedule is None and shape is None:
        return
    if on != "sim":
        raise BadInputError(f"--schedule and --shape repeat a run of the simulator: --on sim, not {on}")
    if isolate:
        raise BadInputError("--schedule and --shape run in this process: omit --isolate")


@contextmanager
def repeated(
    store: Store, numbers: Sequence[int] | None, schedule: str | None, shape: int | None
) -> Iterator[tuple[Store, Sequence[int] | None]]:
    """While kernels are simulated under `schedule`; yields the store and records that hold the smaller call
    where a `shape` is asked for."""
    from gdnbench.replay.subcalls import smaller_record
    from gdnbench.sim import Settings, active

    with ExitStack() as stack:
        if schedule is not None:
            stack.enter_context(active(Settings(schedule=schedule)))
        if shape is None:
            yield store, numbers
            return
        chosen = range(len(store.records)) if numbers is None else numbers
        if len(chosen) != 1:
            raise BadInputError(f"--shape is made of one record, not {len(chosen)}: name it")
        small, _ = stack.enter_context(smaller_record(store.records[chosen[0]], shape))
        yield small, None
