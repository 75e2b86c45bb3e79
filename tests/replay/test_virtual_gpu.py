# SPDX-License-Identifier: Apache-2.0
"""`--on sim` of kernels that take tensors on CUDA: they get those of a virtual GPU."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.record import RecordDraft
from gdnbench.replay.execute import Execution
from gdnbench.replay.failure import Failure
from gdnbench.replay.kernel_packages import kernel_packages
from gdnbench.replay.kernels import of_function
from gdnbench.replay.replay import replay, replay_options
from gdnbench.replay.run import InProcess
from gdnbench.replay.simulated import on_virtual_gpu, replay_gpu, requested_gpu
from gdnbench.report.outcome import Outcome
from gdnbench.sim import LaunchError, current_session, launch
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse
from gdnbench.sim.virtual import current_gpu
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Kernel
from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gpu import multiprocessors
from tests.messages import wording

# Copies 2-byte elements: one thread each, as many as the grid has.
COPY = """
.version 8.7
.target sm_90
.address_size 64
.visible .entry copy(.param .u64 source, .param .u64 target)
{
    .reg .b16 %h;
    .reg .b32 %r<4>;
    .reg .b64 %d<5>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    shl.b32 %r1, %r1, 5;
    add.s32 %r1, %r1, %r2;
    mul.wide.u32 %d4, %r1, 2;
    ld.param.u64 %d1, [source];
    ld.param.u64 %d2, [target];
    add.s64 %d1, %d1, %d4;
    add.s64 %d2, %d2, %d4;
    ld.global.b16 %h, [%d1];
    st.global.b16 [%d2], %h;
    ret;
}
"""


# Three tiles, a CTA each, of a loop that advances by the grid.
PERSISTENT = '''
import torch
from gdnbench import sim
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import parse

SMS = sim.current_session().multiprocessors("sm_100a")
TEXT = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .b32 %r<3>;
    .reg .pred %p;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
L:
    add.s32 %r1, %r1, %r2;
    setp.lt.s32 %p, %r1, 3;
    @%p bra L;
    ret;
}
"""


def kernel(o):
    sim.launch(PtxKernel(parse(TEXT), "k", (min(SMS, 3), 1, 1), (32, 1, 1)))
    o.zero_()
