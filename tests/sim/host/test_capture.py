# SPDX-License-Identifier: Apache-2.0
"""The launches that a kernel's own host code asks for: sizes, parameters and refusals, in every exported
form."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor
from torch import Tensor

from gdnbench.sim import compiling
from gdnbench.sim.errors import ExportError, LaunchError
from gdnbench.sim.host import cutlass_dsl, loader
from gdnbench.sim.host.capture import capture_launches
from gdnbench.sim.host.device import device_for
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.host.runtime import Runtime
from tests.messages import wording
from tests.sim.host import host_kernels

try:
    import tvm_ffi
except ImportError:
    tvm_ffi = None

needs_tvm_ffi = pytest.mark.skipif(tvm_ffi is None, reason="needs apache-tvm-ffi")

# How a kernel may have been compiled: function, tvm-ffi or not, the stream from tvm-ffi's environment or not.
FORMS = {
    "plain": ("scale", False, False),
    "stream without annotation": ("scale_without_annotation", False, False),
    "tvm-ffi": ("scale", True, False),
    "tvm-ffi, stream of the environment": ("scale", True, True),
    "tvm-ffi, stream without annotation": ("scale_without_annotation", True, True),
}
each_form = pytest.mark.parametrize(
    "form",
    [pytest.param(name, marks=[needs_tvm_ffi] if form[1] else []) for name, form in FORMS.items()],
)


def fake(shape: Sequence[Any], strides: Sequence[Any], dtype: Any = cutlass.Float32, align: int = 16) -> Any:
    return make_fake_tensor(dtype, tuple(shape), tuple(strides), assumed_align=align)


@functools.cache
def scale(form: str) -> Any:
    """x [rows, 8] with packed rows; y [rows, n] with row strides that are multiples of 4."""
    function, ffi, environment = FORMS[form]
    x = fake((cute.sym_int(), 8), (8, 1))
    y = fake((cute.sym_int(), cute.sym_int()), (cute.sym_int64(divisibility=4), 1))
    return compiling.compile(
        getattr(host_kernels, function),
        x,
        y,
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        make_fake_stream(use_tvm_ffi_env_stream=environment),
        **({"options": "--enable-tvm-ffi"} if ffi else {}),
    )


def rows(count: int = 70) -> tuple[Tensor, Tensor]:
    return torch.ones(count, 8), torch.zeros(count, 20)[:, :12]


@pytest.mark.every(2)
@each_form
def test_launch_of_every_form(form: str) -> None:
    x, y = rows()
    (request,) = capture_launches(scale(form), (x, y, 1.5, 65)).requests
    assert (request.grid, request.block, request.cluster) == ((2, 1, 1), (64, 1, 1), None)
    assert request.shared_bytes == 0
    assert request.registers is not None  # their number: test_runtime.py
    # CuTe's argument structs: pointer; int32 extents; int64 strides. x has one open extent, y two and a
    # stride.
    first, second, factor, count = request.params
    assert struct.unpack_from("<Qi", first) == (x.data_ptr(), 70)
    assert struct.unpack("<Qiiq", second) == (y.data_ptr(), 70, 12, 20)
    assert (struct.unpack("<f", factor), struct.unpack("<i", count)) == ((1.5,), (65,))


@each_form
def test_every_form_names_its_kernel_in_its_ptx(form: str) -> None:
    (request,) = capture_launches(scale(form), (*rows(), 1.5, 65)).requests
    assert f".entry {request.entry}(" in request.ptx
    assert "host_kernels.py" in request.ptx


@each_form
def test_a_second_call_stands_alone(form: str) -> None:
    assert len(capture_launches(scale(form), (*rows(), 1.0, 1)).requests) == 1
    x, y = rows(3)
    (request,) = capture_launches(scale(form), (x, y, 2.0, 200)).requests
    assert request.grid == (4, 1, 1)
    assert struct.unpack_from("<Qi", request.params[0]) == (x.data_ptr(), 3)


@each_form
def test_arguments_by_name_in_any_order(form: str) -> None:
    x, y = rows()
    by_name = (
        capture_launches(scale(form), (), {"count": 65, "y": y, "factor": 1.5, "x": x}).requests[0].params
    )
    in_order = capture_launches(scale(form), (x, y, 1.5, 65)).requests[0].params
    assert by_name[2:] == in_order[2:]
    assert [data[:8] for data in by_name[:2]] == [data[:8] for data in in_order[:2]]


def bad_calls() -> dict[str, tuple[tuple[Any, ...], str, str]]:
    """What is wrong: arguments, the plain form's message, the tvm-ffi form's (its host code's own words)."""
    x, y = rows()
    off = torch.ones(8 * 71)[1 : 1 + 8 * 70].view(70, 8)
    return {
        "dtype": ((x.half(), y, 1.0, 1), "x is float16; .* float32", r"#0 .*dtype=float32"),
        "rank": ((x[0], y, 1.0, 1), "x has 1 dimensions; .* 2", r"#0 .*ndim=2"),
        "extent": (
            (x[:, :4].contiguous(), y, 1.0, 1),
            "x "
            + wording(
                "sim.host.extent-differs", what="extent", value=4, dimension=1, reason=re.compile(".* 8")
            ),
            r"x.shape\[1\]",
        ),
        "stride": (
            (torch.ones(70, 9)[:, :8], y, 1.0, 1),
            "x "
            + wording(
                "sim.host.extent-differs", what="stride", value=9, dimension=0, reason=re.compile(".* 8")
            ),
            "x.strides",
        ),
        "divisor": (
            (x, torch.zeros(70, 21)[:, :20], 1.0, 1),
            "y "
            + wording(
                "sim.host.extent-differs",
                what="stride",
                value=21,
                dimension=0,
                reason=re.compile(".* multiple of 4"),
            ),
            "y.strides.* divisible by 4",
        ),
        "alignment": ((off, y, 1.0, 1), "x is not aligned to 16 bytes", "Misaligned.* #0"),
        "a number for a tensor": (
            (x, 2, 1.0, 1),
            wording("sim.host.number-given", name="y", value=2, wanted="a tensor"),
            "#1 .*expected Tensor",
        ),
        "a tensor for a number": (
            (x, y, x, 1),
            wording("sim.host.tensor-given", name="factor", wanted="f32"),
            "#2 .*float",
        ),
        "a fraction": (
            (x, y, 1.0, 1.5),
            wording("sim.host.argument-not-integer", name="count", value=1.5, bits=32),
            "#3 .*expected int",
        ),
        "text": (
            (x, y, "a", 1),
            wording("sim.host.number-given", name="factor", value="a", wanted="f32"),
            "#2 .*expected float",
        ),
    }


@pytest.mark.parametrize("wrong", bad_calls())
@pytest.mark.parametrize("form", ["plain", pytest.param("tvm-ffi", marks=needs_tvm_ffi)])
def test_arguments_that_do_not_fit(form: str, wrong: str) -> None:
    arguments, plain, ffi = bad_calls()[wrong]
    with pytest.raises(LaunchError, match=ffi if "tvm" in form else plain) as caught:
        capture_launches(scale(form), arguments)
    assert "\n" not in str(caught.value)


@each_form
def test_wrong_number_of_arguments(form: str) -> None:
    x, y = rows()
    with pytest.raises(LaunchError, match=wording("sim.host.arguments-missing", names="count") + "$"):
        capture_launches(scale(form), (x, y, 1.0))
    with pytest.raises(
        LaunchError,
        match=wording("sim.host.argument-count", given=6, expected=4, names="x, y, factor, count"),
    ):
        capture_launches(scale(form), (x, y, 1.0, 1, 2, 3))
    with pytest.raises(LaunchError, match="other"):
        capture_launches(scale(form), (x, y, 1.0, 1), {"other": 1})


@each_form
def test_only_cpu_tensors(form: str) -> None:
    x, y = rows()
    with pytest.raises(LaunchError, match=wording("sim.host.tensor-not-on-cpu", name="x", device="meta")):
        capture_launches(scale(form), (x.to("meta"), y, 1.0, 1))


def test_an_integer_out_of_range() -> None:
    x, y = rows()
    with pytest.raises(LaunchError, match=wording("sim.host.argument-not-integer", bits=32)):
        capture_launches(scale("plain"), (x, y, 1.0, 1 << 32))


def test_a_stride_along_one_element_is_of_no_consequence() -> None:
    x = torch.ones(1, 99)[:, :8]
    assert capture_launches(scale("plain"), (x, rows()[1], 1.0, 1)).requests


def requests_of(function: Any, args: Sequence[Any], call: Sequence[Any]) -> tuple[LaunchRequest, ...]:
    compiled = compiling.compile(function, *args, make_fake_stream())
    return capture_launches(compiled, tuple(call)).requests


def test_several_launches_come_in_order() -> None:
    example = fake((cute.sym_int(), 8), (8, 1))
    x, y = torch.ones(5, 8), torch.ones(5, 8)
    first, second = requests_of(host_kernels.scale_twice, (example, example, cutlass.Float32(1)), (x, y, 2.0))
    assert (first.grid, first.block, first.shared_bytes) == ((5, 2, 3), (64, 1, 1), 0)
    assert (second.grid, second.block, second.shared_bytes) == ((1, 1, 1), (32, 2, 1), 4096)
    pointers = [int.from_bytes(request.params[0][:8], "little") for request in (first, second)]
    assert pointers == [x.data_ptr(), y.data_ptr()]
    assert struct.unpack("<i", second.params[3]) == (7,)


def vectors() -> tuple[Any, Tensor, Tensor]:
    example = fake((cute.sym_int(),), (1,), cutlass.Int32)
    return example, torch.arange(32, dtype=torch.int32), torch.arange(32, dtype=torch.int32)


def test_tensors_in_a_tuple_and_none() -> None:
    example, source, target = vectors()
    (request,) = requests_of(
        host_kernels.add_pair,
        ((example, example), None, cutlass.Int32(0)),
        ((source, target), None, -3),
    )
    pointers = [int.from_bytes(data[:8], "little") for data in request.params[:2]]
    assert pointers == [source.data_ptr(), target.data_ptr()]
    assert struct.unpack("<i", request.params[2]) == (-3,)


def test_tensors_in_a_dataclass() -> None:
    example, source, target = vectors()
    (request,) = requests_of(
        host_kernels.add_fields,
        (host_kernels.Tensors(example, example), cutlass.Int32(0)),
        (host_kernels.Tensors(source, target), 9),
    )
    pointers = [int.from_bytes(data[:8], "little") for data in request.params[:2]]
    assert pointers == [source.data_ptr(), target.data_ptr()]


def test_names_of_nested_tensors_in_messages() -> None:
    example, source, target = vectors()
    compiled = compiling.compile(
        host_kernels.add_pair, (example, example), None, cutlass.Int32(0), make_fake_stream()
    )
    with pytest.raises(LaunchError, match=r"pair\[1\] is int64"):
        capture_launches(compiled, ((source, target.long()), None, 1))
    with pytest.raises(LaunchError, match=wording("sim.host.tensor-count", wanted=2, given=1)):
        capture_launches(compiled, ((source,), None, 1))


def test_compiled_from_tensors_rather_than_fake_ones() -> None:
    """JIT-time tensors: their extents are compiled in, their addresses are not."""
    _, source, target = vectors()
    with compiling.keep_ptx():
        examples = (from_dlpack(source), from_dlpack(target))
        compiled = cute.compile(host_kernels.add_pair, examples, None, cutlass.Int32(0), make_fake_stream())
    other = torch.zeros(32, dtype=torch.int32)
    (request,) = capture_launches(compiled, ((source, other), None, 1)).requests
    assert int.from_bytes(request.params[1][:8], "little") == other.data_ptr()
    with pytest.raises(LaunchError, match="extent 31"):
        capture_launches(compiled, ((source, other[:31]), None, 1))


def test_tensors_of_cutes_own_runtime() -> None:
    example, source, target = vectors()
    compiled = compiling.compile(
        host_kernels.add_pair, (example, example), None, cutlass.Int32(0), make_fake_stream()
    )
    mine = from_dlpack(source).mark_layout_dynamic()
    called = capture_launches(compiled, ((mine, target), None, 1))
    assert int.from_bytes(called.requests[0].params[0][:8], "little") == source.data_ptr()
    assert [(region.address, region.size) for region in called.regions] == [
        (source.data_ptr(), 128),
        (target.data_ptr(), 128),
    ]


def test_regions_are_what_the_views_span() -> None:
    x, y = rows(3)
    regions = capture_launches(scale("plain"), (x, y, 1.0, 3)).regions
    # y is [3, 12] with rows of 20: its last element is 2 * 20 + 11 elements after its first.
    assert [(r.name, r.address, r.size) for r in regions] == [
        ("x", x.data_ptr(), 3 * 8 * 4),
        ("y", y.data_ptr(), (2 * 20 + 12) * 4),
    ]


def test_cluster_of_a_launch() -> None:
    example, source, target = vectors()
    (request,) = requests_of(host_kernels.in_a_cluster, (example, example), (source, target))
    assert (request.grid, request.cluster) == ((4, 1, 1), (2, 1, 1))


def test_sm_90a() -> None:
    example, source, target = vectors()
    compiled = compiling.compile(
        host_kernels.add_pair,
        (example, example),
        None,
        cutlass.Int32(0),
        make_fake_stream(),
        arch="sm_90a",
    )
    (request,) = capture_launches(compiled, ((source, target), None, 1)).requests
    assert ".target sm_90a" in request.ptx


def test_a_kernel_without_its_ptx_names_the_setting() -> None:
    example, source, target = vectors()
    compiled = cute.compile(
        host_kernels.add_pair, (example, example), None, cutlass.Int32(0), make_fake_stream()
    )
    with pytest.raises(
        ExportError,
        match=wording(
            "sim.host.ptx-missing", hint=re.compile(r".*sim\.compile.*keep_ptx.*CUTE_DSL_KEEP=ptx,ir-debug")
        ),
    ):
        capture_launches(compiled, ((source, target), None, 1))


def test_a_kernel_without_its_argument_types_names_the_setting() -> None:
    """As CUTE_DSL_KEEP=ptx alone leaves it. CuTe's own tensors carry their types and still work."""
    example, source, target = vectors()
    compiled = compiling.compile(
        host_kernels.add_pair, (example, example), None, cutlass.Int32(0), make_fake_stream()
    )
    compiled.artifacts.MLIR = None
    with pytest.raises(
        ExportError,
        match=wording("sim.host.argument-types-missing", hint=re.compile(".*CUTE_DSL_KEEP=ptx,ir-debug")),
    ):
        capture_launches(compiled, ((source, target), None, 1))
    mine = tuple(from_dlpack(tensor).mark_layout_dynamic() for tensor in (source, target))
    assert capture_launches(compiled, (mine, None, 1)).requests


def test_something_else_than_a_compiled_kernel() -> None:
    with pytest.raises(ExportError, match=wording("sim.host.not-compile-result", type="function")):
        capture_launches(rows, ())


def test_nothing_is_kept_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that lingered would write files into the current directory."""
    monkeypatch.setattr(cutlass_dsl._settings(), "dump_dir", str(tmp_path))
    example = vectors()[0]

    def compiled() -> Any:
        return cute.compile(
            host_kernels.add_pair, (example, example), None, cutlass.Int32(0), make_fake_stream()
        )

    with compiling.keep_ptx():
        assert ".loc" in compiled().artifacts.PTX
    assert compiled().artifacts.PTX is None
    assert not list(tmp_path.iterdir())


def test_settings_are_put_back() -> None:
    settings = cutlass_dsl._settings()
    names = (*cutlass_dsl.SETTINGS, "_arch")
    before = {name: getattr(settings, name) for name in names}
    with compiling.keep_ptx("sm_90a"):
        assert settings.keep_ptx
        assert settings.arch == "sm_90a"
    assert {name: getattr(settings, name) for name in names} == before


def test_a_cute_dsl_without_a_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutlass_dsl, "SETTINGS", (*cutlass_dsl.SETTINGS, "nosuch"))
    with (
        pytest.raises(
            ExportError,
            match=wording(
                "sim.host.setting-missing",
                installed=re.compile(r"^nvidia-cutlass-dsl \S+"),
                names="nosuch",
                hint=re.compile("; .*: install one of these$"),
            ),
        ),
        compiling.keep_ptx(),
    ):
        pass


def test_the_other_backend_of_cute_dsl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutlass_dsl._settings(), "compiler_backend", "cutlass")
    with (
        pytest.raises(ExportError, match=wording("sim.host.cutedsl-backend", backend="cutlass")),
        compiling.keep_ptx(),
    ):
        pass


# LLVM's function types as the releases print them: the return type first, then the parameters.
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("!llvm.func<i32 ()>", 0),
        ("!llvm.func<i32 (ptr)>", 1),
        ("!llvm.func<i32 (struct<(ptr<1>, struct<(i32, struct<()>)>)>, f32, i32, ptr)>", 4),
        ("!llvm.func<struct<(i32, i32)> (ptr, array<3 x i64>)>", 2),
    ],
)
def test_parameters_of_a_lowered_function(text: str, count: int) -> None:
    assert cutlass_dsl.count_inputs(text) == count


def test_a_type_that_is_no_function_is_refused() -> None:
    with pytest.raises(ExportError, match=wording("sim.host.cutedsl-signature", type="ptr")):
        cutlass_dsl.count_inputs("ptr")


def test_missing_symbols_are_named_before_anything_is_linked() -> None:
    """The object is made by LLVM: a function that calls one that nobody defines."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    module = llvm.parse_assembly(
        "declare i32 @_cudaOfTomorrow()\ndeclare i32 @_cudaGetDevice(ptr)\n"
        "define i32 @f(ptr %p) {\n %a = call i32 @_cudaOfTomorrow()\n"
        " %b = call i32 @_cudaGetDevice(ptr %p)\n %c = add i32 %a, %b\n ret i32 %c\n}\n"
    )
    runtime = Runtime("", device_for("sm_100a"), lambda _: [])
    with pytest.raises(
        ExportError, match=wording("sim.host.symbol-missing", symbols="_cudaOfTomorrow") + "$"
    ):
        loader.load_host_object(machine.emit_object(module), runtime)
