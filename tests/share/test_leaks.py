# SPDX-License-Identifier: Apache-2.0
"""A copy holds nothing of the activations that it hides: no element and no digest, in tensors or in texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.record import RecordDraft
from gdnbench.share.disclosure import sentences
from gdnbench.share.share import share
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench.synth import draft, synthesise
from tests.share.share_samples import decode, keep

REMAINS = {"g", "beta", "a", "b", "A_log", "dt_bias", "state_indices", "num_accepted", "cu_seqlens"}
"""What docs/share.md says remains, whatever is hidden."""
ROW = 64  # bytes: a row of 32 features in bfloat16


def drafts() -> list[RecordDraft]:
    prefill = synthesise("gdn_prefill", seqlens=(33,), heads=(1, 2), head_dim=(32, 32), seed=1)
    return [decode(), draft("gdn_prefill", prefill, index=1)]


def tensors(record: StoredRecord) -> dict[tuple[str, str], TensorHandle]:
    return {
        (name, when): handle
        for when, handles in (("before", record.before), ("after", record.after))
        for name, handle in handles.items()
    }


@pytest.mark.parametrize("hide", ["rotation", "permutation", "synthetic"])
def test_nothing_of_what_is_hidden_is_in_the_copy(tmp_path: Path, hide: str) -> None:
    source = keep(tmp_path / "s.zarr", drafts())
    with Store.open(source) as opened:
        told = share(opened, tmp_path / "copy.zarr", [0, 1], hide=hide, replays={"kernel": "torch"})
    assert not told.lost
    documents = [file.read_text(encoding="utf-8") for file in (tmp_path / "copy.zarr").rglob("zarr.json")]
    with Store.open(source) as opened, Store.open(tmp_path / "copy.zarr") as copy:
        text = "\n".join([*documents, *(str(record.line) for record in copy.records), str(told)])
        elements = b"\0\0".join(
            handle.bits().tobytes() for record in copy.records for handle in tensors(record).values()
        )
        hidden = {
            (record.number, *key): handle
            for record in opened.records
            for key, handle in tensors(record).items()
            if key[0] not in REMAINS
        }
        assert {name for _, name, _ in hidden} >= {"q", "k", "v", "o", "state"}
        for key, handle in hidden.items():
            assert handle.digest not in text, key
            content = handle.bits().tobytes()
            rows = [content[at : at + ROW] for at in range(0, len(content), ROW)]
            assert not [row for row in rows if len(set(row)) > 8 and row in elements], key


@pytest.mark.parametrize("hide", ["rotation", "permutation", "synthetic"])
def test_the_statement_names_what_of_channel_gates_remains(tmp_path: Path, hide: str) -> None:
    """Keys keep the magnitudes of their elements, and A_log and dt_bias are weights."""
    call = synthesise("kda_prefill", seqlens=(17,), heads=(1, 2), head_dim=(32, 32), gate="bounded", seed=1)
    source = keep(tmp_path / "s.zarr", [draft("kda_prefill", call)])
    with Store.open(source) as opened:
        told = share(opened, tmp_path / "copy.zarr", [0], hide=hide, replays={"kernel": "torch"})
        assert not told.lost
        with Store.open(tmp_path / "copy.zarr") as copy:
            old, new = (store.records[0].before for store in (opened, copy))
            sizes = [one["k"].read().float().abs().sort().values for one in (old, new)]
            assert sizes[0].equal(sizes[1])
            assert old["A_log"].read().equal(new["A_log"].read())
    text = " ".join(told.statement)
    assert "magnitudes of " in text
    assert "A_log and dt_bias, which are weights" in text


def test_the_statement_of_head_gates_does_not_speak_of_channels() -> None:
    assert not [one for one in sentences("rotation", ["gdn_prefill"]) if "magnitudes" in one]
