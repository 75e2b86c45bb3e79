# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: what they are kept under, that they are kept whole, and how they are called."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench import artifact_cache, sim
from gdnbench.sim.errors import LaunchError
from gdnbench_kernels import compiling
from gdnbench_kernels import source as source_module
from gdnbench_kernels.artifacts import STREAM, Parameter
from gdnbench_kernels.compiling import (
    CACHE,
    ArchError,
    LoadError,
    Program,
    export,
    launching,
    load_program,
    program,
)
from gdnbench_kernels.source import Source
from tests.kernels.compiled_kernels import COLUMNS, arguments, same, wanted

HERE = Path(__file__).parent
AFFINE = Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=True)
PLAIN = Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=False)

Arguments = tuple[Any, ...]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs are kept in a place of the session's own."""
    place = tmp_path_factory.getbasetemp() / "programs"
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(place))
    return place


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is kept yet, neither on disk nor in this process."""
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "_programs", {})
    return tmp_path / CACHE.folder


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the sources that were compiled, in order."""
    from gdnbench_kernels import cutlass_compiler

    compiled: list[str] = []
    original = cutlass_compiler.compile_source

    def noted(source: Source, arch: str, key: str) -> Program:
        compiled.append(source.name)
        return original(source, arch, key)

    monkeypatch.setattr(cutlass_compiler, "compile_source", noted)
    return compiled


def forget() -> None:
    compiling._programs.clear()


# What a program is made from, and kept under


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def test_files_are_those_that_the_kernel_imports() -> None:
    source = Source.create("x", "gdnbench_kernels.gdn_prefill.chunk_uw:f")
    found = source.files()
    assert {"gdnbench_kernels.gdn_prefill.chunk_uw", "gdnbench_kernels.blackwell"} <= found.keys()
    assert {"gdnbench_kernels.plan", "gdnbench_kernels.gdn_prefill", "gdnbench_kernels"} <= found.keys()
    assert "gdnbench_kernels.gdn_prefill.chunk_state" not in found
    assert all(path.is_file() for path in found.values())


def test_files_are_found_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somepackage"
    package.mkdir()
    boom = "raise RuntimeError('imported')\n"
    write(
        package,
        __init__="",
        kernel=boom + "def build():\n    from somepackage import helper, NAME\n    from .other import x\n",
        helper=boom + "import somepackage.deep, json, cutlass\n",
        other=boom,
        deep=boom,
        unrelated=boom,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["", ".deep", ".helper", ".kernel", ".other"]
    assert list(Source.create("x", "somepackage.kernel:build").files()) == [
        f"somepackage{name}" for name in names
    ]


def test_key_depends_on_all_that_decides_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "keyed"
    package.mkdir()
    write(package, __init__="", kernel="from keyed import helper\n", helper="A = 1\n", unrelated="B = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = Source.create("k", "keyed.kernel:build", heads=2)
    first = source.key("sm_100a")
    assert source.key("sm_100a") == first
    write(package, unrelated="B = 2\n")
    assert source.key("sm_100a") == first
    keys = {first, source.key("sm_100f"), replace(source, name="other").key("sm_100a")}
    keys |= {Source.create("k", "keyed.kernel:build", heads=value).key("sm_100a") for value in (3, "2", True)}
    keys |= {Source.create("k", "keyed.kernel:other", heads=2).key("sm_100a")}
    write(package, helper="A = 2\n")
    keys.add(source.key("sm_100a"))
    monkeypatch.setattr(source_module, "dsl_version", lambda: "9.9.9")
    keys.add(source.key("sm_100a"))
    installed = source_module._code_generators()
    assert any(name.endswith(("-cu12", "-cu13")) for name, _ in installed)
    monkeypatch.setattr(source_module, "_code_generators", lambda: installed[:-1])
    keys.add(source.key("sm_100a"))
    monkeypatch.setenv("CUTE_DSL_COMPILER_OPT", "x")
    keys.add(source.key("sm_100a"))
    assert len(keys) == 11


def test_options_are_in_the_symbol() -> None:
    assert AFFINE.symbol == "tests_affine_with_bias_True"


def test_a_symbol_is_short_enough_to_name_files(tmp_path: Path) -> None:
    """Plans once grew options until no GPU could load their programs. Names end at 255 bytes on Linux."""
    long = {f"an_option_that_is_long_{number}": number for number in range(20)}
    one = Source.create("tests.affine", AFFINE.target, **long)
    other = Source.create("tests.affine", AFFINE.target, **{**long, "an_option_that_is_long_19": 20})
    for source in (one, other):
        assert source.symbol.startswith("tests_affine_an_option_that_is_long_0_0_")
        assert source.symbol.isidentifier()
        (tmp_path / f".{source.symbol}.cubin.{2**22}").touch()
    assert one.symbol != other.symbol
    assert Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=True) == AFFINE


def test_unknown_arch() -> None:
    with pytest.raises(
        ArchError,
        match=wording("sim.host.arch-unknown", arch="sm_80", known="sm_90a, sm_100a, sm_100f, sm_103a"),
    ):
        program(AFFINE, "sm_80")


def test_without_the_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "DSL", "no-such-distribution")
    with pytest.raises(ImportError, match=wording("kernels.cutedsl-missing", package="no-such-distribution")):
        program(AFFINE)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100f", "sm_103a"])
