# SPDX-License-Identifier: Apache-2.0
"""`scripts/check_kernels.py`: a small case of each operation is clean, what is wrong is told, and what is
kept is not run again. All cases: the script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.errors import Exit
from gdnbench.ops import operations
from gdnbench.sim.checker.accept import Accepted
from scripts import check_kernels
from tests.sim.kernel_checks import judging, results
from tests.sim.kernel_checks.judging import Asked, check_all
from tests.sim.kernel_checks.subjects import SUBJECTS, Subject

# As a kernel of gdn_decode: right numbers, beside a launch whose warps hand words over without a barrier.
RACY = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


@cute.kernel
def reverse_kernel(x: cute.Tensor, y: cute.Tensor):
    thread = cute.arch.thread_idx()[0]
    smem = cutlass.memory.SmemAllocator()
    words = smem.allocate_tensor(cutlass.Float32, cute.make_layout(64), 16)
    words[thread] = x[thread]
    y[thread] = words[63 - thread]


@cute.jit
def reverse(x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
    reverse_kernel(x, y).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


flat = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,))
compiled = cute.compile(reverse, flat, flat, make_fake_stream())


def decode(q, k, v, g, beta, state, state_indices, scale):
    call = locals()
    compiled(torch.ones(64), torch.ones(64), cuda.CUstream(0))
    return torch_recurrent(**call)
"""

CASE = "fp32, padding throughout"


def asked(
    *cases: str,
    quick: bool = True,
    schedules: tuple[str, ...] = ("late", "random:0"),
    sms: int | None = None,
) -> Asked:
    accepted = Accepted.read(check_kernels.ACCEPTED)
    return Asked(schedules, 0, quick, cases, 1, accepted, "content", sms)


QUICK = [
    ("gdn_decode cute, tapped", "bf16, drafts"),
]
SLOW = [
    ("kda_decode cute", "bf16, drafts"),
    ("swa_decode portable", "ds_mla, sink on"),
    ("gdn_prefill sm100_fused", "beta to 2, a tail"),
    ("gdn_prefill sm100_fused_cp", "NaN behind a tail"),
    ("gdn_prefill sm100", "beta to 2, a tail"),
    ("gdn_prefill sm90_fused", "NaN behind a tail"),
    ("gdn_prefill sm90_wide", "beta to 2, a tail"),
    ("gdn_prefill sm90_cut_at_64", "NaN behind a tail"),
    ("gdn_prefill sm90_prepared_cut_at_64", "NaN behind a tail"),
    ("gdn_decode cute, bulk", "bf16, drafts"),
    ("kda_decode cute, bulk, tapped", "bf16, drafts"),
    ("swa_decode sm100", "per token, -1 in 25% of a row"),
    ("swa_decode wgmma", "ds_mla, sink on"),
]


