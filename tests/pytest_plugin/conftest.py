# SPDX-License-Identifier: Apache-2.0
"""Stores and pytest runs for tests of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gdnbench.record import RecordDraft
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise

PLUGIN = ("-p", "gdnbench.pytest_plugin")

Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="session")
def small() -> RecordDraft:
    """A decode call of one token and one head."""
    options = {"batch": 1, "heads": (1, 1), "head_dim": (4, 4), "slots": 1}
    return draft("gdn_decode", synthesise("gdn_decode", **options))


@pytest.fixture
def keep(pytester: pytest.Pytester, small: RecordDraft) -> Callable[..., Path]:
    """`keep("a.zarr", layers)` writes a store with a record of each layer into the folder of the test."""

    def write(name: str, layers: Sequence[str] = ("l",)) -> Path:
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        drafts = [
            replace(small, info=replace(small.info, layer=layer, step=step))
            for step, layer in enumerate(layers)
        ]
        with StoreWriter(path, kind="synth", durable=False) as writer:
            writer.write("0", drafts)
        return path

    return write


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(*arguments)` is pytest with this plugin and no other that is installed, in this process."""
    # The installed one would be this one, twice.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda *arguments: pytester.runpytest_inprocess(*PLUGIN, *arguments)
