# SPDX-License-Identifier: Apache-2.0
"""Checks stores: the chains of each process that recorded accesses or calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gdnbench.errors import BadInputError, StoreError
from gdnbench.lineage.compressed import check_compressed
from gdnbench.lineage.detect import ChainResult, check_states
from gdnbench.lineage.finding import Unknown
from gdnbench.lineage.from_log import logged_processes, tables_of_logs
from gdnbench.lineage.from_records import tables_of_records
from gdnbench.lineage.table import AccessTable, Chain, Progress
from gdnbench.lineage.window import check_window
from gdnbench.ops import operations
from gdnbench.store.ranks import Rank
from gdnbench.store.reader import Store


@dataclass(slots=True)
class ProcessResult:
    """The chains of one process. `table`: names of layers and requests, and keys of records, without rows."""

    store: str
    process: str
    rank: str
    table: AccessTable
    chains: list[ChainResult] = field(default_factory=list)

    @property
    def breaks(self) -> int:
        """The number of breaks in all chains."""
        return sum(len(chain.findings) for chain in self.chains)


@dataclass(slots=True)
class LineageReport:
    """The result of a check."""

    processes: list[ProcessResult] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum of `reads`, `right` or `padding` over all chains."""
        return sum(getattr(chain, name) for process in self.processes for chain in process.chains)

    @property
    def chains(self) -> int:
        """The number of chains of all processes."""
        return sum(len(process.chains) for process in self.processes)

    @property
    def breaks(self) -> int:
        """The number of breaks in all processes."""
        return sum(process.breaks for process in self.processes)

    @property
    def unknown(self) -> Counter[Unknown]:
        """The number of unknown reads by reason."""
        return sum((chain.unknown for process in self.processes for chain in process.chains), Counter())


def tables_of(store: Store, advance: Progress | None = None) -> Iterator[AccessTable]:
    """A table for each process of the store that logged accesses or recorded calls. BadInputError for a saved
    replay, whose calls do not follow one another; StoreError for a damaged store."""
    if store.kind == "run":
        raise BadInputError(
            f"{store.path} is a saved replay, whose calls started from recorded states; check the capture"
        )
    logged = logged_processes(store)
    yield from tables_of_logs(logged, advance)
    yield from tables_of_records(store, frozenset(logged), advance)


def check_table(table: AccessTable, store: Store) -> ProcessResult:
    """Check one process, chain by chain."""
    process = next(one.process for one in store.segments if one.name == table.process)
    rank = Rank.from_process(process)
    result = ProcessResult(str(store.path), table.process, str(rank) if rank.is_known else "", table)
    result.chains += map(check_chain, table.by_chain())
    result.table = replace(table, rows=table.rows[:0].copy())
    return result


def check_chain(chain: Chain, explain: bool = False) -> ChainResult:
    """Check one chain; with `explain` the result has the verdict of each read."""
    if chain.is_compressed:
        return check_compressed(chain, explain)
    return check_window(chain, explain) if chain.is_window else check_states(chain, explain)


def check_stores(stores: list[Store], advance: Progress | None = None) -> LineageReport:
    """Check all processes of the stores.

    StoreError, with the store's path, for a saved replay and for a damaged store; BadInputError if a store is
    given more than once or no process recorded an access.
    """
    paths = [str(store.path) for store in stores]
    places = [path if "://" in path else os.path.realpath(path) for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise BadInputError(
                f"{path} is given more than once, and its calls would count again; give it once"
            )
    report = LineageReport()
    for store in stores:
        try:
            for table in tables_of(store, advance):
                report.processes.append(check_table(table, store))
        except BadInputError as error:
            raise StoreError(f"{store.path}: {error}") from error
    if not report.chains:
        followed = sorted(name for name, one in operations().items() if one.accesses is not None)
        raise BadInputError(
            f"{', '.join(paths)}: no record of an operation that reads or writes states; capture calls of one"
            f" of {', '.join(followed)}"
        )
    return report
