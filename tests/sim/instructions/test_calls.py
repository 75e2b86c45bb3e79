# SPDX-License-Identifier: Apache-2.0
"""Functions, and what the CUDA driver gives kernels: printf and assert. The expectations are those of the PTX
ISA ("call", "Function Declarations and Definitions") and of C's printf, which Python has too."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, PtxSyntaxError, UnsupportedError
from gdnbench.sim.machine import driver_calls
from gdnbench.sim.machine.driver_calls import format_text
from gdnbench.sim.run import RunResult, run_ptx
from tests.messages import wording
from tests.sim.instructions.one_instruction import HEADER, check

LANES = 32

TRIANGLE = """.func (.param .b32 result) triangle(.param .b32 n)
{
.reg .b32 %r<4>; .reg .pred %p;
ld.param.b32 %r0, [n];
mov.b32 %r1, 0;
AGAIN:
setp.eq.b32 %p, %r0, 0;
@%p bra DONE;
setp.gt.u32 %p, %r1, 100;
@!%p bra GO;
st.param.b32 [result], -1;
ret;
GO:
add.s32 %r1, %r1, %r0;
sub.s32 %r0, %r0, 1;
bra AGAIN;
DONE:
st.param.b32 [result], %r1;
ret;
}
"""


def triangle(n: int) -> int:
    total = 0
    while n:
        if total > 100:
            return -1
        total, n = total + n, n - 1
    return total


def run(engine: str, functions: str, body: str, out: npt.NDArray[Any], *, checked: bool = False) -> RunResult:
    """`body` in one warp: %t is the lane, and %r0 goes to `out[lane]`."""
    ptx = f"""{HEADER}{functions}
