# SPDX-License-Identifier: Apache-2.0
"""Stands in for torch.cuda where there is no GPU: writes down what is asked of it, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeCuda:
    """Writes down what is asked of torch.cuda; events are 3 ms apart."""

    def __init__(self, log: list[str], fails: BaseException | None = None) -> None:
        self.log = log
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                fake.log.append("new event")
                self.name = f"event {sum(entry == 'new event' for entry in fake.log)}"

            def record(self) -> None:
                fake.log.append(f"record {self.name}")

            def synchronize(self) -> None:
                fake.log.append(f"wait {self.name}")

            def elapsed_time(self, end: Any) -> float:
                return 3.0

        class CUDAGraph:
            def replay(self) -> None:
                fake.log.append("replay")

        class Stream:
            def __init__(self, device: Any = None) -> None:
                pass

            def wait_stream(self, other: Any) -> None:
                fake.log.append("wait stream")

            def synchronize(self) -> None:
                fake.log.append("stream done")

        self.Event, self.CUDAGraph, self.Stream = Event, CUDAGraph, Stream
        self._fails = fails

    @contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self.log.append("capture")
        yield
        if self._fails:
            raise self._fails
        self.log.append("captured")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    def current_stream(self, device: Any = None) -> Any:
        return self.Stream()

    def synchronize(self, device: Any = None) -> None:
        self.log.append("synchronize")

    def _sleep(self, cycles: int) -> None:
        assert cycles > 0
        self.log.append("hold")
