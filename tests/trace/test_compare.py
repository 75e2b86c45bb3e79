# SPDX-License-Identifier: Apache-2.0
"""Two traces compared: what was planted is what is named, and what is the same is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdnbench.diff.traces.alignment import Run, align
from gdnbench.diff.traces.compare import TraceComparison, compare
from gdnbench.diff.traces.judging import Addresses, Bound
from gdnbench.diff.traces.report import as_json, report_lines
from gdnbench.errors import BadInputError, StoreError
from gdnbench.trace.reader import Region, open_trace
from tests.messages import wording
from tests.trace.sums import SOURCE, at

Traced = Callable[..., Path]  # the fixture `traced`

X = np.arange(32, dtype=np.float32) / 4 + 1
OTHER = X.copy()
OTHER[5] = np.nextafter(OTHER[5], np.float32(9), dtype=np.float32)
ADDED = "    # Which is why a line is added.\n"


def compared(a: Path, b: Path, bound: Bound | None = None) -> TraceComparison:
    with open_trace(a) as left, open_trace(b) as right:
        return compare(left, right, bound or Bound())


def first(found: TraceComparison) -> dict[str, Any]:
    data = found.launches[0].first
    assert data is not None
    return data


def test_runs_of_one_kernel_on_equal_tensors_are_equal(traced: Traced) -> None:
    a, b = traced("a", X, grid=3), traced("b", X, grid=3)
    with open_trace(a) as left, open_trace(b) as right:
        moved = [one.launches[0].regions for one in (left, right)]
        count = left.launches[0].events
    assert moved[0] != moved[1]  # else the pointers would have been no difference
    found = compared(a, b)
    assert found.equal
    assert found.launches[0].aligned == count
    assert found.launches[0].notes == []


def test_the_load_that_brings_another_number_is_the_first(traced: Traced) -> None:
    found = compared(traced("a", X), traced("b", OTHER))
    one = first(found)
    assert (one["kind"], one["cta"], one["warp"], one["lane"]) == ("value", [0, 0, 0], 0, 5)
    assert one["a"]["text"] == "value = x[thread]"
    assert one["a"]["ptx"] == "ld.global.f32 %f1, [%rd4];"
    assert (one["a"]["value"], one["b"]["value"]) == (float(X[5]), float(OTHER[5]))
    assert int(one["b"]["bits"], 16) == int(one["a"]["bits"], 16) + 1
    assert one["ulps"] == 1
    (address,) = one["inputs"]
    assert (address["what"], address["state"]) == ("address", "equal, the same place of a tensor")
    # The load; sums are 0, x and 3 x, so that two of three differ; what is stored.
    assert found.launches[0].differing == 4
    counts = {line: count for (_, line), count in found.launches[0].lines.items()}
    assert counts == {3: 1, 6: 2, 7: 1}


def test_inputs_say_what_differed_before(traced: Traced) -> None:
    of = "class=arithmetic source=.py:6-6"  # cvt and fma: the load is not recorded
    one = first(compared(traced("a", X, of=of), traced("b", OTHER, of=of)))
    assert (one["a"]["instruction"], one["a"]["occurrence"]) == ("fma.rn.f32", 1)
    assert [(i["name"], i["state"]) for i in one["inputs"]] == [
        ("%f3", "equal"),
        ("%f1", "not recorded"),
        ("%f2", "equal"),
    ]
    assert one["inputs"][0]["a"]["value"] == 1.0


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("bound", "equal"),
    [
        (Bound(tolerance=(0.0, 2**-22)), True),
        (Bound(tolerance=(1e-9, 0.0)), False),
        (Bound(ulps=4), True),  # 3 x is three times as far apart, in at most as large units
        (Bound(ulps=0.5), False),
        (Bound(), False),
    ],
)
def test_a_bound_is_kept_to(traced: Traced, bound: Bound, equal: bool) -> None:
    assert compared(traced("a", X), traced("b", OTHER), bound).equal is equal


def test_other_ptx_is_aligned_by_python_lines(traced: Traced) -> None:
    """Registers are renamed, a line is added to the source, and a constant is another."""
    source = SOURCE.replace("    value", f"{ADDED}    value")
    moved = tuple((f".loc 1 {line} 0", f".loc 1 {line + 1} 0 // moved") for line in (7, 6, 5, 4, 3))
    renamed = (("%f<5>", "%f<9>"), ("%f3", "%f7"))
    constant = (("0f00000000", "0f3F800000"),)
    a = traced("a", X)
    same = compared(a, traced("b", X, edits=(*moved, *renamed), source=source))
    assert same.equal
    assert same.launches[0].only == (0, 0)
    (note,) = same.launches[0].notes
    assert re.fullmatch(wording("trace.ptx-differs"), note)
    one = first(compared(a, traced("c", X, edits=(*moved, *renamed, *constant), source=source)))
    assert (one["a"]["line"], one["b"]["line"], one["a"]["text"]) == (4, 5, "total = 0.0")
    assert (one["a"]["value"], one["b"]["value"]) == (0.0, 1.0)
    assert [(i["name"], i["state"]) for i in one["inputs"]] == [("a constant", "differs")]


def test_an_edited_line_is_compared_where_it_does_the_same_operations(traced: Traced) -> None:
    """Here another operand: the step squared."""
    source = SOURCE.replace("step * value", "step * value + 0 * step")
    edits = (("fma.rn.f32 %f2, %f3, %f1, %f2", "fma.rn.f32 %f2, %f3, %f3, %f2"),)
    a, b = traced("a", X), traced("b", X, edits=edits, source=source)
    one = first(compared(a, b))
    assert (one["a"]["instruction"], one["a"]["occurrence"], one["lane"]) == ("fma.rn.f32", 1, 1)
    assert (one["a"]["value"], one["b"]["value"]) == (1.25, 1.0)
    assert [place["text"] for place in one["edited"]] == ["total = total + step * value + 0 * step"]
    more = (*edits, ("cvt.rn.f32.u32 %f3, %r3;", "cvt.rn.f32.u32 %f3, %r3;\n    add.f32 %f4, %f3, %f3;"))
    one = first(compared(a, traced("c", X, edits=more, source=source)))
    assert one["a"]["instruction"] == "st.global.f32"  # what came of it


def test_a_value_counts_for_its_iteration(traced: Traced) -> None:
    """The steps come in the other order: the same values, each in another round."""
    reverse = ("cvt.rn.f32.u32 %f3, %r3;", "sub.u32 %r4, 2, %r3;\n    cvt.rn.f32.u32 %f3, %r4;")
    a, b = traced("a", X), traced("b", X, edits=(reverse,))
    one = first(compared(a, b))
    assert (one["a"]["instruction"], one["a"]["occurrence"]) == ("cvt.rn.f32.u32", 0)
    assert (one["a"]["value"], one["b"]["value"]) == (0.0, 2.0)
    with open_trace(a) as left, open_trace(b) as right:
        runs = [Run.of_launch(trace.launches[0]) for trace in (left, right)]
    alignment = align(runs[0], runs[1])  # as two compilers may order what they like
    steps = [i for i, event in enumerate(runs[0].events) if runs[0].instruction(i).name.startswith("cvt")]
    partners = [alignment.partner[i] for i in steps]
    assert [runs[1].events[j].occurrence for j in partners if j is not None] == [2, 1, 0]


def test_an_execution_that_one_has_not_is_named(traced: Traced) -> None:
    fma = at("fma.rn")
    one = first(compared(traced("a", X, of=fma), traced("b", X, rounds=4, of=fma)))
    assert (one["kind"], one["a"]) == ("missing", None)
    assert (one["b"]["instruction"], one["b"]["occurrence"]) == ("fma.rn.f32", 3)
    more = compared(traced("c", X), traced("d", X, edits=(("setp.lt.u32", "setp.le.u32"),)))
    one = first(more)
    assert (one["kind"], one["counts"]) == ("missing", (3, 4))
    assert one["b"]["text"] == "total = total + step * value"


def test_the_state_of_a_barrier_is_no_value(traced: Traced) -> None:
    """Who arrived before is in it, and that is the schedule's affair; here the count is another."""
    init = "mbarrier.init.shared.b64 [bar], 64;\n"
    edits = (
        (".reg .pred", ".shared .align 8 .b64 bar;\n    .reg .b64 %rs;\n    .reg .pred"),
        (
            "LOOP:\n",
            f"{init}    mbarrier.arrive.shared.b64 %rs, [bar];\nLOOP:\n",
        ),
    )
    a, b = traced("a", X, edits=edits), traced("b", X, edits=(*edits, ("[bar], 64", "[bar], 65")))
    with open_trace(a) as left, open_trace(b) as right:
        states = [
            event.values
            for trace in (left, right)
            for event in trace.launches[0].read()
            if trace.launches[0].instructions[event.pc].name.startswith("mbarrier")
        ]
    assert (states[0] != states[1]).any()
    assert compared(a, b).equal


