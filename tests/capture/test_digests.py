# SPDX-License-Identifier: Apache-2.0
"""Calls that are kept as digests: what the access log says is what a spy saw."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, access_rows, capturing, record
from gdnbench.capture.claims import Claims
from gdnbench.digests import Jobs, row_digests
from gdnbench.errors import BadInputError
from gdnbench.ops import operation
from gdnbench.store.access_log import AccessFlag, AccessKind
from gdnbench.store.access_pieces import Piece, piece_of
from gdnbench.store.reader import Store
from gdnbench.store.verify import verify
from gdnbench_kernels.contract import Accesses, Call
from gdnbench_kernels.gdn_prefill.torch_chunked import torch_chunked
from tests.capture.stand_in import StandInGraph, StandInStreams, capturing_stand_in, graph_of
from tests.capture.test_claims import batch, in_step
from tests.capture.test_graphs import Engine, inside, run, step
from tests.messages import wording
from tests.sim.third_party.apart import TRITON_REQUIREMENTS, WITH_TRITON, need, triton_folder
from tests.subset import quick

DIGESTS = CaptureOptions(digests=True)


def pieces(store: Path) -> list[Piece]:
    with Store.open(store) as opened:
        return [piece_of(one) for one in opened.records]


def digest(rows: Tensor, sample: int = 1) -> list[tuple[int, int]]:
    found = row_digests(rows, sample).numpy().view(np.uint64)
    return [(int(a), int(b)) for a, b in found]


def logged(store: Path) -> list[tuple[Any, ...]]:
    """The rows of a store with one process: layer, step, kind, sequence, slot, digest."""
    found = []
    for piece in pieces(store):
        for row in piece.rows:
            assert not row["flags"] & AccessFlag.DIGEST_UNKNOWN
            kind = AccessKind(row["kind"]).name
            words = (int(row["digest"][0]), int(row["digest"][1]))
            place = (int(row["sequence"]), int(row["slot"]))
            found.append((piece.layers[row["layer"]], int(row["step"]), kind, *place, words))
    return found


def spied(engine: Engine, layers: int, sample: int = 1) -> list[tuple[Any, ...]]:
    """The same of what the spy of an engine saw."""
    found = []
    for number, (before, after) in enumerate(engine.seen):
        slots = before["state_indices"].flatten().tolist()
        for kind, seen in (("READ", before), ("WRITE", after)):
            words = digest(seen["state"], sample)
            for sequence, slot in enumerate(slots):
                if slot >= 0:
                    layer = f"Layer.{number % layers}"
                    found.append((layer, number // layers, kind, sequence, slot, words[slot]))
    return found


@pytest.mark.parametrize("sample", quick([1, 3], 1))
def test_replays_of_a_graph_are_logged(tmp_path: Path, sample: int) -> None:
    """Padded batches, and slots that the graph's index tensor has anew in each replay."""
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    options = CaptureOptions(digests=True, digest_sample=sample)
    with capturing_stand_in(tmp_path / "run.zarr", streams, options) as counts:
        with graph_of(graph):
            engine.forward()
        run(engine, graph, [None, [1, 8, 2], [3, -1, 5]])
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 6)
    assert logged(tmp_path / "run.zarr") == spied(engine, 2, sample)
    assert {piece.sample for piece in pieces(tmp_path / "run.zarr")} == {sample}


