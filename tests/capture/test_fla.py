# SPDX-License-Identifier: Apache-2.0
"""The adapter of flash-linear-attention, on functions with its signatures that compute the definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.capture import CaptureOptions, capturing
from gdnbench.capture.recorder import Counts
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.store.reader import Store, StoredRecord
from gdnbench_kernels.contract import Call
from tests.capture.frameworks import framework
from tests.messages import wording

H, HV, K, V = 2, 4, 8, 16
CHUNK, RECURRENT = "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"
RAW = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}


@pytest.fixture
def fla() -> Iterator[None]:
    with framework():
        yield


def inputs(batch: int, tokens: int, *, raw: bool = False, heads: int = H) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(batch * 100 + tokens)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make).bfloat16()

    unit = torch.nn.functional.normalize
    a, b = random(batch, tokens, HV), random(batch, tokens, HV)
    return {
        "q": unit(random(batch, tokens, heads, K).float(), dim=-1).bfloat16(),
        "k": unit(random(batch, tokens, heads, K).float(), dim=-1).bfloat16(),
        "v": random(batch, tokens, HV, V),
        "g": a if raw else -a.float().abs(),
        "beta": b if raw else b.float().sigmoid(),
    }


def states(count: int, *, value_first: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (V, K) if value_first else (K, V)
    return torch.randn(count, HV, *shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def gate_parameters() -> dict[str, Any]:
    make = torch.Generator().manual_seed(9)
    return {**RAW, "A_log": torch.randn(HV, generator=make), "dt_bias": torch.randn(HV, generator=make)}


def captured(
    path: Path, function: str, given: dict[str, Any], options: CaptureOptions | None = None
) -> tuple[tuple[Tensor, Tensor | None], Counts, Store | None]:
    with capturing(path, options) as counts:
        result = getattr(import_module("fla.ops.gated_delta_rule"), function)(**given)
    return result, counts, Store.open(path) if counts.records else None


def only(store: Store | None) -> StoredRecord:
    assert store is not None
    (record,) = store.records
    return record


def same(stored: Tensor, given: Tensor) -> bool:
    """Every bit, and the shape but for the flattening of batch and tokens."""
    return stored.dtype == given.dtype and torch.equal(stored.flatten(), given.contiguous().flatten())


OFFSETS = torch.tensor([0, 3, 3, 10])
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, str]]] = {
    "chunk": (CHUNK, inputs(2, 7), "gdn_prefill", {}),
    "chunk, packed, with states": (
        CHUNK,
        {**inputs(1, 10), "cu_seqlens": OFFSETS, "initial_state": states(3), "output_final_state": True},
        "gdn_prefill",
        {},
    ),
    "chunk, value dim first, normalised inside": (
        CHUNK,
        {
            **inputs(2, 5),
            "initial_state": states(2, value_first=True, dtype=torch.bfloat16),
            "output_final_state": True,
            "state_v_first": True,
            "use_qk_l2norm_in_kernel": True,
            "scale": 0.25,
            "chunk_size": 32,
        },
        "gdn_prefill",
        {"state_layout": "VK", "qk": "raw"},
    ),
    "chunk, raw gates": (CHUNK, {**inputs(2, 5, raw=True), **gate_parameters()}, "gdn_prefill", {}),
    "chunk, a raw gate and beta to 2": (
        CHUNK,
        {
            **inputs(2, 5, raw=True),
            **gate_parameters(),
            "dt_bias": None,
            "allow_neg_eigval": True,
            "output_final_state": True,
        },
        "gdn_prefill",
        {},
    ),
    "recurrent, one token": (
        RECURRENT,
        {**inputs(3, 1), "initial_state": states(3), "output_final_state": True},
        "gdn_decode",
        {},
    ),
    "recurrent, one token, raw gates": (
        RECURRENT,
        {
            **inputs(3, 1, raw=True),
            **gate_parameters(),
            "initial_state": states(3, value_first=True),
            "output_final_state": True,
            "state_v_first": True,
            "use_qk_l2norm_in_kernel": True,
        },
        "gdn_decode",
        {"gate": "raw", "state_layout": "VK", "qk": "raw"},
    ),
    "recurrent, one token, raw gates, no bias, beta to 2": (
        RECURRENT,
        {
            **inputs(3, 1, raw=True),
            **gate_parameters(),
            "dt_bias": None,
            "allow_neg_eigval": True,
            "initial_state": states(3),
            "output_final_state": True,
        },
        "gdn_decode",
        {"gate": "raw"},
    ),
    "recurrent, one token, a raw gate alone": (
        RECURRENT,
        {
            **inputs(3, 1),
            **gate_parameters(),
            "use_beta_sigmoid_in_kernel": False,
            "initial_state": states(3),
            "output_final_state": True,
        },
        "gdn_decode",
        {},
    ),
    "recurrent, a bf16 state": (
        RECURRENT,
        {**inputs(3, 1), "initial_state": states(3, dtype=torch.bfloat16), "output_final_state": True},
        "gdn_prefill",
        {},
    ),
    "recurrent, no state": (RECURRENT, inputs(3, 1), "gdn_prefill", {}),
    "recurrent, packed": (
        RECURRENT,
        {
            **inputs(1, 3),
            "cu_seqlens": torch.arange(4),
            "initial_state": states(3),
            "output_final_state": True,
        },
        "gdn_prefill",
        {},
    ),
    "recurrent, more tokens": (RECURRENT, {**inputs(2, 4), "output_final_state": True}, "gdn_prefill", {}),
    "recurrent, no gates": (
        RECURRENT,
        {**inputs(2, 4, heads=HV), "g": None, "beta": None},
        "gdn_prefill",
        {},
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_what_a_call_is_recorded_as(name: str, fla: None, tmp_path: Path) -> None:
    function, given, op, conventions = CASES[name]
    (o, final), counts, store = captured(tmp_path / "run.zarr", function, given)
    assert (counts.failures, counts.first_failure, counts.passed_over) == (0, None, {})
    record = only(store)
    assert record.info.op == op
    expected = {"gate": "log", "state_layout": "KV", "qk": "normalised", **conventions}
    assert record.info.conventions == expected
    as_given = ["q", "k", "v"]
    if expected["gate"] == "raw" or not given.get("use_gate_in_kernel"):
        as_given += [n for n in ("g", "A_log", "dt_bias") if given.get(n) is not None]
    if expected["gate"] == "raw" or not given.get("use_beta_sigmoid_in_kernel"):
        as_given += [n for n in ("beta",) if given[n] is not None]
    for one in as_given:
        assert same(record.before[one].read(), given[one]), one
    assert same(record.after["o"].read(), o)
    if op == "gdn_decode":
        assert same(record.before["state"].read(), given["initial_state"])
        assert final is not None
        assert same(record.after["state"].read(), final)
    elif final is not None:
        assert same(record.after["final_state"].read(), final)
    before = {one: handle.read() for one, handle in record.before.items()}
    operation(op).validate(Call(before, record.info.scalars, record.info.conventions))
    assert_replays(tmp_path / "run.zarr")


def assert_replays(path: Path) -> None:
    """The oracle gets what the function returned from what is recorded, within torch's bound."""
    for kernel in ("reference", "torch"):
        report = replay(Store.open(path), kernel=kernel, against="recorded", isolate=False)
        assert report.exit_code is Exit.PASS, [(kernel, r.reason) for r in report.records]


