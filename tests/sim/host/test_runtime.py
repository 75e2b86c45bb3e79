# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime that host objects are linked against: what it answers, records and refuses."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
from pathlib import Path

import cutlass
import pytest
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from gdnbench.sim import compiling
from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.host import cutlass_dsl, layouts, loader
from gdnbench.sim.host.device import device_for
from gdnbench.sim.host.elf import Elf, cubin_at
from gdnbench.sim.host.runtime import LaunchConfig, Runtime
from tests.messages import wording
from tests.sim.host import host_kernels


@pytest.fixture(scope="module")
def cubin() -> tuple[bytes, str]:
    """A real cubin with one kernel, which has 640 floats of shared memory, and the kernel's name."""
    settings = cutlass_dsl._settings()
    before, settings.keep_cubin = settings.keep_cubin, True
    try:
        example = make_fake_tensor(cutlass.Float32, (32,), (1,))
        compiled = compiling.compile(host_kernels.uses_shared, example, make_fake_stream())
    finally:
        settings.keep_cubin = before
    (name,) = compiled.kernel_info
    return compiled.artifacts.CUBIN, name


def loaded(cubin: tuple[bytes, str]) -> tuple[Runtime, int]:
    """A runtime with the cubin loaded, and the handle of its kernel."""
    data, name = cubin
    runtime = Runtime("", device_for("sm_100a"), lambda _: [8, 4])
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    code = ctypes.create_string_buffer(data, len(data))
    assert runtime.load_library(ctypes.addressof(library), ctypes.addressof(code)) == 0
    assert runtime.library_kernel(ctypes.addressof(kernel), library.value, name.encode()) == 0
    assert kernel.value
    return runtime, kernel.value


def launch(runtime: Runtime, kernel: int, attributes: bytes = b"", count: int = 0) -> int:
    config = LaunchConfig((2, 3, 4), (32, 2, 1), 5000, None, None, count)
    held = ctypes.create_string_buffer(attributes, max(1, len(attributes)))
    config.attributes = ctypes.addressof(held)
    values = (ctypes.c_uint64(0x1122), ctypes.c_uint32(7))
    slots = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    return runtime.launch(ctypes.addressof(config), kernel, ctypes.addressof(slots))


def attribute(number: int, *values: int) -> bytes:
    """A cudaLaunchAttribute: its number, padding, 64 bytes of value."""
    return struct.pack("<i4x", number) + struct.pack(f"<{len(values)}I", *values).ljust(64, b"\0")


def test_a_launch_is_recorded(cubin: tuple[bytes, str]) -> None:
    runtime, kernel = loaded(cubin)
    assert launch(runtime, kernel) == 0
    (request,) = runtime.launches
    assert request.entry == cubin[1]
    assert (request.grid, request.block, request.cluster) == ((2, 3, 4), (32, 2, 1), None)
    assert request.shared_bytes == 5000
    assert request.params == (struct.pack("<Q", 0x1122), struct.pack("<I", 7))


