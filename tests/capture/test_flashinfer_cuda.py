# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's own kernels on a GPU, captured and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from tests.capture.peer_records import MARKS, assert_replays, need, recorded

pytestmark = MARKS

H, HV, D, SLOTS = 4, 8, 128, 12
# Its fp32 states of decode are 6.4 times as far from the oracle as torch's (docs/peers.md): approximate
# exponentials and roots. Twice that, in units of the bound of a right kernel.
STATE = 6.4


@pytest.fixture(autouse=True)
def flashinfer() -> None:
    need("flashinfer")


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def packed(*lengths: int) -> dict[str, Any]:
    tokens = sum(lengths)
    return {
        "q": random(tokens, H, D, seed=1).bfloat16(),
        "k": random(tokens, H, D, seed=2).bfloat16(),
        "v": random(tokens, HV, D, seed=3).bfloat16(),
        "g": (-torch.nn.functional.softplus(random(tokens, HV, seed=4))).exp(),
        "beta": random(tokens, HV, seed=5).sigmoid(),
        "cu_seqlens": torch.tensor([0, *lengths], device="cuda").cumsum(0),
        "use_qk_l2norm_in_kernel": True,
    }


def drafted(batch: int, steps: int) -> dict[str, Any]:
    return {
        "q": random(batch, steps, H, D, seed=1).bfloat16(),
        "k": random(batch, steps, H, D, seed=2).bfloat16(),
        "v": random(batch, steps, HV, D, seed=3).bfloat16(),
        "A_log": random(HV, seed=4),
        "a": random(batch, steps, HV, seed=5).bfloat16(),
        "dt_bias": random(HV, seed=6),
        "b": random(batch, steps, HV, seed=7).bfloat16(),
    }


def states(count: int) -> Tensor:
    return 0.05 * random(count, HV, D, D, seed=8)


PREFILLS: dict[str, Any] = {
    "no states": dict,
    "states": lambda: {"initial_state": states(3), "output_final_state": True},
    "buffers": lambda: {
        "initial_state": states(3),
        "output_final_state": True,
        "output": torch.empty(300, HV, D, dtype=torch.bfloat16, device="cuda"),
        "output_state": torch.empty(3, HV, D, D, device="cuda"),
    },
}


@pytest.mark.parametrize("name", PREFILLS)
def test_prefill(name: str, tmp_path: Path) -> None:
    import flashinfer.gdn_prefill

    given = {**packed(170, 1, 129), **PREFILLS[name]()}
    with capturing(tmp_path / "run.zarr") as counts:
        result = flashinfer.gdn_prefill.chunk_gated_delta_rule(**given)
    (record,) = recorded(tmp_path / "run.zarr", counts, 1)
    o = result[0] if isinstance(result, tuple) else result
    assert torch.equal(record.after["o"].read(), o.cpu())
    assert_replays(tmp_path / "run.zarr", "flashinfer")


def test_prefill_on_rows_of_a_pool(tmp_path: Path) -> None:
    import flashinfer.gdn_prefill

    pool = states(SLOTS)
    more = {"initial_state": pool, "output_state": pool, "state_indices": ints(7, 0, 4)}
    was = pool.clone()
    with capturing(tmp_path / "run.zarr") as counts:
        flashinfer.gdn_prefill.chunk_gated_delta_rule(**packed(170, 1, 129), **more, output_final_state=True)
    (record,) = recorded(tmp_path / "run.zarr", counts, 1)
    assert torch.equal(record.before["initial_state"].read(), was[[7, 0, 4]].cpu())
    assert torch.equal(record.after["final_state"].read(), pool[[7, 0, 4]].cpu())
    assert_replays(tmp_path / "run.zarr", "flashinfer")


def test_plain_decode(tmp_path: Path) -> None:
    import flashinfer.gdn_decode

    state = states(4)
    with capturing(tmp_path / "run.zarr") as counts:
        flashinfer.gdn_decode.gated_delta_rule_decode(**drafted(4, 1), state=state)
    (record,) = recorded(tmp_path / "run.zarr", counts, 1)
    assert record.info.conventions["state_layout"] == "KV"
    assert torch.equal(record.after["state"].read(), state.cpu())
    assert_replays(tmp_path / "run.zarr", "flashinfer", state=STATE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_on_a_pool(dtype: torch.dtype, tmp_path: Path) -> None:
    import flashinfer.gdn_decode

    pool = states(SLOTS).to(dtype)
    with capturing(tmp_path / "run.zarr") as counts:
        for _ in range(3):
            flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose(
                **drafted(4, 1), state=None, initial_state=pool, initial_state_indices=ints(3, 9, 1, 6)
            )
    for record in recorded(tmp_path / "run.zarr", counts, 3):
        kept = record.info.pools["state"]
        assert (kept.slots, kept.rows) == (SLOTS, (1, 3, 6, 9))
        assert kept.untouched_before == kept.untouched_after is not None
    assert_replays(tmp_path / "run.zarr", "flashinfer", state=STATE)


def test_drafted_tokens(tmp_path: Path) -> None:
    import flashinfer.gdn_decode

    def mtp(**more: Any) -> None:
        flashinfer.gdn_decode.gated_delta_rule_mtp(**given, **more)

    given = {**drafted(2, 3), "initial_state": states(SLOTS), "initial_state_indices": ints(8, 2)}
    slots = torch.tensor([[0, 1, 3], [4, 5, 6]], dtype=torch.int32, device="cuda")
    with capturing(tmp_path / "each.zarr") as counts:
        mtp(ssm_state_indices=slots, disable_state_update=False)
    (record,) = recorded(tmp_path / "each.zarr", counts, 1)
    assert record.info.pools["state"].rows == (0, 1, 2, 3, 4, 5, 6, 8)
    assert_replays(tmp_path / "each.zarr", "flashinfer", state=STATE)
    with capturing(tmp_path / "last.zarr") as counts:
        mtp(disable_state_update=False)
        mtp(disable_state_update=True)
    recorded(tmp_path / "last.zarr", counts, 2)
    # The kernel of this name here takes a slot of every token alone.
    assert_replays(tmp_path / "last.zarr", "flashinfer", state=STATE, peer=False)


def test_decode_in_a_graph(tmp_path: Path) -> None:
    import flashinfer.gdn_decode

    pool, slots, given = states(SLOTS), ints(3, 9, 1, 6), drafted(4, 1)

    def step() -> None:
        flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose(
            **given, state=None, initial_state=pool, initial_state_indices=slots
        )

    step()  # compiled before it is captured
    graph, named = torch.cuda.CUDAGraph(), [(1, 3, 6, 9), (0, 2, 5, 8), (1, 3, 6, 9)]
    with capturing(tmp_path / "run.zarr") as counts:
        with torch.cuda.graph(graph):
            step()
        for rows in named:
            slots.copy_(ints(*rows))
            graph.replay()
    assert counts.graph_calls == 1
    records = recorded(tmp_path / "run.zarr", counts, 3)
    assert [record.info.pools["state"].rows for record in records] == named
    assert_replays(tmp_path / "run.zarr", "flashinfer", state=STATE)
