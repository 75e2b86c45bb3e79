# SPDX-License-Identifier: Apache-2.0
"""PTX text to IR. Expectations are read off the PTX ISA, chapters 4, 5 (syntax) and 11 (directives)."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

import pytest

from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.machine.units import handler
from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.forms import Owner
from gdnbench.sim.ptx.instructions import ROWS
from gdnbench.sim.ptx.ir import (
    DYNAMIC,
    Address,
    Immediate,
    Kernel,
    Negated,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Target,
    TensorAddress,
    Vector,
)
from gdnbench.sim.ptx.literals import width_of
from gdnbench.sim.ptx.parser import parse
from tests.messages import wording
from tests.seeds import drawn

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, before: str = "", directives: str = "", params: str = "") -> Kernel:
    """The kernel `k` with registers of each kind and `body`."""
    text = f"""{HEADER}{before}
.visible .entry k({params}) {directives}
{{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
{body}
}}
"""
    return parse(text).kernels["k"]


def first(body: str, **rest: str):  # type: ignore[no-untyped-def]
    return kernel(body, **rest).instructions[0]


def immediate(body: str) -> int:
    value = first(body).sources[-1]
    assert isinstance(value, Immediate)
    return value.bits


def test_header() -> None:
    module = parse(HEADER)
    assert (module.version, module.target, module.kernels) == ((8, 8), "sm_100a", {})


@pytest.mark.parametrize(
    ("body", "bits"),
    [
        ("mov.b32 %r1, 0x1F;", 0x1F),
        ("mov.b32 %r1, -1;", 0xFFFF_FFFF),
        ("mov.b64 %d1, -1;", 0xFFFF_FFFF_FFFF_FFFF),
        ("mov.b16 %h1, -2;", 0xFFFE),
        ("mov.b32 %r1, 017;", 0o17),
        ("mov.b32 %r1, 0b101;", 0b101),
        ("mov.b32 %r1, 4000000000U;", 4_000_000_000),
        ("mov.b32 %r1, 0f3F800000;", 0x3F80_0000),
        ("mov.f32 %r1, 0f80000000;", 0x8000_0000),
        ("add.f32 %r1, %r2, 1.5;", struct.unpack("<I", struct.pack("<f", 1.5))[0]),
        ("add.f32 %r1, %r2, -2.5e-3;", struct.unpack("<I", struct.pack("<f", -2.5e-3))[0]),
        ("mov.f32 %r1, 0d3FF8000000000000;", 0x3FC0_0000),
        ("add.f64 %d1, %d2, 0d3FF8000000000000;", 0x3FF8_0000_0000_0000),
        ("shl.b64 %d1, %d2, 3;", 3),
        ("add.s64 %d1, %d2, -8;", 2**64 - 8),
        ("mul.wide.s32 %d1, %r2, -3;", 2**32 - 3),
        ("mad.wide.s32 %d1, %r2, 4, -8;", 2**64 - 8),
        ("mul.wide.u16 %r1, %h2, -1;", 0xFFFF),
        ("setp.lt.s32 %p1, %r2, -5;", 2**32 - 5),
        ("mov.pred %p1, -1;", 1),
        ("mov.pred %p1, 0;", 0),
        ("shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", 0xFFFF_FFFF),
        ("fma.rn.f32.bf16 %r1, %h1, %h2, 0f3F800000;", 0x3F80_0000),
        ("st.shared.b16 [%r1], 16256;", 16256),
        ("mov.u32 %r1, WARP_SZ;", 32),
        ("bar.sync 1, 128;", 128),
    ],
)
def test_a_literal_has_the_width_of_its_place(body: str, bits: int) -> None:
    assert immediate(body) == bits


def test_an_integer_beyond_64_bits_is_refused() -> None:
    with pytest.raises(PtxSyntaxError, match=wording("sim.ptx.integer-too-wide")):
        kernel("mov.b64 %d1, 0x1FFFFFFFFFFFFFFFF;")


@pytest.mark.parametrize(
    ("name", "bits"),
    [("pred", 1), ("b8", 8), ("f16", 16), ("bf16x2", 32), ("f32x2", 64), ("e4m3x2", 16), ("e2m1x2", 8),
     ("e4m3x4", 32), ("tf32", 32), ("b128", 128), ("u16x2", 32), ("ue8m0x2", 16)],
)  # fmt: skip
def test_width_of_types(name: str, bits: int) -> None:
    assert width_of(name) == bits


def test_suffixes_are_types_modifiers_and_vector_length() -> None:
    ins = first("cvt.rn.satfinite.relu.bf16x2.f32 %r1, %r2, %r3;")
    assert (ins.op, ins.mods, ins.types) == ("cvt", ("rn", "satfinite", "relu"), ("bf16x2", "f32"))
    ins = first("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5+16];")
    assert (ins.op, ins.mods, ins.vec, ins.types) == ("ld", ("shared",), 4, ("b32",))
    assert ins.name == "ld.shared.v4.b32"
    assert [r.name for r in ins.written() if isinstance(r, Register)] == ["%r1", "%r2", "%r3", "%r4"]
    address = ins.sources[0]
    assert isinstance(address, Address)
    assert isinstance(address.base, Register)
    assert (address.base.name, address.offset) == ("%r5", 16)


def test_suffixes_may_stand_apart() -> None:
    """As ptxas takes them."""
    apart = first("ld .relaxed\n    .gpu .global.v2 .b32 {%r0, %r1}, [%d0];")
    together = first("ld.relaxed.gpu.global.v2.b32 {%r0, %r1}, [%d0];")
    assert (apart.op, apart.mods, apart.types) == (together.op, together.mods, together.types)
    assert apart.form == together.form


def test_the_longest_known_base_wins() -> None:
    ins = first("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], %r2, 10000000;")
    assert ins.op == "mbarrier.try_wait"
    assert ins.mods == ("parity", "acquire", "cta", "shared::cta")
    assert [len(ins.dests), len(ins.sources)] == [1, 3]


@pytest.mark.parametrize(
    ("body", "dests", "sources"),
    [
        ("st.global.v2.b32 [%d1], {%r1, %r2};", 0, 2),
        ("mbarrier.arrive.shared.b64 _, [%r1];", 1, 1),
        ("mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 512;", 1, 2),
        ("mbarrier.arrive.shared::cluster.b64 _, [%r1], 2;", 1, 2),
        ("mbarrier.init.shared.b64 [%r1], 1;", 0, 2),
        ("elect.sync _|%p1, -1;", 1, 1),
        ("setp.lt.and.f32 %p1|%p2, %r1, %r2, %p3;", 1, 3),
        ("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1,%r2,%r3,%r4}, [%r5];", 1, 1),
        ("tcgen05.st.sync.aligned.32x32b.x2.b32 [%r5], {%r1, %r2};", 0, 2),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1;", 0, 5),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64;", 0, 2),
        ("cp.async.ca.shared.global [%r1], [%d1], 4, %r2;", 0, 4),
        ("bar.red.popc.u32 %r1, 0, %p1;", 1, 2),
        ("red.global.add.f32 [%d1], %r1;", 0, 2),
        ("atom.global.cas.b32 %r1, [%d1], %r2, %r3;", 1, 3),
        ("ret;", 0, 0),
    ],
)
def test_what_is_written_and_what_is_read(body: str, dests: int, sources: int) -> None:
    ins = first(body)
    assert [len(ins.dests), len(ins.sources)] == [dests, sources]


def test_pairs_sinks_negations_and_vectors() -> None:
    pair = first("shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1;").dests[0]
    assert isinstance(pair, Pair)
    assert isinstance(pair.second, Register)
    assert isinstance(first("elect.sync _|%p1, -1;").dests[0].first, Sink)
    assert isinstance(first("and.pred %p1, %p2, !%p3;").sources[1], Negated)
    assert isinstance(first("mov.b64 {%r1, %r2}, %d1;").dests[0], Vector)
    assert isinstance(first("mov.b64 %d1, {%r1, %r2};").sources[0], Vector)
    assert isinstance(first("mov.u32 %r1, %tid.y;").sources[0], Special)


def test_tensor_copies_have_a_descriptor_and_coordinates() -> None:
    ins = first(
        "cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%r1], [%d1, {%r2, -64, 0}], [%r3], %d2;"
    )
    source = ins.sources[1]
    assert isinstance(source, TensorAddress)
    assert [c.bits for c in source.coordinates if isinstance(c, Immediate)] == [2**32 - 64, 0]
    assert len(source.coordinates) == 3


def test_guards() -> None:
    guarded = kernel("@%p1 bra L;\n@!%p2 mov.b32 %r1, 0;\nL: ret;").instructions
    assert guarded[0].guard is not None
    assert not guarded[0].guard.negated
    assert guarded[1].guard is not None
    assert guarded[1].guard.negated


def test_labels_are_per_scope_and_may_be_forward() -> None:
    body = """
    {
    .reg .pred P1;
    WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0;
    @P1 bra DONE;
    bra WAIT;
    DONE:
    }
    {
    .reg .pred P1;
    WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r2], 1;
    @P1 bra DONE;
    bra.uni WAIT;
    DONE:
    }
    ret;"""
    found = kernel(body)
    targets = [i.sources[0] for i in found.instructions if i.op == "bra"]
    assert [t.pc for t in targets if isinstance(t, Target)] == [3, 0, 6, 3]
    # Two registers of the same name in two scopes are two registers.
    waits = [i for i in found.instructions if i.op == "mbarrier.try_wait"]
    assert waits[0].dests[0] != waits[1].dests[0]


def test_a_label_of_another_scope_is_unknown() -> None:
    with pytest.raises(PtxSyntaxError, match=wording("sim.ptx.label-unknown", label="INNER")):
        kernel("{ INNER: mov.b32 %r1, 0; }\nbra INNER;")


def test_places_name_the_ptx_line_and_the_python_line() -> None:
    found = kernel('.loc 1 42 7\nmov.b32 %r1, 0;\n.loc 2 7 1, function_name $L__info_string0, '
                   'inlined_at 1 42 7\nmov.b32 %r2, 0;\n.loc 9 1 1\nmov.b32 %r3, 0;',
                   before='.file 1 "/src/kernel.py"\n.file 2 "helper.py", 0, 0\n')  # fmt: skip
    places = [i.place for i in found.instructions]
    assert [(p.file, p.file_line) for p in places] == [
        ("/src/kernel.py", 42), ("helper.py", 7), (None, None)
    ]  # fmt: skip
    assert [p.text for p in places] == ["mov.b32 %r1, 0;", "mov.b32 %r2, 0;", "mov.b32 %r3, 0;"]
    assert places[1].line - places[0].line == 2


def test_parameters_are_laid_out_by_their_alignment() -> None:
    found = kernel(
        "ld.param.b64 %d1, [c+8];\ncvta.param.u64 %d2, %d1;\nmov.b64 %d3, m;",
        params=".param .u32 a, .param .align 8 .b8 b[12], .param .u64 .ptr .global .align 16 c, "
        ".param .align 64 .b8 m[128]",
    )
    assert [(p.name, p.offset, p.size) for p in found.params] == [
        ("a", 0, 4), ("b", 8, 12), ("c", 24, 8), ("m", 64, 128)
    ]  # fmt: skip
    address = found.instructions[0].sources[0]
    assert isinstance(address, Address)
    assert isinstance(address.base, Symbol)
    assert (address.base.variable.name, address.offset) == ("c", 8)
    assert isinstance(found.instructions[2].sources[0], Symbol)


def test_shared_memory_static_then_dynamic() -> None:
    found = kernel(
        ".shared .align 8 .b8 s1[12];\n.shared .align 16 .b8 s2[32];\n.local .align 4 .b8 depot[24];\nret;",
        before=".shared .b32 m;\n.extern .shared .align 1024 .b8 dyn[];\n",
    )
    # m at 0, s1 at 8, s2 at 32 (16-aligned), 64 in all: dynamic memory starts at 1024.
    assert [(v.name, v.offset) for v in found.variables] == [("s1", 8), ("s2", 32), ("depot", 0)]
    assert (found.shared_size, found.local_size, found.dynamic_shared) == (64, 24, 1024)
    dynamic = first("mov.b32 %r1, dyn;", before=".extern .shared .align 1024 .b8 dyn[];\n").sources[0]
    assert isinstance(dynamic, Symbol)
    assert dynamic.variable.offset == DYNAMIC


def test_initialised_variables_of_the_module() -> None:
    module = parse(
        HEADER + ".global .align 4 .b8 table[8] = {1, 2, 255};\n.const .u32 c[2] = {0x01020304, -1};\n"
    )
    table, const = module.variables
    assert table.init == b"\x01\x02\xff" + bytes(5)
    assert const.init == b"\x04\x03\x02\x01\xff\xff\xff\xff"
    assert (table.space, const.space) == ("global", "const")


def test_entry_directives() -> None:
    found = kernel(
        "ret;",
        directives=".reqntid 128, 2 .minnctapersm 2 .maxnreg 64 .reqnctapercluster 2, 1, 1"
        " .explicitcluster .maxclusterrank 4",
    )
    assert found.max_cluster == 4
    assert (found.reqntid, found.minnctapersm, found.maxnreg, found.cluster) == (
        (128, 2, 1),
        2,
        64,
        (2, 1, 1),
    )


def test_a_grid_that_is_counted_in_clusters_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"entry directive \.blocksareclusters"):
        kernel("ret;", directives=".reqntid 32 .reqnctapercluster 2, 1, 1 .blocksareclusters")


def test_comments_and_pragmas_mean_nothing() -> None:
    body = '/* a\n   b */ mov.b32 %r1, 0; // c\n.pragma "nounroll";\nret;'
    assert [i.op for i in kernel(body).instructions] == ["mov", "ret"]


def test_debug_sections_are_skipped() -> None:
    text = HEADER + ".visible .entry k()\n{\nret;\n}\n.section .debug_str\n{\n.b8 1,2\nL: .b8 0\n}\n"
    assert list(parse(text).kernels) == ["k"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("frobnicate.b32 %r1, %r2;", "frobnicate.b32"),
        ("add.rn.sideways.f32 %r1, %r2, %r3;", "add with .sideways"),
        ("mov.u32 %r1, %envreg3;", "%envreg3"),
        ("call.uni %d1, (%r1), proto;", "a call through register %d1"),
        ("tcgen05.mma.cta_group::3.kind::f16 [%r1], %d1, %d2, %r2, %p1;", "cta_group::3"),
    ],
)
def test_what_is_unknown_is_named(body: str, named: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        kernel(body)
    assert named in str(caught.value)
    assert "PTX line 11" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("mov.b32 %r99, 0;", "%r99"),
        ("mov.b32 %r1, undeclared;", wording("sim.ptx.not-declared", name="undeclared")),
        ("mov.b32 5, %r1;", wording("sim.ptx.destination-not-register")),
        ("mov.b64 {%r1, 5}, %d1;", wording("sim.ptx.destination-not-register")),
        ("mov.b64 %d1, {};", wording("sim.ptx.vector-empty")),
        ("mov.b64 {}, %d1;", wording("sim.ptx.vector-empty")),
        ("bra NOWHERE;", wording("sim.ptx.label-unknown", label="NOWHERE")),
        ("mbarrier.arrive.shared.b64 , [%r1];", "an operand is missing"),
        ("L: bra {L};", wording("sim.ptx.label-unknown", label="{L}")),
        ("L: bra !%p1;", wording("sim.ptx.label-unknown", label="!%p1")),
        ("L: bra L+4;", wording("sim.ptx.label-unknown", label="L+4")),
        ("@%r1 mov.b32 %r2, 0;", wording("sim.ptx.guard-not-predicate", name="%r1")),
        ("and.pred %p1, %p2, !%r1;", wording("sim.ptx.negated-not-predicate", name="%r1")),
        ("ld.b32 %r1, [%h1];", wording("sim.ptx.address-register", name="%h1", bits=16)),
        ("ld.shared.b32 %r1, [%p1+4];", wording("sim.ptx.address-register", name="%p1", bits=1)),
        (f"mov.b32 %r1, {'9' * 5000};", "is no constant"),
        (f"mov.b32 %r1, 0x{'F' * 5000};", wording("sim.ptx.integer-too-wide")),
        (f".shared .b8 s[{'9' * 5000}];", wording("sim.ptx.integer-too-wide")),
        (f".loc 1 {'9' * 5000} 0", wording("sim.ptx.integer-too-wide")),
        (".shared .b8 s" + "[99999999999999999999]" * 300 + ";", wording("sim.ptx.variables-too-large")),
        ("mov.b32 %r1, #;", wording("sim.ptx.character-unexpected", character="#")),
        ("mov.b32 %r1, 0", wording("sim.ptx.text-ends")),
    ],
)
def test_what_is_no_ptx_is_said(body: str, text: str) -> None:
    with pytest.raises((PtxSyntaxError, UnsupportedError)) as caught:
        kernel(body)
    assert re.search(text, str(caught.value))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (".reg .b32 %a<10000000>;", wording("sim.ptx.registers-too-many", limit=131072)),
        (".reg .b32 %a<999999999999>;", wording("sim.ptx.registers-too-many", limit=131072)),
        (".local .b8 s[99999999999];", wording("sim.ptx.variables-too-large", name="local")),
        (".shared .align 0 .b8 s[4];", "alignment 0"),
        (".shared .align 3 .b8 s[4];", "alignment 3"),
        (".shared .align 1099511627776 .b8 s[4];", "alignment 1099511627776"),
        ("{" * 20000, wording("sim.ptx.scopes-too-deep")),
        ("L: mov.b32 %r1, 0;\nL: ret;", wording("sim.ptx.label-twice", label="L")),
        (".reg .b32 %r1;", wording("sim.ptx.declared-twice", name="%r1")),
        (".shared .b8 s[4];\n.shared .b8 s[4];", wording("sim.ptx.declared-twice", name="s")),
    ],
)
def test_what_is_beyond_all_kernels_is_refused_at_once(text: str, named: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        kernel(text)
    assert re.search(named, str(caught.value))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (".global .b8 g[99999999999];", wording("sim.ptx.variables-too-large", name="global")),
        (".global .b8 g[99999999999] = {1};", wording("sim.ptx.variables-too-large", name="global")),
        (".const .b8 c[65537];", wording("sim.ptx.variables-too-large", name="const")),
        (".global .b32 g[2] = {1, 2, 3};", wording("sim.ptx.initial-values", given=3, name="g", count=2)),
        (".entry k() { ret; }\n.entry k() { ret; }", wording("sim.ptx.kernel-twice", name="k")),
        (".entry k(.param .u32 a, .param .u32 a) { ret; }", wording("sim.ptx.declared-twice", name="a")),
        (".entry k(.param .b8 a[40000]) { ret; }", wording("sim.ptx.variables-too-large", name="param")),
    ],
)
def test_modules_beyond_all_kernels(text: str, named: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        parse(HEADER + text)
    assert re.search(named, str(caught.value))


def test_a_local_variable_of_the_module_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse(HEADER + ".local .align 4 .b8 depot[64];\n.entry k() { ret; }")
    assert re.search(wording("sim.ptx.local-outside-kernel", name="depot"), str(caught.value))
    assert "PTX line 4 `.local .align 4 .b8 depot[64];`" in str(caught.value)


@pytest.mark.parametrize("version", ["8", "8.x", "9" * 5000 + ".0"])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(PtxSyntaxError, match="is no version"):
        parse(f".version {version}\n")


def test_a_file_of_a_number_that_no_file_has() -> None:
    parse(HEADER + f'.file {"9" * 5000} "a.py"\n')


@pytest.mark.parametrize("declared", ["bf16", "e4m3", "tf32", "u16x2", "e2m1x4"])
def test_registers_have_fundamental_types(declared: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"registers of type \.{declared}"):
        kernel(f".reg .{declared} %x;")


def test_every_spelling_of_public_kernels_is_known() -> None:
    """The opcodes of 74 PTX files that public CuTe DSL kernels compile to for sm_100a."""
    spellings = (Path(__file__).parent / "public_opcodes.txt").read_text().split()
    assert len(spellings) > 300
    for spelling in spellings:
        base, suffixes = isa.split(spelling)
        assert base, spelling
        if base in ("mov", "ld", "st") and suffixes[-1] == "b128":
            suffixes = [*suffixes[:-1], "v2", "b64"]  # the parser makes two halves of 64 bits of them
        (form, *_) = isa.forms(base, *isa.classify(suffixes))
        if form.by_machine:
            assert handler(base)


def test_damaged_text_never_escapes_the_named_errors() -> None:
    """Any text either parses or is refused in one of the two ways."""
    seed = drawn("parser")
    generator = random.Random(seed)
    text = HEADER + (
        ".visible .entry k(.param .u64 a) .reqntid 32, 1, 1 {\n"
        ".reg .b32 %r<4>; .reg .pred %p<2>; .reg .b64 %d<2>;\n"
        "{ .reg .pred q; L: setp.lt.s32 q|%p1, %r1, -4; @!q bra L; }\n"
        "ld.shared.v2.b32 {%r1, %r2}, [%r3+8];\n"
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r1, 3}], [%r2];\nret;\n}\n"
    )
    for _ in range(2000):
        damaged = list(text)
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(len(damaged))
            damaged[at : at + generator.randint(0, 3)] = generator.choices(
                "{}[]();,.%!@|r1 -", k=generator.randint(0, 2)
            )
        try:
            parse("".join(damaged))
        except (PtxSyntaxError, UnsupportedError):
            pass
        except Exception as error:  # pragma: no cover
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{''.join(damaged)}")


def test_every_opcode_has_one_owner() -> None:
    for op, rows in ROWS.items():
        assert len({row.traits.owner for row in rows}) == 1, op
    assert ROWS["add"][0].traits.owner is Owner.ENGINE
    assert ROWS["tcgen05.mma"][0].traits.owner is Owner.MACHINE
    assert isa.split("fence.proxy.async.shared::cta") == ("fence.proxy.async", ("shared::cta",))
    assert isa.split("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16")[0] == "wgmma.mma_async"
