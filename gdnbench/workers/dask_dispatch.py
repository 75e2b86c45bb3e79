# SPDX-License-Identifier: Apache-2.0
"""Hands tasks to the workers of a pool and yields the answers in the order of the tasks.

Each worker has few tasks at a time. A task whose worker died is handed out again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdnbench.errors import CannotRunError
from gdnbench.workers.dask_pool import WorkerPool
from gdnbench.workers.interrupt import Interrupt
from gdnbench.workers.process import POLL_SECONDS, START_SECONDS
from gdnbench.workers.tensor_pickle import dumps, loads

if TYPE_CHECKING:
    from distributed import Future

WINDOW = 2
"""Tasks in flight for each slot: the one that runs, and one that waits for it to end."""

AHEAD = 8
"""Answers for each slot that may wait for an earlier one, where they hold tensors."""

ATTEMPTS = 3
"""How often a task is tried. The last attempt is made with no other task in flight: of several tasks on a
worker that died, nobody knows which one killed it."""


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """Takes the place of an answer: each of `attempts` workers died while it had the task."""

    attempts: int


class TaskDispatcher:
    """The answers to `tasks`. `retried` counts the tasks that were handed out again because a worker died.

    `answer` runs in the workers: it takes a task and returns the answer, both as of `tensor_pickle`.
    `limit_ahead`: at most AHEAD answers for each slot are kept while an earlier one is missing.
    """

    def __init__(
        self,
        pool: WorkerPool,
        answer: Callable[[bytes], bytes],
        tasks: Sequence[object],
        interrupt: Interrupt,
        *,
        limit_ahead: bool,
    ) -> None:
        self._pool, self._answer, self._tasks, self._interrupt = pool, answer, tasks, interrupt
        self._ahead = AHEAD if limit_ahead else len(tasks)
        self._waiting = deque(range(len(tasks)))
        self._alone: deque[int] = deque()
        self._in_flight: dict[Future[Any], int] = {}
        self._deaths: Counter[int] = Counter()
        self._worker_seen = time.monotonic()  # when there last was a worker
        self.retried = 0

    def __iter__(self) -> Iterator[Any]:
        """The answer to each task in order, or WorkerDied. CannotRunError if there are no workers left;
        besides that, whatever `answer` raises in a worker."""
        answers: dict[int, Any] = {}
        for number in range(len(self._tasks)):
            while number not in answers:
                self._interrupt.raise_if_received()
                self._hand_out(number)
                answers.update(self._collect())
            yield answers.pop(number)

    def cancel(self) -> None:
        """Cancels the tasks in flight."""
        for future in self._in_flight:
            future.cancel()

    def _hand_out(self, first: int) -> None:
        """Submits tasks until every slot has WINDOW of them, none far beyond `first`, the first that has no
        answer."""
        slots = self._count_slots()
        if self._alone:
            if not self._in_flight:
                self._submit(self._alone.popleft())
            return
        while self._waiting and len(self._in_flight) < WINDOW * slots:
            if self._waiting[0] > first + self._ahead * slots:
                return
            self._submit(self._waiting.popleft())

    def _count_slots(self) -> int:
        slots, now = self._pool.count_slots(), time.monotonic()
        if slots:
            self._worker_seen = now
        elif now - self._worker_seen > START_SECONDS:
            raise CannotRunError(
                f"there has been no worker for {START_SECONDS:g} s; what was finished is kept"
            )
        return slots

    def _submit(self, number: int) -> None:
        self._in_flight[self._pool.submit(self._answer, dumps(self._tasks[number]))] = number

    def _collect(self) -> Iterator[tuple[int, Any]]:
        """The answers that have arrived, or arrive within POLL_SECONDS."""
        from distributed import wait
        from distributed.scheduler import KilledWorker

        if not self._in_flight:
            time.sleep(POLL_SECONDS / 10)
            return
        try:
            finished = wait(list(self._in_flight), timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return
        for future in finished:
            number = self._in_flight.pop(future)
            try:
                yield number, loads(future.result())
            except KilledWorker:
                yield from self._retry(number)

    def _retry(self, number: int) -> Iterator[tuple[int, Any]]:
        self._deaths[number] += 1
        if self._deaths[number] == ATTEMPTS:
            yield number, WorkerDied(ATTEMPTS)
            return
        self.retried += 1
        if self._deaths[number] == ATTEMPTS - 1:
            self._alone.append(number)
        else:
            self._waiting.appendleft(number)
