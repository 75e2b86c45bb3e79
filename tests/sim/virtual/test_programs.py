# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim -- python program.py`: unmodified programs, what is printed, and the exit status."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gdnbench.cli.main import console_main
from gdnbench.sim.virtual.launch_log import read_log
from gdnbench.trace.reader import open_trace
from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

Run = Callable[..., "subprocess.CompletedProcess[str]"]  # the fixture `run`

Ended = Callable[..., tuple[object, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ended:
    """The exit status and stderr of a command in this process, whose programs are processes of their own."""

    def command(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["gdnbench", *arguments])
        with pytest.raises(SystemExit) as left:
            console_main()
        return left.value.code, capfd.readouterr().err

    return command


# Scales a vector by 2; with the argument "wrong" by 3, and with "far" it writes beyond the vector.
SCALE = """
import sys
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack
from cutlass.utils import HardwareInfo

FACTOR = 3.0 if "wrong" in sys.argv else 2.0
BEYOND = 200 if "far" in sys.argv else 0

@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 128 + thread
    if i < x.shape[0]:
        y[i + BEYOND] = x[i] * FACTOR

@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor):
    scale_kernel(x, y).launch(grid=[cute.ceil_div(x.shape[0], 128), 1, 1], block=[128, 1, 1])

assert torch.cuda.is_available()
assert HardwareInfo().get_device_multiprocessor_count() == int(sys.argv[1])
x = torch.randn(300, device="cuda")
y = torch.empty_like(x)
compiled = cute.compile(scale, from_dlpack(x), from_dlpack(y))
compiled(from_dlpack(x), from_dlpack(y))  # the launch
torch.cuda.synchronize()
torch.testing.assert_close(y, 2 * x)
print("the program's own line")
"""


@pytest.mark.slow
def test_a_right_kernel_passes(run: Run) -> None:
    ran = run(SCALE, "7", options=("--sms", "7", "--json"))
    assert ran.returncode == 0, ran.stderr
    first, _, rest = ran.stdout.partition("\n")
    assert first == "the program's own line"
    result = json.loads(rest)
    assert result["ok"]
    (launch,) = result["launches"]
    assert launch["grid"] == [3, 1, 1]
    assert launch["finished"]
    line = 1 + SCALE.split("\n").index("compiled(from_dlpack(x), from_dlpack(y))  # the launch")
    assert launch["origin"].endswith(f"program.py:{line} in <module>")


@pytest.mark.slow
def test_a_wrong_kernel_fails_by_the_programs_own_check(run: Run) -> None:
    ran = run(SCALE, "148", "wrong")
    assert ran.returncode == 1
    assert "Tensor-likes are not close" in ran.stderr
    assert ran.stderr.endswith("gdnbench: the program ended with status 1\n")
    header, row = ran.stdout.splitlines()
    assert header.split()[:3] == ["kernel", "launches", "grid"]
    assert row.split()[1:3] == ["1", "3x1x1"]


@pytest.mark.slow
def test_a_fault_names_the_lines_of_launch_and_kernel(run: Run) -> None:
    ran = run(SCALE, "148", "far")
    assert ran.returncode == 1
    assert "out-of-bounds access" in ran.stdout
    lines = SCALE.split("\n")
    launch = 1 + lines.index("compiled(from_dlpack(x), from_dlpack(y))  # the launch")
    kernel = 1 + lines.index("        y[i + BEYOND] = x[i] * FACTOR")
    assert f"program.py:{launch} in <module>" in ran.stdout
    assert f"program.py:{kernel}" in ran.stdout


AUTOGRAD = """
import threading
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        threads.add(threading.get_ident())
        assert torch.empty(2, device="cuda").is_cuda
        return 2 * ctx.saved_tensors[0] * gradient

threads = set()
x = torch.randn(5, device="cuda", requires_grad=True)
Square.apply(x).sum().backward()
torch.testing.assert_close(x.grad, 2 * x.detach())
assert threads != {threading.get_ident()}  # of the device's own thread, as on a GPU

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
twin = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
twin.load_state_dict(model.state_dict())
model.cuda()
inputs = torch.randn(4, 8)
for each, given in ((model, inputs.cuda()), (twin, inputs)):
    optimizer = torch.optim.AdamW(each.parameters(), lr=0.1)
    for _ in range(3):
        each(given).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
for one, other in zip(model.parameters(), twin.parameters(), strict=True):
    torch.testing.assert_close(one.cpu(), other)
"""


@pytest.mark.slow  # a program that compiles Triton kernels
def test_backward_passes_run_on_the_devices_thread(run: Run) -> None:
    ran = run(AUTOGRAD)
    assert ran.returncode == 0, ran.stderr
    assert re.search(wording("sim.virtual.nothing-launched"), ran.stderr)


REFUSED = """
import subprocess, sys
if len(sys.argv) > 1:
    import torch
    assert torch.cuda.is_available()
    try:
        torch.distributed.init_process_group("nccl")
    except RuntimeError:
        pass
else:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


@pytest.mark.slow  # starts several programs
def test_child_processes_have_a_gpu_and_refusals_are_told(run: Run) -> None:
    ran = run(REFUSED)
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout.startswith("refused: not simulated: NCCL")


def test_a_program_keeps_its_own_exit_status(
    ended: Ended, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    status, err = ended("sim", "--", sys.executable, "-c", "import sys; sys.exit(7)")
    assert status == 7
    assert "gdnbench: the program ended with status 7" in err
    assert re.search(wording("sim.virtual.no-process"), err)  # it imports nothing


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--machine", "a100"), wording("sim.virtual.machine-unknown", name="a100")),
        (("--save", "out"), wording("sim.virtual.function-alone", option="--save")),
        (("--launch", "3"), wording("sim.virtual.launch-alone")),
        (("--vary", "sms=1"), wording("sim.virtual.vary-alone")),
        (("--explore", "2", "--vary", "engine=never"), "engine 'never'"),
        (("--explore", "2", "--vary", "M=1"), wording("sim.virtual.vary", text="M=1")),
        (("--explore", "2", "--vary", f"sms={10**7}"), wording("sim.virtual.vary", text=f"sms={10**7}")),
        (("--engine", "never"), "engine 'never'"),
        (("--explore", "2", "--trace", "t.zarr"), "it does not go with --trace"),
    ],
)
def test_bad_options_are_refused_before_the_program_runs(
    ended: Ended, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    program, ran = tmp_path / "program.py", tmp_path / "ran"
    program.write_text(f"open({str(ran)!r}, 'w')", encoding="utf-8")
    status, err = ended("sim", *options, "--", sys.executable, str(program))
    assert status == 2
    assert re.search(sentence, err)
    assert not ran.exists()


def test_launches_are_chosen_of_programs_alone(ended: Ended) -> None:
    status, err = ended("sim", "--launch", "2", "file.py:function")
    assert status == 2
    assert re.search(wording("sim.virtual.launch-of-program"), err)


EARLY = """
import torch
from gdnbench.sim.virtual import virtual_gpu

torch.ones(2, requires_grad=True).sum().backward()
with virtual_gpu():
    torch.ones(2, requires_grad=True, device="cuda").sum().backward()
"""


@pytest.mark.slow
def test_a_gpu_after_the_first_backward_pass_has_none(tmp_path: Path, environment: Mapping[str, str]) -> None:
    program = tmp_path / "early.py"
    program.write_text(EARLY, encoding="utf-8")
    command = [sys.executable, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert re.search(wording("sim.virtual.early-backward"), ran.stderr)


# Copies a word through shared memory without waiting for the copy: whether it is there depends on the
# schedule. With one SM the program ends with 3.
UNWAITED = """
import ctypes, sys
import numpy as np
from cuda.bindings import driver

PTX = b'''
.version 8.8
.target sm_100a
.address_size 64
.file 1 "kernel.py"
.visible .entry unwaited(.param .u64 x)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<5>;
  .shared .align 16 .b8 tile[16];
  ld.param.u64 %rd1, [x];
  mov.u32 %r1, tile;
  cp.async.ca.shared.global [%r1], [%rd1], 4;
  ld.shared.u32 %r2, [%r1];
  .loc 1 17 0
  st.global.u32 [%rd1+8], %r2;
  ret;
}
'''
driver.cuInit(0)
_, module = driver.cuModuleLoadData(PTX)
_, kernel = driver.cuModuleGetFunction(module, b"unwaited")
_, x = driver.cuMemAlloc(16)
words = np.array([5, 6, 7, 8], np.uint32)
driver.cuMemcpyHtoD(x, words.ctypes.data, 16)
for step in range(2):
    driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((x,), (ctypes.c_void_p,)), 0)  # the launch
_, sms = driver.cuDeviceGetAttribute(driver.CUdevice_attribute(16), driver.CUdevice(0))
print("SMs", sms)
sys.exit(3 if sms == 1 else 0)
"""
LAUNCHED_AT = 1 + next(n for n, line in enumerate(UNWAITED.split("\n")) if "# the launch" in line)


@pytest.mark.slow  # test_explore_launches.py has its parts
def test_a_program_is_explored_and_run_again_with_other_sms(run: Run, tmp_path: Path) -> None:
    options = ("--sms", "4", "--explore", "2", "--launch", "1", "--vary", "sms=1,4")
    ran = run(UNWAITED, options=options)
    assert ran.returncode == 1, ran.stderr
    first, *lines = ran.stdout.splitlines()
    assert first == "SMs 4"  # of the first run alone
    place = f"{tmp_path}/program.py:{LAUNCHED_AT} in <module>"
    what = "depends on the schedule"
    depends = wording("sim.virtual.depends", number=1, kernel="unwaited", origin=place, often="", what=what)
    at = next(number for number, line in enumerate(lines) if re.search(depends, line))
    assert re.search("byte 8 is 0x.. under late and 0x05 under early; 4 bytes differ", lines[at + 1])
    assert re.search(r"written at kernel.py:17 \(PTX line \d+\)", lines[at + 2])
    assert "--sms 4 --schedule early --launch 1 -- " in lines[at + 3]
    told = wording("sim.virtual.explored", count=1, plural="", schedules="late, early")
    assert any(re.search(told, line) for line in lines)
    ended = "with 1 SM: " + wording("sim.virtual.other-status", status=3, first=0)
    assert any(re.fullmatch(ended, line) for line in lines)
    assert any(line.split()[:3] == ["1", "3", "2"] for line in lines)  # SMs, status, launches


@pytest.mark.slow  # CuTe DSL compiles
def test_an_element_of_a_cute_tensor_is_named(run: Run) -> None:
    """Warps read what others write to shared memory, without a barrier: some schedules run the reader first.
    Memory that nothing wrote holds NaN."""
    racing = """        smem = cutlass.utils.SmemAllocator()
        tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout(128), 16)
        tile[thread] = x[i] * FACTOR
        y[i] = tile[127 - thread]  # the race"""
    text = SCALE.replace("        y[i + BEYOND] = x[i] * FACTOR", racing)
    text = text.replace(
        "import cutlass.cute as cute", "import cutlass, cutlass.utils\nimport cutlass.cute as cute"
    )
    text = text.replace("torch.testing.assert_close(y, 2 * x)\n", "")
    ran = run(text, "7", options=("--sms", "7", "--explore", "6"))
    assert ran.returncode == 1, ran.stderr
    line = next(number for number, one in enumerate(text.split("\n"), 1) if "# the race" in one)
    assert re.search(r"y: element \[\d+\] is \S+ under late and \S+ under", ran.stdout)
    assert re.search(rf"written at \S+program.py:{line} \(PTX line \d+\)", ran.stdout)