def test_other_lanes_are_a_difference(traced: Traced) -> None:
    guard = ("st.global.f32 [%rd5]", "setp.ge.f32 %p0, %f1, 0f40000000;\n    @%p0 st.global.f32 [%rd5]")
    low = X.copy()
    low[4] = 1.5
    of = "class=store"
    one = first(compared(traced("a", X, edits=(guard,), of=of), traced("b", low, edits=(guard,), of=of)))
    assert one["kind"] == "lanes"
    assert (one["a"]["lanes"], one["b"]["lanes"]) == (0xFFFFFFF0, 0xFFFFFFE0)


def test_what_was_cut_is_no_difference_and_is_said(traced: Traced) -> None:
    found = compared(traced("a", X), traced("b", X, limit=3000))
    assert found.equal
    assert [note.partition(",")[0] for note in found.launches[0].notes] == ["B was cut at its limit"]
    assert 0 < found.launches[0].aligned < 20
    stored = compared(traced("c", X), traced("d", X, of="class=store"))
    assert stored.equal
    assert stored.launches[0].aligned == 1
    different = wording("trace.selections-differ")
    assert any(re.fullmatch(different, note) for note in stored.launches[0].notes)


def test_a_trace_of_nothing_is_not_taken_for_an_equal_one(traced: Traced) -> None:
    every, none = traced("a", X), traced("b", X, of="warp=7")
    for one, other in ((every, none), (none, every), (none, none)):
        with pytest.raises(
            BadInputError,
            match=wording("trace.nothing-common", reason=re.compile(r": no events in \S*b\b.* --select")),
        ):
            compared(one, other)


