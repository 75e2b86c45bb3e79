# SPDX-License-Identifier: Apache-2.0
"""The captures that come with the project: whole, and replayed against what a GPU's kernels computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify

FOLDER = Path(__file__).resolve().parents[1] / "captures"

# As captures/README.md has them: operation, and tokens of each call's sequences.
CONTENTS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "prefill": ("gdn_prefill", [(1,), (63,), (64,), (65,), (500,)]),
    "packed": ("gdn_prefill", [(70, 1, 130, 64)]),
    "resumed": ("gdn_prefill", [(130,), (90,)]),
    "decode": ("gdn_decode", [(1,)] * 16),
}
# Records of those that tests/test_swa_captures.py looks into.
WINDOWS = {"swa_per_token_scale": 3, "swa_fp8_ds_mla": 3, "swa_bfloat16": 1}
# Of those that tests/test_serving_captures.py looks into.
SERVED = {"packed_states": 1, "chunked": 3, "batched_decode": 2, "drafts": 1, "swa_lse": 3}
# Of those that tests/test_kda_captures.py looks into.
KDA = {"kda_prefill": 3, "kda_decode": 2}
# Of those that tests/test_v4_captures.py looks into.
V4 = {"v4_compress": 3, "v4_indexer_logits": 2, "v4_indexer_topk": 2, "v4_decode": 3}
RECORDS = {name: len(calls) for name, (_, calls) in CONTENTS.items()} | WINDOWS | SERVED | KDA | V4
BYTES = 16_000_000


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.zarr.zip"


@pytest.fixture(params=CONTENTS)
def shipped(request: pytest.FixtureRequest) -> Iterator[tuple[str, Store]]:
    with Store.open(path_of(request.param)) as store:
        yield request.param, store


@pytest.mark.every(2)
@pytest.mark.parametrize("name", RECORDS)
def test_whole(name: str) -> None:
    report = verify(path_of(name))
    assert (report.damages, report.problems) == ((), ())
    assert report.records == RECORDS[name]


def test_every_capture_is_listed_and_they_are_small() -> None:
    files = list(FOLDER.glob("*.zarr.zip"))
    assert {file.name.partition(".")[0] for file in files} == set(RECORDS)
    assert sum(file.stat().st_size for file in files) < BYTES


def test_contents(shipped: tuple[str, Store]) -> None:
    name, store = shipped
    op, calls = CONTENTS[name]
    assert {record.info.op for record in store.records} == {op}
    found = []
    for record in store.records:
        q, v = (record.before[tensor].meta.shape for tensor in ("q", "v"))
        assert (q[-2:], v[-2:]) == ((2, 128), (4, 128))
        tokens = [1] * q[0] if op == "gdn_decode" else record.before["cu_seqlens"].read().diff().tolist()
        found.append(tuple(tokens))
    assert sorted(found) == sorted(calls)
    if name == "resumed":
        states = [record.before.get("initial_state") for record in store.records]
        assert [state is not None and bool(state.read().any()) for state in states] == [False, True]


@pytest.mark.every(2)
@pytest.mark.parametrize("against", ["reference", "recorded"])
@pytest.mark.parametrize("kernel", ["torch", "hf"])
def test_replays(shipped: tuple[str, Store], kernel: str, against: str) -> None:
    report = replay(shipped[1], kernel=kernel, against=against)
    wrong = [(r.number, r.reason) for r in report.records if r.outcome is not Outcome.PASS]
    assert not wrong