@pytest.mark.slow  # a program
def test_a_choice_that_no_launch_fits_is_bad_input(run: Run) -> None:
    ran = run(UNWAITED, options=("--check", "--launch", "unweighted"))
    assert ran.returncode == 2
    assert re.search(wording("sim.virtual.launch-unmatched", text="unweighted"), ran.stderr)


@pytest.mark.slow  # a program
def test_an_exploration_as_json(run: Run) -> None:
    ran = run(UNWAITED, options=("--explore", "2", "--vary", "engine=interpreter", "--json"))
    assert ran.returncode == 1
    found = json.loads(ran.stdout.partition("\n")[2])
    assert [one["number"] for one in found["launches"]] == [0, 1]
    assert [one["depends"] for one in found["explored"]] == [True, True]
    assert found["explored"][0]["schedules"] == ["late", "early", "interpreter late", "interpreter early"]
    assert found["explored"][0]["difference"]["lines"][0].startswith("kernel.py:17")


# Launches with a log that can hold a few bytes more, as on a full disk.
FULL = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
{UNWAITED}"""


@pytest.mark.slow  # starts three programs
def test_a_program_outlives_a_full_disk(run: Run) -> None:
    ran = run(FULL)
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout.splitlines()[0] == "SMs 148"
    assert re.search(wording("sim.virtual.incomplete"), ran.stdout)


def test_a_log_that_is_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "12.jsonl").write_text('{"gpu": "b200"}\n{"report": {"ori')
    log = read_log(tmp_path)
    assert log.gpus == 1
    (text,) = log.incomplete
    assert re.fullmatch(wording("sim.virtual.incomplete", process=12), text)


@pytest.mark.slow
def test_an_interrupt_of_the_command_alone_ends_the_program(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "gdnbench", "sim", "--", sys.executable, "-c"]
    command.append("import time; print('ready', flush=True); time.sleep(60)")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "TMPDIR": str(folder)},
        start_new_session=True,
    ) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == "ready\n"
        ran.send_signal(signal.SIGINT)
        _, errors = ran.communicate(timeout=30)
    assert ran.returncode == 130
    assert "gdnbench: the program ended with status 130\n" in errors
    assert not list(folder.iterdir())


@pytest.mark.slow  # tests/trace/test_program_trace.py has its parts
def test_a_program_is_traced(run: Run, tmp_path: Path) -> None:
    ran = run(UNWAITED, options=("--schedule", "early", "--launch", "1", "--trace", "t.zarr"))
    assert ran.returncode == 0, ran.stderr
    assert re.search("events of 1 launch in t.zarr", ran.stderr)
    with open_trace(tmp_path / "t.zarr") as trace:
        (launch,) = trace.launches
        assert (launch.entry, launch.end) == ("unwaited", "complete")
        assert launch.attributes["launch"] == 1
        assert launch.attributes["origin"].endswith(f"program.py:{LAUNCHED_AT} in <module>")
        (store,) = [one.pc for one in launch.instructions if one.name.startswith("st.global")]
        (event,) = [event for event in launch.read() if event.pc == store]
        assert event.values[0][0] == 5  # of x[0]: early, the copy has landed
