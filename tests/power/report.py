# SPDX-License-Identifier: Apache-2.0
"""The judge's power in tables: what `scripts/judge_power` prints."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from gdnbench.report.outcome import Outcome
from tests.power.library import OPERATIONS, Specimen, faults, variants
from tests.power.run import Judged, Place, captured, made, made_names, outcomes, unrepeatable

QUICK = {
    "gdn_prefill": (
        "lengths around a chunk",
        "a spike in each chunk",
        "keys alike 0.9, beta 1",
        "queries alike",
        "packed, without states",
    ),
    "gdn_decode": (
        "reads own slots",
        "slow gates",
        "raw gates, beta to 2",
        "3 sequences",
        "3 drafts, padding",
        "4 drafts, holes",
    ),
    "swa_decode": ("per token", "ds_mla", "holes", "sinks far apart", "ds_mla, indices T1W, pages of 16"),
    "v4_decode": ("per token", "4 queries", "pages of 2 compressed rows", "slots several times", "ds_mla"),
    "v4_compress": (
        "CSA, windows at every place",
        "HCA of 16, a partial window",
        "CSA, one token each",
        "the first window alone",
        "scores far apart",
    ),
    "indexer_logits": (
        "lengths about a page",
        "three queries a request, pages apart",
        "packed keys, absolute columns",
        "clean pages, drafts",
        "logits in bfloat16",
    ),
    "indexer_topk": (
        "every length about K",
        "rows that start apart, live columns",
        "a plateau of zeros",
        "few values in bfloat16",
        "large negative logits",
    ),
}
"""The made records of `--quick`."""


@dataclass
class Power:
    """What the judge said of the specimens of one operation."""

    op: str
    faults: Sequence[Specimen]
    rights: Sequence[Specimen]
    caught: dict[str, list[Judged]] = field(default_factory=dict)  # by fault
    by_record: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)  # faults by record
    nearest: dict[str, Judged] = field(default_factory=dict)  # by fault that no record has caught
    alarms: list[Judged] = field(default_factory=list)
    unjudged: list[Judged] = field(default_factory=list)
    repeats: dict[str, str] = field(default_factory=dict)

    def add(self, found: Judged, right: bool) -> None:
        if not right:
            self.judged[found.record] += 1
        if not found.caught and found.outcome is not Outcome.PASS:
            self.unjudged.append(found)
        elif right:
            if found.caught:
                self.alarms.append(found)
        elif found.caught:
            self.by_record[found.record] += 1
            self.caught.setdefault(found.specimen, []).append(found)
        elif found.ratio >= (self.nearest[found.specimen].ratio if found.specimen in self.nearest else 0):
            self.nearest[found.specimen] = found

    def is_caught(self, fault: Specimen) -> bool:
        return fault.label in self.caught or fault.label in self.repeats

    @property
    def misses(self) -> list[Specimen]:
        return [one for one in self.faults if not self.is_caught(one)]


def measure(
    op: str, folder: Path, *, quick: bool = False, matrix: bool = False, seeds: int = 1, workers: int = 1
) -> Power:
    """Judge all faults on the captures and the made records in `QUICK`, those that were missed on the other
    made records; all faults on all of them if `matrix`, on no others if `quick`. Judge all right variants on
    every record, and on the made records of `seeds` seeds."""
    power = Power(op, faults(op), variants(op))
    real, small = some_captures(op), made(op, folder, names=QUICK[op])
    rest = [] if quick else made(op, folder, names=[name for name in made_names(op) if name not in QUICK[op]])
    _judge(power, [*real, *small], power.faults, power.rights, workers)
    missed = power.faults if matrix else power.misses
    _judge(power, rest, missed, power.rights, workers)
    for shift in range(1, seeds):
        more = made(op, folder, shift, QUICK[op] if quick else None)
        _judge(power, more, (), power.rights, workers)
    power.repeats = unrepeatable(small[:2], [*power.faults, *power.rights])
    return power


def some_captures(op: str) -> list[Place]:
    """The first, the middle and the last captured record of each file."""
    by_file: dict[Path, list[Place]] = {}
    for place in captured(op):
        by_file.setdefault(place.path, []).append(place)
    return [
        places[number]
        for places in by_file.values()
        for number in sorted({0, len(places) // 2, len(places) - 1})
    ]


def _judge(
    power: Power,
    places: Sequence[Place],
    wrong: Sequence[Specimen],
    rights: Sequence[Specimen],
    workers: int,
) -> None:
    for found in outcomes(places, [*wrong, *rights], workers):
        for number, one in enumerate(found):
            power.add(one, number >= len(wrong))
        _progress(f"{power.op}: {found[0].record}")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(power: Power) -> None:
    """Print the tables of one operation."""
    groups = list(dict.fromkeys(one.group for one in power.faults))
    print(f"\n{power.op}: {len(power.rights)} right variants, {len(power.faults)} faults")
    print(f"\n  {'group':<14} {'faults':>6} {'caught':>6} {'excused':>7} {'missed':>6}")
    for group in groups:
        _row(power, group, [one for one in power.faults if one.group == group])
    _row(power, "all", power.faults)
    print(f"\n  {'record':<44} {'faults caught':>13} {'of':>5}")
    for record, judged in power.judged.most_common():
        print(f"  {record:<44} {power.by_record[record]:>13} {judged:>5}")
    print("\n  missed")
    for one in power.misses:
        print(f"  - {one.label}{_figures(power.nearest.get(one.label))}")
        if one.excuse:
            print(f"      excuse: {one.excuse}")
    print("\n  false alarms")
    for alarm in power.alarms:
        print(f"  - {alarm.specimen}; {alarm.record}: {alarm.reason}{_figures(alarm)}")
    for right in power.rights:
        if right.label in power.repeats:
            print(f"  - {right.label}: {power.repeats[right.label]}")
    for found in power.unjudged:
        print(f"  not judged: {found.specimen}; {found.record}: {found.outcome}, {found.reason}")


def _row(power: Power, name: str, some: Sequence[Specimen]) -> None:
    caught = sum(power.is_caught(one) for one in some)
    excused = sum(not power.is_caught(one) and one.excuse is not None for one in some)
    print(f"  {name:<14} {len(some):>6} {caught:>6} {excused:>7} {len(some) - caught - excused:>6}")


def _figures(found: Judged | None) -> str:
    if found is None or found.closest is None:
        return ""
    closest = found.closest
    place = f"; {found.tensor}, {closest.what}, {closest.error:.3g} of {closest.limit:.3g}"
    return f"{place} = {closest.ratio:.3g}; {found.record}"


def main(description: str, arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if no right variant failed and 95 % of the faults without excuse were caught."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", choices=OPERATIONS, help="one operation alone; all by default")
    parser.add_argument("--quick", action="store_true", help="captures and five made records")
    parser.add_argument("--matrix", action="store_true", help="every fault on every record: half an hour")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of made records for right variants; 3")
    parser.add_argument("--workers", type=int, default=2, help="processes; 2")
    options = parser.parse_args(arguments)
    begin, good = time.monotonic(), True
    for op in [options.op] if options.op else OPERATIONS:
        with TemporaryDirectory() as folder:
            power = measure(
                op,
                Path(folder),
                quick=options.quick,
                matrix=options.matrix,
                seeds=options.seeds,
                workers=options.workers,
            )
        show(power)
        good &= not power.alarms and enough(power)
    print(f"\n{time.monotonic() - begin:.0f} s")
    return 0 if good else 1


def enough(power: Power, share: float = 0.95) -> bool:
    """Whether that share of the faults without an excuse was caught."""
    without = [one for one in power.faults if one.excuse is None]
    return sum(map(power.is_caught, without)) >= share * len(without)
