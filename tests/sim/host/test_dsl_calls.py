# SPDX-License-Identifier: Apache-2.0
"""Every way to call a CuTe DSL function inside `sim.active()` is simulated, also functions with host code
alone."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench import sim
from gdnbench.sim.virtual import virtual_gpu
from tests.messages import wording
from tests.sim.host import host_kernels


def vector() -> Tensor:
    return torch.arange(32.0)


@functools.cache
def increment() -> Any:
    example = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,), assumed_align=4)
    return sim.compile(host_kernels.add_one, example, [])


def test_a_called_jit_function_is_simulated() -> None:
    data, traced = vector(), []
    with sim.active() as session:
        host_kernels.add_one(from_dlpack(data), traced)
    assert torch.equal(data, vector() + 1)
    assert [len(report.launches) for report in session.reports] == [1]
    assert len(traced) == 1


def test_a_type_is_no_argument_of_the_host_code() -> None:
    """As in CUTLASS's `call_from_jit.py`."""
    data = vector()
    with sim.active():
        for kind in (cutlass.Float16, cutlass.Int64, cutlass.Float16):
            host_kernels.fill_with_width(from_dlpack(data), kind)
            assert torch.equal(data, torch.full((32,), float(kind.width)))


def test_a_stream_with_a_default() -> None:
    """As in CUTLASS's `sgemm.py`; the DSL cannot copy a stream."""
    data = vector()
    with sim.active():
        host_kernels.increment_on(from_dlpack(data))
    assert torch.equal(data, vector() + 1)


def test_a_function_is_compiled_for_tensors_on_cuda_as_a_gpu_has_them() -> None:
    """A `generic` pointer would compile to other PTX, or, in a TMA copy, not at all."""
    seen = []
    with sim.active(sim.Settings(before=lambda module, request, memory: seen.append(request.ptx))):
        tensor = from_dlpack(vector())
        host_kernels.add_one(tensor, [])
    (ptx,) = seen
    assert "ld.global" in ptx
    assert tensor.memspace == cute.AddressSpace.generic


def test_calls_of_one_type_compile_once_and_see_their_own_tensors() -> None:
    first, second = vector(), vector() * 2
    with sim.active() as session:
        for data in (first, second, second):
            host_kernels.add_one(from_dlpack(data), [])
    assert torch.equal(first, vector() + 1)
    assert torch.equal(second, vector() * 2 + 2)
    assert len({id(report) for report in session.reports}) == 3


def test_a_call_that_the_dsl_cached_outside_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the cache in memory nor that on disk has the PTX."""
    from cutlass.base_dsl.jit_executor import JitCompiledFunction
    from cutlass.cutlass_dsl import CuTeDSL

    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path))
    dsl = CuTeDSL._get_dsl()
    monkeypatch.setattr(dsl.envar, "disable_file_caching", False)
    monkeypatch.setattr(dsl.envar, "arch", "sm_100a")
    data = vector()
    with pytest.MonkeyPatch.context() as patch:  # a GPU that does nothing
        patch.setattr(JitCompiledFunction, "run_compiled_program", lambda *_: None)
        host_kernels.add_one(from_dlpack(data), [])
    cache, stored = dsl.jit_cache, set(tmp_path.iterdir())
    assert stored
    assert torch.equal(data, vector())
    with sim.active():
        host_kernels.add_one(from_dlpack(data), [])
    assert torch.equal(data, vector() + 1)
    assert dsl.jit_cache is cache
    assert not dsl.envar.disable_file_caching
    assert set(tmp_path.iterdir()) == stored


@pytest.mark.parametrize("device", [None, 0])
def test_an_executor_is_simulated(device: int | None) -> None:
    data = vector()
    with sim.active() as session:
        executor = increment().to(device)
        executor(data)
    assert torch.equal(data, vector() + 1)
    executor(data)  # it has no other way to run
    assert torch.equal(data, vector() + 2)
    assert len(session.reports) == 2


def test_packed_arguments_are_run() -> None:
    """How the DSL's guide calls a function without converting its arguments each time."""
    data = vector()
    with sim.active():
        packed, _ = increment().generate_execution_args(data)
        increment().run_compiled_program(packed)
        increment().to().run_compiled_program(packed)
        with pytest.raises(sim.LaunchError, match=wording("sim.host.not-packed")):
            increment().run_compiled_program([data.data_ptr()])
    assert torch.equal(data, vector() + 2)


def test_an_executor_of_before_is_refused() -> None:
    from cutlass.base_dsl.jit_executor import JitExecutor

    executor = JitExecutor.__new__(JitExecutor)  # making one needs a GPU
    with sim.active(), pytest.raises(sim.LaunchError, match=wording("sim.host.executor-of-before")):
        executor()


def test_a_kernel_of_an_object_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.o"
    path.write_bytes(increment().dump_to_object("increment"))
    with sim.active(), pytest.raises(sim.SimError, match=wording("sim.host.object-file", name="increment")):
        cute.runtime.load_module(str(path))["increment"]
    loaded = cute.runtime.load_module(str(path))["increment"]
    with pytest.raises(sim.SimError, match=wording("sim.host.object-file", name=loaded.function_name)):
        sim.launch(loaded, vector())


