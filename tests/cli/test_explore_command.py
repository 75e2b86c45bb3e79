# SPDX-License-Identifier: Apache-2.0
"""`gdnbench explore` and `gdnbench sim --explore`: what is tried, what is printed, and that the commands
which repeat a run do."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

Invoke = Callable[..., Any]  # the fixture `gdnbench`
NO_ERROR = wording("sim.no-error")

# Threads reverse 64 numbers through shared memory, of which `count` are there, the others 0. Without the
# barrier a warp that runs first reads zeros.
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
def reverse_kernel(x: cute.Tensor, y: cute.Tensor, count: cutlass.Int32, barrier: cutlass.Constexpr):
    thread = cute.arch.thread_idx()[0]
    smem = cutlass.memory.SmemAllocator()
    words = smem.allocate_tensor(cutlass.Float32, cute.make_layout(64), 16)
    words[thread] = 0.0
    cute.arch.sync_threads()
    if thread < count:
        words[thread] = x[thread]
    if cutlass.const_expr(barrier):
        cute.arch.sync_threads()
    if thread < count:
        y[thread] = words[63 - thread]


@cute.jit
def reverse(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr, stream: cuda.CUstream):
    reverse_kernel(x, y, x.shape[0], barrier).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)


@functools.cache
def compiled(barrier):
    flat = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,))
    return cute.compile(reverse, flat, flat, barrier, make_fake_stream())


def racy():
    return compiled(False), (torch.randn(64), torch.ones(64))


def right():
    return compiled(True), (torch.randn(64), torch.ones(64))


CALLS = []


def interrupted(barrier):
    # As Ctrl-C in the third call.
    CALLS.append(barrier)
    if len(CALLS) == 3:
        raise KeyboardInterrupt
    return racy() if not barrier else right()


def interrupted_at_once():
    raise KeyboardInterrupt


def launches(barrier):
    compiled(barrier)(torch.randn(64), torch.ones(64), STREAM)


def decode(q, k, v, g, beta, state, state_indices, scale):
    call = locals()
    compiled(True)(torch.ones(64), torch.ones(64), STREAM)
    return torch_recurrent(**call)


def racy_decode(q, k, v, g, beta, state, state_indices, scale):
    call = locals()
    y = torch.ones(64)
    compiled(False)(torch.arange(64.0), y, STREAM)
    found = torch_recurrent(**call)
    # One bit that depends on the schedule, within what is right.
    first = found["o"].view(-1)[:1]
    first.copy_(torch.where(y[:1] > 0, torch.nextafter(first, first + 1), first))
    return found


def wrong_decode(q, k, v, g, beta, state, state_indices, scale):
    found = decode(**locals())
    found["o"] = found["o"] * 2
    return found
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "reverse.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture
def decodes(gdnbench: Invoke, tmp_path: Path) -> Path:
    store = tmp_path / "decodes.zarr"
    options = ("--batch", "3", "--heads", "1,2", "--head-dim", "8,8", "--dtype", "float32", "--count", "2")
    assert gdnbench("synth", store, "--op", "gdn_decode", *options).code == 0
    return store


def repeats(text: str) -> list[list[str]]:
    """The commands told."""
    return [shlex.split(one) for one in re.findall(r"^  repeat: gdnbench (.*)$", text, re.MULTILINE)]


def test_bits_that_depend_on_the_schedule(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    """Twenty schedules: one of them lets the second warp run first, or 1 in 2^18 runs of this test fails."""
    result = gdnbench("sim", f"{kernels}:racy", "--explore", "20")
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("schedules: late, early, random:")
    assert lines[1].split() == ["shape", "runs", "bits", "verdict"]
    assert lines[2].split() == ["as", "given", "20", "differ", "FAIL"]
    schedule = re.compile(r"(\S+)")
    other = wording("sim.other-bits", tensor="y", schedule=schedule, other="late")
    told = re.fullmatch(f"as given: {other}", lines[3])
    assert told is not None
    (command,) = repeats(result.out)
    assert command[:4] == ["sim", f"{kernels}:racy", "--schedule", told[1]]
    left = []
    for number, again in enumerate((command, command, ["sim", f"{kernels}:racy"])):
        assert gdnbench(*again, "--save", tmp_path / str(number)).code == 0
        left.append(torch.load(tmp_path / str(number) / "y.pt"))
    assert torch.equal(left[0], left[1])
    assert not torch.equal(left[0], left[2])
    differ = wording("cli.explore-bits-differ", differ=1, shapes=1)
    assert re.fullmatch(f"20 runs, {differ}, {NO_ERROR}", lines[-1])


def test_a_kernel_that_is_right(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:right", "--explore", "8", "--check")
    assert (result.code, result.err) == (0, "")
    assert "as given     8  equal  pass" in result.out
    assert re.search(f"^8 runs, equal bits, {NO_ERROR}\n\\Z", result.out, re.MULTILINE)
    alone = gdnbench("sim", f"{kernels}:right", "--explore", "1")
    none = wording("cli.explore-no-bits")
    assert re.search(f"^1 run, {none}, {NO_ERROR}\n\\Z", alone.out, re.MULTILINE)


def test_findings_of_all_runs_are_merged(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    asked = ("sim", f"{kernels}:racy", "--explore", "3", "--check")
    result = gdnbench(*asked, "--json")
    data = json.loads(result.out)
    assert (result.code, data["ok"], data["runs"], data["interrupted"]) == (1, False, 3, False)
    races = [one for one in data["findings"] if one["kind"] == "race"]
    assert races
    for race in races:
        assert race["shapes"] == ["as given"]
        assert race["first"]["schedule"] in data["schedules"]
        assert f"--schedule {race['first']['schedule']} --check" in race["first"]["command"]
    # Either order of the two is met late or early, each of them many times in one run, and told once.
    assert 1 <= sum(race["runs"] for race in races) <= 6
    assert len(races) <= 2
    accept = tmp_path / "accepted.toml"
    assert gdnbench(*asked, "--write-accept", accept).code == 1
    accept.write_text(accept.read_text().replace('reason = ""', 'reason = "planted"'))
    told = gdnbench("sim", f"{kernels}:racy", "--explore", "1", "--check", "--accept", accept)
    assert told.code == 0
    assert re.search(f"{NO_ERROR}, ", told.out)
    assert told.out.rstrip().endswith("accepted")


def test_shapes(gdnbench: Invoke, kernels: Path) -> None:
    """Of 64 threads; from 65 words on they are out of bounds."""
    text = ("f32[?{N}]", "f32[?{N}]:nan", "true")
    result = gdnbench("sim", f"{kernels}:reverse", *text, "--explore", "2", "--vary", "N=1,33,64")
    assert result.code == 0, result.out
    rows = [line.split() for line in result.out.splitlines()[2:5]]
    assert rows == [[f"N={count}", "2", "equal", "pass"] for count in (1, 33, 64)]
    short = ("f32[?64]", "f32[?{M}]:nan", "true")
    asked = ("sim", f"{kernels}:reverse", *short, "--explore", "2", "--vary", "M=64,32")
    result = gdnbench(*asked)
    assert result.code == 1
    assert "M=64      2  equal  pass" in result.out
    assert "M=32      2  -      FAIL" in result.out
    assert result.out.count("out-of-bounds access") == 1
    where = "first M=32 under late"
    assert re.search(wording("cli.explore-first-met", runs=2, all_runs=4, where=where) + "\n", result.out)
    (command,) = repeats(result.out)
    assert command[-3:] == ["f32[?64]", "f32[?32]:nan", "true"]
    assert gdnbench(*command).code == 1


def test_a_function_that_launches_by_itself(gdnbench: Invoke, kernels: Path) -> None:
    """What its launches can reach is compared; random inputs are those of a seed."""
    assert gdnbench("sim", f"{kernels}:launches", "true", "--explore", "4").code == 0
    result = gdnbench("sim", f"{kernels}:launches", "false", "--explore", "20")
    assert result.code == 1
    other = wording("sim.other-bits", tensor="y", schedule=re.compile("random:.*"))
    assert re.search(f"as given: {other}", result.out)


@pytest.mark.parametrize(("barrier", "code"), [("true", 130), ("false", 1)])
def test_an_interruption_keeps_what_was_found(
    gdnbench: Invoke, kernels: Path, barrier: str, code: int
) -> None:
    result = gdnbench("sim", f"{kernels}:interrupted", barrier, "--explore", "9", "--check")
    assert result.code == code
    assert "as given     2  equal  " in result.out
    assert "2 runs, interrupted, equal bits, " in result.out
    assert ("error in launch 0: race" in result.out) == (barrier == "false")
    assert bool(re.search(wording("cli.interrupted"), result.err)) == (code == 130)


def test_an_interruption_before_anything_ran_says_nothing_of_it(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:interrupted_at_once", "--explore", "9", "--check")
    assert result.code == 130
    assert "0 runs, interrupted" in result.out
    assert "pass" not in result.out
    assert "no error" not in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--vary", "N=1"), wording("cli.vary-without-explore")),
        (("--explore", "2", "--vary", "N=1"), wording("cli.vary-unused", written="N")),
        (("--explore", "2", "--vary", "N"), wording("cli.vary-wrong")),
        (("--explore", "2", "--schedule", "early"), wording("cli.runs-many-times", replace="schedule")),
        (("--explore", "2", "--save", "out"), wording("cli.runs-many-times", replace="save")),
    ],
)
def test_refusals_of_sim(gdnbench: Invoke, kernels: Path, options: tuple[str, ...], message: str) -> None:
    result = gdnbench("sim", f"{kernels}:right", *options)
    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err)


def explored(gdnbench: Invoke, store: Path, kernel: str, *options: object) -> Any:
    return gdnbench("explore", store, "--kernel", kernel, *options)


def replayed(gdnbench: Invoke, store: Path, kernel: str, *options: object) -> Any:
    return gdnbench("replay", store, "--kernel", kernel, "--on", "sim", *options)


def test_records_and_smaller_calls(gdnbench: Invoke, kernels: Path, decodes: Path) -> None:
    result = explored(gdnbench, decodes, f"{kernels}:decode", "--schedules", "3", "--shapes", "2", "--check")
    assert (result.code, result.err) == (0, "")
    shapes = [line.rsplit(maxsplit=3) for line in result.out.splitlines()[2:-1]]
    assert [row[1:] for row in shapes] == [["3", "equal", "pass"]] * 6
    names = [row[0].partition(":")[0].rstrip() for row in shapes]
    seeds = [name.rpartition(" ")[2] for name in names[1:3]]
    made = [f"record {number}, shape {seed}" for number in (0, 1) for seed in seeds]
    assert names == ["record 0", *made[:2], "record 1", *made[2:]]
    assert re.fullmatch(f"18 runs, equal bits, {NO_ERROR}", result.out.splitlines()[-1])


@pytest.mark.slow  # the test below has a function's
def test_a_record_whose_bits_depend_on_the_schedule(gdnbench: Invoke, kernels: Path, decodes: Path) -> None:
    asked = (decodes, f"{kernels}:racy_decode", "--schedules", "20", "--shapes", "1", "--check", "--json")
    data = json.loads(explored(gdnbench, *asked).out)
    assert not data["ok"]
    assert len(data["shapes"]) == 4
    assert all(shape["difference"]["tensor"] == "o" for shape in data["shapes"])
    assert not any(shape["failed"] or shape["difference"]["unsteady"] for shape in data["shapes"])
    (race, *_) = (one for one in data["findings"] if one["kind"] == "race")
    assert len(race["shapes"]) == 4
    command = shlex.split(data["shapes"][1]["difference"]["command"])
    assert command[-2:] == ["--shape", re.findall(r"shape (\d+)", data["shapes"][1]["shape"])[0]]
    result = gdnbench(*command[1:])
    assert result.code == 1
    assert "check error: record 0 " in result.out


def test_numbers_are_judged_once_for_each_shape(gdnbench: Invoke, kernels: Path, decodes: Path) -> None:
    result = explored(gdnbench, decodes, f"{kernels}:wrong_decode", "--schedules", "2", "--shapes", "0")
    assert result.code == 1
    assert "record 0     2  equal  FAIL" in result.out
    assert result.out.count("under late: numeric mismatch: o: ") == 2
    assert len(repeats(result.out)) == 2
    assert gdnbench(*repeats(result.out)[1]).code == 1


def test_a_run_is_repeated_by_its_schedule(gdnbench: Invoke, kernels: Path, decodes: Path) -> None:
    result = replayed(gdnbench, decodes, f"{kernels}:decode", "--schedule", "random:5", "--op", "gdn_decode")
    assert result.code == 0
    assert "2 records: 2 pass" in result.out


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--on", "sim", "--explore", "2"),
            wording("cli.moved", option="--explore", instead="gdnbench explore STORE --schedules N"),
        ),
        (
            ("--explore=2",),
            wording("cli.moved", option="--explore", instead="gdnbench explore STORE --schedules N"),
        ),
        (("--on", "cpu", "--schedule", "late"), wording("cli.schedule-needs-sim", on="cpu")),
        (
            ("--on", "sim", "--shapes", "2"),
            wording("cli.moved", option="--shapes", instead="gdnbench explore STORE --shapes N"),
        ),
        (
            ("--on", "sim", "--trace", "t.zarr"),
            wording("cli.moved", option="--trace", instead="gdnbench trace STORE OUT"),
        ),
        (
            ("--of", "cta=1"),
            wording("cli.moved", option="--of", instead="gdnbench trace STORE OUT --select CONDITIONS"),
        ),
        (
            ("--trace-limit", "9"),
            wording("cli.moved", option="--trace-limit", instead="gdnbench trace STORE OUT --limit MIB"),
        ),
        (("--on", "sim", "--shape", "2"), wording("cli.shape-one-record", chosen=2)),
        (("--on", "sim", "--schedule", "nosuch"), "nosuch"),
        (("--on", "sim", "--schedule", "late", "--isolate"), wording("cli.schedule-in-process")),
    ],
)
def test_refusals_of_replay(
    gdnbench: Invoke, kernels: Path, decodes: Path, options: tuple[str, ...], message: str
) -> None:
    result = gdnbench("replay", decodes, "--kernel", f"{kernels}:decode", *options)
    assert (result.code, result.out) == (2, "")
    assert re.search(message, result.err)
