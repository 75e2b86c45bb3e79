# SPDX-License-Identifier: Apache-2.0
"""`--check` of `gdnbench sim` and `gdnbench replay`: what is printed and refused, and the exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

Invoke = Callable[..., Any]  # the fixture `gdnbench`

# Threads reverse 64 numbers through shared memory. Without the barrier the warp that runs first reads what
# the other has yet to store.
KERNELS = """
import functools

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

STREAM = cuda.CUstream(0)


@cute.kernel
def reverse_kernel(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr):
    thread = cute.arch.thread_idx()[0]
    smem = cutlass.memory.SmemAllocator()
    words = smem.allocate_tensor(cutlass.Float32, cute.make_layout(64), 16)
    words[thread] = x[thread]
    if cutlass.const_expr(barrier):
        cute.arch.sync_threads()
    y[thread] = words[63 - thread]


@cute.jit
def reverse(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr, stream: cuda.CUstream):
    reverse_kernel(x, y, barrier).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


@cute.kernel
def count_kernel(x: cute.Tensor):
    cute.arch.atomic_add(x.iterator.llvm_ptr, cutlass.Int32(1), sem="relaxed", scope="gpu")


@cute.jit
def count(x: cute.Tensor, stream: cuda.CUstream):
    count_kernel(x).launch(grid=[2, 1, 1], block=[32, 1, 1], stream=stream)


@functools.cache
def compiled(barrier):
    flat = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,))
    return cute.compile(reverse, flat, flat, barrier, make_fake_stream())


def racy():
    return compiled(False), (torch.ones(64), torch.ones(64))


def right():
    return compiled(True), (torch.ones(64), torch.ones(64))


def stops():
    compiled(False)(torch.ones(64), torch.ones(64), STREAM)
    compiled(True)(torch.ones(64), torch.ones(32), STREAM)


def decode(q, k, v, g, beta, state, state_indices, scale):
    call = locals()
    compiled(True)(torch.ones(64), torch.ones(64), STREAM)
    return torch_recurrent(**call)


def racy_decode(q, k, v, g, beta, state, state_indices, scale):
    call = locals()
    compiled(True)(torch.ones(64), torch.ones(64), STREAM)
    compiled(False)(torch.ones(64), torch.ones(64), STREAM)
    return torch_recurrent(**call)


def wrong_decode(q, k, v, g, beta, state, state_indices, scale):
    found = racy_decode(q, k, v, g, beta, state, state_indices, scale)
    found["o"] *= 2
    return found


def stopped_decode(q, k, v, g, beta, state, state_indices, scale):
    stops()
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "reverse.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture
def decodes(gdnbench: Invoke, tmp_path: Path) -> Path:
    store = tmp_path / "decodes.zarr"
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8", "--count", "2")
    assert gdnbench("synth", store, *options).code == 0
    return store


@pytest.fixture
def accepting(kernels: Path, tmp_path: Path) -> Path:
    """All that is wrong with the kernel without its barrier: two races and what was never written."""
    file = tmp_path / "accepted.toml"
    load = f"{kernels.name}:{line('y[thread] = words[63 - thread]')}"
    entries = [f'[[accept]]\ncause = "{cause}"\nsource = "{load}"\nreason = "planted"\n' for cause in CAUSES]
    file.write_text("\n".join(entries))
    return file


CAUSES = ("race", "uninitialised read")


def line(text: str) -> int:
    return 1 + [one.strip() for one in KERNELS.splitlines()].index(text)


