# SPDX-License-Identifier: Apache-2.0
"""Serves schedules while capture records, and checks the stores as `gdnbench lineage` does."""

from __future__ import annotations

from pathlib import Path

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.lineage.check import check_stores
from gdnbench.store.reader import Store
from tests.lineage.serving.bugs import Bug
from tests.lineage.serving.check import Event, Run, events_of, serve
from tests.lineage.serving.engine import Model
from tests.lineage.serving.paged import PagedLoop
from tests.lineage.serving.window_check import WindowRun, serve_pages

RECORDS = CaptureOptions()
DIGESTS = CaptureOptions(digests=True)
EVERY_THIRD = CaptureOptions(every=3)


def serve_recorded(
    model: Model, seed: int, bug: type[Bug] | None, store: Path, options: CaptureOptions
) -> tuple[Run, list[list[Event]]]:
    """A run, and by layer what the store shows."""
    with capturing(store, options) as counts:
        run = serve(model, seed, bug)
    assert (counts.failures, counts.first_failure) == (0, None)
    by_layer: dict[str, list[Event]] = {f"layers.{number}": [] for number in range(model.layers)}
    for process in check_stores([Store.open(store)]).processes:
        for chain in process.chains:
            by_layer[chain.layer] += events_of(chain.findings)
    return run, list(by_layer.values())


def serve_triggered(model: Model, seed: int, bug: type[Bug] | None, store: Path) -> tuple[Run, list[int]]:
    """A run, and the calls that capture kept for a break while it ran."""
    with capturing(store, CaptureOptions(on_lineage=True)) as counts:
        run = serve(model, seed, bug)
    assert (counts.failures, counts.first_failure) == (0, None)
    if not store.exists():
        return run, []
    with Store.open(store) as opened:
        triggers = [(one.info.call, one.info.dispatch["trigger"]) for one in opened.records]
    assert all(why.startswith("lineage:") for _, why in triggers)
    return run, [call for call, _ in triggers]


def pages_recorded(
    seed: int, loop: type[PagedLoop], store: Path, options: CaptureOptions
) -> tuple[WindowRun, set[tuple[int, int]]]:
    """A run of the paged loop, and the calls and sequences in which the store shows a stale row."""
    with capturing(store, options) as counts:
        run = serve_pages(seed, loop, width=512)
    assert (counts.failures, counts.first_failure) == (0, None)
    chains = [chain for process in check_stores([Store.open(store)]).processes for chain in process.chains]
    return run, {(one.found.call, one.found.sequence) for chain in chains for one in chain.findings}