.visible .entry k(.param .b64 to)
{{
.reg .b32 %t, %r<9>; .reg .b64 %d<9>; .reg .pred %p, %q; .reg .b64 %to;
ld.param.b64 %to, [to];
mov.u32 %t, %tid.x;
{body}
mad.wide.u32 %to, %t, 4, %to;
st.global.b32 [%to], %r0;
ret;
}}"""
    return run_ptx(ptx, "k", (1, 1, 1), (LANES, 1, 1), [out], engine=engine, threads=1, check=checked)


CALL = """{ .param .b32 a; .param .b32 b;
st.param.b32 [a], %t;
call.uni (b), triangle, (a);
ld.param.b32 %r0, [b]; }"""


@pytest.mark.parametrize("checked", [False, True])
def test_a_function_returns_from_several_places(engine: str, checked: bool) -> None:
    out = np.zeros(LANES, np.int32)
    run(engine, TRIANGLE, CALL, out, checked=checked)
    check(out, np.array([triangle(n) for n in range(LANES)], np.int32))


def test_a_prototype_comes_first_and_calls_have_registers_of_their_own(engine: str) -> None:
    """`twice` calls `triangle` twice, in a loop of the kernel."""
    prototype = ".func (.param .b32 result) triangle(.param .b32 n);"
    twice = """.func (.param .b32 result) twice(.param .b32 n) {
    .reg .b32 %r<4>;
    ld.param.b32 %r3, [n];
    { .param .b32 a, b; st.param.b32 [a], %r3; call (b), triangle, (a); ld.param.b32 %r1, [b]; }
    { .param .b32 a, b; add.s32 %r3, %r3, 1; st.param.b32 [a], %r3; call (b), triangle, (a);
    ld.param.b32 %r2, [b]; }
    add.s32 %r1, %r1, %r2;
    st.param.b32 [result], %r1;
    ret; }""".replace(".param .b32 a, b;", ".param .b32 a; .param .b32 b;")
    body = """mov.b32 %r0, 0; mov.b32 %r1, 0;
    LOOP: { .param .b32 a; .param .b32 b; and.b32 %r2, %t, 7; add.s32 %r2, %r2, %r1;
    st.param.b32 [a], %r2; call (b), twice, (a); ld.param.b32 %r2, [b]; }
    add.s32 %r0, %r0, %r2; add.s32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 3; @%p bra LOOP;"""
    out = np.zeros(LANES, np.int32)
    run(engine, prototype + twice + TRIANGLE, body, out)
    expected = [sum(triangle(t % 8 + i) + triangle(t % 8 + i + 1) for i in range(3)) for t in range(LANES)]
    check(out, np.array(expected, np.int32))


def test_lanes_that_do_not_call_keep_their_registers(engine: str) -> None:
    """A guarded call; registers and constants as arguments, as ptxas takes them."""
    body = """mov.b32 %r0, 7; and.b32 %r1, %t, 1; setp.ne.b32 %p, %r1, 0;
    @%p call (%r0), triangle, (%t);
    @!%p call (%r2), triangle, (3);
    @!%p add.s32 %r0, %r0, %r2;"""
    out = np.zeros(LANES, np.int32)
    run(engine, TRIANGLE, body, out)
    check(out, np.array([triangle(t) if t % 2 else 13 for t in range(LANES)], np.int32))


def test_register_parameters(engine: str) -> None:
    """Parameters in .reg space, as PTX 1.x has them; a result that nobody wants is `_`."""
    function = ".func (.reg .u32 r) add3(.reg .u32 a, .reg .u32 b) { add.u32 r, a, b; add.u32 r, r, 3; ret; }"
    out = np.zeros(LANES, np.uint32)
    run(engine, function, "call (%r0), add3, (%t, 9); call (_), add3, (%t, -1);", out)
    check(out, np.arange(LANES, dtype=np.uint32) + np.uint32(12))


def test_a_struct_is_passed_by_value_and_its_address_taken(engine: str) -> None:
    """The function writes its copy by a pointer; a thread's memory is its own."""
    function = """.func (.param .align 16 .b8 out[16]) swap(.param .align 16 .b8 in[16], .param .b64 where) {
    .local .align 16 .b8 room[16];
    .reg .b64 %a, %b, %w; .reg .b32 %x;
    ld.param.v2.b64 {%a, %b}, [in];
    ld.param.b64 %w, [where];
    ld.b32 %x, [%w]; add.s32 %x, %x, 1; st.b32 [%w], %x;
    st.local.b64 [room], %b; st.local.b64 [room+8], %a;
    ld.local.v2.b64 {%a, %b}, [room];
    st.param.v2.b64 [out], {%a, %b};
    ret; }"""
    body = """.local .align 4 .b8 counter[4];
    st.local.b32 [counter], %t; mov.b64 %d3, counter; cvta.local.u64 %d3, %d3;
    cvt.u64.u32 %d0, %t; mul.lo.u64 %d1, %d0, 1000;
    { .param .align 16 .b8 a[16]; .param .b64 w; .param .align 16 .b8 r[16];
    st.param.v2.b64 [a], {%d0, %d1}; st.param.b64 [w], %d3;
    call (r), swap, (a, w);
    ld.param.b64 %d4, [r]; ld.param.b64 %d5, [r+8]; }
    ld.local.b32 %r1, [counter];
    cvt.u32.u64 %r2, %d4; cvt.u32.u64 %r3, %d5;
    sub.s32 %r0, %r2, %r3; mad.lo.s32 %r0, %r1, 100000, %r0;"""
    out = np.zeros(LANES, np.int32)
    run(engine, function, body, out)
    t = np.arange(LANES, dtype=np.int32)
    check(out, 999 * t + (t + 1) * np.int32(100_000))


POINTERS = """.func (.param .b32 r) more(.param .b32 n);
.func (.param .b32 r) less(.param .b32 n);
.func (.param .b64 r) wide(.param .b32 n) { .reg .b64 %x; mov.b64 %x, 0; st.param.b64 [r], %x; ret; }
.global .align 8 .u64 table[3] = {more, less, wide};
.func (.param .b32 r) more(.param .b32 n) { .reg .b32 %x; ld.param.b32 %x, [n]; add.s32 %x, %x, 100;
    st.param.b32 [r], %x; ret; }
.func (.param .b32 r) less(.param .b32 n) { .reg .b32 %x; ld.param.b32 %x, [n]; neg.s32 %x, %x;
    st.param.b32 [r], %x; ret; }
"""
THROUGH = """and.b32 %r1, %t, 1; mul.wide.u32 %d0, %r1, 8; mov.b64 %d1, table; add.s64 %d1, %d1, %d0;
    ld.global.b64 %d2, [%d1]; mov.b64 %d3, less; setp.lt.u32 %p, %t, 30; mov.b32 %r0, -7;
    {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %t; {bad}
    proto: .callprototype (.param .b32 _) _ (.param .b32 _);
    @%p call (b), %d2, (a), proto;
    @%p ld.param.b32 %r0, [b]; }}"""


