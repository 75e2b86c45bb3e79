"""Hands tasks to workers, few at a time, and again where a worker died; gives answers in order."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdnbench.distributed import worker
from gdnbench.distributed.interrupt import Interrupt
from gdnbench.distributed.pool import Pool
from gdnbench.distributed.wire import dumps, loads
from gdnbench.errors import CannotRunError
from gdnbench.replay.process import GLANCE, START_SECONDS

if TYPE_CHECKING:
    from distributed import Future

    from gdnbench.distributed.job import Job, Task

WINDOW = 2
"""Tasks in flight for each slot: the one that runs, and one that is there when it ends."""

AHEAD = 8
"""Answers for each slot that may wait for an earlier one, where they hold tensors."""

ATTEMPTS = 3
"""The last of them is made alone: of several tasks on a worker that died nobody knows which one it was."""


@dataclass(frozen=True, slots=True)
class Died:
    """Instead of an answer: the workers that were given a task died of it."""

    attempts: int


class Dispatch:
    """The tasks of one job. `retried`: how often a task was handed out again because its worker died.

    `expected`: the code that workers must have, see `worker.run`.
    """

    def __init__(
        self, pool: Pool, job: Job, tasks: Sequence[Task], expected: str | None, interrupt: Interrupt
    ) -> None:
        self._pool, self._expected, self._interrupt = pool, expected, interrupt
        self._job, self._token = dumps(job), job.token
        self._tasks = tasks
        self._ahead = AHEAD if job.keep else len(tasks)
        self._waiting = deque(range(len(tasks)))
        self._alone: deque[int] = deque()
        self._flying: dict[Future[Any], int] = {}
        self._deaths: Counter[int] = Counter()
        self._seen = time.monotonic()  # when there last was a worker
        self.retried = 0

    def __iter__(self) -> Iterator[Any]:
        """Of each task in order what `worker.run` answers, or Died. CannotRunError if there is no worker any
        more; whatever else a worker raises."""
        answers: dict[int, Any] = {}
        for number in range(len(self._tasks)):
            while number not in answers:
                self._interrupt.check()
                self._hand_out(number)
                answers.update(self._back())
            yield answers.pop(number)

    def close(self) -> None:
        """Nothing more is asked of workers, and a scheduler's keep nothing open."""
        for future in self._flying:
            future.cancel()
        if not self._pool.local:
            self._pool.everywhere(worker.end, self._token)

    def _hand_out(self, first: int) -> None:
        """As many tasks as workers are to have; none far beyond the `first` that is not answered."""
        slots = self._slots()
        if self._alone:
            if not self._flying:
                self._submit(self._alone.popleft())
            return
        while self._waiting and len(self._flying) < WINDOW * slots:
            if self._waiting[0] > first + self._ahead * slots:
                return
            self._submit(self._waiting.popleft())

    def _slots(self) -> int:
        slots, now = self._pool.slots(), time.monotonic()
        if slots:
            self._seen = now
        elif now - self._seen > START_SECONDS:
            raise CannotRunError(
                f"there has been no worker for {START_SECONDS:g} s; what was finished is kept"
            )
        return slots

    def _submit(self, number: int) -> None:
        task = dumps(self._tasks[number])
        self._flying[self._pool.submit(worker.run, self._expected, self._job, task)] = number

    def _back(self) -> Iterator[tuple[int, Any]]:
        """What has come back by now, or does within a glance."""
        from distributed import wait
        from distributed.scheduler import KilledWorker

        if not self._flying:
            time.sleep(GLANCE / 10)
            return
        try:
            finished = wait(list(self._flying), timeout=GLANCE, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return
        for future in finished:
            number = self._flying.pop(future)
            try:
                yield number, loads(future.result())
            except KilledWorker:
                yield from self._died(number)

    def _died(self, number: int) -> Iterator[tuple[int, Any]]:
        self._deaths[number] += 1
        if self._deaths[number] == ATTEMPTS:
            yield number, Died(ATTEMPTS)
            return
        self.retried += 1
        if self._deaths[number] == ATTEMPTS - 1:
            self._alone.append(number)
        else:
            self._waiting.appendleft(number)