'''


@pytest.fixture
def decode(store_of: Callable[[list[RecordDraft]], Store], made: Callable[..., list[RecordDraft]]) -> Store:
    return store_of(made("gdn_decode", 1))


def computed(tensors: dict[str, Any]) -> Tensor:
    """The output of torch's kernel, which also updates the state in place."""
    module, _, name = OPERATION.kernels["torch"].target.partition(":")
    function = getattr(importlib.import_module(module), name)
    taken = inspect.signature(function).parameters
    o: Tensor = function(**{name: value for name, value in tensors.items() if name in taken})["o"]
    return o


def copy(source: Tensor, target: Tensor, count: int) -> None:
    gpu = current_gpu()
    assert gpu is not None
    addresses = [tensor.data_ptr().to_bytes(8, "little") for tensor in (source, target)]
    gpu.launch(gpu.load_module(COPY), "copy", (count // 32, 1, 1), (32, 1, 1), addresses)


def fills_its_output(**tensors: Any) -> None:
    assert all(value.is_cuda for value in tensors.values() if isinstance(value, Tensor))
    copy(computed(tensors), tensors["o"], tensors["o"].numel())


def returns_its_output(**tensors: Any) -> dict[str, Tensor]:
    o = computed(tensors)
    made = torch.empty_like(o)
    copy(o, made, o.numel())
    return {"o": made}


def reads_past_the_end(**tensors: Any) -> None:
    o = computed(tensors)
    copy(o, torch.empty(o.numel() + 32, dtype=o.dtype, device="cuda"), o.numel() + 32)


def run(function: Kernel, store: Store) -> Execution | Failure:
    runner = InProcess(of_function(on_virtual_gpu(function), "mine"), "sim")
    return runner.run_record(store.records[0], OPERATION)


@pytest.mark.parametrize("function", [fills_its_output, returns_its_output])
def test_its_tensors_are_on_cuda(function: Kernel, decode: Store) -> None:
    """They are those of the record, which the kernel writes in place: the numbers are torch's on the CPU, and
    slots that no sequence has keep their bits."""
    found = run(function, decode)
    assert isinstance(found, Execution), found.reason
    assert found.faults == ()
    assert any(note.startswith("simulated: 1 launch, ") for note in found.notes)
    plain = InProcess("torch", "cpu").run_record(decode.records[0], OPERATION)
    assert isinstance(plain, Execution)
    assert found.outputs.keys() == plain.outputs.keys()
    for name, tensor in plain.outputs.items():
        assert found.outputs[name].device.type == "cpu"
        assert torch.equal(found.outputs[name].nan_to_num(), tensor.nan_to_num()), name


def test_a_fault_of_the_kernel_is_a_crash(decode: Store) -> None:
    found = run(reads_past_the_end, decode)
    assert isinstance(found, Failure)
    assert found.outcome is Outcome.CRASH
    assert "out-of-bounds access: 2 bytes" in found.reason


def test_on_another_device_nothing_changes(decode: Store) -> None:
    """And the wrapper has the function's signature, by which replay passes arguments."""
    given: list[Any] = []

    def kernel(q: Tensor, o: Tensor) -> None:
        given.extend([q.device.type, current_gpu()])

    wrapped = on_virtual_gpu(kernel)
    assert inspect.signature(wrapped) == inspect.signature(kernel)
    found = InProcess(of_function(wrapped, "mine"), "cpu").run_record(decode.records[0], OPERATION)
    assert isinstance(found, Execution)
    assert given == ["cpu", None]


def test_the_gpu_that_is_asked_for(decode: Store) -> None:
    """A user's function says by an attribute that it takes tensors on CUDA."""
    seen: list[Any] = []

    def kernel(**tensors: Any) -> None:
        gpu = current_gpu()
        assert gpu is not None
        seen.append((gpu.machine.name, gpu.device.multiprocessors))
        fills_its_output(**tensors)

    kernel.cuda_tensors = True  # type: ignore[attr-defined]
    runner = InProcess(of_function(kernel, "mine"), "sim")
    for machine, sms in (("h100", 4), (None, 3), ("b200", None)):
        with replay_gpu(machine, sms):
            assert isinstance(runner.run_record(decode.records[0], OPERATION), Execution)
    assert seen == [("h100", 4), ("b200", 3), ("b200", 148)]
    assert requested_gpu() == (None, None)


def test_the_gpu_of_a_kernel_that_takes_cpu_tensors(decode: Store) -> None:
    """It is that of the compilers, of host code and of this package's kernels; the notes name it."""
    seen: list[Any] = []

    def kernel(o: Tensor) -> None:
        session = current_session()
        assert session is not None
        seen.append((multiprocessors(o.device), session.multiprocessors("sm_90")))
        copy = PtxKernel(parse(COPY), "copy", (o.numel() // 32, 1, 1), (32, 1, 1))
        launch(copy, torch.zeros_like(o), o)

    for machine, sms, wanted in ((None, None, (148, 132)), ("h200", 4, (4, 4)), (None, 3, (3, 3))):
        with replay_gpu(machine, sms):
            found = InProcess(of_function(kernel, "mine"), "sim").run_record(decode.records[0], OPERATION)
        assert isinstance(found, Execution), found.reason
        assert seen.pop() == wanted
        gpu = {None: "", "h200": ", h200, 4 SMs"}[machine] if sms != 3 else ", 3 SMs"
        assert any(note.endswith(f"warp instructions{gpu}") for note in found.notes), found.notes


def test_what_is_asked_while_a_kernel_is_imported_is_known_later(decode: Store, tmp_path: Path) -> None:
    """A persistent kernel may be compiled, for a number of SMs, when its file is imported."""
    file = tmp_path / "compiled_at_import.py"
    file.write_text(PERSISTENT)
    with replay_gpu(sms=148):
        found = InProcess(f"{file}:kernel", "sim", check=True).run_record(decode.records[0], OPERATION)
    assert isinstance(found, Execution), found.reason
    assert any(re.fullmatch(wording("sim.no-second-tile", busy=3, ctas=3, sms=1), one) for one in found.notes)


def test_options_carry_the_gpu_to_workers_on_other_machines() -> None:
    with replay_gpu("h200", 4):
        options = replay_options(kernel="cute", on="sim")
        given = replay_options(kernel="cute", on="sim", sms=2)
    assert (options.machine, options.sms) == ("h200", 4)
    assert (given.machine, given.sms) == ("h200", 2)


@pytest.mark.parametrize("sms", [0, True, "4", 1.5])
def test_a_number_of_sms_that_no_gpu_has(sms: Any) -> None:
    with pytest.raises(LaunchError, match=wording("sim.host.sms-of-machine", sms=sms)), replay_gpu(sms=sms):
        pass


def test_a_gpu_that_no_device_simulates(decode: Store) -> None:
    with pytest.raises(BadInputError, match=wording("replay.gpu-not-simulated-there", sim="sim", on="cpu")):
        replay(decode, kernel="torch", sms=4)


def test_packages_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a_kernel_of_a_folder.py").write_text("VALUE = 7")
    before = [*sys.path], os.environ.get("PYTHONPATH")
    load = functools.partial(importlib.import_module, "a_kernel_of_a_folder")
    with kernel_packages(tmp_path):
        assert load().VALUE == 7
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
    assert ([*sys.path], os.environ.get("PYTHONPATH")) == before
    del sys.modules["a_kernel_of_a_folder"]
    with pytest.raises(ImportError):
        load()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(BadInputError, match=wording("replay.kernel-env", folder=tmp_path / "none")),
        kernel_packages(tmp_path / "none"),
    ):
        pass
