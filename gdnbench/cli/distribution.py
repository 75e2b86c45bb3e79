# SPDX-License-Identifier: Apache-2.0
"""`--workers` and `--scheduler`: records over processes of this machine, or of many."""

from __future__ import annotations

from gdnbench.errors import BadInputError

WORKERS = "Distribute records over N local processes; 0: one for each core, or for each GPU on cuda."
SCHEDULER = "Distribute records over the workers of a Dask scheduler, e.g. tcp://HOST:8786."


def is_distributed(workers: int | None, scheduler: str | None, **others: object) -> bool:
    """Whether records go to workers. BadInputError for both ways at once, and for an option of `others`, by
    name, that is about one process."""
    if workers is None and scheduler is None:
        return False
    if workers is not None and scheduler is not None:
        raise BadInputError("--workers starts processes here and --scheduler has its own: give one of them")
    option = "--workers" if scheduler is None else "--scheduler"
    for name, value in others.items():
        if value is not None and value is not False:  # 0 is a value
            raise BadInputError(f"--{name.replace('_', '-')} is of one process: it does not go with {option}")
    return True