def test_ctas_that_one_has_not_are_a_difference(traced: Traced) -> None:
    found = compared(traced("a", X), traced("b", X, grid=3))
    (missing,) = found.launches[0].missing
    assert re.fullmatch(wording("trace.only-one-has", trace="B", cta=1, more=" and 1 more"), missing)
    assert not found.equal
    summary = wording("diff.traces-summary", events=23, verdict="not the same", bound="equal bits")
    assert re.fullmatch(summary, list(report_lines(found))[-1])


def test_a_launch_that_one_has_not_is_a_difference(traced: Traced) -> None:
    found = compared(traced("a", X, launches=2), traced("b", X))
    assert not found.equal
    assert found.unpaired == ("only A has launch 1, sums",)


def test_what_has_no_counterpart_is_counted(traced: Traced) -> None:
    """The kernel stores once in its one warp."""
    whole, stored = traced("a", X), traced("b", X, of="class=store")
    with open_trace(whole) as trace:
        alone = trace.launches[0].events - 1
    said = wording("diff.not-compared", launch="launch 0", a=alone, b=0)
    assert any(re.fullmatch(said, line) for line in report_lines(compared(whole, stored)))
    assert not any("no counterpart" in line for line in report_lines(compared(whole, whole)))


def test_kernels_that_share_no_line_are_refused(traced: Traced) -> None:
    other = "\n".join("def f(a): return 0" for _ in range(9))
    edits = (("add.u32 %r3, %r3, 1", "add.u32 %r3, 1, %r3"),)
    with pytest.raises(BadInputError, match=wording("trace.nothing-common")):
        compared(traced("a", X), traced("b", X, source=other, edits=edits))