def test_attributes_of_a_launch(cubin: tuple[bytes, str]) -> None:
    """Numbers of cudaLaunchAttributeID: 2 cooperative, 4 cluster dimension, 6 programmatic serialisation, 11
    preferred cluster dimension."""
    runtime, kernel = loaded(cubin)
    given = attribute(6, 1) + attribute(2, 0) + attribute(4, 2, 1, 1) + attribute(11, 4, 1, 1)
    assert launch(runtime, kernel, given, 4) == 0
    assert runtime.launches[0].cluster == (2, 1, 1)
    assert runtime.launches[0].preferred_cluster == (4, 1, 1)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (2, wording("sim.host.cooperative-launch")),
        (7, wording("sim.host.launch-attribute", number=7)),
        (99, "attribute 99"),
    ],
)
def test_attributes_that_would_change_the_result(cubin: tuple[bytes, str], number: int, message: str) -> None:
    runtime, kernel = loaded(cubin)
    assert launch(runtime, kernel, attribute(number, 1), 1) != 0
    assert isinstance(runtime.error, UnsupportedError)
    assert re.search(message, str(runtime.error))
    assert not runtime.launches


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas, of the CUDA toolkit")
def test_registers_are_what_ptxas_says(cubin: tuple[bytes, str], tmp_path: Path) -> None:
    """`ptxas -v` of the same PTX, and of the cubin that it writes itself."""
    example = make_fake_tensor(cutlass.Float32, (32,), (1,))
    compiled = compiling.compile(host_kernels.uses_shared, example, make_fake_stream())
    source, target = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(compiled.artifacts.PTX)
    command = ["ptxas", "-v", "-arch=sm_100a", str(source), "-o", str(target)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(r"Used (\d+) registers", said.stdout + said.stderr)
    assert match is not None
    assert Elf.parse(target.read_bytes()).registers(cubin[1]) == int(match[1])


def test_registers_of_the_cubin(cubin: tuple[bytes, str]) -> None:
    elf = Elf.parse(cubin[0])
    registers = elf.registers(cubin[1])
    assert registers is not None
    assert 8 <= registers <= 255  # the least that ptxas hands out, and the most that an instruction can name
    assert elf.registers("another") is None
    assert elf.static_shared("another") == 0


def test_static_shared_memory_of_a_kernel(cubin: tuple[bytes, str]) -> None:
    """CuTe DSL keeps its shared memory dynamic; what a kernel has of static memory is the section's size."""
    runtime, kernel = loaded(cubin)
    out = ctypes.c_int32(-1)
    assert runtime.kernel_attribute(ctypes.addressof(out), 1, kernel, 0) == 0
    assert out.value == Elf.parse(cubin[0]).static_shared(cubin[1])
    assert runtime.kernel_attribute(ctypes.addressof(out), 4, kernel, 0) != 0
    assert re.search(wording("sim.host.kernel-attribute", attribute=4), str(runtime.error))


def test_a_fat_binary_is_opened(cubin: tuple[bytes, str]) -> None:
    """Header: magic, version 1, 16 bytes, size; entry: kind 2 (cubin), 0x101, header of 64 bytes, size."""
    data, name = cubin
    entry = struct.pack("<HHIQ", 2, 0x101, 64, len(data)).ljust(64, b"\0") + data
    fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    held = ctypes.create_string_buffer(fat, len(fat))
    assert cubin_at(ctypes.addressof(held)).registers(name) == Elf.parse(data).registers(name)


@pytest.mark.parametrize("code", [b"\0" * 64, struct.pack("<IHHQHHIQ", 0xBA55ED50, 1, 16, 16, 1, 0, 0, 0)])
def test_something_else_than_a_cubin(code: bytes) -> None:
    runtime = Runtime("", device_for("sm_100a"), lambda _: [])
    held, out = ctypes.create_string_buffer(code, len(code)), ctypes.c_void_p()
    assert runtime.load_library(ctypes.addressof(out), ctypes.addressof(held)) != 0
    assert re.search(wording("sim.host.not-cubin"), str(runtime.error))


# cudaDeviceAttr numbers, and the values of NVIDIA's tables of compute capabilities 9.0 and 10.0.
@pytest.mark.parametrize(
    ("target", "number", "value"),
    [
        ("sm_100a", 97, 232448),
        ("sm_90a", 97, 232448),
        ("sm_100a", 75, 10),
        ("sm_90a", 75, 9),
        ("sm_100a", 16, 148),
        ("sm_90a", 16, 132),
        ("sm_100a", 10, 32),
        ("sm_100a", 81, 233472),
    ],
)
def test_device_attributes(target: str, number: int, value: int) -> None:
    runtime = Runtime("", device_for(target), lambda _: [])
    out = ctypes.c_int32()
    assert runtime.device_attribute(ctypes.addressof(out), number, 0) == 0
    assert out.value == value


def test_unknown_questions_are_refused() -> None:
    runtime = Runtime("", device_for("sm_100a"), lambda _: [])
    out = ctypes.c_int32(-1)
    assert runtime.device_attribute(ctypes.addressof(out), 12345, 0) != 0
    assert re.search(wording("sim.host.device-attribute", attribute=12345), str(runtime.error))
    assert out.value == -1
    assert runtime.set_device(1) != 0
    with pytest.raises(UnsupportedError, match="sm_120a"):
        device_for("sm_120a")


def test_a_tvm_ffi_entry_is_given_a_reason() -> None:
    """It fails only once an error is set; the real one is raised afterwards."""
    said: list[tuple[bytes, int]] = []
    kinds = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32)
    set_raised = ctypes.CFUNCTYPE(None, *kinds)(lambda kind, parts, count: said.append((kind, count)))
    address = ctypes.cast(set_raised, ctypes.c_void_p).value or 0
    runtime = Runtime("", device_for("sm_100a"), lambda _: [])
    runtime.raise_launch_error(address, 1, 1, 1, 2048, 1, 1)
    assert said == [(b"RuntimeError", 1)]
    assert isinstance(runtime.error, KernelFault)
    assert runtime.error.kind.value == "launch over budget"
    runtime.raise_cuda_error(address, 700)
    assert isinstance(runtime.error, KernelFault), "the first error counts"


