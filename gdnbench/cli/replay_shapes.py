"""`--explore` of `gdnbench replay`, and the run of it that `--schedule` and `--shape` repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gdnbench.cli.console import progress
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from gdnbench.judge.rule import Rule
    from gdnbench.replay.explore import Command
    from gdnbench.sim.explore import Exploration
    from gdnbench.store.reader import Store

SHAPES = 3
SCHEDULE_HELP = "With --on sim: late, early or random:SEED; what --explore ran, in this process."
SHAPE_HELP = "With --on sim: the smaller call that --explore made of the record by this seed."
SHAPES_HELP = f"With --explore: how many smaller calls are made of each record. Default {SHAPES}."


def check_repeated(on: str, schedule: str | None, shape: int | None, isolate: bool | None) -> None:
    """BadInputError where `--schedule` and `--shape` cannot be."""
    if schedule is None and shape is None:
        return
    if on != "sim":
        raise BadInputError(f"--schedule and --shape repeat a run of the simulator: --on sim, not {on}")
    if isolate:
        raise BadInputError("--schedule and --shape run in this process: leave --isolate out")


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


def explore_store(
    store: Store,
    numbers: Sequence[int],
    kernel: str,
    rule: Rule,
    count: int,
    shapes: int,
    command: Command,
    *,
    stages: bool,
    check: bool,
) -> Exploration:
    from gdnbench.replay.explore import explore_records
    from gdnbench.sim.explore import fresh_seed, schedules

    with progress("explore") as advance:
        return explore_records(
            store,
            numbers,
            kernel=kernel,
            schedules=schedules(count),
            seeds=[fresh_seed() for _ in range(shapes)],
            rule=rule,
            command=command,
            stages=stages,
            check=check,
            told=advance,
        )