def test_damage_is_not_taken_for_a_difference(traced: Traced) -> None:
    a, b = traced("a", X), traced("b", X)
    (b / "launches" / "000000" / "values" / "c" / "0" / "0").unlink()
    with pytest.raises(StoreError, match=wording("store.claims-shape", bytes=0)):
        compared(a, b)


def test_a_source_says_nothing_to_a_terminal(traced: Traced) -> None:
    source = SOURCE.replace("x[thread]", "x[thread] # \x1b[2J \u202e")
    found = compared(traced("a", X, source=source), traced("b", OTHER, source=source))
    shown = list(report_lines(found))
    assert any("\\x1b[2J" in line for line in shown)
    assert all(line.isprintable() for line in shown)
    data = as_json(found, 1)
    assert data["launches"][0]["first"]["a"]["text"].endswith("\x1b[2J \u202e")  # JSON escapes it itself


NAN, NEGATIVE = 0x7FC00000, 0xFFC00001


@pytest.mark.parametrize(
    ("x", "y", "kind", "bound", "apart"),
    [
        (0, 0x80000000, "f32", Bound(), True),  # other bits
        (0, 0x80000000, "f32", Bound(ulps=0), False),  # equal numbers
        (NAN, NEGATIVE, "f32", Bound(), True),
        (NAN, NEGATIVE, "f32", Bound(ulps=1), False),
        (NAN, 0x3F800000, "f32", Bound(tolerance=(1e9, 0.0)), True),
        (0x7F800000, 0x7F7FFFFF, "f32", Bound(tolerance=(0.0, 1.0)), True),  # an infinity and a number
        (0x7F7FFFFF, 0x7F800000, "f32", Bound(tolerance=(0.0, 1.0)), True),
        (0x3F800000, 0x3F800001, "u32", Bound(tolerance=(9.0, 9.0)), True),  # integers: bits
        (0x3F80_4000, 0x3F80_4001, "bf16x2", Bound(ulps=1), False),  # 2 and the number after it
        (0x3F80_4000, 0x3F82_4000, "bf16x2", Bound(ulps=1), True),
    ],
)
def test_bits_and_numbers(x: int, y: int, kind: str, bound: Bound, apart: bool) -> None:
    rows = [np.full(32, bits, np.uint64) for bits in (x, y)]
    assert bound.apart(rows[0], rows[1], kind, kind).all() == apart


def test_bounds_that_are_none_are_refused() -> None:
    for tolerance, ulps in (((1.0, 0.0), 1.0), ((-1.0, 0.0), None), (None, float("nan"))):
        with pytest.raises(BadInputError):
            Bound(tolerance, ulps)


def test_an_address_is_the_same_only_in_one_tensor() -> None:
    base, there = 1 << 40, (1 << 44) + 64
    moved = Addresses(
        [Region("x", base, 4096), Region("y", 1 << 41, 8)],
        [Region("x", there, 4096), Region("y", 1 << 41, 8)],
    )
    x = np.array([base, base + 4, base + 4, 3, base + (1 << 30)], np.uint64)
    y = np.array([there, there + 4, there + 8, 3 + there - base, there + (1 << 30)], np.uint64)
    assert moved.same(x, y).tolist() == [True, True, False, False, False]
