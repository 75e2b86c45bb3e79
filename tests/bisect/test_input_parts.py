# SPDX-License-Identifier: Apache-2.0
"""The parts of `bisect input`: the search on an axis, what counts as the same failure, layouts, values, and
the text of a script."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gdnbench.bisect import cache_key
from gdnbench.bisect.ddmin import fewest
from gdnbench.bisect.input.failure import Signature
from gdnbench.bisect.input.layout import in_layout_of, is_plain
from gdnbench.bisect.input.script import text_of
from gdnbench.bisect.input.shrinker import spans
from gdnbench.bisect.input.values import FILLINGS, with_rows_kept
from gdnbench.bisect.trial import Trial
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.ops import operation
from gdnbench.printable import printable
from gdnbench.store.reader import Store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import Call


@given(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=5))
def test_the_units_that_are_needed_are_what_is_left(units: int, drawn: set[int]) -> None:
    needed = {unit for unit in drawn if unit < units}
    asked: list[tuple[int, ...]] = []

    def fails(kept: Sequence[int]) -> bool:
        asked.append(tuple(kept))
        return needed <= set(kept)

    assert fewest(units, fails, least=0) == sorted(needed)
    assert len(asked) == len(set(asked))
    assert fewest(units, fails, least=1) == (sorted(needed) or fewest(units, fails, least=1))
    assert len(fewest(units, fails, least=1)) == max(1, len(needed))


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 3))
def test_no_single_unit_can_go(odd: list[bool], least: int) -> None:
    """Also of what is not monotone: it fails while an odd number of marked units is there, or all are."""
    whole = tuple(range(len(odd)))

    def fails(kept: Sequence[int]) -> bool:
        return tuple(kept) == whole or sum(odd[unit] for unit in kept) % 2 == 1

    left = fewest(len(odd), fails, least)
    assert fails(left)
    assert len(left) >= min(least, len(odd))
    if len(left) > max(1, least):
        assert not any(fails([unit for unit in left if unit != gone]) for gone in left)


def test_parts_bound_how_fine_it_gets() -> None:
    def fails(kept: Sequence[int]) -> bool:
        return {0, 20, 40, 60} <= set(kept)

    assert len(fewest(64, fails, parts=4)) == 64  # one in each quarter
    assert len(fewest(64, fails, parts=8)) < 64
    assert fewest(64, fails) == [0, 20, 40, 60]


@given(st.integers(2, 60), st.sets(st.integers(0, 59), max_size=3), st.integers(0, 59))
def test_a_suspect_is_tried_before_all_else(units: int, drawn: set[int], drawn_suspect: int) -> None:
    needed, suspect = {unit % units for unit in drawn}, drawn_suspect % units
    asked: list[tuple[int, ...]] = []

    def fails(kept: Sequence[int]) -> bool:
        asked.append(tuple(kept))
        return needed <= set(kept)

    assert set(fewest(units, fails, least=0, suspect=suspect)) == needed
    assert asked[0] == (suspect,)
    assert len(asked) == len(set(asked))
    if needed == {suspect}:
        assert asked == [(suspect,), ()]


def mismatch(*failing: dict[str, Any]) -> Verdict:
    return Verdict(State.BAD, "numeric mismatch", "why", facts={"failing": list(failing)})


def of(tensor: str = "o", way: str = "values", relative: float | None = 0.1) -> dict[str, Any]:
    return {"tensor": tensor, "ways": [way], "relative": relative, "stage": False, "reasons": []}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (mismatch(of()), True),
        (mismatch(of("state")), True),
        (mismatch(of(relative=0.026)), True),
        (mismatch(of(relative=0.024)), False),
        (mismatch(of(relative=None)), True),
        (mismatch(of(way="not finite")), False),
        (mismatch(of(way="not finite"), of("state")), True),
        (Verdict(State.BAD, "crash", "IndexError: 3"), False),
        (Verdict(State.GOOD, "pass"), False),
        (Verdict(State.SKIP, "unsupported"), False),
    ],
)
def test_what_counts_as_the_same_mismatch(other: Verdict, same: bool) -> None:
    assert Signature.of_verdict(mismatch(of())).is_shown_by(other, same_tensor=False) is same


@pytest.mark.parametrize(
    ("error", "other", "same"),
    [
        (1e6, of(relative=0.26), True),  # it grows from token to token: in fewer tokens it is smaller
        (1e6, of(relative=0.24), False),
        (None, of(relative=1.1), True),  # it has overflowed: in fewer tokens it has not
        (None, of(relative=0.9), False),
        (None, of(way="not finite"), True),
    ],
)
def test_an_error_that_grows_is_the_same_one_before(
    error: float | None, other: dict[str, Any], same: bool
) -> None:
    first = of(way="values" if error else "not finite", relative=error)
    assert Signature.of_verdict(mismatch(first)).is_shown_by(mismatch(other), same_tensor=False) is same


def test_one_of_the_findings_is_the_same() -> None:
    def race(*findings: str) -> Verdict:
        return Verdict(State.BAD, "check error", "why", facts={"findings": dict.fromkeys(findings, 1)})

    first = Signature.of_verdict(race("a", "b"))
    assert first.is_shown_by(race("b"), same_tensor=False)
    assert not first.is_shown_by(race("c"), same_tensor=False)


def test_the_same_tensor_and_the_same_error() -> None:
    assert not Signature.of_verdict(mismatch(of())).is_shown_by(mismatch(of("state")), same_tensor=True)
    assert Signature.of_verdict(mismatch(of())).is_shown_by(mismatch(of("state"), of()), same_tensor=True)
    crash = Signature.of_verdict(Verdict(State.BAD, "crash", "IndexError: index 3 is out of range"))
    assert crash.is_shown_by(
        Verdict(State.BAD, "crash", "IndexError: index 0 is out of range"), same_tensor=False
    )
    assert not crash.is_shown_by(Verdict(State.BAD, "crash", "ValueError: no tokens"), same_tensor=False)


@pytest.mark.parametrize(
    "like",
    [
        torch.zeros(6, 3, 4),
        torch.zeros(6, 8, 4)[:, 2:5],
        torch.zeros(3, 6, 4).transpose(0, 1),
        torch.zeros(6, 3, 9)[:, :, 1:5],
        torch.zeros(200)[16:].as_strided((6, 3, 4), (20, 4, 1), 16),
    ],
)
def test_a_tensor_lies_as_another_did(like: Tensor) -> None:
    same = in_layout_of(torch.arange(72.0).view(6, 3, 4), like)
    assert same.stride() == like.stride()
    assert same.storage_offset() == like.storage_offset()
    small = torch.arange(12.0).view(2, 3, 2)
    found = in_layout_of(small, like)
    assert torch.equal(found, small)
    assert is_plain(found) is is_plain(like)
    order = sorted(range(3), key=like.stride)
    assert sorted(range(3), key=found.stride) == order


def test_expanded_axes_stay_so_while_their_elements_agree() -> None:
    like = torch.zeros(4, 1).expand(4, 5)
    alike = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    assert in_layout_of(alike, like).stride() == (1, 0)
    assert torch.equal(in_layout_of(alike, like), alike)
    other = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert in_layout_of(other, like) is other


def test_values() -> None:
    x = torch.tensor([[0.0, -0.3, 5.6], [torch.inf, torch.nan, -100.0]], dtype=torch.bfloat16)
    simple = {filling.name: filling.of(x, 0.5) for filling in FILLINGS}
    assert simple["zeros"].tolist() == [[0] * 3] * 2
    assert simple["one value"].tolist() == [[0.5] * 3] * 2
    assert torch.equal(simple["equal rows"], x[:1].expand(2, 3))
    # log2 0.3 = -1.74, log2 5.6 = 2.49, log2 100 = 6.64
    assert repr(simple["powers of two"].tolist()) == repr([[0.0, -0.25, 4.0], [torch.inf, torch.nan, -128.0]])
    assert simple["small integers"][0].tolist() == [0, 0, 6]
    assert simple["small integers"][1, ::2].tolist() == [8, -8]
    assert all(of_kind.dtype == torch.bfloat16 for of_kind in simple.values())
    call = Call({"x": x}, {}, {})
    assert repr(with_rows_kept(call, "x", simple["zeros"], 1, [2]).tensors["x"].tolist()) == repr(
        [[0.0, 0.0, x[0, 2].item()], [0.0, 0.0, -100.0]]
    )


def test_spans() -> None:
    assert spans([]) == "none"
    assert spans([3]) == "3"
    assert spans([0, 1, 2, 5]) == "0-2, 5"
    assert spans([0, 2, 4, 6, 8]) == "5"


def test_a_draft_is_known_by_what_it_holds(tmp_path: Path) -> None:
    calls = [
        synthesise("gdn_decode", batch=3, slots=slots, slot_gap=gap, heads=(1, 1), head_dim=(4, 4))
        for slots, gap in ((4, 0), (5, 0), (4, 3))
    ]
    drafts = [draft("gdn_decode", call) for call in calls]
    with StoreWriter(tmp_path / "s.zarr", kind="synth", durable=False) as writer:
        writer.write("0", drafts)
    with Store.open(tmp_path / "s.zarr") as store:
        for record, one in zip(store.records, drafts, strict=True):
            assert cache_key.digest_records([record]) == cache_key.digest_drafts([one])
        # A pool of another size and slots further apart are other records.
        assert len({cache_key.digest_records([record]) for record in store.records}) == 3


@pytest.mark.parametrize(
    "bad",
    [
        'x"""\nimport os; os.abort()\n"""',
        "ends in a backslash \\",
        'ends in a quote "',
        "\\N{no such name} \\x",
        "\x1b[2J\r\u2028\0\udcff",
    ],
)
def test_a_hostile_text_stays_in_the_docstring_of_a_script(bad: str) -> None:
    """What is seen of a failure may quote the store, and the store may be a stranger's."""
    call = synthesise("gdn_decode", batch=1, heads=(1, 1), head_dim=(8, 8), seed=1)
    trial = Trial("run.zarr", f"{bad}:kernel")
    failing = {**of(), "held": []}
    verdict = Verdict(State.BAD, "numeric mismatch", bad, facts={"failing": [failing]})
    op = operation("gdn_decode")
    plain = text_of(
        op, call, Trial("run.zarr", "mine:kernel"), mismatch(failing), "small.zarr", "small.py", "title"
    )
    hostile = text_of(op, call, trial, verdict, bad, bad, bad)
    hostile.encode()
    kinds = [type(node) for node in ast.parse(plain).body]
    tree = ast.parse(hostile)
    assert [type(node) for node in tree.body] == kinds
    docstring = ast.get_docstring(tree, clean=False)
    assert docstring is not None
    assert docstring.count(printable(bad)) == 5
    assert all(line.isprintable() for line in docstring.split("\n"))