def test_calls_through_a_register(engine: str) -> None:
    """Each lane calls the function whose address it has; 30 of them call."""
    out = np.zeros(LANES, np.int32)
    run(engine, POINTERS, THROUGH.format(bad=""), out)
    called = [-lane if lane % 2 else lane + 100 for lane in range(LANES)]
    assert out.tolist() == [*called[:30], -7, -7]
    with pytest.raises(KernelFault) as caught:
        run(engine, POINTERS, THROUGH.format(bad="mov.b64 %d2, 4096;"), out)
    assert caught.value.kind is FaultKind.TRAP
    assert caught.value.place is not None
    assert "call (b), %d2" in caught.value.place.text


@pytest.mark.parametrize(
    ("functions", "body", "error"),
    [
        (
            ".func f(.param .b32 a) { { .param .b32 b; st.param.b32 [b], 1; call f, (b); } ret; }",
            "call f, (%t);",
            wording("sim.ptx.recursion", name="f"),
        ),
        (".extern .func (.param .b64 r) malloc(.param .b64 n);", "call (%d0), malloc, (%d0);",
         wording("sim.ptx.function-external", name="malloc")),
        ("", "call (%r0), %d0, (%t), proto;", wording("sim.ptx.call-indirect", name="%d0")),
    ],
)  # fmt: skip
def test_calls_that_are_refused(engine: str, functions: str, body: str, error: str) -> None:
    with pytest.raises(UnsupportedError, match=error):
        run(engine, functions, body, np.zeros(LANES, np.int32))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("call nobody, (%t);", wording("sim.ptx.function-unknown", name="nobody")),
        ("call (%r0), triangle, (%t, %t);",
         wording("sim.ptx.call-operands", name="triangle", formal=1, what="arguments", given=2)),
        ("call triangle, (%t);",
         wording("sim.ptx.call-operands", name="triangle", formal=1, what="results", given=0)),
        ("{ .param .b16 a; call (%r0), triangle, (a); }",
         wording("sim.ptx.call-size", actual="a", bytes=2, formal="n", size=4)),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(body: str, error: str) -> None:
    with pytest.raises(PtxSyntaxError, match=error):
        run("interpreter", TRIANGLE, body, np.zeros(LANES, np.int32))


PRINTF = """.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[{length}] = {{{bytes}}};
.global .align 1 .b8 word[4] = {{97, 98, 99, 0}};
"""


def printed(engine: str, text: str, stores: str, out: npt.NDArray[Any], guard: str = "") -> RunResult:
    """Every lane prints `text`; `stores` fills the arguments at [args]."""
    data = text.encode() + b"\0"
    functions = PRINTF.format(length=len(data), bytes=", ".join(map(str, data)))
    body = f""".local .align 8 .b8 args[64];
    {stores}
    mov.b64 %d0, text; cvta.global.u64 %d0, %d0; mov.b64 %d1, args; cvta.local.u64 %d1, %d1;
    mov.b32 %r0, 0; setp.eq.b32 %p, %t, 5;
    {{ .param .b64 f; .param .b64 a; .param .b32 r;
    st.param.b64 [f], %d0; st.param.b64 [a], %d1;
    {guard} call.uni (r), vprintf, (f, a);
    {guard} ld.param.b32 %r0, [r]; }}"""
    return run(engine, functions, body, out)