def test_replays_send_one_block_however_many_layers_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers with the same index tensor have one copy of it in the graph, and replays one way to the host."""
    monkeypatch.setattr("gdnbench.capture.digest_buffer.CHUNK_SECONDS", 600)
    sent, copies = [], []
    for layers in (2, 5):
        engine, graph, streams = Engine(layers), StandInGraph(), StandInStreams()
        with capturing_stand_in(tmp_path / f"{layers}.zarr", streams, DIGESTS) as counts:
            nodes = len(graph_nodes(graph, engine))
            run(engine, graph, [None, None, None])
            assert streams.sent() == 0
        sent.append(streams.sent())
        assert (counts.failures, counts.digested, counts.graph_replays) == (0, 3 * layers, 3)
        copies.append(nodes - len(graph_nodes(StandInGraph(), Engine(layers))))
    assert sent == [1, 1]
    assert copies[0] == copies[1] > 0


def test_replays_and_eager_calls_that_fill_many_chunks_are_logged_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdnbench.capture.digest_buffer.CHUNK_BYTES", 2048)
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    streams.gate.set()
    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        with graph_of(graph):
            engine.forward()
        for rows in (None, [1, 8, 2], [3, -1, 5], [2, 0, 1]):
            run(engine, graph, [rows])
            engine.next_step()
            engine.spied()
            engine.forward()
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 16)
    assert logged(tmp_path / "run.zarr") == spied(engine, 2)
    (piece,) = pieces(tmp_path / "run.zarr")
    assert sorted(piece.rows["call"].tolist()) == piece.rows["call"].tolist()


def test_replays_have_the_claims_of_their_steps(tmp_path: Path) -> None:
    """Claims are asked for once a replay is queued, unless the latest had tensors, which it may write."""
    engine, graph, streams = Engine(), StandInGraph(), StandInStreams()
    numbers, positions = torch.tensor([7, -1, 9]), torch.tensor([4, 5, -1])
    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        with graph_of(graph):
            engine.forward()
        in_step(graph.replay, batch("a", "b", None).padded(3))
        in_step(graph.replay, batch("a", "c", "b").padded(3))
        for _ in range(2):
            in_step(graph.replay, Claims(numbers, positions))
        in_step(graph.replay, batch("d", "e").padded(3))
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 10)
    (piece,) = pieces(tmp_path / "run.zarr")
    found = []
    for number in range(5):
        rows = piece.rows[(piece.rows["step"] == number) & (piece.rows["kind"] == AccessKind.READ)]
        assert len(rows) == 6
        names = [None if one < 0 else piece.requests[one] for one in rows["request"]]
        assert names[:3] == names[3:]
        found.append(names[:3])
    unknown = [None, None, None]
    assert found == [["a", "b", None], ["a", "c", "b"], unknown, ["7", None, "9"], ["d", "e", None]]


def graph_nodes(graph: StandInGraph, engine: Engine) -> list[Any]:
    """What a graph of the engine's step has."""
    with graph_of(graph):
        engine.forward()
    return graph._log.steps


@pytest.mark.parametrize("buffered", [True, False])
def test_eager_calls_are_logged_with_their_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffered: bool
) -> None:
    """`buffered`: as on a GPU with triton, whose kernel needs no more than addresses."""
    monkeypatch.setattr(Jobs, "holds_nothing", buffered)
    engine, streams = Engine(), StandInStreams()
    monkeypatch.setattr("gdnbench.capture.digest_buffer.CHUNK_SECONDS", 600)
    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        for rows in (None, [8, 6, 7], [2, -1, 6]):
            engine.next_step(rows)
            engine.spied()
            in_step(engine.forward, batch("a", None, "c").padded(3))
        in_step(engine.forward, batch("a", at=0).padded(3))
    assert streams.sent() == (1 if buffered else 16)
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 8)
    found = logged(tmp_path / "run.zarr")
    wanted = spied(engine, 2)
    assert found[: len(wanted)] == wanted
    (piece,) = pieces(tmp_path / "run.zarr")
    assert piece.whole
    first = piece.rows[(piece.rows["call"] == 0)]
    names = [None if one < 0 else piece.requests[one] for one in first["request"]]
    assert names == ["a", None, "c"] * 2
    assert first["position"].tolist() == [0, 1, 2, 1, 2, 3]
    assert first["tokens"].tolist() == [1] * 6
    padding = piece.rows[piece.rows["call"] == 6]
    assert (padding["flags"] & AccessFlag.PADDING).tolist() == [0, 1] * 2


