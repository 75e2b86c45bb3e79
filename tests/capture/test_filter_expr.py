# SPDX-License-Identifier: Apache-2.0
"""`--when`: what an expression may be, and what it says of a call."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from gdnbench.capture.filter_expr import TensorForm, When
from gdnbench.capture.launch import run_captured
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.trigger import known_names, tensor_names
from gdnbench.errors import BadInputError
from tests.messages import wording

CALL: dict[str, Any] = {
    "op": "gdn_decode",
    "layer": "model.layers.3.linear_attn",
    "layer_index": 3,
    "step": 7,
    "call": 40,
    "rank": None,
    "scale": 0.25,
    "gate": "log",
    "B": 2,
    "Hv": 8,
    "q": TensorForm((2, 1, 4, 16), "bfloat16"),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("step == 7 and B * Hv >= 16", True),
        ("q.shape[2] == 4 and q.shape[-1] // 4 == 4 and q.ndim == 4", True),
        ("q.dtype == 'float32'", False),
        ("layer_index in (1, 3) and 'layers.3.' in layer", True),
        ("max(q.shape) > 16 or any([scale > 1, gate == 'raw'])", False),
        ("min(B, 3) + abs(-1) + sum(q.shape[1:]) + len(layer) > 20 and all((q.shape))", True),
        ("not step % 7", True),
        ("'even' if step % 2 == 0 else ''", False),
        ("rank is None", True),
        # What the call has not.
        ("T > 100", False),
        ("T <= 100", False),
        ("T == T", False),
        ("not T", True),
        ("T > 100 or B == 2", True),
        ("-T * 2 + 1 < 5 or 3 // T or T[0] or (T if T else B)", True),
        ("sum(initial_state.shape) == 0", True),
        ("max(initial_state.shape) > 0", False),
        ("num_accepted", False),
        ("q", True),
    ],
)
def test_what_holds_of_a_call(text: str, holds: bool) -> None:
    when = When(text)
    when.check_names(known_names(), tensor_names())
    assert when.holds(CALL) is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step ==", wording("capture.when-syntax")),
        ("", wording("capture.when-syntax")),
        ("().__class__", wording("capture.when-attributes", known="shape, dtype, ndim")),
        ("q.shape.__class__", wording("capture.when-attributes", known="shape, dtype, ndim")),
        ("q.data", wording("capture.when-attributes", known="shape, dtype, ndim")),
        ("__import__('os')", wording("capture.when-functions", known=re.compile("len, min.*"))),
        ("len(*q.shape)", wording("capture.when-refused", kind="Starred")),
        ("max(q.shape, key=len)", wording("capture.when-functions")),
        ("(lambda: 1)()", wording("capture.when-functions", known=re.compile("len, min.*"))),
        ("[x for x in q.shape]", wording("capture.when-refused", kind="ListComp")),
        ("(step := 1)", wording("capture.when-refused", kind="NamedExpr")),
        ("9 ** 9 ** 9", wording("capture.when-refused", kind="Pow")),
        ("1 << 9", wording("capture.when-refused", kind="LShift")),
        ("f'{q}'", wording("capture.when-refused", kind="JoinedStr")),
        ("b'' < layer", wording("capture.when-constants")),
        ("{'a': 1}", wording("capture.when-refused", kind="Dict")),
        ("(" * 500 + "1" + ")" * 500, wording("capture.when-syntax")),
        (
            "foo(" + "+".join(["T"] * 900) + ")",
            wording("capture.when-functions", known=re.compile("len, min.*")),
        ),
        ("-" * 3000 + "T", wording("capture.when-syntax")),
        ("len", wording("capture.when-function")),
        ("len.shape", wording("capture.when-function")),
        ("[0] * 99999999999 == T", wording("capture.when-multiplies")),
        ("'%999999999d' % T", wording("capture.when-multiplies")),
    ],
)
def test_what_is_refused_at_once_and_in_a_line(text: str, said: str) -> None:
    with pytest.raises(BadInputError) as refused:
        CaptureOptions(when=text)
    assert re.search(said, str(refused.value))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("text", ["1 is 1", "(1)(2)", "'\\d' == layer"])
def test_python_says_nothing_of_its_own(text: str) -> None:
    with warnings.catch_warnings(action="error"), contextlib.suppress(BadInputError):
        When(text)


@pytest.mark.parametrize("text", ["op * 99999999999", "q.shape * 99999999999", "gate % 3"])
def test_text_and_lists_are_not_multiplied(text: str) -> None:
    """Of what a name stands for: nothing that large is made."""
    with pytest.raises(TypeError, match="of numbers is wanted"):
        When(text).holds(CALL)


@pytest.mark.parametrize("name", ["T", "layer", "scale", "gate"])
def test_what_is_no_tensor_has_no_shape(name: str) -> None:
    with pytest.raises(
        BadInputError, match=wording("capture.when-not-tensor", name=name, attributes="shape, dtype, ndim")
    ):
        When(f"{name}.shape == 3").check_names(known_names(), tensor_names())


def test_the_command_refuses_it_before_the_program_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=wording("capture.when-not-tensor", name="T")):
        run_captured(
            tmp_path / "run.zarr", ["touch", str(tmp_path / "ran")], CaptureOptions(when="T.shape == 3")
        )
    assert not (tmp_path / "ran").exists()


def test_a_number_where_another_operation_has_a_tensor_is_no_such_tensor() -> None:
    """The program that is captured sees no AttributeError."""
    assert not When("q.shape[0] == 2").holds({**CALL, "q": 2.0})
    assert not When("q.ndim != 4").holds({**CALL, "q": None})
    assert When("q == 2.0").holds({**CALL, "q": 2.0})


def test_a_name_that_no_operation_has_is_refused() -> None:
    with pytest.raises(
        BadInputError,
        match=wording("capture.when-name-unknown", name="setp", known=re.compile("op, layer, .*swa_lens")),
    ):
        When("setp == 1").check_names(known_names())


def test_an_error_of_the_expression_itself_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        When("1 // (step - 7)").holds(CALL)
    with pytest.raises(TypeError):
        When("layer > 1").holds(CALL)


def test_no_name_means_two_things_in_one_operation() -> None:
    from gdnbench.capture.filter_expr import CALL_NAMES, FUNCTIONS
    from gdnbench.ops import operations

    for contract in operations().values():
        tensors = {spec.name for spec in contract.tensors}
        axes = {axis for spec in contract.tensors for axis in spec.axes if axis.isidentifier()}
        said = {one.name for one in contract.scalars} | {one.name for one in contract.conventions}
        sets = [tensors, axes, said, set(CALL_NAMES), set(FUNCTIONS)]
        assert len(set().union(*sets)) == sum(map(len, sets)), contract.name
