#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Proves `gdnbench lineage` with the serving loop of tests/lineage/serving: random schedules without a bug
must not be accused, and of every planted bug the checker must name the class and the calls.

    python scripts/prove_lineage.py                     1,000 right schedules, 20 with each bug
    python scripts/prove_lineage.py --schedules 20 --bugs 2 --real 2 --stored 1

A right schedule is checked whole, call by call as beside a program, and with four choices of its calls
left out. Of `--schedules`, `--real` are served with a Qwen3-Next model of transformers. `--stored` schedules,
right and with each bug, go through stores: ordinary records, every third record, digests alone, and what
`--on-lineage` keeps.

Exit status: 0 all as it should be, 1 something is not, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.lineage.serving.bugs import BUGS, Bug
from tests.lineage.serving.check import (
    Run,
    differences,
    false_accusations,
    found_in,
    found_online,
    serve,
)
from tests.lineage.serving.engine import Model
from tests.lineage.serving.paged import PagedLoop, PageFreedEarly, WindowNotShared
from tests.lineage.serving.stores import (
    DIGESTS,
    EVERY_THIRD,
    RECORDS,
    pages_recorded,
    serve_recorded,
    serve_triggered,
)
from tests.lineage.serving.toy_model import ToyModel
from tests.lineage.serving.window_check import serve_pages, window_differences, windows_found

Wrong = Iterator[str]


def right_schedule(model: Model, seed: int) -> Wrong:
    run = serve(model, seed)
    yield from (f"request {name} has other tokens than the plain model" for name in run.wrong_outputs)
    for layer, found in enumerate(found_in(run.table)):
        yield from (f"accused in layer {layer}: {event}" for event in found)
    for layer, found in enumerate(found_online(run.table)):
        yield from (f"accused in layer {layer}, call by call: {event}" for event in found)
    yield from (f"accused with calls left out: {what}" for what in false_accusations(run))


def bug_schedule(model: Model, seed: int, bug: type[Bug]) -> tuple[Run, list[str]]:
    run = serve(model, seed, bug)
    wrong = [f"in layer {layer}: {what}" for layer, what in _unlike(run, found_in(run.table))]
    wrong += [f"call by call, in layer {layer}: {what}" for layer, what in _unlike_online(run)]
    return run, wrong + false_accusations(run)


def _unlike(run: Run, found: list[list]) -> Iterator[tuple[int, object]]:
    for layer, (want, given) in enumerate(zip(run.events, found, strict=True)):
        yield from ((layer, event) for event in differences(want, given))


def _unlike_online(run: Run) -> Iterator[tuple[int, object]]:
    """What is wrong with the first finding of the check beside a program, which knows prefixes later."""
    for layer, (want, given) in enumerate(zip(run.events, found_online(run.table), strict=True)):
        known = [event for event in want if event.certain and event.kind != "wrong-prefix"]
        if known and not any(event[1:3] == known[0][1:3] for event in given):
            yield layer, known[0]
        first = min((event.found for event in want), default=None)
        yield from ((layer, event) for event in given if first is None or event.found < first)


def stored_schedule(model: Model, seed: int, bug: type[Bug] | None, folder: Path) -> Wrong:
    for name, options in (("records", RECORDS), ("digests", DIGESTS), ("every-third", EVERY_THIRD)):
        run, found = serve_recorded(model, seed, bug, folder / f"{name}.zarr", options)
        if options is EVERY_THIRD:
            first = [min((event.found for event in events), default=None) for events in run.events]
            for layer, (start, events) in enumerate(zip(first, found, strict=True)):
                early = [event for event in events if start is None or event.found < start]
                yield from (f"{name}: accused in layer {layer}: {event}" for event in early)
        else:
            yield from (f"{name}: in layer {layer}: {what}" for layer, what in _unlike(run, found))


def triggered_schedule(model: Model, seed: int, bug: type[Bug] | None, folder: Path) -> Wrong:
    """What `--on-lineage` keeps; a wrong prefix it may miss, since it knows prefixes later."""
    run, kept = serve_triggered(model, seed, bug, folder / "on-lineage.zarr")
    known = [event.found for event in run.certain if event.kind != "wrong-prefix"]
    first = min((event.found for events in run.events for event in events), default=None)
    if known and min(known) not in kept:
        yield f"on-lineage: call {min(known)} was not kept"
    yield from (f"on-lineage: call {call} was kept" for call in kept if first is None or call < first)