def compiled_host_code(text: str) -> loader.HostObject:
    """The functions of an LLVM module, compiled and linked to a runtime of sm_100a."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    data = machine.emit_object(llvm.parse_assembly(text))
    return loader.load_host_object(data, Runtime("", device_for("sm_100a"), lambda _: [8, 4]))


def test_an_assertion_of_success() -> None:
    """libcute_dsl_runtime.so prints `CUDA Dialect Assertion failed on CUDA error: NAME - TEXT` and aborts,
    unless the status is 0."""
    code = compiled_host_code(
        "declare void @cuda_dialect_assert_success(i32)\n"
        "define void @f(i32 %status) {\n call void @cuda_dialect_assert_success(i32 %status)\n ret void\n}\n"
    )
    function = ctypes.CFUNCTYPE(None, ctypes.c_int32)(code.function("f"))
    with code.running() as runtime:
        function(0)
        assert runtime.error is None
        function(700)
        function(1)
        assert re.search(
            wording("sim.host.asserts-success", error="cudaErrorIllegalAddress (700)"), str(runtime.error)
        )
    with code.running() as runtime:
        function(12345)
        assert re.search(wording("sim.host.asserts-success", error="CUDA error (12345)"), str(runtime.error))


def test_an_assertion_after_a_refusal_keeps_the_reason() -> None:
    """Host code asserts the status of the call before: what the simulator refuses is the error to tell."""
    code = compiled_host_code(
        "declare void @cuda_dialect_assert_success(i32)\n"
        "declare i32 @_cudaDeviceGetAttribute(ptr, i32, i32)\n"
        "define void @f(ptr %out) {\n"
        " %status = call i32 @_cudaDeviceGetAttribute(ptr %out, i32 12345, i32 0)\n"
        " call void @cuda_dialect_assert_success(i32 %status)\n ret void\n}\n"
    )
    out = ctypes.c_int32()
    with code.running() as runtime:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.function("f"))(ctypes.addressof(out))
        assert re.search(wording("sim.host.device-attribute", attribute=12345), str(runtime.error))


def test_names_of_errors(capfd: pytest.CaptureFixture[str]) -> None:
    code = compiled_host_code(
        "declare ptr @cuda_dialect_get_error_name(i32)\ndeclare void @cuda_dialect_print_on_error(i32)\n"
        "define ptr @f(i32 %status) {\n call void @cuda_dialect_print_on_error(i32 %status)\n"
        " %name = call ptr @cuda_dialect_get_error_name(i32 %status)\n ret ptr %name\n}\n"
    )
    function = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int32)(code.function("f"))
    with code.running() as runtime:
        assert [function(0), function(1)] == [b"cudaSuccess", b"cudaErrorInvalidValue"]
        assert runtime.error is None
    assert capfd.readouterr().err == "CUDA error: cudaErrorInvalidValue (1)\n"


def test_a_plain_launch(cubin: tuple[bytes, str]) -> None:
    """cudaLaunchKernel: grid, block, parameters, bytes of shared memory, stream."""
    runtime, kernel = loaded(cubin)
    values = (ctypes.c_uint64(0x1122), ctypes.c_uint32(7))
    slots = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    assert runtime.launch_plain(kernel, 2, 3, 4, 32, 2, 1, ctypes.addressof(slots), 5000, None) == 0
    (request,) = runtime.launches
    assert launch(runtime, kernel) == 0
    assert request == runtime.launches[1]


def test_waiting_for_launches(cubin: tuple[bytes, str]) -> None:
    runtime, kernel = loaded(cubin)
    out = ctypes.c_void_p()
    assert runtime.make_handle(ctypes.addressof(out)) == 0
    assert out.value
    assert runtime.wait_for_launches() == 0
    assert launch(runtime, kernel) == 0
    assert runtime.wait_for_launches(0) != 0
    assert re.search(wording("sim.host.waits-for-launches"), str(runtime.error))


def test_devices_and_occupancy(cubin: tuple[bytes, str]) -> None:
    runtime, kernel = loaded(cubin)
    out = ctypes.c_int32(-1)
    address = ctypes.addressof(out)
    assert runtime.device_count(address) == 0
    assert out.value == 1
    assert runtime.device_handle(address, 0) == 0
    assert out.value == 0
    assert runtime.device_handle(address, 1) != 0
    assert runtime.occupancy(address, kernel, 1024, 0) == 0
    assert out.value == 2  # 2048 threads
    assert runtime.occupancy(address, kernel, 0, 0) != 0


def test_symbols_are_those_of_the_dsls_library() -> None:
    """A name that the library does not export would never be called."""
    import cutlass
    from cutlass.base_dsl.env_manager import get_prefix_dsl_libs

    (library,) = [path for path in (get_prefix_dsl_libs("CUTE_DSL") or "").split(":") if "runtime" in path]
    exported = ctypes.CDLL(library)
    assert cutlass.__version__
    assert [name for name in loader.SYMBOLS if not hasattr(exported, name)] == []


# Expected bytes by the C rules for struct { void*; struct { shape }; struct { strides } }.
@pytest.mark.parametrize(
    ("layout", "shape", "strides", "packed"),
    [
        ("(?,16,128):(2048,128,1)", (5, 16, 128), (2048, 128, 1), "<Qi4x"),
        ("(?,?):(?{i64},1)", (5, 6), (7, 1), "<Qiiq"),
        ("(?,2):(?{i64},1)", (5, 2), (7, 1), "<Qi4xq"),
        ("(?{i64},?):(?,1)", (5, 6), (7, 1), "<Qqi4xi4x"),
        ("(?):(?)", (5,), (7,), "<Qii"),
        ("(4):(1)", (4,), (1,), "<Q"),
        ("():()", (), (), "<Q"),
        ("?:?{i64 div=8}", (5,), (8,), "<Qi4xq"),
    ],
)
def test_argument_structs(layout: str, shape: tuple[int, ...], strides: tuple[int, ...], packed: str) -> None:
    kind = layouts.tensor_type(f'!cute.memref<bf16, gmem, align<16>, "{layout}">')
    assert kind is not None
    values = [
        value
        for given, extents in ((shape, kind.shape), (strides, kind.strides))
        for value, extent in zip(given, extents, strict=True)
        if extent.dynamic
    ]
    assert kind.pack(0x1234, shape, strides) == struct.pack(packed, 0x1234, *values)


def test_parameter_types_of_an_ir_module() -> None:
    text = (
        '!a = !cute.memref<f32, gmem, "(?,4):(4,1)">\n'
        "module {\n"
        '  func.func @f(%arg0: !a loc("f.py":1:2), %arg1: i32 loc("x, y"(#loc)), %arg2: !cuda.stream)'
        " -> i32 attributes {x} {\n"
        "  func.func @ff(%arg0: f32) {\n"
    )
    assert layouts.parameter_types(text, "f") == [
        '!cute.memref<f32, gmem, "(?,4):(4,1)">',
        "i32",
        "!cuda.stream",
    ]
    assert layouts.parameter_types(text, "ff") == ["f32"]
