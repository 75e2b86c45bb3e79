# SPDX-License-Identifier: Apache-2.0
"""Small stores of made records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdnbench.record import RecordDraft
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise

OPTIONS: dict[str, dict[str, Any]] = {
    "gdn_prefill": {
        "seqlens": (1, 63, 0, 70),
        "heads": (2, 4),
        "head_dim": (32, 32),
        "initial_state": True,
        "key_correlation": 0.5,
    },
    "gdn_decode": {"batch": 3, "heads": (2, 4), "head_dim": (32, 32), "slots": 9, "padding": 0.3},
}


def make(op: str, count: int = 1, **changed: Any) -> list[RecordDraft]:
    """`count` records of `op`, of seeds 0, 1, ...; `changed` are options of its synth."""
    options = {**OPTIONS[op], **changed}
    return [draft(op, synthesise(op, **options, seed=seed), index=seed) for seed in range(count)]


@pytest.fixture(scope="session")
def made() -> Callable[..., list[RecordDraft]]:
    """`made(op, count, **options)` makes small records."""
    return make


def write(path: Path, drafts: list[RecordDraft], kind: str = "synth") -> Store:
    with StoreWriter(path, kind=kind, durable=False) as writer:
        writer.write("0", drafts)
    return Store.open(path)


@pytest.fixture
def store_of(tmp_path: Path) -> Iterator[Callable[[list[RecordDraft]], Store]]:
    """Makes a store of drafts."""
    opened: list[Store] = []

    def keep(drafts: list[RecordDraft], name: str = "store.zarr") -> Store:
        opened.append(write(tmp_path / name, drafts))
        return opened[-1]

    yield keep
    for store in opened:
        store.close()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Record 0: a prefill of four sequences, one of them empty. Records 1 and 2: decode, one slot padded."""
    drafts = [*make("gdn_prefill"), *make("gdn_decode", 2)]
    with write(tmp_path_factory.mktemp("made") / "store.zarr", drafts) as opened:
        yield opened


@pytest.fixture(scope="session")
def faulty() -> Callable[[str], str]:
    """The kernel name of a function in faulty.py."""
    return lambda name: f"{Path(__file__).with_name('faulty.py')}:{name}"