def test_other_targets(arch: str) -> None:
    assert f".target {arch}\n" in program(AFFINE, arch).ptx


def test_program_is_complete() -> None:
    found = program(AFFINE)
    assert (found.name, found.arch, found.symbol) == ("tests.affine", "sm_100a", AFFINE.symbol)
    matrix = f'!cute.memref<f32, gmem, align<16>, "(?,{COLUMNS}):({COLUMNS},1)">'
    bias = f'!cute.memref<f32, gmem, align<16>, "({COLUMNS}):(1)">'
    types = [matrix, bias, matrix, "i32", "f32", STREAM]
    names = ["x", "bias", "y", "count", "factor", "stream"]
    assert found.parameters == tuple(map(Parameter, names, types))
    assert program(PLAIN).parameters[1] == Parameter("bias", None)
    assert found.ptx.startswith("//")
    assert ".target sm_100a" in found.ptx
    assert ".loc" in found.ptx
    assert found.cubin[:4] == found.host_object[:4] == b"\x7fELF"
    assert found.cubin in found.host_object
    assert f"int32_t cute_dsl_{found.symbol}_wrapper(" in found.header
    assert found.compile_seconds > 0


# What is kept


def test_compiled_once(empty_cache: Path, compilations: list[str]) -> None:
    first = program(AFFINE)
    assert (
        program(Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=True))
        is first
    )
    forget()
    second = program(AFFINE)
    assert compilations == ["tests.affine"]
    for field in (
        "parameters",
        "function",
        "ptx",
        "header",
        "host_object",
        "cubin",
        "compile_seconds",
        "key",
    ):
        assert getattr(first, field) == getattr(second, field)
    assert [path.name for path in empty_cache.iterdir()] == [first.key]


def test_compiled_again_to_the_same(empty_cache: Path, compilations: list[str]) -> None:
    first = program(AFFINE)
    forget()
    (empty_cache / first.key).unlink()
    second = program(AFFINE)
    assert len(compilations) == 2
    assert (first.ptx, first.cubin, first.host_object) == (second.ptx, second.cubin, second.host_object)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_in_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_name(path: Path) -> None:
    other = program(PLAIN)
    path.write_bytes((path.parent / other.key).read_bytes())


def writable_by_others(path: Path) -> None:
    path.chmod(0o666)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nothing")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = (cut, flip_in_the_middle, empty, of_another_name, writable_by_others, link_to_nothing, pipe)


@pytest.mark.every(2)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_compiled_again(
    damage: Callable[[Path], None], empty_cache: Path, compilations: list[str]
) -> None:
    first = program(AFFINE)
    damage(empty_cache / first.key)
    forget()
    compilations.clear()
    assert program(AFFINE).ptx == first.ptx
    assert compilations == ["tests.affine"]
    forget()
    assert program(AFFINE).ptx == first.ptx
    assert compilations == ["tests.affine"]


def test_cache_that_cannot_be_written(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(file))
    assert program(AFFINE).ptx


def test_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GDNBENCH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    CACHE.keep("k", {}, [b"text"])
    assert CACHE.fetch("k") is None