def stored_pages(seed: int, loop: type[PagedLoop], folder: Path) -> Wrong:
    for name, options in (("records", RECORDS), ("digests", DIGESTS)):
        run, found = pages_recorded(seed, loop, folder / f"pages-{name}.zarr", options)
        yield from (f"{name}: call and sequence {place}" for place in window_differences(run, found))


class Report:
    """Prints a line for each part, and what is wrong in it."""

    def __init__(self, only: str) -> None:
        self.failed, self._only = 0, only

    def part(self, name: str, work: Callable[[], Iterator[tuple[int, list[str]]]]) -> None:
        """`work` yields the seed of each schedule and what is wrong with it."""
        if self._only not in name:
            return
        start, schedules, wrong = time.monotonic(), 0, 0
        for seed, found in work():
            schedules += 1
            wrong += bool(found)
            for text in found[:5]:
                print(f"  {name}, seed {seed}: {text}")
        self.failed += wrong
        verdict = "all right" if not wrong else f"{wrong} WRONG"
        print(f"{name}: {schedules} schedules, {verdict}  [{time.monotonic() - start:.0f} s]", flush=True)


def happening(most: int, seed: int, serve_one: Callable[[int], tuple[bool, list[str]]]) -> Iterator:
    """Schedules until the bug has happened in `most` of them; those in which it has not must be clean."""
    happened = tried = 0
    while happened < most:
        struck, wrong = serve_one(seed + tried)
        happened += struck
        tried += 1
        if tried > 60 * most:
            wrong = [*wrong, f"the bug happened in {happened} of {tried} schedules"]
            happened = most
        yield seed + tried - 1, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=1000, help="right schedules (default: 1000)")
    parser.add_argument("--real", type=int, default=50, help="how many of them with Qwen3-Next (default: 50)")
    parser.add_argument("--bugs", type=int, default=20, help="schedules in which each bug happens")
    parser.add_argument(
        "--stored", type=int, default=20, help="schedules through stores, right and of each bug"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--only", default="", help="parts whose names have this, e.g. stores or StaleRow")
    arguments = parser.parse_args()
    toy, report, first = ToyModel(), Report(arguments.only), arguments.seed

    toys = range(first, first + arguments.schedules - arguments.real)
    report.part("right, stand-in", lambda: ((seed, list(right_schedule(toy, seed))) for seed in toys))
    if arguments.real:
        from tests.lineage.serving.qwen_model import QwenModel

        qwen = QwenModel()
        seeds = range(first, first + arguments.real)
        report.part("right, Qwen3-Next", lambda: ((seed, list(right_schedule(qwen, seed))) for seed in seeds))
    for bug in BUGS:

        def bugged(seed: int, bug: type[Bug] = bug) -> tuple[bool, list[str]]:
            run, wrong = bug_schedule(toy, seed, bug)
            return bool(run.certain), wrong

        report.part(f"{bug.kind}, {bug.__name__}", lambda: happening(arguments.bugs, first, bugged))

    def right_pages(seed: int) -> list[str]:
        run = serve_pages(seed)
        return [str(one) for one in window_differences(run, windows_found(run.table))]

    report.part("right, windows", lambda: ((seed, right_pages(seed)) for seed in toys))
    for loop in (WindowNotShared, PageFreedEarly):

        def paged(seed: int, loop: type[PagedLoop] = loop) -> tuple[bool, list[str]]:
            run = serve_pages(seed, loop)
            wrong = [str(one) for one in window_differences(run, windows_found(run.table))]
            return bool(run.first), wrong

        report.part(f"stale-page, {loop.__name__}", lambda: happening(arguments.bugs, first, paged))

    for bug in (None, *BUGS):

        def stored(bug: type[Bug] | None = bug) -> Iterator[tuple[int, list[str]]]:
            for seed in range(first, first + arguments.stored):
                with tempfile.TemporaryDirectory(prefix="gdnbench-lineage-") as folder:
                    found = list(stored_schedule(toy, seed, bug, Path(folder)))
                    yield seed, found + list(triggered_schedule(toy, seed, bug, Path(folder)))

        if arguments.stored:
            report.part(f"through stores, {bug.__name__ if bug else 'right'}", stored)
    for loop in (PagedLoop, WindowNotShared, PageFreedEarly):

        def pages(loop: type[PagedLoop] = loop) -> Iterator[tuple[int, list[str]]]:
            for seed in range(first, first + arguments.stored):
                with tempfile.TemporaryDirectory(prefix="gdnbench-lineage-") as folder:
                    yield seed, list(stored_pages(seed, loop, Path(folder)))

        if arguments.stored:
            report.part(f"through stores, {loop.__name__}", pages)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
