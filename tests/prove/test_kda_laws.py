# SPDX-License-Identifier: Apache-2.0
"""Each law of Kimi Delta Attention finds a kernel that breaks it and that passes against the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench.prove import records, run
from gdnbench.prove.records import made_records
from gdnbench.prove.result import Section
from gdnbench.prove.run import Options, Prover

KERNELS = Path(__file__).with_name("kda_kernels.py")
RECORDS = """
[[record]]
name = "the longest last"
op = "kda_prefill"
seed = 0
sim = true
laws = true
[record.options]
seqlens = [9, 16, 30, 70]
heads = [1, 2]
head_dim = [16, 16]
gate_span = [0.1, 20.0]
state_dtype = "bfloat16"
final_state_dtype = "bfloat16"

[[record]]
name = "drafts"
op = "kda_decode"
seed = 5
sim = true
laws = true
[record.options]
batch = 3
steps = 4
heads = [1, 2]
head_dim = [16, 16]
slots = 14
gate_span = [0.1, 20.0]
speculative = true
"""
PREFILL = {
    "middle_anchor": {"causality"},
    "leaks_between_sequences": {"sequences"},
    # The sequence that the law of padding adds is the last one and short.
    "as_many_chunks_as_the_last": {"order", "padding"},
    "masks_by_zero": {"padding"},
    "own_scale": {"scale"},
    "clamps_states": {"scale"},
    "transposes_the_initial_state": {"split"},
}
DECODE = {
    "last_draft_anchor": {"causality"},
    "leaks_between_rows": {"sequences"},
    "no_slot_0": {"order"},
    "common_scale": {"padding"},
    "ignores_reads": {"split"},
    "decode_with_own_scale": {"scale"},
    "decode_clamps_states": {"scale"},
}
FAULTS = [
    *(("kda_prefill", kernel, laws) for kernel, laws in PREFILL.items()),
    *(("kda_decode", kernel, laws) for kernel, laws in DECODE.items()),
]


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records above take the place of suites/made.toml."""
    (tmp_path / "made.toml").write_text(RECORDS)
    monkeypatch.setattr(records, "MADE", tmp_path / "made.toml")
    monkeypatch.setattr(run, "CAPTURES", tmp_path / "none")


def failing(kernel: str, op: str) -> set[tuple[str, str]]:
    """Section and name of the checks that fail, of records against the oracle and of laws."""
    name = kernel if kernel == "torch" else f"{KERNELS}:{kernel}"
    sections = (Section.MADE, Section.LAWS)
    proof = Prover(Options(name, op, sections=sections, captures=None, isolate=False)).prove()
    assert proof.exit_code in (Exit.PASS, Exit.MISMATCH)
    return {(str(check.section), check.name) for check in proof.failing}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("op", "kernel"),
    [("kda_prefill", "torch"), ("kda_prefill", "prefill"), ("kda_decode", "torch"), ("kda_decode", "decode")],
)
def test_right_kernels_keep_the_laws(op: str, kernel: str) -> None:
    assert failing(kernel, op) == set()


@pytest.mark.every(2)
@pytest.mark.parametrize(("op", "kernel", "laws"), FAULTS, ids=[kernel for _, kernel, _ in FAULTS])
def test_a_fault_that_replay_passes_breaks_its_law(op: str, kernel: str, laws: set[str]) -> None:
    assert failing(kernel, op) == {("laws", law) for law in laws}


def test_slot_0_belongs_to_no_sequence_and_the_last_slot_to_one() -> None:
    """Otherwise `no_slot_0` would fail against the oracle, or reversing the pool would not show it."""
    ((_, call),) = made_records("kda_decode")
    indices = call.tensors["state_indices"]
    assert not bool((indices == 0).any())
    assert bool((indices == len(call.tensors["state"]) - 1).any())
    assert not bool((indices == -1).any())
    assert "read_indices" not in call.tensors
    assert float(torch.as_tensor(call.tensors["state"]).abs().max()) < 8
