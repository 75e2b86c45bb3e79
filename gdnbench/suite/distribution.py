# SPDX-License-Identifier: Apache-2.0
"""Shares one worker pool among all entries of a suite that run on one device."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gdnbench.errors import GdnbenchError
from gdnbench.replay.replay import replay
from gdnbench.replay.simulated import SIM
from gdnbench.report.report import ReplayReport
from gdnbench.store.address import Address
from gdnbench.store.recover import open_store

if TYPE_CHECKING:
    from gdnbench.workers.dask_pool import WorkerPool


class Replays:
    """Replays stores in this process, or with `workers` processes or a `scheduler`; see
    `gdnbench.distributed`."""

    def __init__(self, workers: int | None = None, scheduler: str | None = None) -> None:
        self._workers, self._scheduler = workers, scheduler
        self._pools: dict[str, WorkerPool | GdnbenchError] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def replay(self, path: Address, **options: Any) -> ReplayReport:
        """Call `replay` on the store at `path`; raises what it and `gdnbench.distributed` raise."""
        if self._workers is None and self._scheduler is None:
            with open_store(path) as store:
                return replay(store, **options)
        from gdnbench.distributed.replay import replay_distributed

        return replay_distributed(path, within=self._pool(options["on"]), **options)

    def _pool(self, on: str) -> WorkerPool:
        from gdnbench.workers.dask_pool import open_pool

        if on not in self._pools:
            try:
                self._pools[on] = self._stack.enter_context(
                    open_pool(self._workers, self._scheduler, on, pin_cores=on == SIM)
                )
            except GdnbenchError as error:
                self._pools[on] = error
        found = self._pools[on]
        if isinstance(found, GdnbenchError):  # cached: failing again takes seconds for every entry
            raise found
        return found