def test_an_eager_call_that_raises_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobs, "holds_nothing", True)
    engine, streams = Engine(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        engine.forward()
        with pytest.raises(RuntimeError), inside(engine.layers[1]):
            step(**{**engine.call(), "o": engine.x[:0]})
        engine.forward()
    assert (counts.failures, counts.first_failure, counts.digested, counts.unfinished) == (0, None, 4, 1)
    (piece,) = pieces(tmp_path / "run.zarr")
    found = {(piece.layers[row["layer"]], int(row["step"])) for row in piece.rows}
    assert found == {("Layer.0", 0), ("Layer.1", 0), ("Layer.0", 1), ("Layer.1", 2)}


def test_nothing_but_index_tensors_and_digests_is_copied(tmp_path: Path) -> None:
    """Each of two layers has three rows of 2 x 4 x 8 x 8 floats."""
    engine, streams = Engine(), StandInStreams()
    with capturing_stand_in(tmp_path / "run.zarr", streams, DIGESTS) as counts:
        engine.forward()
    # Of each layer: three digests before and after, and the slots as the call has them and as rows.
    assert counts.bytes == 2 * (2 * 3 * 16 + 3 * 4)


@record("gdn_prefill")
def prefill(**tensors: Any) -> Any:
    return torch_chunked(**tensors)


def test_gathered_states_have_the_digests_of_their_rows(tmp_path: Path) -> None:
    contract = operation("gdn_prefill")
    call = contract.synth(seqlens=(5, 0, 9), heads=(1, 2), head_dim=(16, 16), initial_state=True, seed=3)
    with capturing(tmp_path / "run.zarr", DIGESTS) as counts:
        found = prefill(**call.tensors)
    assert (counts.failures, counts.first_failure) == (0, None)
    rows = logged(tmp_path / "run.zarr")
    before, after = digest(call.tensors["initial_state"]), digest(found["final_state"])
    assert [row[2:4] + row[5:] for row in rows] == [
        ("READ", 0, before[0]),
        ("READ", 2, before[2]),
        ("WRITE", 0, after[0]),
        ("WRITE", 2, after[2]),
    ]


def test_a_part_of_a_row_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are of whole rows: 8 columns are one, 5 are not."""
    contract = operation("gdn_decode")
    plain = contract.accesses
    assert plain is not None
    for columns, unknown in ((8, False), (5, True)):

        def some(call: Call, columns: int = columns) -> tuple[Accesses, ...]:
            return tuple(replace(one, columns=columns) for one in plain(call))

        store = tmp_path / f"{columns}.zarr"
        monkeypatch.setattr(access_rows, "operation", lambda op: replace(contract, accesses=some))
        with capturing(store, DIGESTS):
            Engine().forward()
        (piece,) = pieces(store)
        flags = piece.rows["flags"] & AccessFlag.DIGEST_UNKNOWN
        assert set(flags.tolist()) == {AccessFlag.DIGEST_UNKNOWN if unknown else 0}


@pytest.mark.slow
def test_a_piece_is_written_when_it_is_full_and_the_oldest_are_dropped(tmp_path: Path) -> None:
    engine = Engine()
    options = CaptureOptions(digests=True, max_bytes=200_000, when_over="drop-oldest", zstd=None)
    with capturing(tmp_path / "run.zarr", options) as counts:
        for _ in range(200):
            engine.forward()
    assert (counts.failures, counts.first_failure, counts.digested) == (0, None, 400)
    with Store.open(tmp_path / "run.zarr") as store:
        assert store.records[0].info.step > 0
        assert (
            sum(one.stat().st_size for one in (tmp_path / "run.zarr").rglob("*") if one.is_file()) < 260_000
        )
    found = [int(call) for piece in pieces(tmp_path / "run.zarr") for call in piece.rows["call"][::6]]
    assert found == list(range(400 - len(found), 400))
    assert verify(tmp_path / "run.zarr").ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digests": True, "sync": True}, wording("capture.digests-beside", name="sync")),
        ({"digests": True, "full_pools": True}, wording("capture.digests-beside", name="full_pools")),
        ({"digests": True, "on_nonfinite": True}, wording("capture.digests-beside", name="a trigger")),
        ({"digests": True, "digest_sample": 4}, wording("capture.digest-sample-even", sample=4)),
        ({"digest_sample": 3}, wording("capture.digest-sample-alone")),
    ],
)
def test_options_that_are_about_tensors_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        CaptureOptions(**options)


# The benchmark on two small layers, which compares the last step's digests with NumPy's.
ON_A_GPU = """
import argparse, sys
sys.path.insert(0, "scripts/benchmarks")
import torch
import bench_capture_digests as bench
bench.SEGMENT_STEPS, bench.HV, bench.H = 1, 2, 1
args = argparse.Namespace(device="cuda", seconds=0.0, step_ms=9.0)
for in_graph in (True, False):
    for sample in (1, 3):
        decode = bench.Decode("cuda", 2, 3, torch.bfloat16, dim=64)
        print("equal" if bench.measure(decode, sample, in_graph, args).digests_equal else "DIFFER")
"""


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["h100", "b200"])
def test_graphs_and_eager_calls_on_a_virtual_gpu(machine: str) -> None:
    need("triton", WITH_TRITON, TRITON_REQUIREMENTS)
    root = Path(__file__).resolve().parents[2]
    path = [path for path in (os.environ.get("PYTHONPATH"), str(root), triton_folder()) if path]
    command = [
        sys.executable,
        "-m",
        "gdnbench",
        "sim",
        "--machine",
        machine,
        "--",
        sys.executable,
        "-c",
        ON_A_GPU,
    ]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stdout.splitlines() if line in ("equal", "DIFFER")] == ["equal"] * 4
    assert "run_jobs" in ran.stdout
