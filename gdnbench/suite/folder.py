# SPDX-License-Identifier: Apache-2.0
"""Treats a folder of captures as a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdnbench.errors import BadInputError
from gdnbench.ops import operations
from gdnbench.replay.simulated import SIM
from gdnbench.store.recover import open_store
from gdnbench.suite.plan import FACTOR, Entry, Suite
from gdnbench.suite.read import entries_of, read_suite

SUITE, BASELINES = "suite.toml", "baselines.json"
GUESSED = {"optional": True}  # this kernel was not requested, and may not support a capture's conventions


def suite_at(path: Path) -> Suite:
    """The suite in a file, or in a folder.

    For a folder: its suite.toml, or else every capture in it with torch's kernel on the CPU and with the
    operation's first kernel that the simulator runs, and baselines.json.
    """
    if not path.is_dir():
        return read_suite(path)
    if (path / SUITE).is_file():
        return read_suite(path / SUITE)
    captures = sorted({place.name for pattern in ("*.zarr", "*.zarr.zip") for place in path.glob(pattern)})
    if not captures:
        raise BadInputError(f"{path} holds neither {SUITE} nor captures, *.zarr or *.zarr.zip")
    entries: list[Entry] = []
    for capture in captures:
        with open_store(path / capture) as store:
            present = list(dict.fromkeys(record.info.op for record in store.records))
        tables: list[dict[str, Any]] = [{"kernels": "torch", "on": "cpu"}]
        for op in present:
            kernel = _simulated(op)
            tables += [] if kernel is None else [{"kernels": kernel, "on": SIM, "op": op, **GUESSED}]
        for table in tables:
            entries += entries_of(path, {"captures": capture, **table}, str(path), FACTOR)
    return Suite(path, tuple(entries), (), path / BASELINES)


def _simulated(op: str) -> str | None:
    found = operations().get(op)
    kernels = found.kernels.items() if found is not None else ()
    return next((name for name, entry in kernels if SIM in entry.devices and not entry.needs), None)