@pytest.mark.parametrize(
    ("kernel", "case"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_a_small_case_is_clean(kernel: str, case: str, tmp_path: Path) -> None:
    check_all(kernel, tmp_path / "r.jsonl", asked(case))
    (found,) = results.read(tmp_path / "r.jsonl", "content")
    assert (found.kernel, found.case, found.verdict) == (kernel, case, "pass"), found.reason
    assert found.schedules == ("late", "random:0")
    assert [one for one in found.found() if one.fails] == []
    assert found.checked > 0


ON_GPUS = [
    ("gdn_decode cute", "bf16, drafts"),
    ("swa_decode sm100", "per token, -1 in 25% of a row"),
    ("swa_decode wgmma", "per token, -1 in 25% of a row"),
    ("swa_decode portable", "per token, -1 in 25% of a row"),
    ("gdn_prefill sm100", "NaN behind a tail"),
    ("gdn_prefill sm100_fused", "NaN behind a tail"),
]
PERSISTENT = ("gdn_prefill sm100", "swa_decode sm100", "swa_decode wgmma")


@pytest.mark.slow  # tests/kernels/test_gpu.py has a quick one
@pytest.mark.parametrize(("kernel", "case"), ON_GPUS)
def test_a_small_case_has_equal_bits_on_gpus_of_all_sizes(kernel: str, case: str, tmp_path: Path) -> None:
    """And with as many SMs as tiles it is said that no CTA of a persistent kernel took a second tile, with
    one SM it is not."""
    path, numbers = tmp_path / "r.jsonl", (1, 2, 4, 148)
    for sms in numbers:
        check_all(kernel, path, asked(case, schedules=("late",), sms=sms))
    found = results.read(path, "content")
    assert [(one.sms, one.verdict) for one in found] == [(sms, "pass") for sms in numbers], found
    assert results.differences(found) == []
    assert [one.one_tile for one in found if one.sms in (1, 148)] == [False, kernel in PERSISTENT]
    assert all(one.bits for one in found)
    rows = results.gpu_rows(found)
    assert [row[:4] for row in rows] == [(kernel, sms, 1, 0) for sms in numbers]


def test_bits_that_depend_on_the_gpu_fail(capsys: pytest.CaptureFixture[str]) -> None:
    def case(sms: int, bits: str) -> results.Case:
        return results.Case("k", "c", "content", "pass", sms=sms, bits=bits)

    cases = [case(1, "a"), case(2, "a"), case(148, "b")]
    assert check_kernels._told(["k"], cases, broken=False) is Exit.MISMATCH
    assert "FAIL: k: c: on 148 SMs has other bits than on 1\n" in capsys.readouterr().out
    assert check_kernels._told(["k"], cases[:2], broken=False) is Exit.PASS


@pytest.fixture
def racy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "racy.py"
    file.write_text(RACY)
    grid = SUBJECTS["gdn_decode cute"].grid
    monkeypatch.setitem(SUBJECTS, "racy", Subject(grid, f"{file}:decode"))
    return "racy"


def test_what_is_wrong_is_told(racy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    check_all(racy, path, asked(CASE))
    (found,) = results.read(path, "content")
    assert found.failed
    assert "race" in {one.kind for one in found.found()}
    assert check_kernels._told([racy], [found], broken=False) is Exit.MISMATCH
    out = capsys.readouterr().out
    assert "error: race: " in out
    assert f"  1 cases of racy; first {CASE}\n" in out
    assert f"FAIL: racy: {CASE}: " in out
    assert results.row(racy, [found])[:6] == (racy, 1, 1, 0, 1, len(results.merged([found])))


def test_what_is_kept_is_not_run_again(racy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    check_all(racy, path, asked(CASE))
    monkeypatch.setattr(judging.Checker, "record", None)  # calling it would fail
    check_all(racy, path, asked(CASE))
    assert len(results.read(path, "content")) == 1
    # Of other code, and a line that was not finished, nothing is taken.
    assert results.read(path, "other") == []
    path.write_bytes(path.read_bytes()[:-20])
    assert results.read(path, "content") == []


def test_a_line_that_was_not_finished_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    case = results.Case("k", "c", "content", "pass", schedules=("late",))
    results.write(path, case)
    with path.open("ab") as file:
        file.write(b'{"kernel": "k", "ca')
    results.write(path, case)
    assert results.read(path, "content") == [case, case]
    assert [json.loads(line)["case"] for line in path.read_text().splitlines()] == ["c", "c"]


NOT_CHECKED = {"vllm", "vllm_triton", "sglang", "sglang_cutedsl", "flashinfer_cp", "flashinfer_plain"}
"""Kernels of packages that are not installed for tests, and two by which `flashinfer` is told what to choose;
docs/compatibility.md has their runs."""
CHOICES = {"sm100_auto", "sm100_fused_cp", "sm90", "sm90_fused_cp"}
"""Those that choose call kernels that are there; the others are there with segments that cut the grid's
calls."""


def test_every_kernel_that_is_simulated_is_there() -> None:
    """By the operations' own lists."""
    listed = {
        (name, kernel)
        for name, operation in operations().items()
        for kernel, entry in operation.kernels.items()
        if "sim" in entry.devices and kernel not in NOT_CHECKED | CHOICES
    }
    there = {(one.grid.op, one.kernel) for one in SUBJECTS.values() if one.grid is not None}
    assert listed <= there


def test_accepted_findings_have_reasons() -> None:
    assert Accepted.read(check_kernels.ACCEPTED).entries


def test_names_that_choose_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["check_kernels.py", "nosuch*"])
    assert check_kernels.main() is Exit.BAD_INPUT
    assert "no kernel is called nosuch*; --list prints them" in capsys.readouterr().err
