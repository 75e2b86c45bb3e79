# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention's own kernels on a GPU, captured and replayed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import capturing
from tests.capture.peer_records import MARKS, assert_replays, need, recorded

pytestmark = MARKS

H, D = 4, 128  # as many value heads as key heads: the package's decode of 0.6.0 fails on others, batch 64 up


@pytest.fixture(autouse=True)
def fla(monkeypatch: pytest.MonkeyPatch) -> None:
    need("fla")
    # Else it may hand its work to other packages, and replay refuses a process in which it does.
    monkeypatch.setenv("FLA_FLASH_QLA", "0")
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "1")


def functions() -> Any:
    import fla.ops.gated_delta_rule

    return fla.ops.gated_delta_rule


def inputs(batch: int, tokens: int, *, raw: bool = False) -> dict[str, Tensor]:
    make = torch.Generator("cuda").manual_seed(batch * 1000 + tokens)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=make).bfloat16()

    a, b = random(batch, tokens, H), random(batch, tokens, H)
    return {
        "q": random(batch, tokens, H, D),
        "k": random(batch, tokens, H, D),
        "v": random(batch, tokens, H, D),
        "g": a if raw else -torch.nn.functional.softplus(a.float()),
        "beta": b if raw else b.float().sigmoid(),
    }


def raw_gates() -> dict[str, Any]:
    make = torch.Generator("cuda").manual_seed(3)
    return {
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "A_log": torch.randn(H, device="cuda", generator=make),
        "dt_bias": torch.randn(H, device="cuda", generator=make),
    }


def state(count: int) -> Tensor:
    return 0.05 * torch.randn(count, H, D, D, device="cuda", generator=torch.Generator("cuda").manual_seed(5))


CALLS: dict[str, Any] = {
    "batch": lambda: inputs(2, 100),
    "packed, with states": lambda: {
        **inputs(1, 300),
        "cu_seqlens": torch.tensor([0, 170, 171, 300], device="cuda"),
        "initial_state": state(3),
        "output_final_state": True,
    },
    "value dim first": lambda: {
        **inputs(2, 70),
        "initial_state": state(2),
        "output_final_state": True,
        "state_v_first": True,
    },
    "raw gates": lambda: {**inputs(2, 100, raw=True), **raw_gates(), "output_final_state": True},
}


@pytest.mark.parametrize("name", CALLS)
def test_chunk(name: str, tmp_path: Path) -> None:
    given = {**CALLS[name](), "use_qk_l2norm_in_kernel": True}
    with capturing(tmp_path / "run.zarr") as counts, torch.no_grad():
        o, final = functions().chunk_gated_delta_rule(**given)
    (record,) = recorded(tmp_path / "run.zarr", counts, 1)
    assert torch.equal(record.after["o"].read(), o.flatten(0, 1).cpu())
    if final is not None:
        assert torch.equal(record.after["final_state"].read(), final.cpu())
    assert_replays(tmp_path / "run.zarr", "fla")


@pytest.mark.parametrize("raw", [False, True])
def test_decode(raw: bool, tmp_path: Path) -> None:
    given = {**inputs(16, 1, raw=raw), **(raw_gates() if raw else {}), "initial_state": state(16)}
    given |= {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    with capturing(tmp_path / "run.zarr") as counts, torch.no_grad():
        for _ in range(3):
            _, given["initial_state"] = functions().fused_recurrent_gated_delta_rule(**given)
    records = recorded(tmp_path / "run.zarr", counts, 3)
    assert [r.info.op for r in records] == ["gdn_decode"] * 3
    assert {r.info.conventions["gate"] for r in records} == {"raw" if raw else "log"}
    assert torch.equal(records[1].before["state"].read(), records[0].after["state"].read())
    # Fused and approximate: its fp32 states may be off by what FlashInfer's are, six times torch's.
    assert_replays(tmp_path / "run.zarr", "fla", state=4.0)


def test_decode_in_a_graph(tmp_path: Path) -> None:
    """The state is copied back into its buffer, as a served loop has it; every replay is a step."""
    given, kept = inputs(4, 1), state(4)
    graph, more = torch.cuda.CUDAGraph(), {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

    def step() -> None:
        _, final = functions().fused_recurrent_gated_delta_rule(**given, initial_state=kept, **more)
        kept.copy_(final)

    with torch.no_grad():
        step()  # compiled before it is captured
        with capturing(tmp_path / "run.zarr") as counts:
            with torch.cuda.graph(graph):
                step()
            for _ in range(3):
                graph.replay()
    assert counts.graph_calls == 1
    records = recorded(tmp_path / "run.zarr", counts, 3)
    for earlier, later in pairwise(records):
        assert torch.equal(later.before["state"].read(), earlier.after["state"].read())
    assert_replays(tmp_path / "run.zarr", "fla", state=4.0)


def test_a_layer(tmp_path: Path) -> None:
    """The package's own layer, which hands raw gates to the chunk function and names the layer."""
    layers = pytest.importorskip("fla.layers")
    torch.manual_seed(0)
    layer = layers.GatedDeltaNet(hidden_size=256, head_dim=D, num_heads=2, expand_v=1, layer_idx=5)
    layer = layer.cuda().bfloat16().eval()
    hidden = torch.randn(1, 130, 256, device="cuda").bfloat16()
    with capturing(tmp_path / "run.zarr") as counts, torch.no_grad():
        layer(hidden)
    (record,) = recorded(tmp_path / "run.zarr", counts, 1)
    assert (record.info.op, record.info.layer_index) == ("gdn_prefill", 5)
    assert record.info.dispatch["made_by_capture"] == ["g", "beta"]
    assert_replays(tmp_path / "run.zarr", "fla")