def test_both_accesses_are_shown(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:racy", "--check")
    assert (result.code, result.err) == (1, "")
    settings = wording(
        "sim.settings", engine="compiled", schedule="late", mma="hardware", checked=", checked"
    )
    assert re.match(settings + "\n", result.out)
    text = result.out.splitlines()
    store, load = line("words[thread] = x[thread]"), line("y[thread] = words[63 - thread]")
    races = [
        number for number, one in enumerate(text) if one.startswith("error in launch 0: race: shared memory")
    ]
    writes, reads = f"{kernels}:{store}: st.shared writes (", f"{kernels}:{load}: ld.shared reads ("
    sides = [[text[number + 1], text[number + 2]] for number in races]
    assert sorted("".join(pair).index(writes) > "".join(pair).index(reads) for pair in sides) == [False, True]
    for first, second in sides:
        assert first.startswith("  first:  ")
        assert second.startswith("  second: ")
    assert "error in launch 0: uninitialised read: " in result.out
    assert "\n3 errors found\n" in result.out


def test_each_pair_of_instructions_is_listed_on_demand(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:racy", "--check", "--verbose")
    sides = [one for one in result.out.splitlines() if re.match(r"  (first|second): ", one)]
    assert len(sides) == 4
    for first, second in (sides[:2], sides[2:]):
        assert first.startswith("  first: CTA (0, 0, 0), warp 0 (compute): ")
        assert second.startswith("  second: CTA (0, 0, 0), warp 1 (compute): ")
        assert f"{kernels}:" in first


def test_without_the_option_nothing_is_checked(gdnbench: Invoke, kernels: Path) -> None:
    assert gdnbench("sim", f"{kernels}:racy").code == 0
    result = gdnbench("sim", f"{kernels}:right", "--check", "--json")
    data = json.loads(result.out)["calls"][0]
    assert (result.code, data["checked"], data["findings"]) == (0, True, [])
    assert data["launches"][0]["found"] == {}


def test_json_has_everything(gdnbench: Invoke, kernels: Path, accepting: Path) -> None:
    result = gdnbench("sim", f"{kernels}:racy", "--check", "--json", "--accept", accepting)
    data = json.loads(result.out)
    assert (result.code, data["calls"][0]["ok"], data["unused"]) == (0, True, [])
    race = next(one for one in data["calls"][0]["findings"] if one["kind"] == "race")
    assert (race["severity"], race["accepted"]) == ("error", "planted")
    evidence = race["evidence"]
    assert (evidence["verdict"], evidence["cause"], evidence["memory"]) == ("error", "race", "shared")
    assert evidence["kernel"].startswith("kernel_cutlass_reverse_kernel")
    assert (evidence["ctas"], evidence["warps"]) == (1, [[0, 1]])
    for side, warp in (("first", 0), ("second", 1)):
        access = evidence[side]
        assert (access["cta"], access["warp"], access["role"]) == ([0, 0, 0], warp, "compute")
        assert access["asynchronous"] is False
        assert access["place"]["file"] == str(kernels)
        assert ".shared.b32" in access["place"]["text"]


def test_accepted_findings(gdnbench: Invoke, kernels: Path, accepting: Path) -> None:
    asked = ("sim", f"{kernels}:racy", "--check", "--accept", accepting)
    result = gdnbench(*asked)
    assert (result.code, result.err) == (0, "")
    assert "\nno error found, 3 accepted\n" in result.out
    assert "race" not in result.out
    told = gdnbench(*asked, "-v").out
    assert told.count("\n  accepted: planted\n") == 3
    assert "error in launch 0: race: " in told
    text = accepting.read_text()
    accepting.write_text(text.replace("[[accept]]", "[[accept]]\nkernel = 'other*'", 1))
    result = gdnbench(*asked)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "\n2 errors found, 1 accepted\n" in result.out
    assert re.search(
        wording("sim.checker.accept-unused", path=accepting, number=1, entry="cause 'race'"), result.err
    )
    accepting.write_text(text.replace("planted", "", 1))
    result = gdnbench(*asked)
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("sim.checker.entry-reason-missing", where="entry 1"), result.err)


def test_a_file_to_accept_what_is_found(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.toml"
    asked = ("sim", f"{kernels}:racy", "--check")
    assert gdnbench(*asked, "--write-accept", file).code == 1
    assert gdnbench(*asked, "--accept", file).code == 2  # no reasons yet
    file.write_text(file.read_text().replace('reason = ""', 'reason = "seen"'))
    assert gdnbench(*asked, "--accept", file).code == 0


def test_ctas_that_add_to_one_word(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:count", "i32[1]:zeros", "--check")
    assert result.code == 0
    assert "\nno error found\n" in result.out


def test_a_function_that_a_fault_ends_keeps_what_was_found(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:stops", "--check")
    assert result.code == 1
    for kind in ("race", "out-of-bounds access"):
        assert re.search(wording("sim.finding", severity="error", launch=0, kind=kind), result.out)
    result = gdnbench("sim", f"{kernels}:stops")
    assert (result.code, result.out) == (1, "")


def test_a_baseline_of_what_is_found(gdnbench: Invoke, kernels: Path, decodes: Path, tmp_path: Path) -> None:
    """One more pair of lines is new; lines that have moved are not."""
    kernel, file = tmp_path / "moving.py", tmp_path / "known.toml"
    kernel.write_text(KERNELS)
    asked: tuple[object, ...] = ("replay", decodes, "0", "--kernel", f"{kernel}:racy_decode")
    asked += ("--on", "sim", "--check", "--no-isolate")
    assert gdnbench(*asked, "--write-baseline", file).code == 1
    kernel.write_text(KERNELS.replace("STREAM = cuda", "# Moves every line.\nSTREAM = cuda"))
    assert gdnbench(*asked, "--baseline", file).code == 0
    load, store = "    y[thread] = words[63 - thread]\n", "    words[thread] = x[thread]\n"
    kernel.write_text(KERNELS.replace(load, load + store))
    assert gdnbench(*asked, "--baseline", file).code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--accept", "a.toml"), wording("cli.accept-without-check")),
        (("--write-accept", "a.toml"), wording("cli.accept-without-check")),
        (
            ("--check", "--accept", "nosuch.toml"),
            wording("sim.checker.accept-unreadable", path="nosuch.toml"),
        ),
    ],
)
def test_refusals(gdnbench: Invoke, kernels: Path, arguments: tuple[str, ...], message: str) -> None:
    for command in (("sim", f"{kernels}:racy"), ("replay", "nosuch.zarr", "--on", "sim")):
        result = gdnbench(*command, *arguments)
        assert (result.code, result.out) == (2, "")
        assert re.search(message, result.err)


def test_only_the_simulator_checks(gdnbench: Invoke, decodes: Path) -> None:
    result = gdnbench("replay", decodes, "--kernel", "torch", "--check")
    assert (result.code, result.out) == (2, "")
    assert re.search(wording("cli.check-needs-sim", sim="sim", on="cpu"), result.err)


def test_records_are_checked_in_a_process_of_their_own(
    gdnbench: Invoke, kernels: Path, decodes: Path
) -> None:
    """The numbers are right, and the record of the second launch is not."""
    junit = decodes.parent / "junit.xml"
    asked = ("replay", decodes, "--kernel", f"{kernels}:racy_decode", "--on", "sim", "--check")
    result = gdnbench(*asked, "--json", "--junit", junit)
    data = json.loads(result.out)
    assert (result.code, data["exit_code"], data["outcomes"]) == (1, 1, {"check error": 2})
    for record in data["records"]:
        assert all(tensor["passed"] for tensor in record["tensors"])
        assert {one["launch"] for one in record["findings"]} == {1}
        races = [one for one in record["findings"] if one["kind"] == "race"]
        assert {one["evidence"]["second"]["warp"] for one in races} == {1}
        assert record["reason"].endswith("and 2 more")
    suite = ElementTree.fromstring(junit.read_text()).find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "2"
    assert "st.shared writes" in junit.read_text()


def replayed(gdnbench: Invoke, store: Path, kernel: str, *options: object) -> Any:
    return gdnbench(
        "replay", store, "0", "--kernel", kernel, "--on", "sim", "--check", "--no-isolate", *options
    )


def test_text_of_records(gdnbench: Invoke, kernels: Path, decodes: Path, accepting: Path) -> None:
    result = replayed(gdnbench, decodes, f"{kernels}:decode")
    assert result.code == 0
    assert "warp instructions, checked (1 record)" in result.out
    result = replayed(gdnbench, decodes, f"{kernels}:racy_decode")
    assert result.code == 1
    record = wording("report.record-outcome", outcome="check error", label="0 gdn_decode synth step 0")
    assert re.search(record + "\n  " + wording("sim.finding", severity="error", launch=1), result.out)
    assert f"\n    first:  {kernels}:" in result.out
    result = replayed(gdnbench, decodes, f"{kernels}:racy_decode", "--accept", accepting)
    assert result.code == 0
    accepted = wording("report.accepted", findings=3, plural="s")
    assert re.search(rf"note: {accepted} \(1 record\)", result.out)
    told = replayed(gdnbench, decodes, f"{kernels}:racy_decode", "--accept", accepting, "-v").out
    assert told.count("note: accepted error: ") == 3
    assert "; planted (1 record)" in told
    assert "findings of the checker" not in told


def test_other_outcomes_keep_what_was_found(gdnbench: Invoke, kernels: Path, decodes: Path) -> None:
    for function, outcome in (("wrong_decode", "numeric mismatch"), ("stopped_decode", "crash")):
        data = json.loads(replayed(gdnbench, decodes, f"{kernels}:{function}", "--json").out)
        (record,) = data["records"]
        assert record["outcome"] == outcome
        assert "race" in {one["kind"] for one in record["findings"]}
    data = json.loads(gdnbench("replay", decodes, "0", "--kernel", "torch", "--json").out)
    assert data["records"][0]["findings"] is None


def test_findings_of_the_other_kernel(
    gdnbench: Invoke, kernels: Path, decodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated kernel to compare with is checked too."""
    right, racy = f"{kernels}:decode", f"{kernels}:racy_decode"
    monkeypatch.setattr("gdnbench.replay.kernels.on_simulator", lambda: (right, racy))
    data = json.loads(replayed(gdnbench, decodes, right, "--against", racy, "--json").out)
    (record,) = data["records"]
    assert record["outcome"] == "check error"
    assert record["reason"].startswith(f"{racy}: ")
    assert {one["of"] for one in record["findings"]} == {racy}
    assert f"error in launch 1 of {racy}: race: " in replayed(gdnbench, decodes, right, "--against", racy).out
    data = json.loads(replayed(gdnbench, decodes, racy, "--against", right, "--json").out)
    assert {one["of"] for one in data["records"][0]["findings"]} == {None}
