# SPDX-License-Identifier: Apache-2.0
"""Runs of one kernel in the order of time: when and of what each was, and its errors beside their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gdnbench.report.growth import round_for_chart
from gdnbench.report.runs import Run

TIME = "%Y-%m-%dT%H:%M:%SZ"
"""As `process_info` writes it."""


def run_time(run: Run) -> str | None:
    """When a run began, as `TIME`; None if the run does not say so: a file of `--json` does not."""
    found = run.process.get("time")
    try:
        return datetime.strptime(str(found), TIME).strftime(TIME)
    except ValueError:
        return None


def tracks(runs: Sequence[Run]) -> list[list[int]]:
    """Numbers of the runs in `runs` that replayed the same kernel on the same device against the same, in the
    order of time; only where there are two or more, and of those that know their time."""
    found: dict[tuple[str | None, ...], list[tuple[str, int]]] = {}
    for number, run in enumerate(runs):
        time = run_time(run)
        if time is not None and run.header.get("command") == "replay":
            track = tuple(run.header.get(name) for name in ("kernel", "on", "against"))
            found.setdefault(track, []).append((time, number))
    return [[number for _, number in sorted(one)] for one in found.values() if len(one) > 1]


def run_commit(run: Run) -> str | None:
    """The commit of the kernel's repository, else of the script's, in 12 characters, and whether there were
    changes; None if unknown."""
    kernel = run.provenance.get("kernel")
    for found in (kernel.get("git") if isinstance(kernel, Mapping) else None, run.provenance.get("git")):
        if isinstance(found, Mapping) and found.get("sha"):
            return f"{str(found['sha'])[:12]}{' and changes' if found.get('dirty') else ''}"
    return None


def package_versions(run: Run) -> dict[str, str]:
    """Versions of the packages that the run's provenance has, by name."""
    found = run.provenance.get("packages")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def versions(run: Run) -> dict[str, str]:
    """What may change a kernel's results from run to run, by name: packages, GPUs, driver, rule, records."""
    machine = {name: run.provenance.get(name) for name in ("python", "gpus", "driver", "cuda")}
    return {
        **package_versions(run),
        **{name: _text(value) for name, value in machine.items() if value is not None},
        "store": str(run.header.get("store", "")),
        "rule": str(run.header.get("rule", "")),
    }


def changes(before: Run, after: Run) -> list[str]:
    """`["torch 2.12.0 -> 2.13.0"]`: what differs between the versions of two runs."""
    old, new = versions(before), versions(after)
    return [
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def closest_limits(record: Mapping[str, Any]) -> list[list[Any]]:
    """`[tensor, error / limit, error, limit, failed]` of each judged output, for the limit that its error is
    closest to or furthest over; numbers as `round_for_chart`, None for an output without limits."""
    return list(_limits(record))


def _limits(record: Mapping[str, Any]) -> Iterator[list[Any]]:
    for tensor in record["tensors"]:
        if not tensor["judged"] or tensor.get("stage") or tensor["when"] != "after":
            continue
        held = [(float(one["error"]), float(one["limit"])) for one in tensor.get("held") or ()]
        ratio, error, limit = max(
            ((_ratio(*one), *one) for one in held),
            key=lambda one: math.inf if math.isnan(one[0]) else one[0],
            default=(None, None, None),
        )
        name = tensor["tensor"] if tensor["side"] == "kernel" else f"{tensor['tensor']}, {tensor['side']}"
        yield [name, *map(round_for_chart, (ratio, error, limit)), not tensor["passed"]]


def _ratio(error: float, limit: float) -> float:
    if limit > 0:
        return error / limit
    return 0.0 if error == 0 else math.inf


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