def test_the_variable_that_switches_a_package_s_cache_off_is_named(tmp_path: Path) -> None:
    """quack.cache reads QUACK_CACHE_ENABLED; a program of one's own has no such variable."""
    path = tmp_path / "kernel.o"
    path.write_bytes(increment().dump_to_object("increment"))

    def loads(name: str) -> Any:
        module: dict[str, Any] = {"__name__": name, "runtime": cute.runtime}
        exec("def load(path): return runtime.load_module(path)['increment']", module)
        return module["load"]

    advice = {
        "quack.cache.jit": wording(
            "sim.host.cache-switch", name="QUACK_CACHE_ENABLED", value="0", package="quack"
        ),
        "their_engine": wording("sim.host.cache-unknown"),
    }
    for name, said in advice.items():
        with sim.active(), pytest.raises(sim.ExportError, match=wording("sim.host.object-file") + said):
            loads(name)(str(path))


def test_caches_are_off_on_a_virtual_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has set a variable."""
    monkeypatch.setenv("QUACK_CACHE_ENABLED", "1")
    monkeypatch.delenv("FLASHINFER_CUTE_DSL_DISABLE_CACHE", raising=False)
    with virtual_gpu():
        assert os.environ["FLASHINFER_CUTE_DSL_DISABLE_CACHE"] == "1"
        assert os.environ["QUACK_CACHE_ENABLED"] == "1"
    assert "FLASHINFER_CUTE_DSL_DISABLE_CACHE" not in os.environ


def test_a_thread_of_the_program_belongs_to_the_block() -> None:
    data = vector()
    with sim.active(sim.Settings(engine="interpreter")) as session:
        thread = threading.Thread(target=increment(), args=(data,))
        thread.start()
        thread.join()
    assert torch.equal(data, vector() + 1)
    assert [report.engine for report in session.reports] == ["interpreter"]


def test_the_dsl_is_as_before_after_the_block() -> None:
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
    from cutlass.base_dsl.jit_executor import JitCompiledFunction, JitExecutor
    from cutlass.cute.runtime import _Tensor
    from cutlass.utils import HardwareInfo

    owners = (BaseDSL, ExternalBinaryModule, JitCompiledFunction, JitExecutor, _Tensor, HardwareInfo, Tensor)
    before = [dict(vars(owner)) for owner in owners]
    with sim.active(), sim.active():
        assert [dict(vars(owner)) for owner in owners] != before
    assert [dict(vars(owner)) for owner in owners] == before


def test_host_code_alone_runs(capfd: pytest.CaptureFixture[str]) -> None:
    with sim.active() as session:
        host_kernels.print_number(5)
        compiled = cute.compile(host_kernels.print_number, cutlass.Int32(1))
        compiled(7)
    torch.zeros(1)
    import ctypes

    ctypes.CDLL(None).fflush(None)
    assert [line for line in capfd.readouterr().out.split("\n") if line] == [
        "host code has 5",
        "host code has 7",
    ]
    assert [report.launches for report in session.reports] == [(), ()]


@pytest.mark.parametrize("machine", [None, "h100"])
def test_host_code_alone_has_its_tensors_on_the_cpu(
    machine: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """The compiler refuses to print a tensor on CUDA from host code. Any machine has such functions."""
    data = vector()
    with sim.active(machine=machine):
        host_kernels.fill_on_host(from_dlpack(data))
    assert data[0] == 3
    import ctypes

    ctypes.CDLL(None).fflush(None)
    assert "3.000000" in capfd.readouterr().out


@pytest.mark.parametrize("options", [{}, {"options": "--enable-tvm-ffi"}])
def test_host_code_alone_by_launch(options: dict[str, str]) -> None:
    if options:
        pytest.importorskip("tvm_ffi")
    compiled = sim.compile(host_kernels.print_number, cutlass.Int32(1), **options)
    report = sim.launch(compiled, 3)
    assert report.ok
    assert report.launches == ()


def test_streams_are_left_out_of_a_called_function() -> None:
    import cuda.bindings.driver as driver

    rows = torch.arange(70 * 8.0).view(70, 8)
    out = torch.zeros(70, 8)
    with sim.active():
        tensors = [from_dlpack(tensor).mark_layout_dynamic(1) for tensor in (rows, out)]
        host_kernels.scale(*tensors, cutlass.Float32(0.5), cutlass.Int32(70), driver.CUstream(0))
    assert torch.equal(out[:, 0], rows[:, 0] * 0.5)


def test_a_stream_by_position_of_a_compiled_function() -> None:
    data = vector()
    example = make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4)
    compiled = sim.compile(host_kernels.uses_shared, example, make_fake_stream())
    with sim.active():
        compiled.to()(data, 0)
    assert torch.equal(data, vector().flip(0))