def test_full_disk_is_left_as_it_was(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CACHE.keep("k", {}, [b"text"])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    CACHE.keep("other", {}, [b"text"])
    assert [path.name for path in empty_cache.iterdir()] == ["k"]
    assert CACHE.fetch("k") == ({}, [b"text"])


@pytest.fixture
def kernel_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `edited` of the kernels of compiled_kernels.py, older than this process."""
    file = tmp_path / "edited.py"
    file.write_text((HERE / "compiled_kernels.py").read_text())
    os.utime(file, (1, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file
    sys.modules.pop("edited", None)


def edit(file: Path) -> None:
    file.write_text(file.read_text() + "# edited\n")


EDITED = Source.create("tests.affine", "edited:affine", with_bias=True)


def test_code_imported_before_an_edit_is_not_kept_as_the_edited(empty_cache: Path, kernel_file: Path) -> None:
    first = program(EDITED)
    edit(kernel_file)
    forget()
    second = program(EDITED)
    assert second.key != first.key
    assert [path.name for path in empty_cache.iterdir()] == [first.key]


def test_code_edited_while_it_is_compiled_is_not_kept(
    empty_cache: Path, kernel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gdnbench_kernels import cutlass_compiler

    original = cutlass_compiler.compile_source

    def edited_before(source: Source, arch: str, key: str) -> Program:
        edit(kernel_file)
        return original(source, arch, key)

    monkeypatch.setattr(cutlass_compiler, "compile_source", edited_before)
    assert program(EDITED).ptx
    assert not empty_cache.exists()


@pytest.mark.parametrize("setting", ["enable_tvm_ffi", "dryrun"])
def test_settings_of_the_environment_that_would_make_another_thing(
    setting: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutlass.cutlass_dsl import CuTeDSL

    settings: Any = CuTeDSL._get_dsl().envar
    monkeypatch.setattr(settings, setting, True)
    assert program(PLAIN).host_object
    assert getattr(settings, setting) is True


def test_entries_unused_for_longest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    names = [f"{index:02d}" for index in range(11)]
    for age, name in enumerate(names[:10]):
        CACHE.keep(name, {}, [b"text"])
        os.utime(tmp_path / CACHE.folder / name, ns=(age, age))
    size = (tmp_path / CACHE.folder / "00").stat().st_size
    monkeypatch.setattr(artifact_cache, "MAX_BYTES", 10 * size)
    assert CACHE.fetch("00") == ({}, [b"text"])  # used just now
    CACHE.keep(names[10], {}, [b"text"])
    left = {path.name for path in (tmp_path / CACHE.folder).iterdir()}
    assert left == {"00", *names[3:]}  # nine tenths


IN_A_PROCESS = """
import hashlib, sys
import torch
from gdnbench import artifact_cache, sim
from gdnbench_kernels.compiling import program
from gdnbench_kernels.source import Source

compiled = program(Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=True))
x = torch.arange(50 * 64, dtype=torch.float32).reshape(50, 64)
y = torch.full((50, 64), torch.nan)
sim.launch(compiled, x, torch.arange(64, dtype=torch.float32), y, 45, 0.5)
print(hashlib.sha256(y.numpy().tobytes()).hexdigest(), "cutlass" in sys.modules)
"""


def start() -> subprocess.Popen[str]:
    """Another process that simulates the program, printing a digest of y and whether it has a compiler."""
    command = [sys.executable, "-c", IN_A_PROCESS]
    return subprocess.Popen(command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True)


def test_simulated_in_another_process_without_the_compiler(empty_cache: Path) -> None:
    x, bias, y, count, factor = arguments()
    sim.launch(program(AFFINE), x, bias, y, count, factor)
    digest = hashlib.sha256(y.numpy().tobytes()).hexdigest()
    out, _ = start().communicate(timeout=120)
    assert out.split() == [digest, "False"]


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time(empty_cache: Path) -> None:
    outputs = [process.communicate(timeout=120)[0] for process in [start(), start()]]
    assert outputs[0].split()[0] == outputs[1].split()[0]
    assert [path.name for path in empty_cache.iterdir()] == [program(AFFINE).key]


def test_exported_files_are_a_program(tmp_path: Path, compilations: list[str]) -> None:
    made = program(AFFINE)
    compilations.clear()
    path = export(made, tmp_path / "a" / "b")
    assert path.name == f"{AFFINE.symbol}.json"
    found = load_program(path)
    assert found is not made
    assert all(getattr(found, name) == getattr(made, name) for name in Program.__slots__ if name[0] != "_")
    x, bias, y, count, factor = arguments()
    sim.launch(found, x, bias, y, count, factor)
    assert same(y, wanted(x, bias, count, factor))
    assert not compilations


@pytest.mark.parametrize("before", [False, True], ids=["nothing before", "an export before"])
def test_full_disk_leaves_no_part_of_an_export(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(AFFINE)
    if before:
        export(made, tmp_path)
    write, left = Path.write_bytes, {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        export(made, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("suffix", ["o", "h", "cubin", "ptx"])
def test_exported_files_that_were_changed(suffix: str, tmp_path: Path) -> None:
    path = export(program(AFFINE), tmp_path)
    flip_in_the_middle(path.with_suffix(f".{suffix}"))
    with pytest.raises(
        LoadError, match=wording("kernels.export-changed", program=AFFINE.symbol, suffix=suffix)
    ):
        load_program(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": {}}'])
def test_file_that_is_no_record(text: str, tmp_path: Path) -> None:
    path = export(program(AFFINE), tmp_path)
    path.write_text(text)
    with pytest.raises(LoadError, match=wording("kernels.export-unreadable")):
        load_program(path)


# How a program is called


@pytest.mark.parametrize("source", [AFFINE, PLAIN])
@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
def test_simulated(source: Source, engine: str) -> None:
    x, bias, y, count, factor = arguments()
    given = bias if source is AFFINE else None
    report = sim.launch(program(source), x, given, y, count=count, factor=factor, engine=engine)
    assert report.launches[0].grid == (2, 1, 1)
    assert same(y, wanted(x, given, count, factor))


def test_simulated_as_what_the_compiler_returns_is() -> None:
    from tests.kernels import compiled_kernels

    host, examples = compiled_kernels.affine(True)
    compiled = sim.compile(host, *examples, arch="sm_100a")
    x, bias, y, count, factor = arguments()
    whole, fresh = y.clone(), y.clone()
    reports = [
        sim.launch(program(AFFINE), x, bias, whole, count, factor),
        sim.launch(compiled, x, bias, fresh, count, factor),
    ]
    assert same(whole, fresh)
    one, other = (report.launches[0] for report in reports)
    assert (one.block, one.registers, one.shared_bytes) == (other.block, other.registers, other.shared_bytes)
    assert one.warp_instructions == other.warp_instructions


def misfits() -> Iterator[tuple[str, Callable[[Arguments], Arguments], str]]:
    """(name, what becomes of the arguments, what the simulator says)."""
    yield "few", lambda a: a[:-1], wording("sim.host.argument-needed", argument="factor", why="is missing")
    yield (
        "many",
        lambda a: (*a, 1),
        wording("sim.host.argument-count", given=6, expected=5, names="x, bias, y, count, factor"),
    )
    yield (
        "dtype",
        lambda a: (a[0].double(), *a[1:]),
        "x " + wording("sim.host.tensor-dtype", dtype="float64", wanted="float32"),
    )
    yield (
        "none",
        lambda a: (a[0], None, *a[2:]),
        wording("sim.host.argument-needed", argument="bias", why="is None"),
    )
    yield (
        "extent",
        lambda a: (a[0][:, :32].contiguous(), *a[1:]),
        "x " + wording("sim.host.extent-differs", what="extent", value=32, dimension=1),
    )
    yield (
        "real",
        lambda a: (*a[:3], 4.5, a[4]),
        wording("sim.host.argument-not-integer", name="count", value=4.5, bits=32),
    )
    yield (
        "tensor",
        lambda a: (*a[:3], a[1], a[4]),
        wording("sim.host.tensor-given", name="count", wanted="i32"),
    )
    yield (
        "number",
        lambda a: (3, *a[1:]),
        wording("sim.host.number-given", name="x", value=3, wanted="a tensor"),
    )


@pytest.mark.parametrize(("change", "message"), [pytest.param(*case[1:], id=case[0]) for case in misfits()])
def test_simulator_refuses_arguments(change: Callable[[Arguments], Arguments], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        sim.launch(program(AFFINE), *change(arguments()))


def test_simulator_refuses_what_was_compiled_in() -> None:
    with pytest.raises(LaunchError, match=wording("sim.host.compiled-without", argument="bias")):
        sim.launch(program(PLAIN), *arguments())
    twice = re.compile(wording("sim.host.argument-twice"))
    with pytest.raises(LaunchError, match=wording("sim.host.argument", name="count", why=twice)):
        sim.launch(program(AFFINE), *arguments(), count=3)
    unknown = re.compile(wording("sim.host.argument-unknown", known="x, bias, y, count, factor"))
    with pytest.raises(LaunchError, match=wording("sim.host.argument", name="size", why=unknown)):
        sim.launch(program(AFFINE), *arguments(), size=3)


def test_calls_go_to_the_launcher_of_the_block() -> None:
    calls: list[tuple[str, Any, Any]] = []

    def outer(called: Program, args: Any, kwargs: Any) -> None:
        calls.append(("outer", args, dict(kwargs)))

    def inner(called: Program, args: Any, kwargs: Any) -> None:
        calls.append(("inner", args, dict(kwargs)))

    compiled = program(AFFINE)
    with launching(outer):
        with launching(inner):
            compiled(1, count=2)
        compiled(3)
        with pytest.raises(KeyError), launching(inner):
            raise KeyError
        compiled(4)
    assert calls == [("inner", (1,), {"count": 2}), ("outer", (3,), {}), ("outer", (4,), {})]


def test_replay_simulates_programs() -> None:
    from gdnbench.replay.simulated import SIM, notes_of, simulated

    x, bias, y, count, factor = arguments()
    with simulated(SIM) as session:
        program(AFFINE)(x, bias, y, count, factor)
        assert session is not None
        assert notes_of(session, "k")[0].startswith("simulated: 1 launch,")
    assert same(y, wanted(x, bias, count, factor))
