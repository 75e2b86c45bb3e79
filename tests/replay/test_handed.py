# SPDX-License-Identifier: Apache-2.0
"""A kernel is judged on the values that it was handed. Whatever conventions a call was recorded in and a
kernel takes, an exact kernel passes and one that is off does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdnbench.judge.result import Side
from gdnbench.ops import operation
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call, ContractError
from tests.subset import quick

ROOT = Path(__file__).resolve().parents[2]
EXACT = """
from gdnbench.ops import operation
from gdnbench_kernels.contract import Call, Role
from gdnbench_kernels.run import run_kernel

OP = operation({op!r})

def exact(**given):
    tensors = {{spec.name: given[spec.name] for spec in OP.tensors
               if spec.role is not Role.OUTPUT and spec.name in given}}
    scalars = {{spec.name: given[spec.name] for spec in OP.scalars}}
    conventions = {{convention.name: given[convention.name] for convention in OP.conventions}}
    found = run_kernel(OP, "reference", Call(tensors, scalars, conventions))
    return {{name: tensor.to(given[name].dtype) for name, tensor in found.items()}}

def off(**given):
    return {{name: tensor * 1.03 for name, tensor in exact(**given).items()}}

exact.conventions = off.conventions = {conventions!r}
"""
SMALL: dict[str, dict[str, Any]] = {
    "gdn_prefill": {"seqlens": (5, 0, 70), "heads": (1, 2), "head_dim": (32, 32), "initial_state": True},
    "gdn_decode": {"batch": 3, "heads": (1, 2), "head_dim": (32, 32), "padding": 0.4, "slots": 5},
}


def combinations(op: str) -> list[dict[str, str]]:
    """All conventions of an operation that its made calls may have."""
    known = [one for one in operation(op).conventions if one.name != "offsets"]
    return [
        dict(zip((one.name for one in known), values, strict=True))
        for values in itertools.product(*(one.values for one in known))
    ]


def kernels(op: str, call: Call) -> Iterator[dict[str, str]]:
    """The conventions that `call` can be converted to."""
    for conventions in combinations(op):
        try:
            operation(op).convert(call, conventions)
        except ContractError:
            continue
        yield conventions


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., RecordResult]:
    """Replays one record through `exact` or `off`, which takes nothing but the given conventions."""

    def run(store: Store, op: str, conventions: dict[str, str], name: str = "exact") -> RecordResult:
        file = tmp_path / f"kernel_{'_'.join(conventions.values())}.py"
        taken = {key: (value,) for key, value in conventions.items()}
        file.write_text(EXACT.format(op=op, conventions=taken))
        (found,) = replay(store, kernel=f"{file}:{name}", isolate=False).records
        return found

    return run


CASES = [(op, conventions) for op in SMALL for conventions in combinations(op)]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("op", "recorded"),
    quick(CASES, *range(0, len(CASES), 3), ids=[f"{op}-{'-'.join(c.values())}" for op, c in CASES]),
)
def test_an_exact_kernel_passes_in_every_pair_of_conventions(
    op: str, recorded: dict[str, str], tmp_path: Path, judged: Callable[..., RecordResult]
) -> None:
    call = synthesise(op, **SMALL[op], **recorded)
    with StoreWriter(tmp_path / "made.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft(op, call)])
    rounding = {one.name for one in operation(op).conventions if one.rounds}
    pairs = list(kernels(op, call))
    assert recorded in pairs
    with Store.open(tmp_path / "made.zarr") as store:
        for taken in pairs:
            found = judged(store, op, taken)
            assert found.outcome is Outcome.PASS, (taken, found.reason)
            shown = [one for one in found.tensors if one.side is Side.CONVERSION]
            assert bool(shown) == any(taken[name] != recorded[name] for name in rounding), taken
            assert not any(one.judged for one in shown)
            assert judged(store, op, taken, "off").outcome is Outcome.MISMATCH, taken


def test_what_a_conversion_loses_is_shown(tmp_path: Path, judged: Callable[..., RecordResult]) -> None:
    """bf16 keys have 8 bits: normalised and rounded, they move a state by some 2^-9 of itself, which is shown
    and is no error of the kernel's."""
    call = synthesise("gdn_decode", **SMALL["gdn_decode"], qk="raw", gate="log", state_layout="VK")
    with StoreWriter(tmp_path / "made.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    with Store.open(tmp_path / "made.zarr") as store:
        taken = {"gate": "log", "state_layout": "VK", "qk": "normalised"}
        found = judged(store, "gdn_decode", taken)
    errors = {(one.tensor, one.side): one.errors for one in found.tensors}
    lost, own = errors["state", Side.CONVERSION], errors["state", Side.KERNEL]
    assert lost is not None
    assert own is not None
    assert 2**-12 < lost.rms_ratio < 2**-8
    assert own.rms_ratio < 2**-24


def test_the_demos_wrong_kernel_passes_once_its_bug_is_mended(tmp_path: Path) -> None:
    """All 16 shipped records of decode, whose q and k are raw; the kernel takes normalised ones."""
    text = (ROOT / "captures/wrong_kernel.py").read_text(encoding="utf-8")
    mended = text.replace("x[:, 0].repeat(1, repeats, 1)", "x[:, 0].repeat_interleave(repeats, 1)")
    assert mended != text
    (tmp_path / "mended.py").write_text(mended)
    with Store.open(ROOT / "captures/decode.zarr.zip") as store:
        records = replay(store, kernel=f"{tmp_path / 'mended.py'}:gdn_decode", isolate=False).records
    assert [one.outcome for one in records] == [Outcome.PASS] * 16, records[0].reason


APPROXIMATE = """
import torch
from gdnbench_kernels.gdn_decode.steps import torch_steps
from tests.subset import quick

def kernel(**given):
    made = {**torch_steps.gates(**given), **torch_steps.normalise(**given)}
    signs = torch.randint(0, 2, made["alpha_t"].shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    made["alpha_t"] = made["alpha_t"] * (1 + ERROR * signs)
    found = torch_steps.update(stages=made, **given)
    return {"o": found["o"], "state": found["state"]}

kernel.conventions = {"gate": ("log", "raw"), "state_layout": ("VK",), "qk": ("normalised", "raw")}
"""


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "made", [{}, {"gate": "raw", "qk": "raw"}, {"steps": 4}, {"dtype": "float32"}], ids=str
)
@pytest.mark.parametrize(
    ("error", "outcome"),
    [(2.0**-22, Outcome.PASS), (2.0**-18, Outcome.MISMATCH)],  # what PTX allows ex2.approx, and 16 times that
)
def test_approximate_exponentials(
    made: dict[str, Any], error: float, outcome: Outcome, tmp_path: Path
) -> None:
    """A state in fp32 that remembers for long: torch's exponential is right to 2^-24."""
    call = synthesise("gdn_decode", batch=4, heads=(2, 4), gate_span=0.5, seed=1, **made)
    with StoreWriter(tmp_path / "made.zarr", kind="synth", durable=False) as writer:
        writer.write("0", [draft("gdn_decode", call)])
    (tmp_path / "approximate.py").write_text(APPROXIMATE.replace("ERROR", str(error)))
    with Store.open(tmp_path / "made.zarr") as store:
        (found,) = replay(store, kernel=f"{tmp_path / 'approximate.py'}:kernel", isolate=False).records
    assert found.outcome is outcome, found.reason
