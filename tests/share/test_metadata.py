# SPDX-License-Identifier: Apache-2.0
"""What a copy says beside its elements, looked for in all its bytes."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gdnbench.errors import BadInputError
from gdnbench.record import Pool, RecordDraft
from gdnbench.share.metadata import Dropped, process_of, provenance_of
from gdnbench.share.share import share
from gdnbench.store.reader import Store
from tests.messages import wording
from tests.share.share_samples import decode, keep, prefill

CANARY = "kanarienvogel"
"""In everything that the caller or the machine chose."""
CHECKSUM = "c0ffee00c0ffee00"
SEGMENT = "1735689600123-424242-deadbeef"
PROCESS: dict[str, Any] = {
    "argv": ["python", f"/home/{CANARY}/serve.py", "--prompt", f"{CANARY} sings"],
    "cwd": f"/home/{CANARY}",
    "host": f"{CANARY}.example.org",
    "pid": 424242,
    "parent": 424241,
    "time": "2025-01-01T00:00:00Z",
    "rank": 1,
    "world_size": 2,
    "environment": {"TOKEN": CANARY},
    "parallel": {"tp": [1, 2]},
}
PROVENANCE: dict[str, Any] = {
    "git": {"commit": f"{CANARY}0123", "dirty": True},
    "packages": {"torch": f"2.9.0+{CANARY}", f"{CANARY}-engine": "1.2"},
    "python": "3.12.3",
    "os": f"Linux-6.1-{CANARY}",
    "gpus": ["NVIDIA H200"],
    CANARY: 1,
}


def told(record: RecordDraft, target: str) -> RecordDraft:
    """`record` as a capture by somebody's own adapter may have described it."""
    pools = {
        name: Pool(pool.slots, pool.rows, CHECKSUM, CHECKSUM) for name, pool in record.info.pools.items()
    }
    info = replace(
        record.info,
        target=target,
        layer=f"{CANARY}.layers.3.mixer",
        layer_index=3,
        scalars={**record.info.scalars, CANARY: 1, "scale": 0.125},
        conventions={**record.info.conventions, CANARY: CANARY},
        pools=pools,
        dispatch={
            "path": "decode" if target.startswith("vllm") else CANARY,
            "metadata": {"num_decodes": 3, "requests": [CANARY]},
            "not_recorded": f"/srv/{CANARY}/o",
            "trigger": "mismatch:o 3.1x",
            "implementation": f"{CANARY}.kernels:step",
            CANARY: CANARY,
            "raised": f"{CANARY}Error",
        },
        run={"kernel": f"/home/{CANARY}/kernel.py"},
    )
    before = {
        name: replace(tensor, meta=replace(tensor.meta, device="cuda:7"))
        for name, tensor in record.before.items()
    }
    return replace(record, info=info, before=before)


