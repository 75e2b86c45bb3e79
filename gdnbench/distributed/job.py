# SPDX-License-Identifier: Apache-2.0
"""The work that Dask workers are sent: records of a store, to be replayed and judged as `replay` does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import gdnbench_kernels
from gdnbench import version
from gdnbench.bisect.cache_key import digest_code, digest_records
from gdnbench.replay.replay import ReplayOptions
from gdnbench.store.reader import StoredRecord


@dataclass(frozen=True, slots=True)
class Job:
    """One replay. `token` names it among all jobs of a worker. `store` is the path as the user gave it,
    relative to `folder`. `threads`: of torch on a worker, None to leave them as they are. `keep`: workers
    return the outputs too."""

    token: str
    store: str
    folder: str
    options: ReplayOptions
    threads: int | None
    keep: bool


@dataclass(frozen=True, slots=True)
class Task:
    """One record of the store. A worker compares `key` and `digest` with those of the record it sees."""

    number: int
    key: str
    digest: str

    @classmethod
    def of_record(cls, record: StoredRecord) -> Task:
        return cls(record.number, record.key, digest_records([record]))


@cache
def code_version() -> str:
    """The version and a digest of the sources of gdnbench, and the version of torch: equal on all workers of
    a job."""
    packages = (version.__file__, gdnbench_kernels.__file__)
    sources = digest_code(Path(str(file)).parent for file in packages)
    return f"gdnbench {version.__version__} (sources {sources[:12]}) with torch {torch.__version__}"
