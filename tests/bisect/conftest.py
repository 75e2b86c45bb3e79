# SPDX-License-Identifier: Apache-2.0
"""What tests of this folder, which is no package, have of the modules in it that are no tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdnbench.bisect import trial as trials
from gdnbench.bisect.commit import probe
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise


@pytest.fixture(scope="session")
def beside() -> Callable[[str], ModuleType]:
    """A module of this folder by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            f"bisect_{name}", Path(__file__).with_name(f"{name}.py")
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def replays(beside: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in for the processes that replay revisions."""
    made = beside("revisions").Replays()
    monkeypatch.setattr(probe, "TrialWorker", made)
    monkeypatch.setattr(trials, "toolchain", lambda on: {})  # else it may be edited between two questions
    return made


@pytest.fixture(scope="session")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one small call."""
    path = tmp_path_factory.mktemp("store") / "decode.zarr"
    with StoreWriter(path, kind="synth", durable=False) as writer:
        call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), seed=1)
        writer.write("0", [draft("gdn_decode", call, index=0)])
    return path


@pytest.fixture
def bisecting(
    beside: Callable[[str], ModuleType], history: Any, decode: Path, tmp_path: Path, replays: Any
) -> Any:
    """Bisects `history`, see `revisions.Bisecting`."""
    return beside("revisions").Bisecting(history, decode, tmp_path / "state")