@pytest.fixture(params=["vllm.ops:step", f"{CANARY}.model:step"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    drafts = [told(decode(), request.param)]
    path = keep(tmp_path / "s.zarr", drafts, segment=SEGMENT, process=PROCESS, provenance=PROVENANCE)
    (path / ".journal").mkdir()
    (path / ".journal" / "notes").write_text(CANARY)
    with Store.open(path) as store:
        yield store


def all_bytes(copy: Path, tmp_path: Path) -> bytes:
    """Of file names, files as they are, and arrays as they are decoded, by zarr alone."""
    if copy.suffix == ".zip":
        with zipfile.ZipFile(copy) as archive:
            archive.extractall(tmp_path / "extracted")
            assert {one.date_time for one in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        copy = tmp_path / "extracted"
    found = []
    for path in copy.rglob("*"):
        found += [str(path.relative_to(copy)).encode(), path.read_bytes() if path.is_file() else b""]
    arrays = 0
    for _, node in zarr.open_group(copy / "segments", mode="r").members(max_depth=None):
        if isinstance(node, zarr.Array):
            found.append(np.asarray(node[...]).tobytes())
            arrays += 1
    assert arrays > 2
    return b"\n".join(found)


@pytest.mark.parametrize("name", ["copy.zarr", "copy.zip"])
def test_nothing_that_a_caller_chose_is_in_the_copy(name: str, source: Store, tmp_path: Path) -> None:
    source_bytes = all_bytes(Path(source.path), tmp_path)
    secrets = [CANARY, CHECKSUM, "424242", "424241", "1735689600123", "deadbeef", "2025-01-01", "cuda:7"]
    assert all(secret.encode() in source_bytes for secret in secrets)
    share(source, tmp_path / name, [0])
    copy_bytes = all_bytes(tmp_path / name, tmp_path).lower()
    assert not [secret for secret in secrets if secret.encode() in copy_bytes]


def test_what_a_failure_may_hang_on_is_kept(source: Store, tmp_path: Path) -> None:
    found = share(source, tmp_path / "copy.zarr", [0])
    theirs = source.records[0]
    with Store.open(tmp_path / "copy.zarr") as copy:
        (ours,) = copy.records
        info = ours.info
        assert (info.op, info.layer, info.layer_index, info.step) == ("gdn_decode", "layers.3", 3, 0)
        assert info.scalars == {"scale": 0.125, "beta_max": theirs.info.scalars["beta_max"]}
        assert info.conventions == {n: v for n, v in theirs.info.conventions.items() if n != CANARY}
        assert info.dispatch["trigger"] == "mismatch:o 3.1x"
        assert info.dispatch["not_recorded"] == "an output"
        assert info.pools["state"].rows == theirs.info.pools["state"].rows
        assert info.pools["state"].untouched_before == info.pools["state"].untouched_after
        assert ours.segment.process == {"rank": 1, "world_size": 2, "parallel": {"tp": [1, 2]}}
        assert ours.segment.provenance == {
            "python": "3.12.3",
            "gpus": ["NVIDIA H200"],
            "packages": {"torch": "2.9.0"},
        }
        for name, tensor in theirs.before.items():
            assert ours.before[name].digest == tensor.digest
            assert ours.before[name].meta == replace(tensor.meta, device="cuda")
        public = theirs.info.target.startswith("vllm")
        assert info.target == (theirs.info.target if public else "shared:function")
        assert info.dispatch.get("path") == ("decode" if public else None)
    assert {"process.argv", "process.cwd", "process.host", "provenance.git", "layer"} <= set(found.dropped)
    assert not any(CANARY in name for name in found.dropped)


@pytest.mark.parametrize(
    "trigger", ["when", "raised", "nonfinite:v,o", "mismatch:final_state 3.1x", "around:call 17", CANARY]
)
def test_a_trigger_is_kept_in_the_forms_that_captures_write(trigger: str, tmp_path: Path) -> None:
    record = decode()
    record = replace(record, info=replace(record.info, dispatch={"trigger": trigger}))
    with Store.open(keep(tmp_path / "s.zarr", [record])) as source:
        share(source, tmp_path / "copy.zarr", [0])
    with Store.open(tmp_path / "copy.zarr") as copy:
        assert copy.records[0].info.dispatch.get("trigger") == (None if trigger == CANARY else trigger)


def test_layers_and_processes_stay_apart(tmp_path: Path) -> None:
    """Two layers without an index, and the same in another process: their order stays, their names go."""
    for segment in ("2-2-b", "1-1-a"):
        drafts = [
            replace(one, info=replace(one.info, layer=f"{CANARY}.{name}", step=step, call=step))
            for step, (one, name) in enumerate(
                [(prefill(0.0), "x"), (prefill(0.0, 1), "y"), (prefill(0.0, 2), "x")]
            )
        ]
        keep(tmp_path / "s.zarr", drafts, segment=segment)
    with Store.open(tmp_path / "s.zarr") as source:
        share(source, tmp_path / "copy.zarr", [5, 1, 0, 0])
        digests = [source.records[number].before["q"].digest for number in (0, 1, 5)]
    with Store.open(tmp_path / "copy.zarr") as copy:
        assert [record.info.layer for record in copy.records] == ["layer.0", "layer.1", "layer.0"]
        assert [record.info.step for record in copy.records] == [0, 1, 2]
        assert [record.before["q"].digest for record in copy.records] == digests
        assert len(copy.segments) == 2


@pytest.mark.parametrize("where", ["name", "axes"])
def test_a_tensor_that_no_contract_has_is_refused(where: str, tmp_path: Path) -> None:
    record = decode()
    q = record.before["q"]
    strange = {CANARY: q} if where == "name" else {"q": replace(q, meta=replace(q.meta, axes=(CANARY,) * 4))}
    record = replace(record, before={**record.before, **strange})
    refused = pytest.raises(BadInputError, match=wording("share.tensor-unknown", operation="gdn_decode"))
    with Store.open(keep(tmp_path / "s.zarr", [record])) as source, refused:
        share(source, tmp_path / "copy.zarr", [0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.zarr"]


def test_numbers_are_kept_whatever_they_are(tmp_path: Path) -> None:
    record = decode()
    record = replace(record, info=replace(record.info, scalars={"scale": math.inf, "beta_max": None}))
    with Store.open(keep(tmp_path / "s.zarr", [record])) as source:
        share(source, tmp_path / "copy.zarr", [0])
    with Store.open(tmp_path / "copy.zarr") as copy:
        assert copy.records[0].info.scalars == {"scale": math.inf, "beta_max": None}


@pytest.mark.parametrize(("given", "kept"), [("float32", {"final_state_dtype": "float32"}), (CANARY, {})])
def test_the_dtype_of_the_final_state_is_kept(given: str, kept: dict[str, str], tmp_path: Path) -> None:
    """Without it, it is the initial state's, bfloat16 here: the copy would ask another thing of a kernel."""
    record = prefill(0.1)
    state = record.before["initial_state"]
    rounded = replace(state, data=state.data.bfloat16(), meta=replace(state.meta, dtype="bfloat16"))
    info = replace(record.info, scalars={"final_state_dtype": given})
    record = replace(record, info=info, before={**record.before, "initial_state": rounded})
    with Store.open(keep(tmp_path / "s.zarr", [record])) as source:
        share(source, tmp_path / "copy.zarr", [0])
    with Store.open(tmp_path / "copy.zarr") as copy:
        assert copy.records[0].info.scalars == kept


@pytest.mark.parametrize("name", ["python", "cuda", "driver", "gpus"])
@pytest.mark.parametrize("value", ["/home/me", "a\nb", ["ok", "/x"], {"/": 1}, "x" * 200, "me@host"])
def test_text_that_may_be_anything_is_left_out(name: str, value: Any) -> None:
    dropped = Dropped()
    assert provenance_of({name: value}, dropped) == {}
    assert "provenance.others" in dropped.names


@pytest.mark.parametrize(
    "process",
    [
        {"rank": CANARY},
        {"local_rank": [CANARY]},
        {"parallel": {CANARY: [0, 2]}},
        {"parallel": {"tp": [0, CANARY]}},
        {"parallel": [CANARY]},
        {"parallel": CANARY},
    ],
)
def test_ranks_are_numbers_of_known_kinds(process: dict[str, Any]) -> None:
    """An adapter of somebody's own may call its groups what it likes."""
    dropped = Dropped()
    assert process_of(process, dropped) == {}
    assert "process.others" in dropped.names