def test_gates_that_the_function_makes_are_made_in_fp32(fla: None, tmp_path: Path) -> None:
    given = {**inputs(2, 5, raw=True), **gate_parameters(), "allow_neg_eigval": True}
    _, _, store = captured(tmp_path / "run.zarr", CHUNK, given)
    record = only(store)
    shifted = given["g"].double() + given["dt_bias"].double()
    g = -given["A_log"].double().exp() * torch.nn.functional.softplus(shifted, threshold=100.0)
    found = record.before["g"].read()
    assert found.dtype == torch.float32
    # A sum x, whose rounding by 2^-24 counts |x| times at most, a logarithm of exponentials and an
    # exponential within 2^-22 each, and a product.
    assert shifted.abs().max() < 6
    torch.testing.assert_close(found.double(), g.flatten(0, 1), rtol=8 * 2.0**-23, atol=0)
    # An exponential within 2^-22, a sum and a quotient.
    beta = 2 * given["beta"].double().sigmoid()
    torch.testing.assert_close(
        record.before["beta"].read().double(), beta.flatten(0, 1), rtol=4 * 2.0**-23, atol=0
    )
    assert record.info.dispatch["made_by_capture"] == ["g", "beta"]
    assert record.info.scalars["beta_max"] == 2.0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"gk": torch.zeros(2, 4, HV, K)}, wording("capture.fla-refused", what=re.compile(r".*\(gk\)"))),
        ({"gv": torch.zeros(2, 4, HV, V)}, wording("capture.fla-refused", what=re.compile(r".*\(gv\)"))),
        ({"beta": torch.zeros(2, 4, HV, V)}, wording("capture.beta-channels")),
        ({"beta": None}, wording("capture.beta-left-out")),
        ({"v": torch.zeros(2, 4, HV, V).half()}, wording("capture.dtypes-differ")),
        ({"use_exp2": True}, wording("capture.fla-refused", what=re.compile(r".*\(use_exp2\)"))),
        ({"head_first": True}, wording("capture.fla-refused", what=re.compile(r".*\(head_first\)"))),
        ({"state_in_fp8": True}, wording("capture.parameter-unknown", parameter="state_in_fp8")),
    ],
)
def test_calls_that_no_operation_describes(
    more: dict[str, Any], reason: str, fla: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("fla.ops.gated_delta_rule.fused_recurrent")
    monkeypatch.setattr(module, "batch", lambda *args: (torch.zeros(()), None))
    _, counts, _ = captured(tmp_path / "run.zarr", RECURRENT, {**inputs(2, 4), **more})
    assert (counts.records, counts.failures) == (0, 0)
    ((found, calls),) = counts.passed_over.items()
    assert re.search(reason, found)
    assert calls == 1


def test_context_parallelism_is_left_alone(fla: None, tmp_path: Path) -> None:
    _, counts, _ = captured(tmp_path / "run.zarr", CHUNK, {**inputs(2, 4), "cp_context": object()})
    (reason,) = counts.passed_over
    assert re.fullmatch(wording("capture.fla-refused", what="context parallelism (cp_context)"), reason)


def test_layers_by_their_own_functions(fla: None, tmp_path: Path) -> None:
    """Imported before capture, so bound in the layer's module; each call is one record, with its layer."""
    layers = import_module("fla.layers.gated_deltanet")
    model = torch.nn.ModuleList(layers.GatedDeltaNet(n) for n in range(2))
    state = {"initial_state": states(3), "output_final_state": True}
    with capturing(tmp_path / "run.zarr") as counts:
        for layer in model:
            layer(**inputs(3, 6))
        for layer in model:
            layer(recurrent=True, **inputs(3, 1), **state)
    assert (counts.records, counts.failures) == (4, 0)
    infos = [record.info for record in Store.open(tmp_path / "run.zarr").records]
    assert [(i.op, i.layer_index, i.step) for i in infos] == [
        ("gdn_prefill", 0, 0),
        ("gdn_prefill", 1, 0),
        ("gdn_decode", 0, 1),
        ("gdn_decode", 1, 1),
    ]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["chunk_gdn", "fused_recurrent_gdn"])
@pytest.mark.parametrize("place", ["fla.ops", "fla.ops.gated_delta_rule"])
@pytest.mark.parametrize("first", [True, False])
def test_wherever_it_is_imported_from(place: str, name: str, first: bool, fla: None, tmp_path: Path) -> None:
    if first:
        import_module(place)
    with capturing(tmp_path / "run.zarr") as counts:
        getattr(import_module(place), name)(**inputs(2, 4))
    assert (counts.records, counts.failures, counts.first_failure) == (1, 0, None)
