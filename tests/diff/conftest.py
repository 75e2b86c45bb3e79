# SPDX-License-Identifier: Apache-2.0
"""Stores of made records to be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise

Change = Callable[[RecordDraft], RecordDraft]


@pytest.fixture
def drafts() -> list[RecordDraft]:
    """A prefill and two decode steps of one layer each."""
    size = {"heads": (2, 4), "head_dim": (16, 16)}
    prefill = draft("gdn_prefill", synthesise("gdn_prefill", seqlens=(1, 70), **size))
    decode = [
        draft("gdn_decode", synthesise("gdn_decode", batch=2, slots=5, seed=seed, **size), index=seed)
        for seed in (0, 1)
    ]
    return [prefill, *decode]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """`keep(name, drafts, kind)` makes a store."""
    opened: list[Store] = []

    def make(name: str, records: list[RecordDraft], kind: str = "capture") -> Store:
        with StoreWriter(tmp_path / name, kind=kind, durable=False) as writer:
            writer.write("0", records)
        opened.append(Store.open(tmp_path / name))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def changed() -> Callable[..., RecordDraft]:
    """`changed(draft, name, index, by, when)`: the draft with one element of a tensor changed."""

    def change(
        record: RecordDraft, name: str, index: tuple[int, ...], by: float, when: str = "after"
    ) -> RecordDraft:
        held = getattr(record, when)
        data = held[name].data.clone()
        data[index] += by
        return replace(record, **{when: {**held, name: TensorDraft(data, held[name].meta)}})

    return change