def test_printf(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each thread that prints says who it is; the result is the number of arguments."""
    out = np.zeros(LANES, np.int32)
    stores = """st.local.b32 [args], %t; mov.b64 %d2, word; cvta.global.u64 %d2, %d2;
    st.local.b64 [args+8], %d2; st.local.b64 [args+16], 0x3FF8000000000000;
    st.local.b64 [args+24], -5; st.local.b32 [args+32], 255;"""
    printed(engine, "%d|%5s|%.3f|%lld|%#x%%\n", stores, out, "@%p")
    assert capsys.readouterr().err == "k, block (0, 0, 0), thread (5, 0, 0): 5|  abc|1.500|-5|0xff%\n"
    assert out.tolist() == [5 * (lane == 5) for lane in range(LANES)]


def test_all_lanes_print_in_order(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = printed(engine, "x", "", np.zeros(LANES, np.int32))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"k, block (0, 0, 0), thread ({lane}, 0, 0): x" for lane in range(LANES)]
    assert [f"k, {text}" for _, text in ran.counters.printed] == lines


def test_the_report_keeps_a_limited_number_of_texts(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_calls, "MOST_PRINTED", 3)
    ran = printed(engine, "x", "", np.zeros(LANES, np.int32))
    places = [f"block (0, 0, 0), thread ({lane}, 0, 0): x" for lane in range(3)]
    assert ran.counters.printed == [(0, place) for place in places]


@pytest.mark.parametrize(
    ("form", "kind", "value"),
    [(form, ctypes.c_int, value) for form in ("%d", "%5d", "%-5d|", "%05d", "%+d", "% d", "%.3d", "%i")
     for value in (0, 42, -42)]
    + [(form, ctypes.c_uint, 0xBEEF) for form in ("%u", "%o", "%#o", "%x", "%#X", "%08x", "%hu", "%hhx")]
    + [("%hd", ctypes.c_int, 70000), ("%ld", ctypes.c_longlong, -(1 << 40)),
       ("%llu", ctypes.c_ulonglong, 1 << 63), ("%zx", ctypes.c_ulonglong, 77)]
    + [(form, ctypes.c_double, value)
       for form in ("%f", "%.2f", "%10.3f", "%-9.1f|", "%e", "%g", "%G", "%#.3g")
       for value in (3.14159, -1e-7, 1e20, float("inf"), float("nan"))]
    + [("%c", ctypes.c_int, 122), ("%3c|", ctypes.c_int, 122)],
)  # fmt: skip
def test_conversions_are_those_of_c(form: str, kind: type, value: float) -> None:
    """Against the C library's own printf."""
    buffer = ctypes.create_string_buffer(200)
    ctypes.CDLL(None).snprintf(buffer, ctypes.c_size_t(200), form.encode(), kind(value))
    bits = int.from_bytes(bytes(kind(value)), "little")
    sizes = []

    def argument(size: int) -> int:
        sizes.append(size)
        return bits

    assert format_text(form.encode(), argument, lambda at: b"") == (buffer.value.decode(), 1)
    assert sizes == [ctypes.sizeof(kind)]


def test_width_and_precision_from_arguments() -> None:
    """A negative width is a width and the flag `-`; what is no conversion stays."""
    values = iter([6, 1, (1 << 32) - 4, 2, 3, 1])
    text, taken = format_text(b"|%*d|%*d|%.*s|%q|", lambda size: next(values), lambda at: b"abcdef")
    assert (text, taken) == ("|     1|2   |abc|%q|", 6)


def test_printf_without_a_format(engine: str) -> None:
    out = np.zeros(LANES, np.int32)
    body = """{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], 0; st.param.b64 [a], 0;
    call (r), vprintf, (f, a); ld.param.b32 %r0, [r]; }"""
    run(engine, PRINTF.format(length=1, bytes=0), body, out)
    assert (out == -1).all()


def test_a_failed_assertion_names_everything(engine: str) -> None:
    data = {"message": "i < n", "file": "a.cu", "function": "void f(int)"}
    declared = "".join(
        f".global .align 1 .b8 {name}[{len(text) + 1}] = {{{', '.join(map(str, text.encode()))}, 0}};\n"
        for name, text in data.items()
    )
    declared += """.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,
    .param .b64 e);"""
    body = """mov.b64 %d0, message; mov.b64 %d1, file; mov.b64 %d2, function;
    cvta.global.u64 %d0, %d0; cvta.global.u64 %d1, %d1; cvta.global.u64 %d2, %d2;
    mov.b32 %r0, 1; setp.gt.u32 %p, %t, 8;
    @!%p bra FINE;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %d0; st.param.b64 [b], %d1; st.param.b32 [c], 77; st.param.b64 [d], %d2;
    st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
    FINE:"""
    with pytest.raises(KernelFault) as caught:
        run(engine, declared, body, np.zeros(LANES, np.int32))
    assert caught.value.kind is FaultKind.ASSERTION
    assert caught.value.message == (
        "a.cu:77: void f(int): block (0, 0, 0), thread (9, 0, 0): assertion `i < n` failed"
    )
    assert "__assertfail" in str(caught.value)
