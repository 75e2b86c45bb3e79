# SPDX-License-Identifier: Apache-2.0
"""Kernels written as functions of one object: they are called by name, as `contract.Kernel` says."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, fields
from typing import Any

import pytest

from gdnbench_kernels.contract import Operation
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.params import by_name, from_call, takes_params
from gdnbench_kernels.swa_decode.contract import OPERATION as SWA
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from tests.messages import wording


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    width: int
    depth: int | None = None
    height: int = 2


@takes_params(Sizes, without=("height",), required=("depth",))
def volume(sizes: Sizes, *, factor: int = 1) -> int:
    """The product."""
    assert sizes.depth is not None
    return factor * sizes.width * sizes.depth * sizes.height


def test_arguments_are_passed_by_name() -> None:
    assert volume(width=3, depth=5) == 30
    assert volume(factor=7, depth=5, width=3) == 210
    assert by_name(Sizes(width=3)) == {"width": 3, "depth": None, "height": 2}
    assert from_call(Sizes, {"width": 3, "height": None, "gate": "log"}) == Sizes(width=3)


def test_the_signature_and_the_docstring_tell_every_argument() -> None:
    assert (
        str(inspect.signature(volume)) == "(*, width: 'int', depth: 'int | None', factor: 'int' = 1) -> 'int'"
    )
    assert volume.__name__ == "volume"
    described = wording("kernels.params-doc", module=__name__, params="Sizes")
    assert re.fullmatch(rf"The product\.\n\n{described}", str(volume.__doc__))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 5}, "volume() missing a required argument: 'width'"),
        ({"width": 3}, "volume() missing a required argument: 'depth'"),
        ({"width": 3, "depth": 5, "height": 2}, "volume() got an unexpected keyword argument 'height'"),
        ({"width": 3, "depth": 5, "wdith": 2}, "volume() got an unexpected keyword argument 'wdith'"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as refused:
        volume(**arguments)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("operation", "params"), [(DECODE, DecodeParams), (PREFILL, PrefillParams), (SWA, SwaBufferParams)]
)
def test_fields_are_the_contract_s(operation: Operation, params: type[Any]) -> None:
    """Names, and defaults of scalars and conventions, are those of the contract."""
    defaults = {spec.name: spec.default for spec in operation.scalars} | operation.default_conventions
    tensors = {spec.name for spec in operation.tensors}
    for field in fields(params):
        assert field.name in tensors or field.default == defaults[field.name], field.name
