"""What is asked of workers: the records of a store, replayed and judged as `replay` does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import gdnbench
import gdnbench_kernels
from gdnbench.bisect.cache_key import of_code, of_records
from gdnbench.replay.replay import ReplayOptions
from gdnbench.store.reader import StoredRecord
from gdnbench.version import __version__


@dataclass(frozen=True, slots=True)
class Job:
    """`token` names it among all that a worker is given. `store` is the path as the user gave it, seen from
    `folder`. `threads`: of torch on a worker, None to leave them. `keep`: outputs come back too."""

    token: str
    store: str
    folder: str
    options: ReplayOptions
    threads: int | None
    keep: bool


@dataclass(frozen=True, slots=True)
class Task:
    """One record: `key` and `digest` tell whether a worker sees the same."""

    number: int
    key: str
    digest: str

    @classmethod
    def of(cls, record: StoredRecord) -> Task:
        return cls(record.number, record.key, of_records([record]))


@cache
def code() -> str:
    """What computes here, to be equal on all workers: gdnbench, by version and sources, and torch."""
    packages = (gdnbench.__file__, gdnbench_kernels.__file__)
    sources = of_code(Path(str(file)).parent for file in packages)
    return f"gdnbench {__version__} (sources {sources[:12]}) with torch {torch.__version__}"
